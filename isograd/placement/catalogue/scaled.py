"""The branch scaled, mostly by a trained number: with a norm inside or without any."""

from isograd.placement import laws
from isograd.placement.formula import Coupled, Gains, Init, Learned, Norm, Placement, Residual

N = Norm()
_T_FIXUP: Gains = {
    "value": laws.t_fixup_value,
    **dict.fromkeys(("attn_out", "ffn_in", "ffn_out"), laws.t_fixup_init),
    "embed": laws.t_fixup_embedding,
}

SCALED: dict[str, Placement] = {
    "no-norm": Placement(
        each=Residual(),
        about="x + f(x) and nothing else: no norm, no coefficient, no init of its own",
        paper="He et al. 2015, arXiv 1512.03385, the residual itself",
        note="What folding leaves of rezero and skipinit. To train from scratch take one of these, or t-fixup: nothing"
        " bounds the stream here.",
        group="scaled",
    ),
    "layerscale": Placement(
        each=Residual(pre=N, scale=Learned(init=laws.layerscale_init)),
        final=N,
        about="pre-ln with a small trained vector on each branch",
        paper="Touvron et al. 2021 (CaiT), arXiv 2103.17239",
        note="Made for vision; on text at 130M it ends above pre-ln (27.93 and 26.73 PPL, arXiv 2502.05795).",
        group="scaled",
        families=("dinov2", "dinov3_vit", "beit"),
    ),
    "rezero": Placement(
        each=Residual(scale=Learned(init=0.0, shape="layer")),
        about="no norm; each layer's branches times a trained number that begins at 0",
        paper="Bachlechner et al. 2020, arXiv 2003.04887",
        note="At init the stack is the identity. Unstable in fp16 (arXiv 2203.00555).",
        group="scaled",
    ),
    "skipinit": Placement(
        each=Residual(scale=Learned(init=0.0, shape="scalar")),
        about="no norm; each branch times a trained number of its own that begins at 0",
        paper="De and Smith 2020, arXiv 2002.10444",
        note="On text at 130M it ends above pre-ln (27.41 and 26.73 PPL, arXiv 2502.05795).",
        group="scaled",
    ),
    "t-fixup": Placement(
        each=Residual(),
        init=Init(
            base="xavier-uniform",
            gain=_T_FIXUP,
        ),
        about="no norm; W_V, W_O, W_1, W_2 and token vectors drawn smaller with depth",
        paper="Huang et al. 2020, ICML (T-Fixup)",
        note="Adam without warm-up, for tasks with little data; nothing bounds activations later on.",
        group="scaled",
    ),
    "variance-gate": Placement(
        each=Residual(
            pre=N,
            out=N,
            skip=Coupled(by="circle", floor=1e-3),
            scale=Learned(init=0.5, by="sigmoid"),
        ),
        final=N,
        about="sandwich with a trained b on the branch and sqrt(1 - b^2) on the skip",
        paper="Muse Spark 2026, as released (transformers muse_spark)",
        note="a^2 + b^2 = 1 keeps the variance of the stream. Its release divides the gate's parameter by a temperature"
        " of 0.3, which is a learning rate of its own; here it is 1.",
        group="scaled",
        families=("muse_spark",),
    ),
}

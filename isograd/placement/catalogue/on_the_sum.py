"""Norm on the sum: Post-LN, and what makes it train when it is deep."""

from isograd.placement import laws
from isograd.placement.formula import Gains, Init, Learned, Norm, Placement, Residual
from isograd.placement.laws import Site

N = Norm()
_POST, _PRE = Residual(post=N), Residual(pre=N)
_DS_INIT: Gains = {
    **dict.fromkeys(("query", "key", "value"), laws.unfused_layer_init),
    **dict.fromkeys(("attn_out", "ffn_in", "ffn_out"), laws.layer_init),
}


def _first_quarter_post(site: Site) -> Residual:
    return _POST if site.layer <= max(1, site.layers // 4) else _PRE


NORM_ON_THE_SUM: dict[str, Placement] = {
    "post-ln": Placement(
        each=Residual(post=N),
        about="the norm on the sum, as in the original Transformer",
        paper="Vaswani et al. 2017, arXiv 1706.03762",
        note="Needs warm-up; deep stacks fail even with it.",
        group="norm on the sum",
        families=("bert", "bart", "marian", "opt-350m"),
    ),
    "admin": Placement(
        each=Residual(post=N, skip=Learned()),
        calibrate="admin",
        about="post-ln with a trainable skip per sublayer, set from a profile of the first batch",
        paper="Liu et al. 2020, arXiv 2004.08249",
        note="Still wants warm-up when deep: 36 layers at LR 1e-3 collapse without it, and train with 100 steps of it "
        "or at 3e-4.",
        group="norm on the sum",
    ),
    "admin-closed": Placement(
        each=Residual(post=N, skip=Learned(init=laws.admin_closed_skip)),
        about="admin with the later closed form in place of the profile",
        paper="Liu et al., admin-torch (the author's later release)",
        note="One initial value for all sublayers of a stack; no profile needed.",
        group="norm on the sum",
    ),
    "deepnorm": Placement(
        each=Residual(post=N, skip=laws.deepnorm_skip),
        init=Init(
            base="xavier-normal",
            gain=dict.fromkeys(("value", "attn_out", "ffn_in", "ffn_out"), laws.deepnorm_init),
        ),
        about="post-ln with a constant skip above 1 and a smaller init of the branch",
        paper="Wang et al. 2022, arXiv 2203.00555",
        note="Constants differ for encoder-only, decoder-only, and the two stacks of an encoder-decoder.",
        group="norm on the sum",
        families=("chatglm",),
    ),
    "ds-init": Placement(
        each=_POST,
        init=Init(
            base="xavier-uniform",
            gain=_DS_INIT,
        ),
        about="post-ln with all matrices of layer l drawn 1/sqrt(l) as large",
        paper="Zhang et al. 2019, arXiv 1908.11365",
        note="Its authors merge the attentions of a decoder's layer too; here they stay apart. Try it where post-ln"
        " fails at some 12 layers, and deepnorm beyond.",
        group="norm on the sum",
    ),
    "keel": Placement(
        each=Residual(pre=N, post=N, skip=laws.sublayers),
        about="a norm before the branch and one on the sum, the skip times the number of sublayers",
        paper="KEEL 2026, arXiv 2601.19895",
        note="The sum is nearly the skip, so gradients pass; high learning rates are what it is for. Other accounts"
        " have L in place of 2L, and a first layer without the outer norm.",
        group="norm on the sum",
        unconfirmed=True,
    ),
    "mix-ln": Placement(
        each=_first_quarter_post,
        final=N,
        about="post-ln in the first quarter of the layers, pre-ln in the others",
        paper="Li et al. 2024, arXiv 2412.13795",
        note="3 of 12 layers, 6 of 24, at least one. A later study (arXiv 2502.05795) reports that it fails from 350M"
        " parameters on: watch the first layers, or take layernorm-scaling.",
        group="norm on the sum",
    ),
}

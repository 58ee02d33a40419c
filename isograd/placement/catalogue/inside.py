"""Norm inside the residual: before the branch, behind it, in front of its last projection."""

from isograd.placement import laws
from isograd.placement.catalogue.normformer import NORMFORMER
from isograd.placement.formula import ByKind, Gains, Init, Norm, Placement, ProjectionNorm, Residual
from isograd.placement.laws import Site

N = Norm()
RMS = Norm(kind="rmsnorm")
_PRE = Residual(pre=N)
_SANDWICH = Residual(pre=N, out=N)
_SUB = Residual(pre=N, mid=N)
_SUB_RMS = Residual(pre=RMS, mid=RMS)
_SUB_INIT: Gains = dict.fromkeys(("value", "attn_out", "ffn_in", "ffn_out"), laws.sub_ln_init)
_OUTPUTS: Gains = dict.fromkeys(("attn_out", "ffn_out"), laws.gpt2_init)
_QK_WIDTH = ProjectionNorm(of=("query", "key"))
_SCALED = Residual(pre=Norm(scale=laws.layer_init))
_DYT, _DERF = Norm(kind="dyt"), Norm(kind="derf")

_HYBRID_ATTN = Residual(post=N, projections=ProjectionNorm(of=("query", "key", "value"), over="head"))
_HYBRID = ByKind(attn=_HYBRID_ATTN, ffn=Residual())


def _hybrid_star(site: Site) -> Residual | ByKind:
    return _PRE if site.layer == 1 else _HYBRID


NORM_INSIDE: dict[str, Placement] = {
    "pre-ln": Placement(
        each=_PRE,
        final=N,
        about="the norm inside the residual, before the branch, and one final norm",
        paper="Xiong et al. 2020, arXiv 2002.04745",
        note="Trains without warm-up.",
        group="norm inside",
        families=("gpt_neox", "llama", "mistral", "qwen2"),
    ),
    "gpt2": Placement(
        each=_PRE,
        final=N,
        init=Init(base="normal", gain={"attn_out": laws.gpt2_init, "ffn_out": laws.gpt2_init}),
        about="pre-ln with W_O and W_2 initialized smaller with depth",
        paper="Radford et al. 2019, section 2.3",
        note="Weights are drawn from N(0, 0.02^2).",
        group="norm inside",
        families=("gpt2", "megatron"),
    ),
    **NORMFORMER,
    "sandwich": Placement(
        each=_SANDWICH,
        final=N,
        about="pre-ln with one more norm on what each branch wrote",
        paper="Ding et al. 2021 (CogView), arXiv 2105.13290",
        note="The branch's size no longer depends on its weights, so large W_O and W_2 do no harm; the stream still"
        " grows as sqrt(n). Gemma's norms store their weight around 1.",
        group="norm inside",
        families=("gemma2", "gemma3", "glm4", "lfm3", "afmoe"),
    ),
    "peri-ln": Placement(
        each=_SANDWICH,
        first=N,
        final=N,
        about="sandwich with a norm on the embedding",
        paper="Kim et al. 2025, arXiv 2502.02732",
        note="The variance of the stream grows by about 1 per sublayer at init, from 1.",
        group="norm inside",
    ),
    "olmo2": Placement(
        each=ByKind(attn=Residual(out=N, projections=_QK_WIDTH), ffn=Residual(out=N)),
        final=N,
        init=Init(base="normal"),
        about="a norm on what each branch wrote, none before it, and norms on queries and keys over the whole width",
        paper="OLMo 2 team 2024, arXiv 2501.00656",
        note="Branches read the stream as it grows. Weights are drawn from N(0, 0.02^2).",
        group="norm inside",
        families=("olmo2", "olmo3", "exaone4"),
    ),
    "sub-ln": Placement(
        each=ByKind(attn=_SUB, cross=_PRE, ffn=_SUB),
        final=N,
        init=Init(base="xavier-normal", gain=_SUB_INIT),
        about="pre-ln with one more norm before W_O and W_2, and an init that grows with depth",
        paper="Wang et al. 2022 (Magneto), arXiv 2210.06423",
        note="As torchscale has it; the cross-attention keeps pre-ln's form.",
        group="norm inside",
    ),
    "sub-ln-bitnet": Placement(
        each=ByKind(attn=_SUB_RMS, cross=Residual(pre=RMS), ffn=_SUB_RMS),
        final=RMS,
        init=Init(base="normal"),
        about="sub-ln in RMSNorm, drawn from N(0, 0.02^2)",
        paper="Ma et al. 2025 (BitNet b1.58 2B4T), arXiv 2504.12285",
        note="BitNet's layer is this with relu_squared, rotary positions and ternary weights.",
        group="norm inside",
        families=("bitnet",),
    ),
    "sub-ln-kosmos2": Placement(
        each=ByKind(attn=_SUB, cross=_PRE, ffn=_SUB),
        final=N,
        init=Init(base="normal"),
        about="sub-ln's function, drawn from N(0, 0.02^2) at every depth",
        paper="Peng et al. 2023 (Kosmos-2), arXiv 2306.14824",
        note="For weights of that family; to train from scratch take sub-ln, whose init knows the depth.",
        group="norm inside",
        families=("kosmos-2", "kosmos-2.5"),
    ),
    "layernorm-scaling": Placement(
        each=_SCALED,
        final=N,
        init=Init(base="normal"),
        about="pre-ln with the norm's output times 1/sqrt(l) in layer l",
        paper="Sun et al. 2025, arXiv 2502.05795",
        note="Not together with an init that shrinks with depth (gpt2's): the paper finds 20.79 against 20.35 PPL. The"
        " factor is a constant here, so it cannot be lost on the meta device.",
        group="norm inside",
    ),
    "hybridnorm": Placement(
        each=_HYBRID,
        final=N,
        init=Init(base="small-init", gain=_OUTPUTS),
        about="norms on queries, keys and values, and one on the attention's sum; the feed-forward has none of its own",
        paper="Zhuo et al. 2025, arXiv 2503.04598",
        note="h = x + Attn(x), y = LN(h), x <- y + FFN(y).",
        group="norm inside",
    ),
    "hybridnorm-star": Placement(
        each=_hybrid_star,
        final=N,
        init=Init(base="small-init", gain=_OUTPUTS),
        about="hybridnorm with a pre-ln layer first",
        paper="Zhuo et al. 2025, arXiv 2503.04598",
        note="The paper's better form.",
        group="norm inside",
    ),
    "dyt": Placement(
        each=Residual(pre=_DYT),
        final=_DYT,
        about="pre-ln with tanh(slope x) in place of every norm",
        paper="Zhu et al. 2025, arXiv 2503.10622",
        note="Slopes begin at 0.5. In LLaMA the authors take 0.8 before attention and 0.2 elsewhere at 7B, 0.2 and 0.05"
        " at 70B (Norm(kind='dyt', slope=...)), and multiply the embedding by sqrt(d).",
        group="norm inside",
    ),
    "derf": Placement(
        each=Residual(pre=_DERF),
        final=_DERF,
        about="pre-ln with erf(slope x + shift) in place of every norm",
        paper="Chen et al. 2025, arXiv 2512.10938",
        note="As dyt; slopes begin at 0.5, shifts at 0.",
        group="norm inside",
    ),
}

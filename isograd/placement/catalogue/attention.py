"""Inside attention: norms on queries and keys, gates, clipped logits. All of them on pre-ln."""

from dataclasses import replace
from typing import Literal

from isograd.placement.formula import ByKind, ClipLogits, Gate, Norm, Placement, ProjectionNorm, Residual

N = Norm()
_PRE = Residual(pre=N)
_QK: tuple[Literal["query", "key"], ...] = ("query", "key")


def _on_attention(projections: ProjectionNorm | None = None, gate: Gate | None = None) -> ByKind:
    return ByKind(attn=replace(_PRE, projections=projections, gate=gate), ffn=_PRE)


IN_ATTENTION: dict[str, Placement] = {
    "qk-norm": Placement(
        each=_on_attention(ProjectionNorm(of=_QK, over="head")),
        final=N,
        about="pre-ln with a norm on the queries and one on the keys of each head",
        paper="Dehghani et al. 2023, arXiv 2302.05442",
        note="Bounds the attention's logits, whose growth precedes many divergences. ViT-22B's norms have no bias and"
        " its sublayers run side by side; here they are pre-ln's.",
        group="attention",
        families=("qwen3", "qwen3_moe", "gemma3"),
    ),
    "qk-norm-heads": Placement(
        each=_on_attention(ProjectionNorm(of=_QK, over="heads")),
        final=N,
        about="qk-norm with weights of each head's own",
        paper="Cohere 2024 (Command R+), as released (transformers cohere)",
        note="heads times as many norm weights as qk-norm.",
        group="attention",
        families=("cohere",),
    ),
    "qk-norm-width": Placement(
        each=_on_attention(ProjectionNorm(of=_QK, over="width")),
        final=N,
        about="pre-ln with a norm on the queries and one on the keys, over all heads together",
        paper="OLMo 2 team 2024, arXiv 2501.00656",
        note="A head's logits are bounded only together with the other heads': one may grow while others shrink.",
        group="attention",
        families=("olmo2", "olmoe", "chameleon"),
    ),
    "qk-norm-free": Placement(
        each=_on_attention(
            ProjectionNorm(of=_QK, over="head", norm=Norm(kind="rmsnorm", affine=False, scale=1.2), after_rotary=True)
        ),
        final=N,
        about="qk-norm without weights, after rotary positions, times 1.2 each",
        paper="nanochat 2026, as released",
        note="Logits are at most 1.44 sqrt(width of a head), whatever happens.",
        group="attention",
        families=("nanochat",),
    ),
    "gated-attention": Placement(
        each=_on_attention(gate=Gate()),
        final=N,
        about="pre-ln with a sigmoid gate for each feature of each head before W_O",
        paper="Qiu et al. 2025, arXiv 2505.06708",
        note="The gate begins near 1/2, so the attention branch begins with a quarter of the variance. The authors"
        " report fewer attention sinks and higher stable learning rates.",
        group="attention",
        families=("qwen3_next", "qwen3_5", "qwen4_exp", "muse_spark"),
    ),
    "gated-attention-heads": Placement(
        each=_on_attention(gate=Gate(per="head")),
        final=N,
        about="gated-attention with one number for each head",
        paper="Qiu et al. 2025, arXiv 2505.06708",
        note="Hardly any parameters; the paper's gain is smaller than by features.",
        group="attention",
    ),
    "qk-clip": Placement(
        each=_PRE,
        final=N,
        constrain=(ClipLogits(),),
        about="pre-ln; after a step, W_Q and W_K of a head whose logits passed 100 are scaled back",
        paper="Kimi team 2025 (Kimi K2), arXiv 2507.20534",
        note="The function is pre-ln's. Made for Muon, under which logits grow fastest.",
        group="attention",
        families=("kimi_k2",),
    ),
}

"""Rules that carry learning rates from one depth to another, and nGPT's sphere."""

from dataclasses import replace

from isograd.placement import laws
from isograd.placement.formula import (
    ByKind,
    Coupled,
    Init,
    Learned,
    Norm,
    Placement,
    ProjectionNorm,
    Rates,
    Residual,
    Role,
    UnitNorm,
)

N = Norm()
IN_LAYERS: tuple[Role, ...] = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out", "dense", "norm", "coefficient")

_SPHERE = Norm(kind="l2", affine=False)
_ON_SPHERE = Residual(out=_SPHERE, post=_SPHERE, skip=Coupled(by="complement"), scale=Learned(init=0.05, by="abs"))
_NGPT_QK = ProjectionNorm(of=("query", "key"), over="heads", norm=Norm(kind="l2", scale="root"), after_rotary=True)
_ROOT = Norm(kind="none", affine=False, scale="root")
_NGPT_UV = ProjectionNorm(of=("ffn_in",), norm=Norm(kind="none"))

PARAMETERIZATION: dict[str, Placement] = {
    "depth-mup": Placement(
        each=Residual(pre=N, scale=laws.inverse_root_depth),
        final=N,
        init=Init(base="normal"),
        rates=Rates(
            lr=dict.fromkeys(IN_LAYERS, laws.inverse_root_depth),
            eps=dict.fromkeys(IN_LAYERS, laws.inverse_root_depth),
        ),
        about="pre-ln with branch, learning rate and eps of layers times 1/sqrt(L)",
        paper="Yang et al. 2023, arXiv 2310.02244",
        note="The depth rule alone; what changes with width is not a placement's.",
        group="parameterization",
    ),
    "completep": Placement(
        each=Residual(pre=N, scale=laws.inverse_depth),
        final=N,
        init=Init(base="normal"),
        rates=Rates(eps=dict.fromkeys(IN_LAYERS, laws.inverse_depth)),
        about="pre-ln with branches and the eps of layers times 2/L, learning rates as they are",
        paper="Dey et al. 2025, arXiv 2505.01618",
        note="At 2 layers, the base depth of its authors' experiments (EleutherAI/nanoGPT-mup, branch completep), it is"
        " pre-ln: tune there, and keep the learning rate at any depth. What changes with width is not a placement's.",
        group="parameterization",
    ),
    "ngpt": Placement(
        each=ByKind(
            attn=replace(_ON_SPHERE, projections=_NGPT_QK),
            cross=replace(_ON_SPHERE, projections=replace(_NGPT_QK, after_rotary=False)),
            ffn=replace(_ON_SPHERE, pre=_ROOT, projections=_NGPT_UV),
        ),
        first=_SPHERE,
        final=Norm(kind="none", scale="root"),
        init=Init(base="unit"),
        constrain=(
            UnitNorm(rows=("query", "key", "value", "ffn_in", "embed", "head"), columns=("attn_out", "ffn_out")),
        ),
        about="every vector and every row of a matrix has length 1; x moves a share of the way to the branch",
        paper="Loshchilov et al. 2024 (nGPT), arXiv 2410.01131",
        note="No warm-up, no weight decay; set bias=False. Three differences to NVIDIA/ngpt: logits are scaled by a"
        " number for each feature, from sqrt(d), where it has one for each word, from 1 (a placement ends where the"
        " head begins); queries and keys have scales of their own, where it has one vector for both; and trained scales"
        " learn at the common rate, where it stores alpha, s_qk and s_z times 1/sqrt(d), so that a step of Adam moves"
        " s_qk and s_z sqrt(d) and alpha 0.05 sqrt(d) times as far.",
        group="parameterization",
    ),
}

"""Rules that carry learning rates from one depth to another."""

from isograd.placement import laws
from isograd.placement.formula import Init, Norm, Placement, Rates, Residual, Role

N = Norm()
IN_LAYERS: tuple[Role, ...] = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out", "dense", "norm", "coefficient")

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
        note="At 2 layers it is pre-ln: tune there, and keep the learning rate at any depth. What changes with width is"
        " not a placement's.",
        group="parameterization",
    ),
}

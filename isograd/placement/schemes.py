"""Inits by name: the standard deviation of every role's weights, for any model. The one table of schemes.

    std of a matrix = base(fan_in, fan_out, width) * gain(role, site)

`isograd init` draws by it, and `isograd check` recognizes by it. Gains are the catalogue's own.
`isograd.transformer.init` draws our own models, whose placement names a base and gains.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from isograd.placement import laws
from isograd.placement.catalogue import CATALOGUE
from isograd.placement.formula import Init, Role
from isograd.placement.laws import Site

RANGE = 0.02  # of GPT-2 and BERT


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a base reads: of W (fan_out, fan_in), the model's width, and the std that its configuration names."""

    fan_in: int
    fan_out: int
    width: int
    range: float = RANGE


BASES: dict[str, tuple[str, Callable[[Shape], float]]] = {  # name -> how it is called, its std
    "normal": ("N(0, initializer_range^2)", lambda s: s.range),
    "xavier": ("Xavier's 2 / (fan_in + fan_out)", lambda s: math.sqrt(2 / (s.fan_in + s.fan_out))),
    "torch": ("torch's U(+-1/sqrt(fan_in))", lambda s: 1 / math.sqrt(3 * s.fan_in)),
    "lecun": ("1 / fan_in", lambda s: 1 / math.sqrt(s.fan_in)),
    "small": ("2 / (5 d), small init,", lambda s: math.sqrt(2 / (5 * s.width))),
}


PLAIN = Init()


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """An init.

    Attributes:
        base: of `BASES`, for matrices in layers.
        table: std of token and position tables, and of a head of its own, from the shape (fan_in the width).
        init: its gains by role.
        fused: W_Q, W_K, W_V are drawn as one Xavier matrix (3d, d): sqrt(1/2) of what each has alone.
        uniform: drawn evenly, not normally.
    """

    base: Literal["normal", "xavier", "small"]
    table: Callable[[Shape], float]
    init: Init = PLAIN
    fused: bool = False
    uniform: bool = False
    about: str
    paper: str

    def std(self, role: Role, site: Site, shape: Shape) -> float:
        """Of a matrix in a layer."""
        together = 2**-0.5 if self.fused and role in ("query", "key", "value") else 1.0
        return BASES[self.base][1](shape) * together * self.init.at(site).get(role, 1.0)

    def table_std(self, site: Site, shape: Shape) -> float:
        """Of a table."""
        return self.table(shape) * self.init.at(site).get("embed", 1.0)


def wang(site: Site) -> float:
    """sqrt(10) / L, which makes 2 / (L sqrt(d)) of small init's sqrt(2 / (5 d)): W_O and W_2 of GPT-NeoX-20B."""
    return math.sqrt(10) / site.layers


def _inverse_width(shape: Shape) -> float:
    return shape.width**-0.5


def _range(shape: Shape) -> float:
    return shape.range


_OUTS: Mapping[Role, float | laws.Law] = {"attn_out": laws.inverse_depth, "ffn_out": laws.inverse_depth}
SCHEMES: dict[str, Scheme] = {
    "gpt2": Scheme(
        base="normal",
        table=_range,
        init=CATALOGUE["gpt2"].init,
        about="N(0, 0.02^2), W_O and W_2 over sqrt(2L)",
        paper="Radford et al. 2019, section 2.3",
    ),
    "normal": Scheme(
        base="normal", table=_range, about="N(0, 0.02^2), every matrix", paper="Devlin et al. 2018 (BERT)"
    ),
    "small-init-wang": Scheme(
        base="small",
        table=BASES["small"][1],
        init=Init(gain={"attn_out": wang, "ffn_out": wang}),
        about="N(0, 2 / (5 d)), W_O and W_2 N(0, 4 / (L^2 d))",
        paper="Nguyen and Salazar 2019, arXiv 1910.05895; Black et al. 2022 (GPT-NeoX-20B), arXiv 2204.06745",
    ),
    "small-init": Scheme(
        base="small",
        table=BASES["small"][1],
        about="N(0, 2 / (5 d)), every matrix",
        paper="Nguyen and Salazar 2019, arXiv 1910.05895",
    ),
    "xavier": Scheme(
        base="xavier", table=_inverse_width, about="Xavier normal, tables N(0, 1/d)", paper="Glorot and Bengio 2010"
    ),
    "deepnorm": Scheme(
        base="xavier",
        table=_inverse_width,
        init=CATALOGUE["deepnorm"].init,
        about="Xavier normal, W_V, W_O, W_1, W_2 times beta = (8L)^(-1/4) (one stack)",
        paper="Wang et al. 2022, arXiv 2203.00555",
    ),
    "t-fixup": Scheme(
        base="xavier",
        table=_inverse_width,
        init=CATALOGUE["t-fixup"].init,
        fused=True,
        uniform=True,
        about="Xavier uniform, W_V, W_O, W_1, W_2 times 0.67 L^(-1/4), token vectors N(0, 1/d) times (9L)^(-1/4)",
        paper="Huang et al. 2020, ICML (T-Fixup)",
    ),
    "completep": Scheme(
        base="normal",
        table=_range,
        init=Init(gain=_OUTS),
        about="N(0, 0.02^2), W_O and W_2 times 2/L: CompleteP's branch factor in the weights, its rates with it",
        paper="Dey et al. 2025, arXiv 2505.01618",
    ),
}

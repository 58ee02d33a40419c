"""Laws: pure functions from a site to a number. Every depth-dependent constant of the catalogue is here.

A law reads where a sublayer stands (`Site`) and returns a float. Laws import nothing but `math`, so that the
catalogue can be read and printed without torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["attn", "cross", "ffn"]
Stack = Literal["encoder", "decoder"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where one sublayer stands.

    A decoder-only model is a decoder whose other stack has depth 0; an encoder-only model likewise an encoder.
    """

    kind: Kind
    layer: int  # from 1
    layers: int
    slot: int  # from 1, counts the sublayers of the stack in forward order
    slots: int
    stack: Stack = "decoder"
    other: int = 0  # layers of the other stack, 0 when there is none


Law = Callable[[Site], float]


def sites(layers: int, stack: Stack = "decoder", other: int = 0) -> list[Site]:
    """All sites of a stack in forward order: attn (+ cross, in a decoder that reads an encoder) + ffn per layer.

    >>> [s.kind for s in sites(1, "decoder", other=6)]
    ['attn', 'cross', 'ffn']
    """
    kinds: tuple[Kind, ...] = ("attn", "cross", "ffn") if stack == "decoder" and other else ("attn", "ffn")
    slots = layers * len(kinds)
    return [
        Site(
            kind=kind,
            layer=layer,
            layers=layers,
            slot=(layer - 1) * len(kinds) + i,
            slots=slots,
            stack=stack,
            other=other,
        )
        for layer in range(1, layers + 1)
        for i, kind in enumerate(kinds, start=1)
    ]


def deepnorm_skip(site: Site) -> float:
    """(2L)^(1/4) with one stack; 0.81 (N^4 M)^(1/16) in an encoder of N layers, (3M)^(1/4) in its decoder of M.

    Wang et al. 2022, "DeepNet", arXiv 2203.00555, table of alpha and beta.

    >>> round(deepnorm_skip(sites(100, "encoder", other=100)[0]), 4)
    3.4157
    >>> round(deepnorm_skip(sites(100, "decoder", other=100)[0]), 4)
    4.1618
    """
    if not site.other:
        return (2 * site.layers) ** 0.25
    if site.stack == "encoder":
        return 0.81 * (site.layers**4 * site.other) ** (1 / 16)
    return (3 * site.layers) ** 0.25


def deepnorm_init(site: Site) -> float:
    """(8L)^(-1/4) in a model of one stack; 0.87 (N^4 M)^(-1/16) in the encoder, (12M)^(-1/4) in the decoder.

    Multiplies the std of W_V, W_O, W_1, W_2. Wang et al. 2022, arXiv 2203.00555. The paper's constant 0.87 is
    used; torchscale's 1.15 (an inverted reciprocal) is not.

    >>> round(deepnorm_init(sites(100, "encoder", other=100)[0]), 4)
    0.2063
    >>> round(deepnorm_init(sites(100, "decoder", other=100)[0]), 4)
    0.1699
    """
    if not site.other:
        return (8 * site.layers) ** -0.25
    if site.stack == "encoder":
        return 0.87 * (site.layers**4 * site.other) ** (-1 / 16)
    return (12 * site.layers) ** -0.25


def admin_closed_skip(site: Site) -> float:
    """sqrt((n + 1) / ln(n + 1) - 1) with n the sublayers of the stack: ADMIN without a profile.

    The default rule of admin-torch (Liu et al., output change O(log n)).

    >>> round(admin_closed_skip(sites(100, "encoder", other=100)[0]), 4)
    6.0746
    >>> round(admin_closed_skip(sites(100, "decoder", other=100)[0]), 4)
    7.1931
    """
    n = site.slots
    return math.sqrt((n + 1) / math.log(n + 1) - 1)


def gpt2_init(site: Site) -> float:
    """1 / sqrt(n) with n the sublayers of the stack (2L in a decoder-only model).

    Multiplies the std of the projections that write to the residual stream. Radford et al. 2019, section 2.3.

    >>> gpt2_init(sites(8)[0])
    0.25
    """
    return 1 / math.sqrt(site.slots)

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


def layer_init(site: Site) -> float:
    """1 / sqrt(l), l the layer from 1.

    DS-Init: Zhang, Titov, Sennrich 2019, arXiv 1908.11365, equation 7 with alpha = 1. LayerNorm Scaling multiplies a
    norm's output by it: Sun et al. 2025, arXiv 2502.05795.

    >>> layer_init(sites(4)[-1])
    0.5
    """
    return site.layer**-0.5


def unfused_layer_init(site: Site) -> float:
    """sqrt(2) / sqrt(l): for W_Q, W_K, W_V under a scheme that draws them as one fused matrix."""
    return (2 / site.layer) ** 0.5


def stack_init(site: Site) -> float:
    """1 / sqrt(L), L the layers of the stack. B2T as released (takase/b2t_connection)."""
    return site.layers**-0.5


def sublayers(site: Site) -> float:
    """The number of sublayers of the stack (2L in a decoder-only model)."""
    return float(site.slots)


def siamese_scale(site: Site) -> float:
    """1 / sqrt(2 l), l the layer from 1. SiameseNorm as released (arXiv 2602.08064)."""
    return (2 * site.layer) ** -0.5


def sub_ln_init(site: Site) -> float:
    """sqrt(ln 2L) in a model of one stack; sqrt(ln(3M) ln(2N) / 3) in the encoder of N layers, sqrt(ln 3M) in its
    decoder of M.

    Multiplies the std of W_V, W_O, W_1, W_2; those of a cross-attention stay. Wang et al. 2022, "Magneto", arXiv
    2210.06423.

    >>> round(sub_ln_init(sites(12)[0]), 4)
    1.7827
    """
    if site.kind == "cross":
        return 1.0
    if not site.other:
        return math.log(2 * site.layers) ** 0.5
    if site.stack == "encoder":
        return (math.log(3 * site.other) * math.log(2 * site.layers) / 3) ** 0.5
    return math.log(3 * site.layers) ** 0.5


def layerscale_init(site: Site) -> float:
    """1e-4 below 24 layers, 1e-5 below 36, 1e-6 from there on.

    Touvron et al. 2021 (CaiT), arXiv 2103.17239, as released (facebookresearch/deit).

    >>> [layerscale_init(sites(n)[0]) for n in (12, 24, 36)]
    [0.0001, 1e-05, 1e-06]
    """
    return 1e-4 if site.layers < 24 else 1e-5 if site.layers < 36 else 1e-6


def t_fixup_init(site: Site) -> float:
    """0.67 L^(-1/4) in an encoder (and in a model of one stack), (9 L)^(-1/4) in a decoder that reads one.

    Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization", section 3.2.

    >>> round(t_fixup_init(sites(16)[0]), 4), round(t_fixup_init(sites(16, "decoder", other=6)[0]), 4)
    (0.335, 0.2887)
    """
    if site.stack == "decoder" and site.other:
        return t_fixup_embedding(site)
    return 0.67 * site.layers**-0.25


def t_fixup_value(site: Site) -> float:
    """sqrt(2) times T-Fixup's factor: for W_V under a scheme that draws W_Q, W_K, W_V as one fused matrix."""
    return 2**0.5 * t_fixup_init(site)


def t_fixup_embedding(site: Site) -> float:
    """(9 L)^(-1/4): T-Fixup's factor on token vectors."""
    return (9 * site.layers) ** -0.25


def nanochat_keep(site: Site) -> float:
    """1.15 before the first layer, falling evenly to 1.05 before the last (nanochat, July 2026)."""
    return 1.15 - 0.10 * _depth(site)


def nanochat_first(site: Site) -> float:
    """0.20 before the first layer, falling evenly to 0.05 before the last (nanochat, July 2026)."""
    return 0.20 - 0.15 * _depth(site)


def inverse_root_depth(site: Site) -> float:
    """L^(-1/2), L the layers of the stack: depth-muP on the branch and on the learning rate of layers.

    Yang et al. 2023, "Tensor Programs VI", arXiv 2310.02244; a = 1/2 of CompleteP's rule.
    """
    return site.layers**-0.5


BASE_LAYERS = 2  # where CompleteP changes nothing: mup_base_depth of EleutherAI/nanoGPT-mup, completep, */run.sh


def inverse_depth(site: Site) -> float:
    """2 / L, L the layers of the stack: CompleteP's 1 / m_L for a base of 2 layers.

    Dey et al. 2025, arXiv 2505.01618, a = 1: on the branch, and on the optimizer's eps in layers (equation 40). The
    base depth is that of its authors' experiments (EleutherAI/nanoGPT-mup, branch completep, mup_base_depth=2).

    >>> inverse_depth(sites(8)[0])
    0.25
    """
    return BASE_LAYERS / site.layers


def _depth(site: Site) -> float:
    """0 in the first layer, 1 in the last."""
    return (site.layer - 1) / max(site.layers - 1, 1)

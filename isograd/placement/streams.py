"""What carries the residuals of a stack: the state between two sublayers, as data.

    state = open(first(embedding))
    for each sublayer:   x = read(state);   u = out(f(pre(x)));   state = write(state, x, u)
    h = final(close(state))

`add(x, u)` below is the line of the residual, post(skip * x + scale * u). `isograd.transformer.streams` does what this
file says.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from isograd.placement.laws import Law


def _counts(least: int = 1, /, **given: int) -> None:
    if not all(isinstance(value, int) and value >= least for value in given.values()):
        said = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"{said}: {'integers' if len(given) > 1 else 'an integer'} of at least {least} expected")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream: its formula as text, and whether the residual's `skip`, `scale` and `post` have a place in it.

    One of your own has a method `connection(site, width, eps)`, which makes a sublayer's part, and where its state is
    not one tensor `ends(width, eps)`: a `Connection` and an `Ends` of `isograd.transformer.streams`. `isograd conform`
    asks for `equation()`, which returns a class derived from `isograd.lint.conform.Equation`.
    """

    reads: ClassVar[str] = "x"
    writes: ClassVar[str] = "x <- add(x, u)"
    adds: ClassVar[bool] = True
    plain: ClassVar[bool] = False  # one tensor x, which every branch reads and is added to


@dataclass(frozen=True, kw_only=True)
class Plain(Stream):
    """One tensor x."""

    plain: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Parallel(Stream):
    """All branches of a layer read what the layer was given.

    Wang and Komatsuzaki 2021 (GPT-J); Black et al. 2022, arXiv 2204.06745 (GPT-NeoX).

    Args:
        shared_norm: the stream normalizes the layer's input once, and all branches read that, without a `pre` of their
            own (GPT-J, Cohere, PaLM).
    """

    reads: ClassVar[str] = "x_in, the layer's input, or norm(x_in)"
    shared_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerSkip(Stream):
    """The shortcut of a layer's last sublayer begins at the layer's input x_in.

    Args:
        keep: beside x, x <- add(x_in + x, u) (B2T, Takase et al. 2022, arXiv 2206.00330); else in place of it,
            x <- add(x_in, u) (SpanNorm, arXiv 2601.22580).
        last: whether the stack's last layer does so too.
    """

    writes: ClassVar[str] = "x <- add(x, u), at the layer's last sublayer add(x_in, u) or add(x_in + x, u)"
    keep: bool = True
    last: bool = True


@dataclass(frozen=True, kw_only=True)
class TwoStreams(Stream):
    """A stream P with the norm on the sum, and a plain sum Q.

    "residual": ResiDual, Xie et al. 2023, arXiv 2304.14802; reads P, closes with P + norm(Q).
    "siamese": SiameseNorm, arXiv 2602.08064; P opens with norm(x); reads P + norm(Q), closes with P + norm(Q).
    """

    reads: ClassVar[str] = "P, or P + norm(Q)"
    writes: ClassVar[str] = "P <- add(P, u); Q <- Q + u"
    form: Literal["residual", "siamese"] = "residual"


@dataclass(frozen=True, kw_only=True)
class Hyper(Stream):
    """n copies S_1 .. S_n; three maps per sublayer: read sum_i r_i S_i, write w_i u to S_i, mix S_i <- sum_j C_ij S_j.

    | maps | r, w, C | |
    | --- | --- | --- |
    | constant | trained numbers, from e_(slot mod n), 1 and the identity | Zhu et al. 2024, arXiv 2409.19606, static |
    | computed | the same plus tanh of a projection of each copy | likewise, dynamic |
    | sinkhorn | sigmoid + eps, 2 sigmoid, doubly stochastic | mHC, Xie et al. 2025, arXiv 2512.24880; DeepSeek-V4 |
    | independent | as sinkhorn without C; eps on w too | HY-V4 |
    | gated | a gate of rank `rank` for each feature, 2 sigmoid, no C | Qwen4-exp |

    Args:
        copies: n.
        iterations: of Sinkhorn and Knopp, "sinkhorn" only.
        magnitude: the factor of the write map in place of 2, "independent" only.
        rank: "gated" only.
        factor: where the factor on the computed part begins.
    """

    reads: ClassVar[str] = "sum_i r_i S_i"
    writes: ClassVar[str] = "S_i <- sum_j C_ij S_j + w_i u"
    adds: ClassVar[bool] = False
    maps: Literal["constant", "computed", "sinkhorn", "independent", "gated"] = "computed"
    copies: int = 4
    iterations: int = 20
    magnitude: float = 2.0
    rank: int = 16
    eps: float = 1e-6
    factor: float = 0.01

    def __post_init__(self) -> None:
        _counts(copies=self.copies, iterations=self.iterations, rank=self.rank)
        if not self.magnitude > 0:
            raise ValueError(f"magnitude={self.magnitude}: above 0 is expected")


@dataclass(frozen=True, kw_only=True)
class DepthAttention(Stream):
    """A sublayer reads a softmax over everything written before it, sum_i a_i v_i, a = softmax_i(q . norm(v_i)).

    Moonshot AI 2026, arXiv 2603.15031. Sums of `block` layers are one source each; 0: every sublayer is one.

    Args:
        norm_values: what is summed is norm(v_i), and the scores are divided by sqrt(d) (Inkling 2).
    """

    reads: ClassVar[str] = "sum_i a_i v_i, a = softmax_i(q . norm(v_i))"
    writes: ClassVar[str] = "v_(i+1) <- u"
    adds: ClassVar[bool] = False
    norm_values: bool = False
    block: int = 0

    def __post_init__(self) -> None:
        _counts(0, block=self.block)


@dataclass(frozen=True, kw_only=True)
class FirstInput(Stream):
    """Before each layer x <- r x + z x_0, x_0 what the first layer reads; r and z trained numbers (nanochat)."""

    reads: ClassVar[str] = "r x + z x_0 at a layer's first sublayer, else x"
    keep: float | Law = 1.0
    first: float | Law = 0.0


@dataclass(frozen=True, kw_only=True)
class FirstValues(Stream):
    """Each attention's values are (1 - mix) v + mix v_1, v_1 those of the first layer.

    Zhou et al. 2024, arXiv 2410.17897 (ResFormer).

    Args:
        mix: the share of v_1.
        learned: whether the two shares are trained, a number each.
    """

    mix: float = 0.5
    learned: bool = False


@dataclass(frozen=True, kw_only=True)
class Affine(Stream):
    """x <- (x + c) * r + (u + d) * g, four trained vectors, from c = d = 0 and r = g = 1 (Zaya)."""

    writes: ClassVar[str] = "x <- (x + c) * r + (u + d) * g"
    adds: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class DepthAverage(Stream):
    """After layer l, x <- sum_j a_lj X_j: X_0 what the first layer reads, X_j what layer j leaves; a trained numbers.

    Pagliardini et al. 2024, arXiv 2402.02622 (DenseFormer). a begins at 1 for X_l and 0 for the others.

    Args:
        dilation: only every dilation-th of the X_j is averaged: X_l, X_(l - dilation), ... (k in the paper).
        period: only every period-th layer is followed by an average (p in the paper).
    """

    writes: ClassVar[str] = "x <- add(x, u), after layer l: X_l = x, x <- sum_(j <= l) a_lj X_j"
    dilation: int = 1
    period: int = 1

    def __post_init__(self) -> None:
        _counts(dilation=self.dilation, period=self.period)

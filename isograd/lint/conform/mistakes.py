"""What ports of the designs are known to get wrong; `equations` computes each, so that a port's own is found."""

from collections.abc import Callable
from dataclasses import dataclass

from isograd.placement import Norm, Placement, Residual, sites
from isograd.placement.streams import (
    DepthAttention,
    FirstInput,
    Hyper,
    LayerSkip,
    Parallel,
    Stream,
    TwoStreams,
)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A known mistake.

    Attributes:
        name: as `equations` asks for it.
        found: what the port computes.
        remedy: what to change.
        of: whether a placement has a place where it can be made.
    """

    name: str
    found: str
    remedy: str
    of: Callable[[Placement], bool]


def _maps(*kinds: str) -> Callable[[Placement], bool]:
    return lambda p: isinstance(p.stream, Hyper) and p.stream.maps in kinds


def _stream(kind: type[Stream]) -> Callable[[Placement], bool]:
    return lambda p: isinstance(p.stream, kind)


def _residuals(placement: Placement) -> list[Residual]:
    return [placement.at(site) for site in sites(3)]


def _weighs_a_norm(p: Placement) -> bool:
    norms = [norm for r in _residuals(p) for norm in (r.out, r.post) if isinstance(norm, Norm) and norm.affine]
    kept = isinstance(p.stream, TwoStreams) or (isinstance(p.stream, DepthAttention) and not p.stream.norm_values)
    return bool(norms) or kept or _maps("computed", "gated")(p)


def _has_coefficients(p: Placement) -> bool:
    return isinstance(p.stream, FirstInput) or any(r.skip != r.scale for r in _residuals(p))


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        name="outputs-swapped",
        found="the projection's first n rows are taken for the write map and the next n for the read map",
        remedy="split the projection, its base and its factors in the order read, write, mix",
        of=_maps("sinkhorn", "independent"),
    ),
    Mistake(
        name="mix-transposed",
        found="copies are mixed by C: S_i <- sum_j C_ij S_j",
        remedy="mix by the transpose, sum_j C_ji S_j: comb.transpose(-1, -2) @ streams",
        of=_maps("constant", "computed", "sinkhorn"),
    ),
    Mistake(
        name="sinkhorn-from-exp",
        found="Sinkhorn begins from exp(logits)",
        remedy="begin from softmax(logits, dim=-1) + eps",
        of=_maps("sinkhorn"),
    ),
    Mistake(
        name="no-sinkhorn",
        found="the mix is softmax(logits) + eps as it is",
        remedy="divide by column and row sums in turn, as often as `iterations` says",
        of=_maps("sinkhorn"),
    ),
    Mistake(
        name="softmax-over-columns",
        found="the softmax before Sinkhorn runs over the columns of C (dim=-2)",
        remedy="take it over the rows: softmax(logits, dim=-1)",
        of=_maps("sinkhorn"),
    ),
    Mistake(
        name="sinkhorn-rows-last",
        found="Sinkhorn ends with row sums",
        remedy="divide by column sums (dim=-2) first, then by rows and columns in turn, columns last",
        of=_maps("sinkhorn"),
    ),
    Mistake(
        name="sinkhorn-eps-missing",
        found="nothing is added to the softmax before Sinkhorn",
        remedy="begin from softmax(logits, dim=-1) + eps",
        of=_maps("sinkhorn"),
    ),
    Mistake(
        name="read-eps-missing",
        found="the read map is sigmoid(.) alone",
        remedy="add eps to it: sigmoid(.) + eps",
        of=_maps("sinkhorn", "independent"),
    ),
    Mistake(
        name="write-not-doubled",
        found="the write map is sigmoid(.)",
        remedy="multiply it by 2 (HY-V4: by hc_magnitude), so that it begins at about 1",
        of=_maps("sinkhorn", "independent", "gated"),
    ),
    Mistake(
        name="close-by-mean",
        found="the stream closes with the mean of the copies",
        remedy="hyper-connections close with their sum; mHC, HY-V4 and Qwen4 with a weighted sum of the head's own",
        of=_stream(Hyper),
    ),
    Mistake(
        name="factor-missing",
        found="the computed part of the maps is added without its trained factor",
        remedy="multiply it by the factors (from 0.01): alpha + factors[0] * tanh(.), beta + factors[1] * tanh(.)",
        of=_maps("computed"),
    ),
    Mistake(
        name="tanh-missing",
        found="the computed part of the maps is the projection itself",
        remedy="take tanh of the projection",
        of=_maps("computed"),
    ),
    Mistake(
        name="norm-not-centered",
        found="the maps read copies over their RMS",
        remedy="a LayerNorm, which subtracts the mean, in place of RMSNorm",
        of=_maps("computed"),
    ),
    Mistake(
        name="written-before-mixed",
        found="copies are mixed after the branch has written to them",
        remedy="mix the state that the branch read, and add B_i u to that",
        of=_maps("constant", "computed"),
    ),
    Mistake(
        name="mean-missing",
        found="the gate's inner projection is not divided by the number of copies",
        remedy="silu(W_down n(S) / n)",
        of=_maps("gated"),
    ),
    Mistake(
        name="weights-around-1",
        found="a norm's weight is read as 1 + weight where it is stored as it is, or the reverse",
        remedy="Gemma and Qwen store the distance from 1, y * (1 + weight); LLaMA and DeepSeek y * weight",
        of=_weighs_a_norm,
    ),
    Mistake(
        name="values-normed",
        found="normalized and plain sources are exchanged in the sum",
        remedy="sum a_i v_i as the paper does; only Inkling 2 sums a_i norm(v_i)",
        of=_stream(DepthAttention),
    ),
    Mistake(
        name="scores-scaled",
        found="scores are divided by sqrt(d) where they are not to be, or not where they are",
        remedy="q . norm(v_i) as the paper has it; only Inkling 2 divides by sqrt(d)",
        of=_stream(DepthAttention),
    ),
    Mistake(
        name="keys-not-normed",
        found="scores are formed with the sources themselves",
        remedy="normalize the sources for the scores: q . norm(v_i)",
        of=_stream(DepthAttention),
    ),
    Mistake(
        name="coefficients-swapped",
        found="the coefficient of the shortcut acts on the branch, and the branch's on the shortcut",
        remedy="x <- skip * x + scale * u",
        of=_has_coefficients,
    ),
    Mistake(
        name="post-norm-inside",
        found="the norm on the sum acts on the branch alone",
        remedy="x <- norm(x + u) in place of x + norm(u)",
        of=lambda p: any(r.post is not None for r in _residuals(p)),
    ),
    Mistake(
        name="sequential",
        found="the feed-forward reads what the attention wrote",
        remedy="both branches of a layer read the layer's input",
        of=_stream(Parallel),
    ),
    Mistake(
        name="shortcut-missing",
        found="the layer's input does not reach the layer's last sum",
        remedy="add it there: norm(x_in + x + u)",
        of=_stream(LayerSkip),
    ),
    Mistake(
        name="close-without-norm",
        found="the plain sum is added at the end as it is",
        remedy="close with P + norm(Q)",
        of=_stream(TwoStreams),
    ),
    Mistake(
        name="sum-not-written",
        found="the plain sum keeps what it was opened with",
        remedy="write the branch to both: Q <- Q + u",
        of=_stream(TwoStreams),
    ),
)


def possible(placement: Placement) -> tuple[Mistake, ...]:
    """The mistakes that can be made in a placement."""
    return tuple(one for one in MISTAKES if one.of(placement))

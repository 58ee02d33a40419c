"""Which positions an attention sees: the future, itself, and whether its weights are a mean over the keys."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from isograd.errors import many
from isograd.lint.attention.measured import MeasuredAttention
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.intent import declares_causal
from isograd.lint.rules import READ, Phase, rule
from isograd.trace.dataflow import bare

View = Literal["left", "right", "both", "prefix", "itself", "ahead", "not-itself", "other"]
SHORTEST = 4  # positions from which on a view can be recognized


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one attention sees, over all its heads.

    Attributes:
        view: "left" is causal, "prefix" but for a first part that sees all of itself, or for chunks;
            "ahead" sees all before and a few places ahead; "not-itself" hides itself.
        ahead: of how many pairs (query, later key) the query sees the key, as a part of all.
        furthest: how many places ahead it sees at most.
        heads: how many heads see ahead, of how many.
    """

    attention: MeasuredAttention
    view: View
    ahead: float
    furthest: int
    heads: tuple[int, int]


def seen_by(attention: MeasuredAttention) -> Seen | None:
    """None for a cross-attention, for windows, and where the weights cannot be read."""
    visible = _square(attention)
    if visible is None:
        return None
    time = visible.shape[-1]
    every = visible.any(0)
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    leaking = visible[:, later].any(-1)
    distances = (every & later).nonzero()
    return Seen(
        attention=attention,
        view=_view(every),
        ahead=(every & later).sum().item() / later.sum().item(),
        furthest=int((distances[:, 1] - distances[:, 0]).max()) if len(distances) else 0,
        heads=(int(leaking.sum()), len(leaking)),
    )


def _square(attention: MeasuredAttention) -> Tensor | None:
    """(heads of all sequences, queries, keys) of a self-attention over all positions, whether a key has any weight."""
    visible, trace = attention.visible, attention.trace
    if visible is None or attention.sublayer.kind != "attn":
        return None
    time = visible.shape[-1]
    if visible.shape[-2] != time or time < SHORTEST or time not in trace[attention.sublayer.read].shape[:2]:
        return None
    return visible


def _view(every: Tensor) -> View:
    """Of (queries, keys); the first and the last row, which see all where a mask hides everything, are left out."""
    time = len(every)
    inner = every[1:-1]
    own = torch.eye(time, dtype=torch.bool)[1:-1]
    later = torch.ones(time, time, dtype=torch.bool).triu(1)[1:-1]
    before = torch.ones(time, time, dtype=torch.bool).tril(-1)[1:-1]
    sees_later, sees_before, sees_itself = ((inner & part).any().item() for part in (later, before, own))
    if sees_later and not sees_before:
        return "right"
    if (inner & own).sum() < len(inner) and (sees_later or sees_before):
        return "other" if sees_itself else "not-itself"
    if not sees_later:
        return "left" if sees_before else "itself"
    if is_prefix(every) or in_chunks(every):
        return "prefix"
    distances = (every & torch.ones_like(every).triu(1)).nonzero()
    behind = (every & torch.ones_like(every).tril(-1)).nonzero()
    ahead, back = (int((pairs[:, 1] - pairs[:, 0]).abs().max()) for pairs in (distances, behind))
    return "ahead" if ahead * 2 <= back and ahead < time // 2 else "both"


def is_prefix(every: Tensor) -> bool:
    """Whether of (queries, keys) the first keys are seen by all queries before them, and the others from their own
    query on.
    """
    time = len(every)
    seen = [every[:key, key] for key in range(1, time)]
    length = next((i for i, rows in enumerate(seen) if not rows.all()), time)
    rest = every.triu()[:, length + 1 :]
    return 0 < length < time - 1 and int(rest.sum()) == rest.shape[1] == int(every.diagonal()[length + 1 :].sum())


def in_chunks(every: Tensor) -> bool:
    """Whether of (queries, keys) some queries in a row see up to the same key, their last: frames of a chunk, tokens of
    one step, as streaming and block-causal models have them.
    """
    last = torch.where(every, torch.arange(len(every)), -1).amax(1)
    steps = int((last[1:] != last[:-1]).sum())
    whole = bool((last >= torch.arange(len(every))).all()) and torch.equal(last[last], last)
    return whole and 0 < steps < len(every) - 1


@rule(Phase.HEADS, "softmax-axis", hides=(*READ, "output-not-finite", "initial-loss"))
def axis(checked: CheckedModel) -> Iterator[Finding]:
    """A softmax whose weights do not sum to one over the keys that a query mixes."""
    found = [(a, total) for a in checked.attentions if (total := _total(a)) is not None]
    if found:
        attention, total = found[0]
        dims = attention.trace[attention.operation.reads[0]].ndim
        given = next((x for x in attention.operation.args[1:] if isinstance(x, int)), -1)
        yield Finding(
            address=attention.address,
            measured=total,
            message=f"the attention weights of a query sum to {total:.3g} instead of 1: the softmax runs over"
            f" axis {given % dims} of {dims}, not over the keys ({many(len(found), 'attention')})",
            remedy="take the softmax over the axis of the keys, dim=-1 of scores (..., queries, keys)",
            at=attention.operation.makes[0],
        )


def _total(attention: MeasuredAttention) -> float | None:
    """The largest sum of a query's weights, where the softmax was taken over another axis than the mixture's."""
    weights = attention.weights
    if not attention.softmax or weights is None or attention.mix is None:
        return None
    made, read = attention.operation.makes[0], next(v for v in attention.mix.reads if v in attention.below_softmax)
    sums = weights.nan_to_num().sum(-1)
    dims = attention.trace[made].ndim
    if _renormalized(attention, made, read):
        return None
    if attention.trace[made].shape == attention.trace[read].shape and attention.keys_axis is not None:
        wrong = attention.given.get("dim", -1) % dims != attention.keys_axis % dims
    else:
        wrong = bool((sums > 1 + 1e-3).any())
    off = (sums - 1).abs().max() > 1e-3
    return sums.max().item() if wrong and off else None


def _renormalized(attention: MeasuredAttention, made: int, read: int) -> bool:
    """Whether weights are divided by a sum of themselves, as by slots that compete for the keys."""
    dataflow = attention.dataflow
    return any(bare(o) == "div" and len(dataflow.data(o)) == 2 for o in dataflow.between(made, read))


@rule(Phase.HEADS, "mask-after-softmax", hides=(Phase.MASKS, "padding-leaks"))
def after(checked: CheckedModel) -> Iterator[Finding]:
    """Weights that a mask has set to 0 after the softmax: the rest of a row no longer sums to one."""
    found = [(a, least) for a in checked.attentions if (least := _cut(a)) is not None]
    if found:
        attention, least = found[0]
        yield Finding(
            address=attention.address,
            measured=least,
            message="the mask is applied after the softmax: the attention weights of a query sum to only"
            f" {least:.2g}, and masked positions still count in the normalization"
            f" ({many(len(found), 'attention')})",
            remedy='mask the scores before the softmax: scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)',
        )


@rule(Phase.MASKS, "mask-multiplied", hides=("padding-leaks",))
def multiplied(checked: CheckedModel) -> Iterator[Finding]:
    """Scores that are multiplied by zeros and ones: a score of 0 still has a weight."""
    found = [(a, share) for a in checked.attentions if (share := _weight_of_zeros(a)) is not None]
    if found:
        yield Finding(
            address=found[0][0].address,
            measured=found[0][1],
            message="the mask multiplies the scores before the softmax: what it sets to 0 keeps up to"
            f" {found[0][1]:.2g} of a query's weight ({many(len(found), 'attention')})",
            remedy='set them to minus infinity instead: scores.masked_fill(mask == 0, float("-inf"))',
        )


def _weight_of_zeros(attention: MeasuredAttention) -> float | None:
    if not attention.softmax:
        return None
    trace, scores, made = attention.trace, attention.operation.reads[0], attention.operation.makes[0]
    above = trace.above([scores])
    for operation in trace.operations:
        if bare(operation) != "mul" or operation.makes[0] not in above or len(operation.reads) < 2:
            continue
        shape = trace[operation.makes[0]].shape
        for x in (trace[value] for value in operation.reads[:2]):
            if (
                shape == trace[made].shape
                and x.ndim > 1
                and x.shape[-1] == shape[-1]
                and set(x.unique().tolist()) == {0, 1}
            ):
                left = trace[made].nan_to_num() * (x == 0)
                return left.max().item() if bool((left > 0).any()) else None
    return None


def _cut(attention: MeasuredAttention) -> float | None:
    if not attention.softmax or attention.weights is None or attention.mix is None:
        return None
    made, read = attention.operation.makes[0], next(v for v in attention.mix.reads if v in attention.below_softmax)
    before, now = attention.trace[made], attention.trace[read]
    if _renormalized(attention, made, read):
        return None
    if before.shape != now.shape or not ((before > 1e-6) & (now == 0)).any():
        return None
    sums = attention.weights.sum(-1)
    sums = sums[sums > 0]  # a query of which nothing is left asked for what is not there, as text before any picture
    return sums.min().item() if sums.numel() and sums.min() < 1 - 1e-3 else None


@rule(Phase.MASKS, "mask-blocks-self", hides=(Phase.POSITIONS, Phase.DATA, "output-not-finite"))
def blank(checked: CheckedModel) -> Iterator[Finding]:
    """Attentions in which no position of a whole sequence sees any, as by a mask of padding the wrong way round."""
    views = [(a, _square(a)) for a in checked.attentions]
    found = [(a, 1 - seen.any(2).any(1).float().mean().item()) for a, seen in views if seen is not None]
    found = [(a, share) for a, share in found if share and not _passes(a)]
    if found:
        yield Finding(
            address=found[0][0].address,
            measured=found[0][1],
            message=f"in {found[0][1]:.0%} of the sequences every position is masked, itself included: the mask"
            f" is inverted, or masks everything ({many(len(found), 'attention')})",
            remedy="a bool mask of F.scaled_dot_product_attention is True where a key may be seen; key_padding_mask and"
            " attn_mask of nn.MultiheadAttention where it may not",
        )


def _passes(attention: MeasuredAttention) -> bool:
    """Whether other values move what they are mixed to: then some are seen, whatever the weights look like."""
    trace, mixture = attention.trace, attention.mixture
    if mixture is None:
        return False
    value = trace[attention.value]
    other = value + torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value)
    changed = (trace.replay({attention.value: other}, [mixture])[0] - trace[mixture]).abs() > 0
    sequences = trace[attention.sublayer.read].shape[0]
    return (
        bool(changed.reshape(sequences, -1).any(1).all()) if changed.numel() % sequences == 0 else bool(changed.any())
    )


@rule(
    Phase.MASKS, "future-leaks", "mask-blocks-self", hides={"future-leaks": ("output-not-finite",
    "padding-leaks", "positions-missing")},
)  # fmt: skip
def future(checked: CheckedModel) -> Iterator[Finding]:
    """Attentions that see later positions where others, or the model's author, say that none may."""
    views = [s for a in checked.attentions if (s := seen_by(a)) is not None]
    for stack in dict.fromkeys(s.attention.sublayer.stack for s in views):
        own = [s for s in views if s.attention.sublayer.stack == stack]
        yield from _of_stack(checked, own)


def _of_stack(checked: CheckedModel, own: list[Seen]) -> Iterator[Finding]:
    hidden = [s for s in own if s.view == "not-itself"]
    reversed_ = [s for s in own if s.view == "right"]
    shifted = [s for s in own if s.view == "ahead"]
    causal = [s for s in own if s.view == "left"]
    both = [s for s in own if s.view == "both"]
    if reversed_:
        yield _finding(
            "future-leaks",
            reversed_,
            own,
            "each position attends to itself and to those after it, and to none before: the mask is transposed or"
            " inverted",
            "hide the keys after the query, and only those: torch.ones(T, T).triu(1).bool() is True where hidden;"
            " with F.scaled_dot_product_attention a bool mask is True where a key may be seen",
        )
    if hidden:
        found = _finding(
            "mask-blocks-self",
            hidden,
            own,
            "no position attends to itself: the diagonal of the mask is hidden too",
            "let each query see its own key: tril() instead of tril(-1), triu(1) instead of triu()",
        )
        only = all(s.ahead > 0.9 for s in hidden)  # all others are seen, as in locality self-attention
        yield replace(found, severity="info") if only else found
    if shifted:
        yield _finding(
            "future-leaks",
            shifted,
            own,
            f"each position attends to {shifted[0].furthest} after it: the mask's diagonal is off by"
            f" {shifted[0].furthest}",
            "use tril(diagonal=0) for what may be seen, or triu(diagonal=1) for what is hidden",
        )
    author = declares_causal(checked, own[0].attention.sublayer.stack)
    says = f"{len(causal)} of {len(own)} attentions of the stack are causal" if causal else author
    if both and says and (2 * len(causal) >= len(own) or author):
        swapped = [s for s in both if _is_swapped(s.attention)]
        these, cause = swapped or both, SWAPPED if swapped else ""
        remedy = "pass query=x, key=memory, value=memory" if swapped else UNMASK
        yield _finding("future-leaks", these, own, f"{_how(these[0])}, but {says}{cause}", remedy)


def _is_swapped(attention: MeasuredAttention) -> bool:
    """Whether keys and values are computed of what a sublayer reads, and the queries of other activations alone."""
    below = attention.trace.below([attention.sublayer.read])
    return attention.query in attention.dataflow.live - below and {attention.key, attention.value} <= below


def _how(seen: Seen) -> str:
    leaking, heads = seen.heads
    some = f"{leaking} of {heads} heads attend" if leaking < heads else "each position attends"
    return f"{some} to later positions ({seen.ahead:.0%} of them)"


SWAPPED = "; keys and values are computed from this stream, and queries from another: query and memory are swapped"
UNMASK = (
    "hide the keys after the query: is_causal=True in F.scaled_dot_product_attention, or"
    ' scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf")) before the softmax'
)


def _finding(code: str, found: list[Seen], own: list[Seen], message: str, remedy: str) -> Finding:
    where = "in all layers" if len(found) == len(own) else f"in {len(found)} of {len(own)} attentions"
    return Finding(
        code=code,
        address=found[0].attention.address,
        measured=found[0].ahead,
        message=f"{message} ({where})",
        remedy=remedy,
    )

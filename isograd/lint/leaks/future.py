"""What positions have of those to their right."""

from collections.abc import Iterator

import torch
from torch import Tensor

from isograd.lint.attention.masks import SHORTEST, in_chunks, is_prefix, seen_by
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.intent import declares_both, declares_causal
from isograd.lint.leaks.inputs import aligned, is_read_to_the_left, named_inputs, reach_of, sequence_of
from isograd.lint.leaks.mixing import across
from isograd.lint.rules import Phase, rule

LOPSIDED = 0.75  # of what is read of the past: more of the future is a view to both sides


@rule(Phase.MASKS, "future-leaks", "last-position-only", "bidirectional-logits")
def future(checked: CheckedModel) -> Iterator[Finding]:
    """A model that reads to the left, but not only; or one that is meant to and does not."""
    yield from _last_only(checked)
    if "future-leaks" in checked.reported:  # by an attention
        return
    place = sequence_of(checked)
    reach = None if place is None else reach_of(checked, place)
    if place is None or reach is None:
        return
    if any(is_read_to_the_left(checked, other) for other in aligned(checked) if other != place):
        return  # of a source as long as the target, the target is what is predicted
    shown = (reach & ~torch.eye(len(reach), dtype=torch.bool)).any(0)  # what stands in the padding moves nothing else
    reach = reach[shown][:, shown]
    if len(reach) < SHORTEST or is_prefix(reach) or in_chunks(reach):
        return
    length = len(reach)
    ahead = torch.triu(reach, diagonal=1)
    back = torch.tril(reach, diagonal=-1)
    read, possible = int(ahead.sum()), length * (length - 1) // 2
    partly = 0 < read < min(0.5 * possible, LOPSIDED * int(back.sum()))  # a window sees as much ahead as behind
    causal = [s for a in checked.attentions if (s := seen_by(a)) is not None]
    masked = causal and all(s.view in ("left", "itself") for s in causal) and checked.logits is not None
    if not partly and not (read and (masked or declares_causal(checked))):
        writes = checked.logits is not None and checked.trace[checked.logits].shape[-1] in checked.vocabularies
        if not 2 * read > possible or not writes or checked.config is not None or declares_both(checked):
            return
        if not _is_lopsided(checked):
            yield _both_ways(place, read / possible)
            return
    reader, source = (int(i) for i in ahead.nonzero()[0])
    where = _first_ahead(checked)
    norm = across(checked, 1, length) if where else None
    beside = f", though not by its attention{norm[1] if norm else f'; first in {where}'}" if where else ""
    yield Finding(
        code="future-leaks",
        address=norm[0].module if norm else where or place,
        at=norm[0].makes[0] if norm else None,
        measured=read / possible,
        message=f"the output at position {reader} changes with the input at position {source}: it depends on"
        f" {read} of {possible} later positions{beside}",
        remedy="let nothing but a masked attention mix positions: pad a convolution on the left only, and normalize"
        " each position by itself"
        if where
        else "mask scores where the key is after the query (triu with diagonal=1), and pass the attention"
        " is_causal=True or the mask",
    )


def _both_ways(place: str, measured: float) -> Finding:
    return Finding(
        code="bidirectional-logits",
        severity="info",
        address=place,
        measured=measured,
        message="each position attends to later ones, as in BERT: right for predicting masked tokens, wrong"
        " for predicting the next token",
        remedy="to predict the next token, pass is_causal=True to scaled_dot_product_attention, or a causal mask",
    )


def _first_ahead(checked: CheckedModel) -> str | None:
    """The first sublayer in which a later position moves an earlier one, where its attention does not."""
    for stack in checked.anatomy.stacks:
        for sublayer in stack.sublayers:
            moved = (
                None if stack.time is None else checked.dataflow.moved_at(sublayer.read, sublayer.total, stack.time, -1)
            )
            if moved is not None and moved[:-1].any():
                return sublayer.address
    return None


def _is_lopsided(checked: CheckedModel) -> bool:
    """Whether each sublayer that mixes positions reads all of the past and little of the future, as a recurrence after
    a wide convolution does; no attention, which has tokens that all see, and no layers in turns.
    """
    if checked.attentions:
        return False
    found = []
    for stack in checked.anatomy.stacks:
        for one in stack.sublayers if stack.time is not None else ():
            first, last = (checked.dataflow.moved_at(one.read, one.total, stack.time or 0, at) for at in (0, -1))
            if first is not None and last is not None and (first[1:].any() or last[:-1].any()):
                found.append(bool(first.all()) and 0 < int(last[:-1].sum()) <= len(last) / 3)
    return bool(found) and all(found)


def _last_only(checked: CheckedModel) -> Iterator[Finding]:
    """A next-token model that gives the logits of one position only."""
    ids = next((v for v in named_inputs(checked).values() if isinstance(v, Tensor) and not v.is_floating_point()), None)
    if checked.logits is None or ids is None or ids.ndim != 2 or ids.shape[1] < 4 or checked.head is None:
        return
    logits = checked.trace[checked.logits]
    one = logits.ndim == 2 or (logits.ndim == 3 and logits.shape[1] == 1)
    if (
        one
        and logits.shape[0] == ids.shape[0]
        and logits.shape[-1] in checked.vocabularies
        and declares_causal(checked)
    ):
        yield Finding(
            code="last-position-only",
            severity="warning",
            address=checked.head,
            measured=float(logits.ndim == 3),
            message=f"the output has the logits of one position, of {ids.shape[1]} in the input: a loss on it"
            " learns from one prediction per sequence",
            remedy="return self.head(x) for all positions in training, and x[:, [-1]] in generation only",
        )

"""How predictions over classes lie to ids of the batch: by comparing targets with ids, and by changing single ids."""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from isograd.lint.step.losses import CLASSES

if TYPE_CHECKING:
    from isograd.lint.step.seen import Seen

PROBES = 6  # changed inputs that a loss is formed for
FEWEST, SLOW = 4, 5.0  # changes, after which seconds end it
FEW = 4  # rows


@dataclass(kw_only=True)
class Reading:
    """Predictions over classes, and ids of the batch that are their targets.

    Attributes:
        name: of the ids in the batch.
        offset: the target of row k of a sequence is id k + offset; None where targets are none of the ids.
        share: of the rows for which that holds.
        ahead: how many places the target lies after the last id that its prediction reads: 1 for the next token; None
            where predictions read ids on both sides.
        both: whether predictions read later ids.
        visible: share of the targets that a prediction reads, of those that were tried.
        tried: so many.
        crossed: whether one sequence moves predictions that stand where other sequences' targets do, at equal steps:
            (time, batch) flattened beside (batch, time).
        alone: whether they are the only ids that the model looks up: no source beside a target.
    """

    name: str
    ids: Tensor
    offset: int | None
    share: float
    ahead: int | None
    both: bool
    visible: float
    tried: int
    crossed: bool = False
    alone: bool = True


def reading_of(seen: "Seen", batch: Any) -> Reading | None:
    """By comparing targets with ids, and by changing single ids: see `Reading`."""
    mode = seen.formed(batch, counted=True)
    calls = [call for call in mode.losses if call.name in CLASSES]
    if not calls:
        return None
    which = max(range(len(calls)), key=lambda i: calls[i].given.numel())
    given, target, counts = calls[which].rows
    found = None
    leaves = [leaf for leaf in seen.leaves(batch).values() if leaf.ndim > 1 and not leaf.is_floating_point()]
    looked_up = {leaf.untyped_storage().data_ptr() for leaf in leaves} & mode.looked_up
    for name, ids in seen.leaves(batch).items():
        if (
            ids.is_floating_point()
            or ids.ndim != 2
            or len(target) % len(ids)
            or ids.shape[1] < 4
            or ids.dtype == torch.bool
        ):
            continue
        length = len(target) // len(ids)
        if abs(length - ids.shape[1]) > 2:
            continue
        rows = target.view(len(ids), length)
        asked = counts.view(len(ids), length)
        looked = ids.untyped_storage().data_ptr() in mode.looked_up
        offset, share = offset_of(ids, rows, asked)
        if not looked and looked_up:
            continue
        dynamic = _changed(seen, batch, ids, which, given, rows, asked, offset)
        if dynamic is None:
            continue
        ahead, both, visible, tried = dynamic
        one = Reading(
            name=name,
            ids=ids,
            offset=offset,
            share=share,
            ahead=ahead,
            both=both,
            visible=visible,
            tried=tried,
            crossed=offset is not None and _crossed(seen, batch, ids, which, given, len(ids)),
            alone=len(looked_up) < 2,
        )
        if found is None or (one.offset is not None and found.offset is None):
            found = one
    return found


def of_few(seen: "Seen", batch: Any) -> Reading | None:
    """`reading_of` the first rows, where all tensors have as many and the loss is formed of fewer."""
    leaves = tree_leaves(batch)
    counts = {len(x) if isinstance(x, Tensor) and x.ndim else 0 for x in leaves}
    if len(counts) != 1 or not counts.pop() > FEW:
        return None
    with suppress(Exception):
        return reading_of(seen, tree_map(lambda x: x[:FEW], batch))
    return None


def offset_of(ids: Tensor, rows: Tensor, asked: Tensor) -> tuple[int | None, float]:
    """By how many places targets lie after their row, clearly better than any other number; and for what share.

    >>> x = torch.arange(40).view(2, 20) * 7 % 11
    >>> offset_of(x, x.roll(-1, 1), torch.ones(2, 20).bool())[0], offset_of(x, x * 0, torch.ones(2, 20).bool())[0]
    (1, None)
    """
    shares = {}
    length, width = rows.shape[1], ids.shape[1]
    for offset in range(-2, 5):
        low, high = max(0, -offset), min(length, width - offset)
        mine = asked[:, low:high]
        if high <= low or int(mine.sum()) < 4:
            continue
        equal = (rows[:, low:high] == ids[:, low + offset : high + offset])[mine]
        shares[offset] = float(equal.float().mean())
    if not shares:
        return None, 0.0
    best = max(shares, key=lambda o: shares[o])
    second = max((s for o, s in shares.items() if o != best), default=0.0)
    return (best, shares[best]) if shares[best] > 0.9 and second < shares[best] - 0.1 else (None, shares[best])


def _changed(
    seen: "Seen",
    batch: Any,
    ids: Tensor,
    which: int,
    given: Tensor,
    rows: Tensor,
    asked: Tensor,
    offset: int | None,
) -> tuple[int | None, bool, float, int] | None:
    """What changes where one id of each sequence is another."""
    count, width = ids.shape
    length = rows.shape[1]
    values = ids.unique()
    if len(values) < 2:
        return None
    size = given.float().abs().max() * 1e-5
    gaps: list[int] = []
    shown = tried = earlier = probes = 0
    began = time.perf_counter()
    for at in range(PROBES):
        if probes >= FEWEST and time.perf_counter() - began > SLOW:
            break
        place = min(width - 2, 1 + (width - 2) * (at + 1) // (PROBES + 1))
        places = [(place + row) % max(width - 2, 1) + 1 for row in range(count)]
        other = ids.clone()
        for row, p in enumerate(places):
            other[row, p] = values[(torch.searchsorted(values, ids[row, p]) + 1 + at) % len(values)]
        mode = seen.formed(replaced(batch, ids, other))
        calls = [call for call in mode.losses if call.name in CLASSES]
        if len(calls) <= which or calls[which].rows[0].shape != given.shape:
            return None
        moves = (calls[which].rows[0].float() - given.float()).abs().amax(-1).view(count, length) > size
        for row, p in enumerate(places):
            if other[row, p] == ids[row, p]:
                continue
            where = moves[row].nonzero().flatten()
            if not len(where):
                continue
            probes += 1
            first = int(where[0])
            gaps.append(first - p)
            earlier += first < p - 1
            if offset is not None and 0 <= p - offset < length and bool(asked[row, p - offset]):
                tried += 1
                shown += bool(moves[row, p - offset])
    if not probes:
        return None
    both = earlier > probes / 2
    gap = max(set(gaps), key=gaps.count)
    ahead = None if both or offset is None else gap + offset
    return ahead, both, shown / tried if tried else 0.0, tried


def _crossed(seen: "Seen", batch: Any, ids: Tensor, which: int, given: Tensor, count: int) -> bool:
    other = ids.clone()
    other[0] = ids[0].roll(1)
    calls = [call for call in seen.formed(replaced(batch, ids, other)).losses if call.name in CLASSES]
    if len(calls) <= which or calls[which].rows[0].shape != given.shape or count < 2:
        return False
    size = given.float().abs().max() * 1e-5
    moved = ((calls[which].rows[0].float() - given.float()).abs().amax(-1) > size).nonzero().flatten()
    length = len(given) // count
    return len(moved) > 2 and bool((moved % count == 0).all()) and bool((moved >= length).any())


def replaced(batch: Any, old: Tensor, new: Tensor) -> Any:
    """The batch with another tensor in one place."""
    return tree_map(lambda leaf: new if leaf is old else leaf, batch)

"""Padding that the loss counts, and the ends of texts."""

import torch
from torch.utils._pytree import tree_map

from isograd.lint.padding import MOVED, fewer_of, paddings
from isograd.lint.step.losses import CLASSES
from isograd.lint.step.seen import Results, Seen, finding

PADDED = 0.01  # of the targets, or of a gradient
LESS = 1e-5  # of a loss: more than another order of sums does
OFTEN = 8  # ends of texts


def look(seen: Seen) -> Results:
    """All of padding and ends."""
    yield from _padding(seen)
    yield from _ends(seen)


def _padding(seen: Seen) -> Results:
    """Targets where there is padding."""
    share = 0.0
    for batch in seen.batches[:4]:
        if not (pads := paddings(seen.leaves(batch))):
            continue
        try:
            mode = seen.formed(batch, counted=True)
        except Exception:
            return
        call = max((c for c in mode.losses if c.name in CLASSES), key=lambda c: c.given.numel(), default=None)
        counts = torch.zeros(0) if call is None else call.rows[2]
        for time, pad in pads.items():
            if (before := time - len(counts) // len(pad.kept)) in (0, 1):
                padded = ~pad.kept[:, before:].flatten().to(counts.device)
                share = max(share, float((padded & counts).sum() / counts.sum().clamp(min=1)))
    if share > PADDED:
        yield finding(
            "padding-scored",
            "error",
            f"{share:.0%} of the targets that the loss counts are padding: the model learns to predict it",
            "give these positions the label -100, or pass ignore_index to the loss",
            share,
        )
    else:
        yield from _with_less(seen)


def _with_less(seen: Seen) -> Results:
    """A loss that moves with the amount of padding, and by padded positions, where the model's outputs do not."""
    every = ((batch, fewer_of(paddings(seen.leaves(batch)), 2, left=1)) for batch in seen.batches[:4])
    batch, fewer = next(((batch, fewer) for batch, fewer in every if fewer is not None), (None, None))
    if fewer is None:
        return
    try:
        few, cut = (tree_map(of, batch) for of in (fewer.wide, fewer.cut))
        (a, made, slopes), (b, other, _), (again, *_) = (*map(seen.answered, (few, cut)), seen.answered(few, seed=1))
    except Exception:  # a length, or a number of rows, that is fixed
        return
    gaps = [fewer.gap(x, y) for x, y in zip(made, other, strict=False)]
    if any(g is None or g > MOVED for g in gaps) or not abs(a - b) > max(LESS * abs(b), 100 * abs(a - again)):
        return
    of_pads = [
        (s.reshape(*s.shape[:2], -1).square().sum(-1), ~pad.kept[fewer.rows, : s.shape[1]].to(s.device))
        for s in slopes
        for time, pad in fewer.pads.items()
        if s.ndim > 1 and len(s) == len(fewer.rows) and time - s.shape[1] in (0, 1)
    ]
    share = float(sum(s[hidden].sum() for s, hidden in of_pads) / max(sum(s.sum() for s, _ in of_pads), 1e-30))
    if share > PADDED:
        last = all(s.count_nonzero() == s[:, -1].count_nonzero() for s, _ in of_pads)
        where = "it is read at the last position, which is padding" if last else "it counts padded positions"
        yield finding(
            "padding-scored",
            "warning",
            f"padding two rows by {fewer.taken} leaves the outputs at real positions, and the loss goes from {b:.3g} to"
            f" {a:.3g}: {where} ({share:.0%} of its squared gradient by the outputs)",
            "leave padding out, (loss * real).sum() / real.sum() with real = ids != pad; read one value of a row at its"
            " last real token, real.sum(1) - 1",
            share,
        )


def _ends(seen: Seen) -> Results:
    """Whether the end of a text, as the model's settings or the masks say it, is ever predicted."""
    read = seen.reading
    if read is None or read.ahead != 1:
        return
    end = getattr(getattr(seen.setup.model, "config", None), "eos_token_id", None)
    end = end if isinstance(end, int) else _last_id(seen, read.name)
    if end is None:
        return
    times = counted = 0
    for call in seen.record.losses:
        if call.name in CLASSES and not call.target.is_floating_point():
            _, target, counts = call.rows
            counted += int(((target == end) & counts).sum())
    for batch in seen.batches[: seen.updates * seen.setup.accumulate]:  # those of the losses: ends may be rare
        leaves = seen.leaves(batch)
        ids, mask = leaves.get(read.name), leaves.get("attention_mask")
        if ids is not None:
            here = (ids == end) & (mask.bool() if mask is not None and mask.shape == ids.shape else True)
            times += int((here[:, 1:] & (ids[:, :-1] != end)).sum())
    if times >= OFTEN and not counted:
        yield finding(
            "end-never-target",
            "warning",
            f"the end of a text (id {end}) stands {times} times in the inputs and is never a target that counts:"
            " the model does not learn to stop",
            "pad with another id than the end's, or hide padding by attention_mask instead of by its id",
            float(times),
        )


def _last_id(seen: Seen, name: str) -> int | None:
    """The id that stands at the end of all rows which a mask says are filled up, where it fills them up, too."""
    ends, fillers = list[int](), set[int]()
    for batch in seen.batches:
        leaves = seen.leaves(batch)
        ids, mask = leaves[name], leaves.get("attention_mask")
        if mask is not None and mask.shape == ids.shape:
            short = ~mask.bool().all(1) & mask.bool().any(1)
            place = (mask.bool() * torch.arange(1, ids.shape[1] + 1, device=ids.device)).argmax(1)
            ends += ids.gather(1, place[:, None])[short].flatten().tolist()
            fillers |= {*ids[~mask.bool()].tolist()}
    return ends[0] if len(ends) >= OFTEN and {*ends} == fillers and len(fillers) == 1 else None

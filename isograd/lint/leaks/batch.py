"""What sequences of a batch have of each other, or of the call before."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.leaks.inputs import CHANGED, as_given, named_inputs, others, output_of, sequence_of
from isograd.lint.leaks.mixing import across, first_mixing
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import bare
from isograd.trace.inputs import run
from isograd.trace.record import answer, fitted, stand_in

PLACED = 1e-3  # of the largest output: more than other sums in a batch do


@rule(Phase.DATA, "batch-leaks", hides=(Phase.MASKS, Phase.POSITIONS, Phase.DATA, "gradient-zero", "gradient-cut"))
def batch(checked: CheckedModel) -> Iterator[Finding]:
    """Outputs of one sequence that depend on another of the batch."""
    if (stale := _stale(checked)) is not None:
        yield stale
        return
    named, base = named_inputs(checked), output_of(checked, checked.inputs)
    tensors = {n: v for n, v in named.items() if isinstance(v, Tensor) and v.ndim}
    place = sequence_of(checked) or next(iter(tensors), None)
    if place is None or base is None or _positions_first(checked):
        return
    x, count = named[place], len(named[place])
    if x.ndim < 2 or count < 2 or base.shape[:1] != (count,):
        return
    first = {n: v[:1].expand_as(v).clone() for n, v in tensors.items() if len(v) == count}
    alike = output_of(checked, as_given(checked, named | first))
    inputs = [
        n for n in first if n == place or (named[n].ndim > 1 and not _is_label(n) and named[n].dtype != torch.bool)
    ]
    changed = {n: named | {n: _first_changed(checked, named[n], n == place)} for n in inputs}
    moved = {n: output_of(checked, as_given(checked, of)) for n, of in changed.items()}
    gaps = {
        n: ((y - base)[1:].abs().max() / base.abs().max()).item()
        for n, y in moved.items()
        if y is not None and y.shape == base.shape
    }
    if place not in gaps:
        return
    pairs = base.shape == (count, count)  # each text and image, as CLIP's
    beside = [n for n in first if "mask" not in n]
    by_place = 0.0
    drawn = "random-in-eval" in checked.reported  # each row has its own random numbers
    if alike is not None and alike.is_floating_point() and alike.shape[:1] == (count,) and not (pairs or drawn):
        by_place = ((alike - alike[:1]).abs().max() / alike.abs().max().clamp_min(1e-30)).item()
    most = max(gaps, key=lambda n: gaps[n])
    gap = 0.0 if pairs and len(beside) > 1 else gaps[most]
    if by_place > PLACED and not checked.routed:  # experts that are full leave out what comes last
        mixes = first_mixing(checked, as_given(checked, named | first), count, alike=True)
        yield Finding(
            address=mixes.module if mixes else next(iter(first)),
            at=mixes.makes[0] if mixes else None,
            measured=by_place,
            message=f"{count} equal sequences in one batch give outputs that differ by {by_place:.2g} of the largest:"
            " something is added by the place in the batch, as positions indexed by x.size(0) of (batch, time) are",
            remedy="index positions by the axis of time: pe[: x.size(1)] of (batch, time, d)",
        )
    elif gap > CHANGED:
        cause, remedy = (
            "",
            "attend along positions: batch_first=True in torch.nn's layers, or x.transpose(0, 1) around them",
        )
        norm = None
        if (found := across(checked, 0, count)) is not None:
            norm, cause = found
            remedy = "normalize each sequence by itself, as F.layer_norm(x, x.shape[1:]) or x.mean(-1, keepdim=True) do"
        other = as_given(checked, changed[most])
        mixes = first_mixing(checked, other, count) if norm is None else norm
        if mixes is not None and norm is None:
            cause = f": {bare(mixes)} mixes them, of {tuple(checked.trace[mixes.reads[0]].shape)}"
        yield Finding(
            address=_first_across(checked, count) or most if mixes is None else mixes.module,
            measured=gap,
            message=f"outputs of one sequence change by {gap:.2g} of the largest with another one of the batch{cause}",
            remedy=remedy,
            at=None if mixes is None else mixes.makes[0],
        )


def _stale(checked: CheckedModel) -> Finding | None:
    """Where outputs, in eval mode, change with the inputs of the call before, and not where these were the same: what
    that call had computed is used again. A state that goes on changes with every call, and is none.
    """
    if checked.large or checked.trace.itself or "random-in-eval" in checked.reported:
        return None
    named = named_inputs(checked)
    tensors = {n: v for n, v in named.items() if isinstance(v, Tensor) and v.ndim}
    count = next((len(v) for v in tensors.values()), 0)
    rolled = named | {n: v.roll(1, 0) for n, v in tensors.items() if len(v) == count}  # the same, in another order
    fresh, used = stand_in(checked.model), stand_in(checked.model)
    calls = (
        (fresh, checked.inputs),
        (fresh, checked.inputs),
        (used, as_given(checked, rolled)),
        (used, checked.inputs),
    )
    base, same, _, after = (answer(run(twin, fitted(twin, one))) for twin, one in calls)
    if base is None or same is None or after is None or not base.shape == same.shape == after.shape:
        return None
    gap, still = ((y - base).abs().max() / base.abs().max() for y in (after, same))
    if not gap > CHANGED or not still <= CHANGED:
        return None
    kept = _kept(used) - _kept(checked.model)
    return Finding(
        address=min(kept, default=""),
        measured=gap.item(),
        message=f"the outputs change by {gap:.2g} of the largest where the call before had another batch, and not where"
        f" it had the same: what it computed is used again (kept in {many(len(kept), 'place')})",
        remedy="compute it for each input, or compare the inputs themselves before it is used, not a shape or a flag",
    )


def _kept(model: nn.Module) -> set[str]:
    """Where modules hold tensors, alone or in containers, beside parameters and buffers."""
    held = ((f"{at}.{n}".lstrip("."), tree_leaves(p)) for at, m in model.named_modules() for n, p in vars(m).items())
    return {at for at, parts in held if "._" not in f".{at}" and any(isinstance(part, Tensor) for part in parts)}


def _first_changed(checked: CheckedModel, x: Tensor, sole: bool) -> Tensor:
    """Another first sequence, the others as they were; of other ids the second's, which are known to do."""
    other = x.clone()
    other[0] = others(checked, x)[0] if x.is_floating_point() or sole else x[1]
    return other


def _is_label(name: str) -> bool:
    return name == "y" or name.startswith(("label", "target", "answer", "truth"))


def _positions_first(checked: CheckedModel) -> bool:
    """Whether positions stand on axis 0, as in (time, batch) ids: absolute ones then differ along it; or in patches of
    one picture after another.
    """
    if checked.anatomy.stacks and all(checked.trace[s.first].ndim == 2 for s in checked.anatomy.stacks):
        return True
    if any("grid" in name for name in checked.trace.inputs):
        return True
    by_places = checked.places_vary == 0 and checked.rows_of_outputs != 0
    return by_places and not any(stack.time == 1 for stack in checked.anatomy.stacks)


def _first_across(checked: CheckedModel, batch_size: int) -> str | None:
    """The first sublayer in which one sequence moves another, of streams that have the batch in front."""
    for sublayer in checked.anatomy.distinct:
        shape = checked.trace[sublayer.read].shape
        if len(shape) != 3 or shape[0] != batch_size or shape[1] == batch_size:
            continue
        moved = checked.dataflow.moved_at(sublayer.read, sublayer.total, 0, 0)
        if moved is not None and moved[1:].any():
            return sublayer.address
    return None

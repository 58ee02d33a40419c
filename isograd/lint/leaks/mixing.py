"""The operation by which entries along an axis become dependent on one another."""

from typing import Any

from isograd.lint.checked_model import CheckedModel
from isograd.lint.leaks.inputs import CHANGED
from isograd.lint.norms import STATISTICS
from isograd.trace.dataflow import LAYOUT, NORMS, bare
from isograd.trace.record import Operation, record


def first_mixing(checked: CheckedModel, inputs: Any, count: int, alike: bool = False) -> Operation | None:
    """The first operation that gives other sequences something else where the first one alone is another, and reads the
    same of them; of `alike` inputs, all whose sequences are equal, the first that gives unequal ones.
    """
    trace = checked.trace
    if trace.itself:
        return None
    changed = record(checked.model, inputs)

    def moved(value: int) -> bool:
        a, b = trace[value], changed[value]
        if a.shape != b.shape or not a.ndim or len(a) % count or not a.is_floating_point():
            return False
        rest = len(a) // count  # positions may be joined to the sequences
        gap = (b[rest:] - b[:-rest] if alike else a - b)[0 if alike else rest :].abs()
        return bool((gap > CHANGED * a.abs().max()).any())

    for a, b in zip(trace.operations, changed.operations, strict=False):
        if a.name != b.name or a.makes != b.makes or a.reads != b.reads:
            return None
        of = [v for v in a.reads if v in checked.dataflow.live] if alike else a.reads
        if bare(a) not in LAYOUT and a.makes and of and moved(a.makes[0]) and not any(moved(v) for v in of):
            return a
    return None


def across(checked: CheckedModel, axis: int, size: int) -> tuple[Operation, str] | None:
    """The first norm, mean or variance along an axis that should stay apart, by which other entries of the outputs
    change; and what it takes together.
    """
    trace = checked.trace
    outputs = [v for v in trace.outputs.values() if trace[v].is_floating_point() and trace[v].ndim > axis]
    outputs = [v for v in outputs if trace[v].shape[axis] == size]
    for operation in (o for o in trace.operations if bare(o) in STATISTICS | NORMS and checked.dataflow.data(o)):
        read, made = (trace[v] for v in (operation.reads[0], operation.makes[0]))
        if read.ndim < 2 or read.ndim <= axis or read.shape[axis] != size:
            continue
        if made.shape != read.shape and made.shape[axis : axis + 1] == (size,):  # one for each
            continue
        other = read.clone()
        other.select(axis, -1).mul_(2).add_(1)
        result = trace.replay({operation.reads[0]: other}, [operation.makes[0]])[0].clone()
        if result.shape == other.shape:
            result.select(axis, -1).copy_(made.select(axis, -1))  # what others become, and not the entry itself
        moved = zip(trace.replay({operation.makes[0]: result}, outputs), (trace[v] for v in outputs), strict=True)
        if any((x - y).narrow(axis, 0, size - 1).abs().max() > CHANGED * y.abs().max() for x, y in moved):
            what = "the sequences" if axis == 0 else "the positions"
            return (
                operation,
                f": {bare(operation)} takes its statistics of {tuple(read.shape)} over axis {axis}, {what}",
            )
    return None

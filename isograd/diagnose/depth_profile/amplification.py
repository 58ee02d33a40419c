"""How far a small change of the weights carries: recorded operations run again in float64, with other matrices."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from isograd.trace.record import Operation, Trace, Value

EPS = 1e-5
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@torch.no_grad()
def amplification(trace: Trace, matrices: Sequence[str], wanted: Sequence[int], seed: int) -> list[float]:
    """mean |F(W + e s) - F(W)|^2 / e^2 at each of the `wanted` values, s = +-1 drawn anew for every weight, e = 1e-5.

    Half-precision and float32 become float64, where the model itself asks for them too. Signs are drawn in the order
    of `matrices`; see `signs`.
    """
    drawn = signs(trace, matrices, seed)
    before = _again(trace, matrices, wanted, lambda _, weight: weight)
    after = _again(trace, matrices, wanted, lambda name, weight: weight + EPS * drawn[name])
    return [((b - a).square().mean() / EPS**2).item() for a, b in zip(before, after, strict=True)]


def signs(trace: Trace, matrices: Sequence[str], seed: int) -> dict[str, Tensor]:
    """+-1 for each weight, as int8."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {name: trace[value].shape for value, name in trace.names.items()}
    return {
        name: torch.empty(shapes[name], dtype=torch.int8).random_(0, 2, generator=draw) * 2 - 1 for name in matrices
    }


def _again(
    trace: Trace, matrices: Sequence[str], wanted: Sequence[int], change: Callable[[str, Tensor], Tensor]
) -> list[Tensor]:
    """The wanted values with changed matrices. Only what depends on the matrices is computed; all else is as it was.

    Values are let go after their last reader, so that memory does not grow with depth.
    """
    changed = {value: name for value, name in trace.names.items() if name in set(matrices)}
    between = trace.below(changed) & trace.above(wanted)
    steps = [o for o in trace.operations if not between.isdisjoint(o.makes)]
    last = {value: at for at, operation in enumerate(steps) for value in operation.reads}
    known: dict[int, Tensor] = {}

    def value(at: int) -> Tensor:
        if at in known:
            return known[at]
        exact = _exact(trace[at])
        return change(changed[at], exact) if at in changed else exact

    for at, operation in enumerate(steps):
        made = _run(operation, value)
        known.update((v, t) for v, t in zip(operation.makes, made, strict=True) if v in between)
        for read in operation.reads:
            if last[read] == at and read not in wanted:
                known.pop(read, None)
    return [value(at) for at in wanted]


def _run(operation: Operation, value: Callable[[int], Tensor]) -> list[Tensor]:
    def fill(place: Any) -> Any:
        if isinstance(place, torch.dtype):
            return torch.float64 if place in _FLOATS else place
        if not isinstance(place, Value):
            return place
        tensor = value(place.index)
        return tensor.clone() if operation.function._schema.is_mutable else tensor

    args, kwargs = tree_map(fill, (operation.args, operation.kwargs))
    if operation.name == "_grouped_mm" and operation.args[2] is not None:  # torch has it in float32 and below only
        return [_grouped(*args[:3])]
    return [t for t in tree_flatten(operation.function(*args, **kwargs))[0] if isinstance(t, Tensor)]


def _grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows up to each end times the matrix of their group, as a mixture of experts has it."""
    starts = [0, *ends.tolist()]
    groups = zip(starts, starts[1:], matrices, strict=False)
    made = rows.new_zeros(rows.shape[0], matrices.shape[-1])
    for start, end, matrix in groups:
        made[start:end] = rows[start:end] @ matrix
    return made


def _exact(x: Tensor) -> Tensor:
    return x.double() if x.dtype in _FLOATS else x

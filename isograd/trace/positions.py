"""Which positions move which: x is made another one at one place, and the result is watched at the others."""

import torch

from isograd.trace.record import Trace

SAME_AT_ALL = 1e-6  # of the largest result: what rounding may do


def time_axis(trace: Trace, read: int, total: int) -> int | None:
    """The axis of x along which what stands at the first place moves the result at others; None where none does."""
    for axis in (1, 0):
        moved = moved_at(trace, read, total, axis, 0)
        if moved is not None and moved[1:].any():
            return axis
    return None


def moved_at(trace: Trace, read: int, total: int, axis: int, place: int) -> torch.Tensor | None:
    """Along an axis, where the result moves if x is another one at one place there. None: shapes do not correspond."""
    x, result = trace[read], trace[total]
    if x.ndim < 2 + (axis == 1) or result.shape != x.shape or x.shape[axis] < 2:
        return None
    other = x.clone()
    part = other.select(axis, place)
    part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).to(x) * x.std())
    gap = (trace.replay({read: other}, [total])[0] - result).abs().transpose(0, axis).flatten(1).amax(1)
    return gap > SAME_AT_ALL * result.abs().max()

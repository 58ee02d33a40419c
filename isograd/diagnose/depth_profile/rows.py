"""Rows of a depth profile, from a recorded pass and what was measured beside it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from isograd.diagnose.depth_profile.loss import GradientSizes
from isograd.diagnose.depth_profile.results import StackProfile, SublayerProfile, over
from isograd.diagnose.quantities import rms, variance
from isograd.trace.anatomy import Anatomy, TracedStack
from isograd.trace.attention import attention_facts
from isograd.trace.record import Trace, in_double
from isograd.trace.sublayers import TracedSublayer, summands

EPS = 1e-5  # by which every weight is moved


@torch.no_grad()
def rows(
    anatomy: Anatomy, graded: GradientSizes | None, amplified: Sequence[float] | None
) -> tuple[SublayerProfile, ...]:
    """A row per sublayer, stack by stack."""
    made: list[SublayerProfile] = []
    for stack in anatomy.stacks:
        dependency: float | None = 0.0
        for sublayer in stack.sublayers:
            moved = amplified[len(made)] if amplified else None
            made.append(_row(anatomy, stack, sublayer, dependency, graded, moved))
            dependency = made[-1].dependency_sum
    return tuple(made)


@torch.no_grad()
def stack_facts(anatomy: Anatomy, stack: TracedStack) -> StackProfile:
    placements = [sublayer.placement for sublayer in stack.sublayers]
    return StackProfile(
        name=stack.name,
        layers=stack.layers,
        sublayers=len(placements),
        placements={name: placements.count(name) for name in dict.fromkeys(placements)},
        cross=stack.cross,
        final_norms=len(stack.final),
        input_rms=rms(anatomy.trace[stack.first]).item(),
    )


@torch.no_grad()
def amplification(anatomy: Anatomy, seed: int) -> list[float]:
    """mean |F(W + e s) - F(W)|^2 / e^2 of the stream after each sublayer, s = +-1 drawn anew for every weight of all
    matrices in the sublayers, e = 1e-5; in float64.
    """
    trace, draw = anatomy.trace, torch.Generator().manual_seed(seed)
    inside = _matrices(trace) & {name for sublayer in anatomy.sublayers for name in sublayer.parameters}
    values = [value for value, name in trace.names.items() if name in inside]
    signs = {v: torch.empty(trace[v].shape, dtype=torch.int8).random_(0, 2, generator=draw) * 2 - 1 for v in values}
    streams = [sublayer.stream for sublayer in anatomy.sublayers]

    def moved(value: int, by: float) -> Tensor:
        return in_double(trace[value]) + by * signs[value]

    before, after = (
        trace.replay({value: partial(moved, value, by) for value in values}, streams, double=True) for by in (0.0, EPS)
    )
    return [((b - a).square().mean() / EPS**2).item() for a, b in zip(before, after, strict=True)]


def terms(anatomy: Anatomy, sublayer: TracedSublayer) -> tuple[Tensor, Tensor] | None:
    """skip * x and scale * u as the sum adds them: each is what the sum becomes where its other terms are 0.

    Sublayers in parallel have one sum; neither's branch counts as the other's skip. None where the sum does not show
    its terms.
    """
    dataflow, trace = anatomy.dataflow, anatomy.trace
    made = trace.made_by(sublayer.total)
    values = summands(dataflow, made) if made is not None else []
    branches = {s.branch for s in anatomy.sublayers if s.total == sublayer.total}
    own = [v for v in values if dataflow.root(v) == sublayer.branch]
    skips = [v for v in values if dataflow.root(v) not in branches]
    if not own or not skips:
        return None
    alone = [{v: trace[v] if v in kept else torch.zeros_like(trace[v]) for v in values} for kept in (skips, own)]
    skip, branch = (trace.replay(changes, [sublayer.total])[0] for changes in alone)
    return skip, branch


def largest_entry(x: Tensor, axis: int | None) -> dict[str, Any]:
    """|x| of the entry farthest from 0, over the median |x|, its channel and its position.

    Args:
        axis: that of positions; without one the position counts all but the channels.
    """
    size = x.abs()
    place = [int(i) for i in torch.unravel_index(size.argmax(), x.shape)]
    top, median = size.max().item(), size.median().item()
    return {
        "largest": top,
        "largest_over_median": top / median if median else float("inf"),
        "largest_channel": place[-1],
        "largest_position": place[axis] if axis is not None else int(size.argmax()) // x.shape[-1],
    }


def _matrices(trace: Trace) -> set[str]:
    """Names of parameters with two axes at least that are longer than 1."""
    return {name for value, name in trace.names.items() if sum(n > 1 for n in trace[value].shape) > 1}


def _row(
    anatomy: Anatomy,
    stack: TracedStack,
    sublayer: TracedSublayer,
    before: float | None,
    graded: GradientSizes | None,
    amplified: float | None,
) -> SublayerProfile:
    """`before`: the dependency of the sublayers before it in the stack, together."""
    trace = anatomy.trace
    stream = trace[sublayer.stream]
    measured: dict[str, Any] = {}
    if (added := terms(anatomy, sublayer)) is not None:
        skip, branch = (variance(term).item() for term in added)
        measured = {
            "branch_variance": branch,
            "branch_skip_ratio": over(branch, skip),
            "dependency": over(branch, branch + skip),
        }
    dependency = measured.get("dependency")
    if sublayer.attention is not None:
        measured |= attention_facts(trace, sublayer.attention, _sequences(stream, stack.time))
    norms = {n for slot in sublayer.norms.values() for norm in slot for n in (norm.weight, norm.bias) if n}
    own = sorted({*sublayer.parameters, *norms})
    matrices = [name for name in sublayer.parameters if name in _matrices(trace)]
    last = sublayer.last or next(reversed(matrices), None)
    return SublayerProfile(
        address=sublayer.address,
        stack=sublayer.stack,
        layer=sublayer.layer,
        index=sublayer.index,
        kind=sublayer.kind,
        placement=sublayer.placement,
        parameters=sum(trace[v].numel() for v, name in trace.names.items() if name in own),
        gradient_norm=graded.norm(own) if graded else None,
        gradient_mean_abs=graded.means.get(last or "") if graded else None,
        sum_rms=rms(trace[sublayer.total]).item(),
        residual_rms=rms(stream).item(),
        growth=over(variance(stream).item(), variance(trace[stack.first]).item()),
        skip=sublayer.skip.value,
        scale=sublayer.scale.value,
        dependency_sum=None if before is None or dependency is None else before + dependency,
        amplification=amplified,
        **largest_entry(stream, stack.time),
        **measured,
    )


def _sequences(stream: Tensor, axis: int | None) -> int:
    """How many are in the batch."""
    return stream.shape[0 if axis == 1 else 1] if axis is not None and stream.ndim == 3 else stream.shape[0]

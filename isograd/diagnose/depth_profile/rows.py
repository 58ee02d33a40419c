"""Rows of a depth profile, from a recorded pass and what was measured beside it."""

from collections.abc import Sequence

import torch

from isograd.diagnose.depth_profile.attention import attended
from isograd.diagnose.depth_profile.backward import Gradients
from isograd.diagnose.depth_profile.branches import Site, largest, terms
from isograd.diagnose.depth_profile.results import SublayerProfile, TowerProfile
from isograd.diagnose.quantities import rms, variance
from isograd.trace.anatomy import Anatomy
from isograd.trace.record import Trace
from isograd.trace.structure import FoundTower


@torch.no_grad()
def rows(
    found: Anatomy, places: Sequence[Site], graded: Gradients | None, amplified: Sequence[float] | None
) -> tuple[SublayerProfile, ...]:
    """A row per sublayer, tower by tower."""
    made: list[SublayerProfile] = []
    for at, site in enumerate(places):
        before = made[-1].dependency_sum if site.index > 1 else 0.0
        made.append(_row(found, site, before, graded, amplified[at] if amplified else None))
    return tuple(made)


@torch.no_grad()
def tower_facts(found: Anatomy, tower: FoundTower) -> TowerProfile:
    placements: dict[str, int] = {}
    for sublayer in tower.sublayers:
        placements[sublayer.placement] = placements.get(sublayer.placement, 0) + 1
    start = found.trace[tower.start]
    return TowerProfile(
        name=tower.name,
        layers=tower.layers,
        sublayers=len(tower.sublayers),
        placements=placements,
        cross=any(s.kind == "cross" for s in tower.sublayers),
        final_norms=len(tower.final),
        start_rms=rms(start).item(),
    )


def wide(trace: Trace) -> set[str]:
    """Names of the matrices: parameters with two axes at least that are longer than 1."""
    return {name for value, name in trace.names.items() if sum(n > 1 for n in trace[value].shape) > 1}


def _row(
    found: Anatomy, site: Site, before: float | None, graded: Gradients | None, amplified: float | None
) -> SublayerProfile:
    trace, sublayer = found.trace, site.sublayer
    stream, start = trace[site.stream], variance(trace[site.tower.start]).item()
    added = terms(found, sublayer)
    skip, branch = (variance(t).item() for t in added) if added else (None, None)
    dependency = None if skip is None or branch is None else _part(branch, branch + skip)
    attention = None
    if sublayer.attention is not None:
        attention = attended(trace, sublayer.attention, _sequences(stream, site.axis))
    top = largest(stream, site.axis)
    names = set(sublayer.parameters)
    norms = {n for slot in sublayer.norms.values() for norm in slot for n in (norm.gain, norm.offset) if n}
    own = sorted(names | norms)
    matrices = [name for name in sublayer.parameters if name in wide(trace)]
    return SublayerProfile(
        address=sublayer.address,
        tower=sublayer.tower,
        layer=sublayer.layer,
        index=site.index,
        kind=sublayer.kind,
        placement=sublayer.placement,
        parameters=sum(trace[v].numel() for v, name in trace.names.items() if name in own),
        gradient_norm=graded.norm(own) if graded else None,
        gradient_mean_abs=graded.mean_abs(sublayer.last or next(reversed(matrices), None)) if graded else None,
        sum_rms=rms(trace[sublayer.total]).item(),
        residual_rms=rms(stream).item(),
        growth=_part(variance(stream).item(), start),
        skip=sublayer.skip.value,
        gain=sublayer.gain.value,
        branch_variance=branch,
        branch_skip_ratio=None if skip is None or branch is None else _part(branch, skip),
        dependency=dependency,
        dependency_sum=None if before is None or dependency is None else before + dependency,
        amplification=amplified,
        attention_entropy=attention.entropy if attention else None,
        attention_entropy_min=attention.lowest if attention else None,
        attention_uniform=attention.uniform if attention else None,
        attention_share=attention.entropy / attention.uniform if attention else None,
        largest_logit=attention.logit if attention else None,
        largest=top.value,
        largest_over_median=top.over_median,
        largest_channel=top.channel,
        largest_position=top.position,
    )


def _part(a: float, b: float) -> float:
    return a / b if b else float("inf") if a else float("nan")


def _sequences(stream: torch.Tensor, axis: int | None) -> int:
    """How many stand in the batch."""
    return stream.shape[0 if axis == 1 else 1] if axis is not None and stream.ndim == 3 else stream.shape[0]

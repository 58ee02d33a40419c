"""What stands in a recorded forward pass at each sublayer: the two terms of the sum, the sum, the stream behind it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isograd.trace.anatomy import Anatomy
from isograd.trace.dataflow import SCALING, bare
from isograd.trace.positions import time_axis
from isograd.trace.structure import FoundSublayer, FoundTower
from isograd.trace.sublayers import Sums


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """A sublayer, and where the stream is read behind it.

    Attributes:
        index: of the sublayer in its tower, from 1.
        stream: the value that is handed on: the sum, or behind its post norm.
        axis: of time in the stream, where one was found.
    """

    sublayer: FoundSublayer
    tower: FoundTower
    index: int
    stream: int
    axis: int | None


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The entry of a stream that is farthest from 0: |x|, over the median |x|, its channel, its place in the text."""

    value: float
    over_median: float
    channel: int
    position: int


def sites(found: Anatomy) -> list[Site]:
    """All sublayers of a model, tower by tower."""
    return [site for tower in found.towers for site in _of_tower(found, tower)]


def terms(found: Anatomy, sublayer: FoundSublayer) -> tuple[Tensor, Tensor] | None:
    """skip * x and gain * u as the sum adds them: each is what the sum becomes where its other terms are 0.

    Sublayers that stand in parallel have one sum; neither's branch counts as the other's skip. None where the sum
    does not show its terms.
    """
    flow, trace = found.flow, found.trace
    made = trace.made_by(sublayer.total)
    values = Sums(flow).terms(made) if made is not None else []
    branches = {s.branch for s in found.sublayers if s.total == sublayer.total}
    own = [v for v in values if flow.root(v) == sublayer.branch]
    skips = [v for v in values if flow.root(v) not in branches]
    if not own or not skips:
        return None
    alone = [{v: trace[v] if v in kept else torch.zeros_like(trace[v]) for v in values} for kept in (skips, own)]
    skip, branch = (trace.replay(changes, [sublayer.total])[0] for changes in alone)
    return skip, branch


def largest(x: Tensor, axis: int | None) -> Largest:
    """See `Largest`. `axis` is that of time; without one the position counts all but the channels."""
    size = x.abs()
    place = [int(i) for i in torch.unravel_index(size.argmax(), x.shape)]
    top, median = size.max().item(), size.median().item()
    position = place[axis] if axis is not None else int(size.argmax()) // x.shape[-1]
    return Largest(
        value=top, over_median=top / median if median else float("inf"), channel=place[-1], position=position
    )


def _of_tower(found: Anatomy, tower: FoundTower) -> list[Site]:
    first = next((s for s in tower.sublayers if s.kind in ("attn", "mix")), None)
    axis = time_axis(found.trace, first.read, first.total) if first else None
    placed = []
    for at, sublayer in enumerate(tower.sublayers):
        after = next((s for s in tower.sublayers[at:] if s.total != sublayer.total), None)
        stream = _behind(found, sublayer, after)
        placed.append(Site(sublayer=sublayer, tower=tower, index=at + 1, stream=stream, axis=axis))
    return placed


def _behind(found: Anatomy, sublayer: FoundSublayer, after: FoundSublayer | None) -> int:
    """The stream behind a sublayer: with a post norm what the next one reads, or the norm with its gain and offset."""
    posts = sublayer.norms.get("post")
    if not posts:
        return sublayer.total
    if after is not None and after.read in found.trace.below([posts[-1].result]):
        return after.read
    flow, value = found.flow, posts[-1].result
    while len(readers := found.trace.read_by(value)) == 1 and bare(readers[0]) in SCALING | {"to", "_to_copy"}:
        if len(flow.data(readers[0])) != 1 or (bare(readers[0]) in SCALING and not flow.weights(readers[0])):
            break
        value = readers[0].makes[0]
    return value

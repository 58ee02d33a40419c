"""The sublayers of any Transformer and the placement of each, inferred from one forward pass.

A sublayer is a sum  s = skip * x + gain * u  in which u was computed from x with the help of weights. Its norms are
those that a walk crosses between x and the first product (pre), behind the last product (out), before it (mid), and on
the sum (post); each of pre, out and post is then proved by scaling: what stands behind a norm does not move.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from isograd.trace.dataflow import Flow
from isograd.trace.record import Trace, record
from isograd.trace.stacks import streams
from isograd.trace.structure import FoundSublayer, FoundTower
from isograd.trace.sublayers import Sums


@dataclass(kw_only=True, eq=False)
class Anatomy:
    """What was found in a model. `towers` is empty where no sublayer was."""

    trace: Trace
    flow: Flow
    towers: list[FoundTower]
    sums: Sums

    @property
    def sublayers(self) -> list[FoundSublayer]:
        return [sublayer for tower in self.towers for sublayer in tower.sublayers]

    def attended(self, sublayer: FoundSublayer) -> tuple[int, int, int] | None:
        """The values of query, key and value that a sublayer's attention reads; None where it has none."""
        return self.sums.attended(sublayer.attention) if sublayer.attention is not None else None

    @cached_property
    def placements(self) -> dict[str, str]:
        return {sublayer.address: sublayer.placement for sublayer in self.sublayers}


def anatomy(model: nn.Module, inputs: Any) -> Anatomy:
    """Run `model` once on `inputs` and find its sublayers; see `isograd.trace.record.record` for what it runs on."""
    trace = record(model, inputs)
    flow = Flow(trace)
    sums = Sums(flow)
    return Anatomy(trace=trace, flow=flow, towers=streams(flow, sums.sublayers()), sums=sums)

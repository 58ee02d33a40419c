"""What would have cured a loop of one's own: back to before its break, once per change.

    loop = isograd.OwnLoop(step=train_step, state=get_state, load=set_state)
    watch = isograd.watch(model, replay=loop)
    for n in range(1, steps + 1):
        train_step(n)                              # calls watch.step(loss, step=n) before the optimizer's step
    watch.replay({"lower rate": lower_rate, "clipping": clip}, steps=100)

Kept are states of before the updates, in memory: the first one, and those of the last moments twenty steps apart in
which nothing was wrong.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from isograd.diagnose.watch.writers import Row
from isograd.outcome import BREAK, WINDOW, Onset

APART, KEPT = 20, 3
AS_IT_WAS = "as it was"


@dataclass(frozen=True, kw_only=True)
class OwnLoop:
    """A loop that can be taken back.

    Attributes:
        step: does training step n (its batch, forward, backward, update) and gives its loss.
        state: all that a step reads and changes: of the model, the optimizer, a scheduler, by name.
        load: puts such a state back.
    """

    step: Callable[[int], Tensor | float]
    state: Callable[[], Mapping[str, Any]]
    load: Callable[[Mapping[str, Any]], None]


@dataclass(kw_only=True)
class Kept:
    """Before update `step`: the state, and torch's random numbers."""

    step: int
    state: Any
    random: Tensor


@dataclass(kw_only=True)
class Replays:
    """Keeps states of a loop while it is watched, and replays it.

    Attributes:
        busy: while it replays: the loop's own calls of `watch.step` are then none of the run.
        losses: of the steps so far, by their number.
    """

    loop: OwnLoop
    busy: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    onset: Onset = field(default_factory=Onset)
    random: Tensor = field(default_factory=torch.get_rng_state)  # as the step began: after the one before

    def before_update(self, step: int) -> None:
        """At `watch.step`: the state is still that of before the update."""
        if not self.kept or (self.onset.since is None and step - self.kept[-1].step >= APART):
            now = Kept(step=step, state=copy.deepcopy(self.loop.state()), random=self.random)
            self.kept = [*self.kept[:1], *self.kept[1:][-(KEPT - 1) :], now] if self.kept else [now]
        self.random = torch.get_rng_state()

    def follow(self, step: int, loss: float, level: float | None) -> None:
        self.losses[step] = loss
        self.onset.follow(step, loss, math.nan if level is None else level)

    def run(self, changes: Mapping[str, Callable[[], None]], steps: int, start: int | None) -> list[Row]:
        """Each change from before the break, and first the loop as it was; see `Watch.replay`."""
        broke = self.onset.since if start is None else start + 1
        before = [one for one in self.kept if broke is None or one.step < broke]
        kept = (before or self.kept[:1])[-1]
        lowest = min((loss for n, loss in self.losses.items() if broke is None or n < broke), default=math.inf)
        rows = []
        self.busy = True
        try:
            for name, change in {AS_IT_WAS: lambda: None, **changes}.items():
                self._back(kept)
                change()
                rows.append(self._row(name, kept.step, steps, lowest))
        finally:
            self._back(kept)
            self.busy = False
        return rows

    def _back(self, kept: Kept) -> None:
        self.loop.load(copy.deepcopy(kept.state))
        torch.set_rng_state(kept.random)

    def _row(self, name: str, start: int, steps: int, lowest: float) -> Row:
        losses: list[float] = []
        for n in range(start, start + steps):
            losses.append(float(self.loop.step(n)))
            if not math.isfinite(losses[-1]):
                break
        last = losses[-WINDOW:]
        end = fmean(last) if all(map(math.isfinite, last)) else math.nan
        known = [self.losses[n] for n in range(start, start + len(losses)) if n in self.losses]
        same = all(a == b or (a != a and b != b) for a, b in zip(losses, known, strict=False))
        row: Row = {"change": name, "from": start, "steps": len(losses), "loss": end, "cures": end < lowest + BREAK / 2}
        return {**row, "bit_equal": same} if name == AS_IT_WAS else row

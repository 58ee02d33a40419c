"""What would have cured a loop of one's own: back to before its break, once per change.

    loop = isograd.OwnLoop(step=train_step, state=get_state, load=set_state)
    watch = isograd.watch(model, replay=loop)
    for n in range(1, steps + 1):
        loop(n)                                    # train_step(n), which calls watch.step(loss, step=n)
    watch.replay({"lower rate": lower_rate, "clipping": clip})

`loop(n)` keeps the state before step n draws its batch, then takes the step. States are kept in memory every twenty
steps: the first one always, the one before each suspicious rise, and of the others the fewer the older they are.
A loop that calls `train_step(n)` itself is kept too, at `watch.step`: then what the step had drawn by then is missing.
"""

import copy
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from isograd.diagnose.watch.writers import Row
from isograd.outcome import WINDOW, Course

APART = 20  # steps between two states
MOST = 24  # states
HELD = 6  # states before suspicious rises
AFTER = 60  # steps after the break, at least
LEAST = 0.01  # of how far the weights went before the break: a run that moves them less does not train
AS_IT_WAS = "as it was"


@dataclass(kw_only=True)
class OwnLoop:
    """A loop that can be taken back.

    Attributes:
        step: does training step n (its batch, forward, backward, update) and gives its loss.
        state: all that a step reads and changes: of the model, the optimizer, a scheduler, the data, by name. torch's,
            numpy's and Python's random numbers are kept without it.
        load: puts such a state back.
        memory: GiB that states may take; two are kept in any case.
    """

    step: Callable[[int], Tensor | float]
    state: Callable[[], Mapping[str, Any]]
    load: Callable[[Mapping[str, Any]], None]
    memory: float = 2.0
    begins: Callable[[int], None] = lambda _: None  # set by the watch

    def __call__(self, n: int) -> Tensor | float:
        """Step n, whose state is kept before it where that is due."""
        self.begins(n)
        return self.step(n)


@dataclass(frozen=True, kw_only=True)
class KeptStep:
    """Before step `step`: the state, and the random numbers."""

    step: int
    state: Any
    random: Any


@dataclass(kw_only=True)
class Replays:
    """Keeps states of a loop while it is watched, and replays it.

    Attributes:
        busy: while it replays: the loop's own calls of `watch.step` are then none of the run.
        losses: of the steps so far, by their number.
        level: what a prediction without inputs would lose; None where that is not known.
        whole: whether states were taken before a step began, and so hold all that it draws.
    """

    loop: OwnLoop
    model: nn.Module
    busy: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    kept: list[KeptStep] = field(default_factory=list)
    level: float | None = None
    whole: bool = True
    _held: list[int] = field(default_factory=list)
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _rising: bool = False
    _begun: int | None = None
    _random: Any = field(default_factory=lambda: random_numbers())
    _most: int = MOST

    def __post_init__(self) -> None:
        self.loop.begins = self.before_step

    def before_step(self, step: int) -> None:
        """At `loop(n)`, before the step."""
        if self.busy:
            return
        self._begun = step
        self._keep(step, None)

    def before_update(self, step: int) -> None:
        """At `watch.step`, within the step: the weights are still those of before it."""
        if self._begun != step:
            self.whole = False
            self._keep(step, self._random)
        self._random = random_numbers()

    def follow(self, step: int, loss: float, level: float | None) -> None:
        """The loss of a step; the state before a suspicious one is held."""
        self.losses[step], self.level = loss, level
        if len(self._usual) >= WINDOW:
            usual = median(self._usual)
            spread = median(abs(one - usual) for one in self._usual) / 0.6745
            high = not loss <= usual + 6 * spread + 0.02 * abs(usual)
            if high and not self._rising and self.kept:
                before = [one.step for one in self.kept if one.step <= step]
                self._held = [*self._held, *before[-1:]][-HELD:]
            self._rising = high
        if math.isfinite(loss):
            self._usual.append(loss)

    def _keep(self, step: int, random: Any) -> None:
        if self.kept and step - self.kept[-1].step < APART:
            return
        state = copy.deepcopy(self.loop.state())
        if not self.kept:
            size = sum(one.numel() * one.element_size() for one in tree_leaves(state) if isinstance(one, Tensor))
            self._most = min(MOST, max(2, int(self.loop.memory * 2**30 / max(1, size))))
        self.kept.append(KeptStep(step=step, state=state, random=random_numbers() if random is None else random))
        while len(self.kept) > self._most:
            del self.kept[self._least(step)]

    def _least(self, now: int) -> int:
        """The state that is missed least: its neighbours lie nearest for its age; neither the first nor one held."""
        inner = range(1, len(self.kept) - 1)
        free = [i for i in inner if self.kept[i].step not in self._held] or [*inner]
        if not free:
            return 1  # of two the first stays, and the newer one follows
        return min(free, key=lambda i: (self.kept[i + 1].step - self.kept[i - 1].step) / (now - self.kept[i].step + 1))

    def run(self, changes: Mapping[str, Callable[[], None]], steps: int | None, start: int | None) -> list[Row]:
        """First the loop as it was, then each change from before the break; see `Watch.replay`."""
        course = Course.of(self.losses, self.level)
        broke = course.since if start is None else start
        margin = 0 if start is not None else WINDOW  # a break shows later than it begins
        before = [one for one in self.kept if broke is None or one.step + margin <= broke]
        kept = (before or self.kept[:1])[-1]
        last = max(self.losses, default=kept.step)
        count = steps or max((min(broke, last) if broke else last) - kept.step + AFTER, AFTER)
        rows: list[Row] = []
        self.busy = True
        try:
            usual = self._moved_before(kept)
            for name, change in {AS_IT_WAS: lambda: None, **changes}.items():
                self._back(kept)
                weights = self._weights()
                change()
                losses = self._losses_of(kept.step, count)
                share = self._share(weights, usual, len(losses))
                rows.append(self._row(name, kept.step, losses, course, share))
        finally:
            self._back(kept)
            self.busy = False
        return [{**row, **_verdict(row, rows[0])} for row in rows]

    def _back(self, kept: KeptStep) -> None:
        self.loop.load(copy.deepcopy(kept.state))
        set_random_numbers(kept.random)

    def _weights(self) -> list[Tensor]:
        return [one.detach().clone() for one in self.model.parameters()]

    def _moved_before(self, kept: KeptStep) -> float | None:
        """How far the weights went per step until then, since the state before; None from the first state on."""
        earlier = [one for one in self.kept if one.step < kept.step]
        if not earlier:
            return None
        self._back(earlier[-1])
        weights = self._weights()
        self._back(kept)
        return _distance(weights, self._weights()) / (kept.step - earlier[-1].step)

    def _share(self, before: Sequence[Tensor], usual: float | None, steps: int) -> float | None:
        """How far the weights went, over how far they went in as many steps before."""
        return _distance(before, self._weights()) / (usual * max(1, steps)) if usual else None

    def _losses_of(self, start: int, steps: int) -> list[float]:
        losses: list[float] = []
        for n in range(start, start + steps):
            losses.append(float(self.loop.step(n)))
            if not math.isfinite(losses[-1]):
                break
        return losses

    def _row(self, name: str, start: int, losses: list[float], course: Course, share: float | None) -> Row:
        last = losses[-WINDOW:]
        end = fmean(last) if all(map(math.isfinite, last)) else math.nan
        row: Row = {"change": name, "from": start, "steps": len(losses), "loss": end, "asked": course.said()}
        row |= {"finished": course.finished(losses), "moved": share}
        if name != AS_IT_WAS:
            return row
        known = [self.losses[n] for n in range(start, start + len(losses)) if n in self.losses]
        same = all(a == b or (a != a and b != b) for a, b in zip(losses, known, strict=False))
        return {**row, "bit_equal": same} | ({} if same else {"why": self._why()})

    def _why(self) -> str:
        lacks = "the state lacks something that a step reads: its data, a scheduler, random numbers of its own"
        return lacks if self.whole else f"call loop(n) in place of train_step(n); else {lacks}"


def _verdict(row: Row, control: Row) -> Row:
    """What a change does; nothing can be said where the loop as it was finishes too."""
    still = row["moved"] is not None and row["moved"] < LEAST
    if row["change"] == AS_IT_WAS:
        said = "finishes: no verdict" if row["finished"] else "fails"
    elif control["finished"]:
        said = "no verdict: the loop as it was finishes too"
    elif row["finished"] and still:
        said = f"does not cure: the weights hardly move ({100 * row['moved']:.2g} % of what they did before)"
    else:
        said = "cures" if row["finished"] else "does not cure"
    return {"verdict": said, "cures": said == "cures"}


def _distance(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    squares = ((b - a).double().square().sum().item() for a, b in zip(before, after, strict=True))
    return math.sqrt(math.fsum(one for one in squares if math.isfinite(one)))


def random_numbers() -> Any:
    """The states of torch's, numpy's and Python's generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def set_random_numbers(states: Any) -> None:
    """Put them back."""
    cpu, cuda, numpys, pythons = states
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)
    np.random.set_state(numpys)
    random.setstate(pythons)

"""Back to the last good state while a run goes on: weights and optimizer of before the break, then the next batches.

The number of the step, the schedule and the data go on: the batches since that state are skipped. A run is in trouble
at a loss that is not finite; where the mean of ten losses lies 0.5 nat above its lowest, by more than noise does, or is
back at the unigram entropy; and where a watch warns that the loss rose. What is kept are copies on the host, of
three moments twenty steps apart.
"""

import copy
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from isograd.diagnose.watch.writers import Row, alarm
from isograd.outcome import Onset

Recover = Literal["rollback", "lower-rate"]
MOST = 3  # times
APART = 20  # steps between two states that are kept
KEPT = 3
LOWER = 0.5  # times the rate before
CHANCE = 6.0  # standard deviations of a mean of ten


@dataclass(frozen=True, kw_only=True)
class State:
    """What a run goes back to: parameters and buffers by name, and the optimizer's state, after a step."""

    step: int
    tensors: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]


class Recovery:
    """Keeps good states, and puts one back where a run is in trouble.

    Attributes:
        count: how often it did so.
        factor: on all rates, below 1 with "lower-rate".
        went_back: the step of the state that was put back last.
    """

    def __init__(self, how: Recover, most: int = MOST, unigram_entropy: float | None = None) -> None:
        """`most` times at most; with "lower-rate" the rate is halved each time."""
        self.how, self.most = how, most
        self.level = math.nan if unigram_entropy is None else unigram_entropy
        self.count, self.factor = 0, 1.0
        self.went_back: int | None = None
        self._gave_up = False
        self._states: list[State] = []
        self._steps, self._losses = array("q"), array("d")
        self._onset = Onset()

    def attach(self, model: nn.Module, optimizer: Any, scheduler: Any = None, step: int = 0) -> None:
        """The run's own, after `step` steps; in a run that goes on, after its checkpoint was loaded."""
        self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
        if self.factor != 1.0:
            self._lower(self.factor)
        if not self._states:
            self._states = [self._now(step)]

    def follow(self, step: int, loss: float) -> None:
        """The next step's loss."""
        self._steps.append(step)
        self._losses.append(loss)
        self._onset.follow(step, loss, self.level)

    def act(self, step: int, risen: Row | None = None) -> Row | None:
        """After the optimizer's step: go back if there is trouble, else keep the state now and then; what was done.

        Args:
            risen: a warning of this step that the loss rose: its "since", and the rate to go on with ("lr").
        """
        since = self._trouble() if risen is None else risen["since"]
        if since is None:
            if not self._states or step - self._states[-1].step >= APART:
                self._states = [*self._states, self._now(step)][-KEPT:]
            return None
        if self.count >= self.most or not self._states:
            return self._give_up(step)
        before = [state for state in self._states if state.step < since]
        self._states = before or self._states[:1]
        return self._back(step, since, self._states[-1], (risen or {}).get("lr"))

    def history(self) -> Iterator[tuple[int, float]]:
        """Steps and losses that count."""
        return zip(self._steps, self._losses, strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Of a checkpoint."""
        states = [{"step": s.step, "tensors": dict(s.tensors), "optimizer": dict(s.optimizer)} for s in self._states]
        return {"count": self.count, "factor": self.factor, "gave_up": self._gave_up, "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, before `attach` and `follow`."""
        self.count, self.factor, self._gave_up = state["count"], state["factor"], state["gave_up"]
        self._states = [State(**one) for one in state["states"]]

    def _trouble(self) -> int | None:
        since = self._onset.since
        if since is None or not self._losses:
            return None
        last = list(self._losses[-10:])
        if not all(map(math.isfinite, last)):
            return since
        before = [x for s, x in zip(self._steps[-200:], self._losses[-200:], strict=True) if s < since]
        bends = [abs(a - 2 * b + c) for a, b, c in zip(before, before[1:], before[2:], strict=False)][-50:]
        noise = median(bends) / 1.652 if bends else 0.0  # of normal noise around a line 0.6745 sqrt(6) of it
        lowest = min((math.fsum(before[i : i + 10]) / 10 for i in range(len(before) - 9)), default=-math.inf)
        return since if math.fsum(last) / len(last) - lowest > CHANCE * noise / math.sqrt(10) else None

    def _now(self, step: int) -> State:
        tensors = {name: t.detach().to("cpu", copy=True) for name, t in _tensors(self._model).items()}
        return State(step=step, tensors=tensors, optimizer=_on_host(self._optimizer.state_dict()))

    @torch.no_grad()
    def _back(self, step: int, since: int, state: State, rate: float | None) -> Row:
        for name, tensor in _tensors(self._model).items():
            tensor.copy_(state.tensors[name])
        rates = [(group["lr"], group.get("initial_lr")) for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(copy.deepcopy(dict(state.optimizer)))
        for group, (rate, initial) in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            group |= {} if initial is None else {"initial_lr": initial}
        self.count += 1
        self.went_back = state.step
        if self.how == "lower-rate":
            highest = max(group["lr"] for group in self._optimizer.param_groups)
            lower = LOWER if rate is None or not highest else min(LOWER, rate / highest)
            self.factor *= lower
            self._lower(lower)
        self._forget_after(state.step)
        lowered = f", the rate at {self.factor:.3g} times the recipe's" if self.how == "lower-rate" else ""
        return alarm(
            step, "recovered", None,
            f"the loss rose at step {since} and did not recover",
            "one batch, or a rate that is too high",
            f"the run went back to the state after step {state.step}, and on with the next batches{lowered}"
            f" ({self.count} of {self.most} times)",
            went_back=state.step,
        )  # fmt: skip

    def _give_up(self, step: int) -> Row | None:
        if self._gave_up:
            return None
        self._gave_up = True
        return alarm(
            step, "not-recovered", None,
            f"the run diverged again, after {self.count} rollbacks",
            "this is not chance: change the rate, the warm-up or the placement",
            "isograd replay tries changes from before the break",
        )  # fmt: skip

    def _forget_after(self, step: int) -> None:
        rows = [(s, x) for s, x in zip(self._steps, self._losses, strict=True) if s <= step]
        self._steps, self._losses, self._onset = array("q"), array("d"), Onset()
        for s, x in rows:
            self.follow(s, x)

    def _lower(self, factor: float) -> None:
        """All rates, now and of the schedule."""
        if hasattr(self._scheduler, "base_lrs"):
            self._scheduler.base_lrs = [rate * factor for rate in self._scheduler.base_lrs]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * factor


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _on_host(value: Any) -> Any:
    """A copy that shares nothing with the run."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _on_host(one) for key, one in value.items()}
    return type(value)(_on_host(one) for one in value) if isinstance(value, list | tuple) else copy.deepcopy(value)

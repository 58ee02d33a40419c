"""Early warning of a collapse, from what each step measures anyway: the loss, and the gradient norm of each layer.

Signals, each reported once, at the step at which it is first detected:

    gradients  for HOLD readings in a row the gradients have been APART times apart: since its own first value that of
               the median layer of a stack has fallen so many times further than that of the layer in the upper half
               which fell least, both as medians of five readings; and the loss is not LEARNS below the unigram entropy
    unigram    the loss has settled where a model that does not look at its inputs lies (the unigram entropy of tokens,
               the variance of the targets of a regression: `baseline`), and for as long as a run must before it is
               called collapsed (`isograd.outcome.Stay`)

The first is a ratio of ratios. What all gradients do together, as the loss falls, cancels, and so does how far apart
they lay at first, where deep stacks that train well can lie far apart. It has a direction: layers at the input
whose gradients grow beyond the others' are no sign of anything (GPT-2's init does so). And no single layer decides,
as in the largest over the smallest. How the numbers were chosen, and what they do on runs that they were not chosen
on: docs/watch.md.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from isograd.diagnose.watch.baseline import Baseline
from isograd.diagnose.watch.writers import Row
from isograd.outcome import Stay

APART = 60.0  # times
HOLD = 10  # readings in a row
LEARNS = 0.10  # nats below the unigram entropy
LEFT = 10.0  # times further: from there on a layer counts as left behind
ASK = "run isograd.check(model, batch): it names the line of the model"
READINGS = 5  # whose median is looked at


class CollapseWatch:
    """Follows the losses and the gradients of a run, and reports when it collapses.

    Attributes:
        baseline: what the loss is measured against; None where that is not known.
        warnings: what was reported so far, at most once per signal: step, signal, layer (None where no layer is to
            blame), a message in one sentence.
        apart: how many times further the median layer's gradient has fallen than that of the layer in the upper half
            which fell least, by the last five readings; of several stacks the most. None until there are five.

    >>> watch = CollapseWatch(["layers.0", "layers.1", "layers.2"], ["decoder"] * 3)
    >>> for step in range(1, 31):
    ...     _ = watch.follow(step, 3.1, [0.5**step, 0.7**step, 1.0])
    >>> [(row["step"], row["signal"], row["layer"]) for row in watch.warnings]
    [(24, 'gradients', 'layers.0')]
    """

    def __init__(self, layers: Sequence[str], stacks: Sequence[str], unigram_entropy: float | None = None) -> None:
        """Layers by address, and the stack of each: layers of one stack are compared with each other."""
        self.layers = list(layers)
        self.baseline = None if unigram_entropy is None else Baseline(kind="tokens", value=unigram_entropy)
        self.warnings: list[Row] = []
        self.apart: float | None = None
        members: dict[str, list[int]] = {}
        for index, stack in enumerate(stacks):
            members.setdefault(stack, []).append(index)
        self._stacks = [indices for indices in members.values() if len(indices) > 2]
        self._start: list[float | None] = [None] * len(self.layers)  # powers of ten
        self._left: list[int | None] = [None] * len(self.layers)  # steps
        self._last: list[deque[float]] = [deque(maxlen=READINGS) for _ in self.layers]
        self._stay = Stay()
        self._held = 0

    def follow(
        self, step: int, loss: float, norms: Sequence[float | None], probe: Callable[[], bool] = lambda: False
    ) -> list[Row]:
        """What comes next: a step's loss, and the gradient norm of each layer; the warnings that are new.

        Args:
            probe: whether little more than a head trains; asked where the loss stays, which then is no collapse.
        """
        reported = {row["signal"] for row in self.warnings}
        found = []
        self._keep(norms)
        level = self.baseline
        stayed = level is not None and self._stay.follow(step, loss / level.unit, level.value / level.unit)
        if self._stay.since is not None and probe():
            self._stay.since, stayed = None, False
        fallen = [one for indices in self._stacks if (one := self._fallen(step, indices)) is not None]
        self.apart = max((one.apart for one in fallen), default=None)
        if "gradients" not in reported:
            self._held = self._held + 1 if (self.apart or 0.0) >= APART else 0
            if self._held >= HOLD and not self._learns():
                found.append(self._gradients(step, max(fallen, key=lambda one: one.apart)))
        if "unigram" not in reported and level is not None and stayed:
            found.append(self._unigram(step, level))
        self.warnings += found
        return found

    @property
    def recent_loss(self) -> float:
        """Mean of the last twenty; not a number before there are any, or where one is not finite."""
        if not self._stay.losses or self.baseline is None:
            return math.nan
        return self._stay.mean * self.baseline.unit

    @property
    def unigram_entropy(self) -> float | None:
        """Of tokens, nats; None of another loss."""
        return self.baseline.value if self.baseline is not None and self.baseline.kind == "tokens" else None

    def state(self) -> dict[str, Any]:
        """What it knows, as JSON can keep it."""
        return {
            "warnings": self.warnings,
            "start": self._start,
            "left": self._left,
            "last": [list(values) for values in self._last],
            "losses": list(self._stay.losses),
            "near_since": self._stay.since,
            "held": self._held,
            "apart": self.apart,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where another one was."""
        self.warnings = list(state["warnings"])
        self._start, self._left = list(state["start"]), list(state["left"])
        self._last = [deque(values, maxlen=READINGS) for values in state["last"]]
        self._stay.losses.extend(state["losses"])
        self._stay.since = state["near_since"]
        self._held, self.apart = state["held"], state["apart"]

    def _keep(self, norms: Sequence[float | None]) -> None:
        for index, norm in enumerate(norms):
            if norm is None or not math.isfinite(norm):
                continue
            if self._start[index] is None and norm == 0.0:  # after a branch of zeros
                continue
            power = math.log10(max(norm, 1e-38))
            if self._start[index] is None:
                self._start[index] = power
            self._last[index].append(power)

    def _fallen(self, step: int, indices: Sequence[int]) -> "_Fallen | None":
        """How far the gradients of one stack have come apart; None where too few are known."""
        moved = {i: median(self._last[i]) - (self._start[i] or 0.0) for i in indices if len(self._last[i]) == READINGS}
        upper = [i for i in moved if i in set(indices[len(indices) // 2 :])]
        if len(moved) < 3 or not upper:
            return None
        least = max(upper, key=lambda i: moved[i])
        for i, by in moved.items():
            if self._left[i] is None and moved[least] - by >= math.log10(LEFT):
                self._left[i] = step
        first = min(moved, key=lambda i: (self._left[i] or step, moved[i]))
        apart = 10 ** (moved[least] - median(moved.values()))
        return _Fallen(least=least, first=first, behind=10 ** (moved[least] - moved[first]), apart=apart)

    def _learns(self) -> bool:
        """Whether the loss is below its baseline; False where that is not known."""
        return self.baseline is not None and self.recent_loss < self.baseline.value - LEARNS * self.baseline.scale

    def _gradients(self, step: int, fallen: "_Fallen") -> Row:
        layer = self.layers[fallen.first]
        left_at = self._left[fallen.first]
        return {
            "step": step,
            "signal": "gradients",
            "layer": layer,
            "left_at": left_at,
            "apart": fallen.apart,
            "cause": "depth, learning rate and warm-up do not fit where the norms are placed",
            "remedy": f"lower the rate and warm it up over more steps; {ASK}",
            "message": (
                f"step {step}: gradients vanish towards the input: since step 1 the gradient of {layer} has fallen"
                f" {_times(fallen.behind)} more than that of {self.layers[fallen.least]} (10 times at step {left_at});"
                f" the median layer's {_times(fallen.apart)}. Such runs usually collapse"
            ),
        }

    def _unigram(self, step: int, level: Baseline) -> Row:
        since = f"step {step}: since step {self._stay.since} the loss ({level.number(self.recent_loss)})"
        tokens = level.kind == "tokens"
        reads = (
            "predicts from token frequencies alone, as if collapsed"
            if tokens
            else "predicts no better than one answer for every input"
        )
        return {
            "step": step,
            "signal": "unigram",
            "layer": None,
            "loss": self.recent_loss,
            "unigram_entropy" if tokens else "baseline": level.value,
            "cause": (
                "the model does not use its context, or the labels do not belong to the inputs"
                if tokens
                else "the output does not depend on the inputs, or the targets do not belong to them"
            ),
            "remedy": f"lower the rate, warm it up for longer, look at one batch; {ASK}",
            "message": f"{since} has not gone below {level}: the model {reads}",
        }


def _times(factor: float) -> str:
    """A factor above 1, as people say it.

    >>> _times(18.4), _times(4012.3), _times(3.17e8), _times(2e13)
    ('18 times', '4,010 times', '3e+08 times', '2e+13 times')
    """
    rounded = float(f"{factor:.3g}")
    return f"{rounded:,.0f} times" if rounded < 1e6 else f"{rounded:.0e} times"


@dataclass(frozen=True, kw_only=True)
class _Fallen:
    """Of one stack: the layer that fell least, the one that was left behind first and by how many times, the median."""

    least: int
    first: int
    behind: float
    apart: float

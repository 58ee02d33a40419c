"""Early warning of a collapse, from what each step says anyway: the loss, and the gradient norm of each layer.

Signals, each told once, at the step at which it is first seen:

    gradients  the gradient no longer comes down: since its own first value that of the median layer of a tower has
               fallen APART times further than that of the layer in the upper half which fell least, both as medians of
               five readings
    unigram    the loss has settled where a model without any context lies, and for as long as a run must before it is
               called collapsed (`isograd.outcome.Stay`)

The first is a ratio of ratios. What all gradients do together, as the loss falls, cancels, and so does how far apart
they lay at the start, where deep stacks that train well can lie far apart. It has a direction: layers at the input
whose gradients grow beyond the others' are no sign of anything (GPT-2's start does so). And no single layer decides,
as in the largest over the smallest. How the numbers were chosen, and what they do on trainings that they were not
chosen on: docs/watch.md.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from isograd.diagnose.sinks import Row
from isograd.outcome import Stay

APART = 28.0  # times
LEFT = 10.0  # times further: from there on a layer counts as left behind
READINGS = 5  # whose median is looked at


class CollapseWatch:
    """Follows the losses and the gradients of a training, and says when it collapses.

    Attributes:
        warnings: what has been told so far, at most once per signal: step, signal, layer (None where no layer is to
            blame), a message in one sentence.

    >>> watch = CollapseWatch(["layers.0", "layers.1", "layers.2"], ["decoder"] * 3)
    >>> for step in range(1, 31):
    ...     _ = watch.follow(step, 3.1, [0.5**step, 0.7**step, 1.0])
    >>> [(row["step"], row["signal"], row["layer"]) for row in watch.warnings]
    [(13, 'gradients', 'layers.0')]
    """

    def __init__(self, layers: Sequence[str], towers: Sequence[str], unigram_entropy: float | None = None) -> None:
        """Layers by address, and the tower of each: layers of one tower are compared with each other."""
        self.layers = list(layers)
        self.unigram_entropy = unigram_entropy
        self.warnings: list[Row] = []
        members: dict[str, list[int]] = {}
        for index, tower in enumerate(towers):
            members.setdefault(tower, []).append(index)
        self._towers = [indices for indices in members.values() if len(indices) > 2]
        self._start: list[float | None] = [None] * len(self.layers)  # powers of ten
        self._left: list[int | None] = [None] * len(self.layers)  # steps
        self._last: list[deque[float]] = [deque(maxlen=READINGS) for _ in self.layers]
        self._stay = Stay()

    def follow(self, step: int, loss: float, norms: Sequence[float | None]) -> list[Row]:
        """What comes next: a step's loss, and the gradient norm of each layer; the warnings that are new."""
        told = {row["signal"] for row in self.warnings}
        found = []
        if "gradients" not in told:
            self._keep(norms)
            found += [self._tower(step, indices) for indices in self._towers]
        if "unigram" not in told and self.unigram_entropy is not None:
            found.append(self._unigram(step, loss, self.unigram_entropy))
        new = [row for row in found if row is not None]
        new = [row for i, row in enumerate(new) if row["signal"] not in {other["signal"] for other in new[:i]}]
        self.warnings += new
        return new

    def state(self) -> dict[str, Any]:
        """What it knows, as JSON can keep it."""
        return {
            "warnings": self.warnings,
            "start": self._start,
            "left": self._left,
            "last": [list(values) for values in self._last],
            "losses": list(self._stay.losses),
            "near_since": self._stay.since,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where another one was."""
        self.warnings = list(state["warnings"])
        self._start, self._left = list(state["start"]), list(state["left"])
        self._last = [deque(values, maxlen=READINGS) for values in state["last"]]
        self._stay.losses.extend(state["losses"])
        self._stay.since = state["near_since"]

    def _keep(self, norms: Sequence[float | None]) -> None:
        for index, norm in enumerate(norms):
            if norm is None or not math.isfinite(norm):
                continue
            if self._start[index] is None and norm == 0.0:  # behind a branch that starts at zero
                continue
            power = math.log10(max(norm, 1e-38))
            if self._start[index] is None:
                self._start[index] = power
            self._last[index].append(power)

    def _tower(self, step: int, indices: Sequence[int]) -> Row | None:
        """A warning of the layers of one tower."""
        moved = {i: median(self._last[i]) - (self._start[i] or 0.0) for i in indices if len(self._last[i]) == READINGS}
        if len(moved) < 3:
            return None
        upper = [i for i in moved if i in set(indices[len(indices) // 2 :])]
        if not upper:
            return None
        least = max(upper, key=lambda i: moved[i])
        for i, by in moved.items():
            if self._left[i] is None and moved[least] - by >= math.log10(LEFT):
                self._left[i] = step
        apart = moved[least] - median(moved.values())
        if apart < math.log10(APART):
            return None
        first = min(moved, key=lambda i: (self._left[i] or step, moved[i]))
        return self._told(step, first, moved[first] - moved[least], least, 10**apart)

    def _told(self, step: int, first: int, behind: float, least: int, apart: float) -> Row:
        layer = self.layers[first]
        return {
            "step": step,
            "signal": "gradients",
            "layer": layer,
            "left_at": self._left[first],
            "apart": apart,
            "message": (
                f"step {step}: the gradient no longer comes down: since the start that of {layer} has fallen"
                f" {10**-behind:.3g} times further than that of {self.layers[least]} (tenfold at step"
                f" {self._left[first]}), and half the layers {apart:.0f} times: most likely this stack collapses"
            ),
        }

    def _unigram(self, step: int, loss: float, entropy: float) -> Row | None:
        if not self._stay.follow(step, loss, entropy):
            return None
        mean = self._stay.mean
        return {
            "step": step,
            "signal": "unigram",
            "layer": None,
            "loss": mean,
            "unigram_entropy": entropy,
            "message": (
                f"step {step}: since step {self._stay.since} the loss ({mean:.2f}) has not gone below the entropy of"
                f" the token frequencies ({entropy:.2f} nats): the model reads no context, as if collapsed"
            ),
        }

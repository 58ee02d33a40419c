"""Early warning of a collapse, from what each step says anyway: the loss, and a gradient norm of each layer.

Signals, each told once, at the step at which it is first seen:

    gradient  one layer's gradient has fallen (or risen) out of all proportion: it is FALL below (above) its own first
              value, and SPREAD from the largest (smallest) of its like, over the median of the last five readings
    unigram   the loss has settled where a model without any context lies: the mean of 20 losses has been within 0.10
              nat of the entropy of the token frequencies for PATIENCE steps

Both numbers of the first one are needed. A training that converges lowers all gradients alike, so the first says
nothing alone; a deep stack may begin with gradients far apart and train well, so neither does the second.
"""

import math
from collections import deque
from collections.abc import Sequence

from isograd.diagnose.sinks import Row

FALL = 2000.0  # times below or above its own first value
SPREAD = 100.0  # times below the largest, or above the smallest, of its like
FIRST = 100.0  # times below or above its first value: from here on a layer counts as leaving
NEAR = 0.10  # nats around the unigram entropy
PATIENCE = 150  # steps
READINGS = 5  # whose median is looked at
LOSSES = 20  # whose mean is looked at


class CollapseWatch:
    """Follows the losses and the gradients of a training, and says when it collapses.

    Attributes:
        warnings: what has been told so far, at most once per signal: step, signal, layer (None where no layer is to
            blame), a message in one sentence.

    >>> watch = CollapseWatch(["layers.0", "layers.1"], ["ffn", "ffn"], unigram_entropy=3.0)
    >>> for step in range(1, 31):
    ...     _ = watch.follow(step, 3.1, [0.5**step, 1.0])
    >>> [(row["step"], row["signal"], row["layer"]) for row in watch.warnings]
    [(14, 'gradient', 'layers.0')]
    """

    def __init__(self, addresses: Sequence[str], groups: Sequence[str], unigram_entropy: float | None = None) -> None:
        """Layers by address; those of one group, in the order of their depth, are compared with each other."""
        self.addresses = list(addresses)
        self.unigram_entropy = unigram_entropy
        self.warnings: list[Row] = []
        members: dict[str, list[int]] = {}
        for index, group in enumerate(groups):
            members.setdefault(group, []).append(index)
        self._groups = [indices for indices in members.values() if len(indices) > 1]
        self._start: list[float | None] = [None] * len(self.addresses)  # powers of ten
        self._left: list[int | None] = [None] * len(self.addresses)  # steps
        self._last: list[deque[float]] = [deque(maxlen=READINGS) for _ in self.addresses]
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._near_since: int | None = None

    def follow(self, step: int, loss: float, norms: Sequence[float | None]) -> list[Row]:
        """What comes next: a step's loss and the gradient norm of each layer's matrix; the warnings that are new."""
        told = {row["signal"] for row in self.warnings}
        found = []
        if "gradient" not in told:
            found.append(self._gradient(step, norms))
        if "unigram" not in told and self.unigram_entropy is not None:
            found.append(self._unigram(step, loss, self.unigram_entropy))
        new = [row for row in found if row is not None]
        self.warnings += new
        return new

    def _gradient(self, step: int, norms: Sequence[float | None]) -> Row | None:
        for index, norm in enumerate(norms):
            if norm is None or not math.isfinite(norm):
                continue
            power = math.log10(max(norm, 1e-38))
            if self._start[index] is None:
                if norm == 0.0:  # behind a branch that starts at zero
                    continue
                self._start[index] = power
            self._last[index].append(power)
        return next(filter(None, (self._of_group(step, indices) for indices in self._groups)), None)

    def _of_group(self, step: int, indices: list[int]) -> Row | None:
        """A warning of layers that are alike."""
        now = {i: sorted(self._last[i])[len(self._last[i]) // 2] for i in indices if self._last[i]}
        if len(now) < 2:
            return None
        moved = {i: power - (self._start[i] or 0.0) for i, power in now.items()}
        for i, by in moved.items():
            if self._left[i] is None and abs(by) >= math.log10(FIRST):
                self._left[i] = step
        far, apart = math.log10(FALL), math.log10(SPREAD)
        lowest, highest = min(now.values()), max(now.values())
        fell = [i for i in now if moved[i] <= -far and highest - now[i] >= apart]
        rose = [i for i in now if moved[i] >= far and now[i] - lowest >= apart]
        if not fell and not rose:
            return None
        first = min(fell or rose, key=lambda i: (self._left[i] or step, -abs(moved[i])))
        return self._told(step, first, moved[first], highest - lowest)

    def _told(self, step: int, layer: int, moved: float, apart: float) -> Row:
        address, times, ratio = self.addresses[layer], 10 ** abs(moved), 10**apart
        how = "fallen" if moved < 0 else "risen"
        return {
            "step": step,
            "signal": "gradient",
            "layer": address,
            "left_at": self._left[layer],
            "times": times,
            "max_min": ratio,
            "message": (
                f"step {step}: the gradient of {address} has {how} {times:.3g}-fold since the start (it left at step"
                f" {self._left[layer]}), and the largest of its like is {ratio:.3g} times the smallest: this collapses"
            ),
        }

    def _unigram(self, step: int, loss: float, entropy: float) -> Row | None:
        self._losses.append(loss)
        if len(self._losses) < LOSSES:
            return None
        mean = math.fsum(self._losses) / LOSSES if all(map(math.isfinite, self._losses)) else math.nan
        if not abs(mean - entropy) <= NEAR:
            self._near_since = None
            return None
        self._near_since = self._near_since or step
        if step - self._near_since < PATIENCE:
            return None
        return {
            "step": step,
            "signal": "unigram",
            "layer": None,
            "loss": mean,
            "unigram_entropy": entropy,
            "message": (
                f"step {step}: since step {self._near_since} the loss lies at the entropy of the token frequencies"
                f" ({mean:.2f} of {entropy:.2f} nats): the model reads no context, as a collapsed stack"
            ),
        }

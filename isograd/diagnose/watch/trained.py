"""A run that begins from trained weights, and updates that undo them.

A model was trained where its first loss lies below what the best constant gives for that very batch. Whether the
updates undo it is measured on that batch, which each healthy run has learned from: its loss before the first update
against its loss now. Other batches, restarts of a schedule and spikes that come back change nothing about it.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from isograd.diagnose.watch.baseline import OWN, Targets, losses_of, nearest

KNOWS = 0.2  # below the best constant of the first batch, over its scale: then the model was trained
LOST = 0.25  # of what it knew of the first batch: then the updates undo it
AGAIN = 4  # readings from one look to the next
COMES_BACK = 0.6  # of what was lost at the look before: then it is given another look
WITHIN = 60  # readings from the first update on
LAST = 4  # readings whose mean makes one look


@dataclass(frozen=True, kw_only=True)
class Undone:
    """The loss of the first batch before the first update, and now."""

    before: float
    now: float


class FirstBatch:
    """Keeps the first batch of a trained model, and looks at it again when the losses lie above its own.

    Attributes:
        trained: whether the model was trained when the run began.
    """

    def __init__(self, model: nn.Module, targets: Targets) -> None:
        self._model, self._targets = model, targets
        self.trained = False
        self._batch: Any = None
        self._name = ""
        self._before = self._knew = 0.0
        self._last: deque[float] = deque(maxlen=LAST)
        self._count = 0
        self._next = 2 + LAST
        self._lost = 0.0  # at the last look
        self._done = False

    def begin(self, batch: Any, loss: Tensor | float) -> None:
        """With the first batch and its loss, before the first update."""
        self.trained = norms_moved(self._model)
        if batch is None or any(isinstance(p, DTensor) for p in self._model.parameters()):
            return  # a pass of shards is one of all processes
        level = self._targets.of(batch)
        if level is None or float(loss) > level.value - KNOWS * level.scale:
            return
        self.trained = True
        with suppress(Exception):  # somebody else's model
            given = losses_of(self._model, batch)
            name = OWN if OWN in given else nearest(given, float(loss))
            if name is not None:
                self._batch, self._name = batch, name
                self._before, self._knew = float(loss), level.value - float(loss)

    def begin_again(self) -> None:
        """From weights of before."""
        self._last.clear()
        self._count, self._next, self._lost, self._done = 1, 2 + LAST, 0.0, False

    def follow(self, loss: float) -> Undone | None:
        """The next reading; once the updates have undone what the model knew."""
        self._count += 1
        if self._batch is None or self._done or not 1 < self._count <= WITHIN:
            return None
        self._last.append(loss)
        if self._count < self._next or not fmean(self._last) > self._before + LOST * self._knew / 2:
            return None
        return self._look()

    def _look(self) -> Undone | None:
        self._next = self._count + AGAIN
        try:
            now = losses_of(self._model, self._batch)[self._name]
        except Exception:  # of a model that has become another
            self._done = True
            return None
        lost, before = now - self._before, self._lost
        self._lost = lost if lost > LOST * self._knew else 0.0
        comes_back = lost < COMES_BACK * before and lost < self._knew
        if not self._lost or not before or comes_back:
            return None
        self._done = True
        return Undone(before=self._before, now=now)


@torch.no_grad()
def norms_moved(model: nn.Module) -> bool:
    """Whether the weights of a norm are no longer all one number, as any initialization makes them."""
    norms = [m for m in model.modules() if "norm" in type(m).__name__.lower()]
    weights = [w for m in norms if isinstance(w := getattr(m, "weight", None), Tensor) and w.numel() > 1]
    return bool(weights) and not isinstance(weights[0], DTensor) and bool(weights[0].min() != weights[0].max())

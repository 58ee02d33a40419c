"""How often each label was seen, and the entropy of that."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class TokenCounts:
    """Counts label ids, none below 0 (what losses ignore)."""

    def __init__(self) -> None:
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._waiting: list[Tensor] = []

    def add(self, labels: Tensor) -> None:
        """Labels of one batch, of any shape; they are counted once somebody asks."""
        self._waiting.append(labels.detach().flatten())

    def _count(self) -> None:
        if not self._waiting:
            return
        ids = torch.cat(self._waiting)
        self._waiting.clear()
        counts = torch.bincount(ids[ids >= 0]).cpu()
        if len(counts) < len(self._counts):
            counts, self._counts = self._counts, counts
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def entropy(self) -> float | None:
        """-sum p ln p + (K - 1) / 2n, nats, of K kinds among n labels (Miller 1955); None below 10 labels of a kind.

        The second term is what the first one lacks on average with so few labels.

        >>> counts = TokenCounts()
        >>> counts.add(torch.arange(4).repeat(1000)), round(counts.entropy(), 3)
        (None, 1.387)
        """
        self._count()
        some = self._counts[self._counts > 0].double()
        total = float(some.sum())
        if not len(some) or total < 10 * len(some):
            return None
        return math.log(total) - float((some * some.log()).sum()) / total + (len(some) - 1) / (2 * total)


def labels_of(batch: Any) -> list[Tensor]:
    """The entries "labels" of a batch, or of several, that hold tokens, not classes: whole numbers, (batch, time)."""
    several = batch if isinstance(batch, list | tuple) else [batch]
    found = [one["labels"] for one in several if isinstance(one, Mapping) and "labels" in one]
    return [x for x in found if isinstance(x, Tensor) and x.ndim > 1 and not x.is_floating_point()]

"""Packing without waste, and an order that a resume finds again.

A text of n ids gives (n - 1) // length sequences; sequence i reads ids[i*length : (i+1)*length] and predicts the same
shifted by one, so no position is spent on padding or on a place without a target.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from isograd.errors import DataError


class PackedSequences(Dataset[dict[str, Tensor]]):
    """`samples` sequences in a fixed order: pass after pass over the text, each in a permutation of its own.

    Sample i is a function of (text, length, seed, i) alone. All passes follow one another, so a run is
    one epoch of this data set, read in sequence by every process; whoever skips the first k samples goes on exactly.
    """

    def __init__(self, ids: np.ndarray, length: int, samples: int | None = None, seed: int | None = None) -> None:
        """Without `seed` the sequences come in the order of the text."""
        self.ids = ids
        self.length = length
        self.count = (len(ids) - 1) // length
        if self.count < 1:
            raise DataError(f"the text has {len(ids)} tokens, shorter than one sequence of {length} and its next token")
        self.order = Order(self.count, samples, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: rows[0] for name, rows in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A whole batch at once, (batch, length) each: indexing one array costs a fiftieth of collating a list."""
        starts = np.array([self.order.at(i)[1] for i in indices]) * self.length
        windows = self.ids[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        rows = torch.from_numpy(windows)
        return {"input_ids": rows[:, :-1], "shift_labels": rows[:, 1:]}


class Order:
    """Pass after pass over `count` things, each in a permutation of its own; without `seed` in their own order."""

    def __init__(self, count: int, samples: int | None = None, seed: int | None = None) -> None:
        self.count = count
        self.samples = count if samples is None else samples
        self.seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.samples

    def at(self, index: int) -> tuple[int, int]:
        """The pass that sample `index` belongs to, and which thing it is."""
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        turn, place = divmod(index, self.count)
        if self.seed is None:
            return turn, place
        if turn not in self._orders:
            self._orders = {turn: np.random.default_rng((self.seed, turn)).permutation(self.count)}
        return turn, int(self._orders[turn][place])


def as_is(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The collator of a data set that gives whole batches."""
    return batch

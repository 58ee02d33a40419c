"""Rows of different lengths in one array."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Row i is flat[offsets[i] : offsets[i + 1]]; `offsets` (int64) has one entry more than there are rows."""

    flat: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @staticmethod
    def of(rows: Iterable[Sequence[int]], vocab_size: int) -> "Ragged":
        """The rows in the smallest unsigned type that holds the vocabulary; they need not all be there at once."""
        flat, lengths = array("H" if vocab_size <= 1 << 16 else "I"), array("q", [0])
        for row in rows:
            flat.extend(row)
            lengths.append(len(row))
        return Ragged(np.array(flat), np.cumsum(np.array(lengths)))

    def rows(self, keep: np.ndarray) -> "Ragged":
        """The rows where `keep` (bool, one per row) is true."""
        lengths = self.lengths
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths[keep])])
        return Ragged(self.flat[np.repeat(keep, lengths)], offsets)

    def save(self, folder: Path, name: str) -> None:
        np.save(folder / f"{name}.npy", self.flat)
        np.save(folder / f"{name}.offsets.npy", self.offsets)

    @staticmethod
    def load(folder: Path, name: str) -> "Ragged":
        """Memory-mapped: a page is read when a row of it is."""
        return Ragged(*(np.load(folder / f"{name}{end}.npy", mmap_mode="r") for end in ("", ".offsets")))


def loss_by_place(train: Ragged, held_out: Ragged, vocab_size: int, places: int = 64) -> float:
    """Loss on held-out rows of a model that knows how often each id stands at each place, and nothing else; nats.

        - 1/n sum_i ln q(id_i | place_i),   q(v | t) = (count(v, t) + c p(v)) / (count(t) + c),   c = `places`

    with p the frequencies at all places, and all places beyond the last taken together. What a decoder reaches that has
    lost sight of the source and of what it wrote: it still knows how far it has come.
    """
    id_, place = np.asarray(train.flat, dtype=np.int64), _places(train, places)
    counts = np.bincount(place * vocab_size + id_, minlength=places * vocab_size).reshape(places, vocab_size)
    p = (counts.sum(axis=0) + 1) / (counts.sum() + vocab_size)
    q = (counts + places * p) / (counts.sum(axis=1, keepdims=True) + places)
    return float(-np.log(q[_places(held_out, places), np.asarray(held_out.flat, dtype=np.int64)]).mean())


def _places(rows: Ragged, places: int) -> np.ndarray:
    """Of every id in its row, from 0."""
    place = np.arange(len(rows.flat)) - np.repeat(rows.offsets[:-1], rows.lengths)
    return np.minimum(place, places - 1)

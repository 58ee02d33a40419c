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

"""Masked language modelling: how a text is cut into sequences, and which of their tokens are to be predicted.

"full-sentences"  <s> text </s>, one sequence after the other (RoBERTa; Liu et al. 2019, section 4.2)
"segment-pair"    <s> A </s> B </s> with token types, and whether B continues A (BERT; Devlin et al. 2019)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from isograd.errors import DataError
from isograd.lab.data.batches import Order
from isograd.transformer.loss import IGNORE


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Which tokens are predicted, and what stands in their place (Devlin et al. 2019, section 3.1).

    Of n ordinary tokens max(1, round(rate * n)) are predicted; each of them becomes <mask> with probability
    1 - random - kept, another ordinary token with probability `random`, and stays with probability `kept`.

    Args:
        mask: id of <mask>, the last of the vocabulary.
        first: the first ordinary id; those before it are special, and never predicted nor put in.
        ordinary: all such ids, where they do not lie between `first` and `mask`.
    """

    mask: int
    first: int = 4
    rate: float = 0.15
    random: float = 0.1
    kept: float = 0.1
    ordinary: np.ndarray | None = None

    def hide(self, ids: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Change `ids` (time,) in place; the places that are to be predicted, in their order."""
        ordinary = np.flatnonzero(ids >= self.first if self.ordinary is None else np.isin(ids, self.ordinary))
        count = min(len(ordinary), max(1, round(self.rate * len(ordinary))))
        places = np.sort(draw.permutation(ordinary)[:count])
        fate = draw.random(count)
        others = self._others(draw, count)
        kept = np.where(fate < self.random + self.kept, ids[places], self.mask)
        ids[places] = np.where(fate < self.random, others, kept)
        return places

    def _others(self, draw: np.random.Generator, count: int) -> np.ndarray:
        if self.ordinary is None:
            return draw.integers(self.first, self.mask, count)
        return self.ordinary[draw.integers(0, len(self.ordinary), count)]


class MaskedSequences(Dataset[dict[str, Tensor]]):
    """RoBERTa's full sentences: <s> ids </s> of `length` in all, cut from the text one after the other.

    A sequence may run over the end of a document, which </s> marks. Sample i is a function of (text, length, seed, i)
    alone, its mask too, so whoever skips the first k samples goes on exactly; each pass masks anew (Liu et al. 2019,
    section 4.1, dynamic masking).
    """

    def __init__(
        self,
        ids: np.ndarray,
        length: int,
        masking: Masking,
        *,
        begin: int,
        end: int,
        samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        """Without `seed` the sequences come in the order of the text, masked the same each time."""
        self.ids = ids
        self.inner = length - 2
        self.masking = masking
        self.begin, self.end = begin, end
        count = len(ids) // self.inner
        if count < 1:
            raise DataError(f"the text has {len(ids)} tokens, shorter than one sequence of {length} with <s> and </s>")
        self.order = Order(count, samples, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A whole batch: input_ids and labels (batch, length), masked_positions (n,) into batch * length."""
        found = [self.order.at(i) for i in indices]
        starts = np.array([place for _, place in found]) * self.inner
        rows = np.empty((len(found), self.inner + 2), dtype=np.int64)
        rows[:, 0], rows[:, -1] = self.begin, self.end
        rows[:, 1:-1] = self.ids[starts[:, None] + np.arange(self.inner)]
        labels = np.full_like(rows, IGNORE)
        positions = []
        for row, (turn, place) in enumerate(found):
            draw = np.random.default_rng((self.order.seed or 0, 1, turn, place))
            true = rows[row].copy()
            places = self.masking.hide(rows[row], draw)
            labels[row, places] = true[places]
            positions.append(row * rows.shape[1] + places)
        return {
            "input_ids": torch.from_numpy(rows),
            "labels": torch.from_numpy(labels),
            "masked_positions": torch.from_numpy(np.concatenate(positions)),
        }


class SegmentPairs(Dataset[dict[str, Tensor]]):
    """BERT's pairs: <s> A </s> B </s>, padded to `length`, with token types and whether B continues A.

    A document is cut into windows of `length` - 3 tokens (what is left of it is a shorter one, from 8 tokens on), a
    window into A and B where a word begins. In half of the samples B is the second part of another document's window.
    As `MaskedSequences`, a sample is a function of its number, and each pass cuts, pairs and masks anew.
    """

    def __init__(
        self,
        ids: np.ndarray,
        length: int,
        masking: Masking,
        *,
        begin: int,
        end: int,
        pad: int,
        word: np.ndarray,
        samples: int | None = None,
        seed: int | None = None,
    ) -> None:
        """As `MaskedSequences`; `word` says of each id whether it begins with a space or an end of line."""
        self.ids = ids
        self.length = length
        self.masking = masking
        self.begin, self.end, self.pad = begin, end, pad
        self.word = word
        self.windows, self.documents = _windows(ids, length - 3, end)
        if len(np.unique(self.documents)) < 2:
            raise DataError("pairs of segments need a text of two documents at least (data.documents=blank-line?)")
        self.order = Order(len(self.windows), samples, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """As `MaskedSequences`; token_type_ids, attention_mask and next_sentence_label (1: B is from elsewhere)."""
        shape = (len(indices), self.length)
        rows, labels = np.full(shape, self.pad), np.full(shape, IGNORE)
        types, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        other = np.zeros(len(indices), dtype=np.int64)
        positions = []
        for row, (turn, place) in enumerate(map(self.order.at, indices)):
            draw = np.random.default_rng((self.order.seed or 0, 1, turn, place))
            first, second, other[row] = self._pair(place, draw)
            tokens = np.concatenate([[self.begin], first, [self.end], second, [self.end]]).astype(np.int64)
            size = len(tokens)
            types[row, len(first) + 2 : size] = 1
            mask[row, :size] = 1
            rows[row, :size] = tokens
            places = self.masking.hide(rows[row, :size], draw)
            labels[row, places] = tokens[places]
            positions.append(row * self.length + places)
        named: dict[str, np.ndarray] = {
            "input_ids": rows,
            "labels": labels,
            "masked_positions": np.concatenate(positions),
        }
        named |= {"token_type_ids": types, "attention_mask": mask, "next_sentence_label": other}
        return {name: torch.from_numpy(value) for name, value in named.items()}

    def _pair(self, place: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, bool]:
        first, second = self._cut(place, draw)
        if draw.random() < 0.5:
            return first, second, False
        while self.documents[elsewhere := int(draw.integers(len(self.windows)))] == self.documents[place]:
            pass
        return first, self._cut(elsewhere, draw)[1][: self.length - 3 - len(first)], True

    def _cut(self, place: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A window in two parts, neither of them empty."""
        begin, end = self.windows[place]
        ids = self.ids[begin:end]
        words = np.flatnonzero(self.word[ids[1:]]) + 1
        at = int(draw.choice(words)) if len(words) else len(ids) // 2
        return ids[:at], ids[at:]


def _windows(ids: np.ndarray, size: int, end: int, least: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each window of at most `size` ids that has no `end` inside, and the number of its document."""
    ends = np.append(np.flatnonzero(ids == end), len(ids))
    begins = np.insert(ends[:-1] + 1, 0, 0)
    windows = [
        (at, min(at + size, stop), number)
        for number, (start, stop) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
        for at in range(start, stop, size)
        if min(at + size, stop) - at >= min(least, size)
    ]
    found = np.array(windows, dtype=np.int64).reshape(-1, 3)
    return found[:, :2], found[:, 2]

"""Masked language modelling: how a text is cut into sequences, and which of their tokens are to be predicted.

"full-sentences"  <s> text </s>, one sequence after the other (RoBERTa; Liu et al. 2019, section 4.2)
"segment-pair"    <s> A </s> B </s> with token types, and whether B continues A (BERT; Devlin et al. 2019)
"""

from abc import abstractmethod
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


class _Masked(Dataset[dict[str, Tensor]]):
    """Sequences of `length` tokens, cut from a text: each a function of its number, its mask too.

    So whoever skips the first k samples goes on exactly; each pass masks anew (Liu et al. 2019, section 4.1, dynamic
    masking). Without a seed the sequences come in the order of the text, masked the same each time.
    """

    masking: Masking
    length: int
    order: Order
    pad = 0

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A whole batch: input_ids and labels (batch, length), masked_positions (n,) into batch * length."""
        shape = (len(indices), self.length)
        batch = {"input_ids": np.full(shape, self.pad), "labels": np.full(shape, IGNORE)} | self._empty(shape)
        positions = []
        for row, (turn, place) in enumerate(map(self.order.at, indices)):
            draw = np.random.default_rng((self.order.seed or 0, 1, turn, place))
            tokens = self._tokens(place, draw, {name: of[row : row + 1].reshape(-1) for name, of in batch.items()})
            ids = batch["input_ids"][row, : len(tokens)]
            ids[:] = tokens
            places = self.masking.hide(ids, draw)
            batch["labels"][row, places] = tokens[places]
            positions.append(row * self.length + places)
        batch["masked_positions"] = np.concatenate(positions)
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def _empty(self, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """What a batch has beside ids and labels."""
        return {}

    @abstractmethod
    def _tokens(self, place: int, draw: np.random.Generator, row: dict[str, np.ndarray]) -> np.ndarray:
        """The ids (int64) of a sequence; into `row` goes what else is known of it."""


class MaskedSequences(_Masked):
    """RoBERTa's full sentences: <s> ids </s> of `length` in all, cut from the text one after the other.

    A sequence may run over the end of a document, which </s> marks.
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
        self.ids, self.length, self.masking = ids, length, masking
        self.begin, self.end = begin, end
        count = len(ids) // (length - 2)
        if count < 1:
            raise DataError(f"the text has {len(ids)} tokens, shorter than one sequence of {length} with <s> and </s>")
        self.order = Order(count, samples, seed)

    def _tokens(self, place: int, draw: np.random.Generator, row: dict[str, np.ndarray]) -> np.ndarray:
        start, inner = place * (self.length - 2), self.length - 2
        return np.concatenate([[self.begin], self.ids[start : start + inner], [self.end]]).astype(np.int64)


class SegmentPairs(_Masked):
    """BERT's pairs: <s> A </s> B </s>, padded to `length`, with token types and whether B continues A.

    A document is cut into windows of `length` - 3 tokens (what is left of it is a shorter one, from 8 tokens on), a
    window into A and B where a word begins. In half of the samples B is the second part of another document's window.
    A batch has token_type_ids, attention_mask and next_sentence_label (1: B is from elsewhere) too.
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
        self.ids, self.length, self.masking = ids, length, masking
        self.begin, self.end, self.pad = begin, end, pad
        self.word = word
        self.windows, self.documents = _windows(ids, length - 3, end)
        if len(np.unique(self.documents)) < 2:
            raise DataError("pairs of segments need a text of two documents at least (data.documents=blank-line?)")
        self.order = Order(len(self.windows), samples, seed)

    def _empty(self, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        types, mask = (np.zeros(shape, dtype=np.int64) for _ in range(2))
        return {"token_type_ids": types, "attention_mask": mask, "next_sentence_label": np.zeros(shape[0], np.int64)}

    def _tokens(self, place: int, draw: np.random.Generator, row: dict[str, np.ndarray]) -> np.ndarray:
        first, second, row["next_sentence_label"][...] = self._pair(place, draw)
        tokens = np.concatenate([[self.begin], first, [self.end], second, [self.end]]).astype(np.int64)
        row["token_type_ids"][len(first) + 2 : len(tokens)] = 1
        row["attention_mask"][: len(tokens)] = 1
        return tokens

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

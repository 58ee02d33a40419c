"""Sentences with labels as sequences of ids, and batches of them in an order that a resume finds again.

<s> A </s>         of one sentence
<s> A </s> B </s>  of two, with token types 0 up to the first </s> and 1 after it (Devlin et al. 2019, figure 4)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from isograd.errors import DataError
from isograd.lab.data.batches import Ragged, padded
from isograd.lab.data.glue import Examples


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One part of a task.

    Attributes:
        ids: of each row.
        segments: places of each row that have token type 0.
        labels: int64 class ids, or float32 scores.
        cut: rows that were too long.
    """

    ids: Ragged
    segments: np.ndarray
    labels: np.ndarray
    cut: int

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: np.ndarray, pad: int, types: bool) -> dict[str, Tensor]:
        """Rows padded on the right to the longest of them."""
        input_ids, there = padded(self.ids, rows, pad)
        batch = {"input_ids": input_ids, "attention_mask": there.long(), "labels": torch.from_numpy(self.labels[rows])}
        if types:
            segments = torch.from_numpy(self.segments[rows])[:, None]
            second = (torch.arange(input_ids.shape[1]) >= segments) & there
            batch["token_type_ids"] = second.long()
        return batch


def encode(examples: Examples, tokenizer: Tokenizer, *, length: int, begin: int, end: int, scores: bool) -> Encoded:
    """Ids of all rows, cut to `length` places: the longer sentence first, each at its end.

    Args:
        begin, end: ids of <s> and </s>.
        scores: labels are scores, not classes.
    """
    sides = [examples.first, *([examples.second] if examples.second is not None else [])]
    ids = [[e.ids for e in tokenizer.encode_batch(side, add_special_tokens=False)] for side in sides]
    rows, segments, cut = [], [], 0
    for sentences in zip(*ids, strict=True):
        room = kept([len(sentence) for sentence in sentences], length - 1 - len(sentences))
        first, *rest = [sentence[:n] for sentence, n in zip(sentences, room, strict=True)]
        cut += sum(room) < sum(map(len, sentences))
        row = [begin, *first, end]
        segments.append(len(row))
        rows.append(row + [i for sentence in rest for i in (*sentence, end)])
    return Encoded(
        ids=Ragged.of(rows, tokenizer.get_vocab_size()),
        segments=np.array(segments),
        labels=np.array(examples.labels, dtype=np.float32 if scores else np.int64),
        cut=cut,
    )


def kept(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens of one or two sentences that stay where there is room for so many: the longer one gives first.

    >>> kept([10, 200], 125), kept([100, 100], 125), kept([7], 125)
    ([10, 115], [63, 62], [7])
    """
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    second = min(second, max(room - first, room // 2))
    return [min(first, room - second), second]


class LabelledBatches(Dataset[dict[str, Tensor]]):
    """`samples` rows in a fixed order: pass after pass, each in a permutation of its own, in whole batches.

    What a pass has beyond its last whole batch is left out of it: other rows each time. Inside a batch the shorter rows
    come first, so that micro-batches of one update hold little padding: of MRPC's places in batches of 32, 0.65 hold a
    token, in the same batches cut into four 0.89 (STS-B: 0.41 and 0.79), and the update is the same. Sample i is a
    function of (rows, batch, seed, i) alone, so whoever skips the first k samples goes on exactly.
    """

    def __init__(
        self, rows: Encoded, *, batch: int, pad: int, types: bool, seed: int, samples: int | None = None
    ) -> None:
        if batch > len(rows):
            raise DataError(f"the training part has {len(rows)} rows, fewer than one batch of {batch}")
        self.rows, self.pad, self.types, self.seed = rows, pad, types, seed
        self.batch = batch
        self.batches = len(rows) // batch  # of a pass
        self.of_pass = self.batches * batch
        self.samples = self.of_pass if samples is None else samples
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """A whole micro-batch, as wide as its longest row."""
        return self.rows.batch(np.array([self._at(i) for i in indices]), self.pad, self.types)

    def _at(self, index: int) -> int:
        if not 0 <= index < self.samples:
            raise IndexError(f"sample {index} of {self.samples}")
        turn, place = divmod(index, self.of_pass)
        if self._order[0] != turn:
            self._order = (turn, self._of(turn))
        return int(self._order[1][place])

    def _of(self, turn: int) -> np.ndarray:
        """The rows of a pass."""
        drawn = np.random.default_rng((self.seed, turn)).permutation(len(self.rows))[: self.of_pass]
        batches = drawn.reshape(self.batches, self.batch)
        shortest_first = np.argsort(self.rows.ids.lengths[batches], axis=1, kind="stable")
        return np.take_along_axis(batches, shortest_first, axis=1).ravel()

"""Masked language modelling (BERT, RoBERTa): some tokens of a sequence from all the others."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from isograd.data import Corpus
from isograd.data.masking import MaskedSequences, Masking, SegmentPairs
from isograd.data.tokenizers import MASK, SPECIAL
from isograd.models import IsogradConfig, IsogradForMaskedLM
from isograd.train.language import OnText
from isograd.train.run import Run


class MaskedLanguageModelling(OnText):
    """See `Task`. With `data.packing=segment-pair` the model has token types and BERT's second head."""

    samples: MaskedSequences | SegmentPairs

    def __init__(self, run: Run, corpus: Corpus | None = None) -> None:
        super().__init__(run, corpus)
        self.comparable &= not self.pairs  # the training loss holds that of the second head, too

    @property
    def pairs(self) -> bool:
        return self.run.data.packing == "segment-pair"

    def build(self, config: IsogradConfig) -> IsogradForMaskedLM:
        return IsogradForMaskedLM(config)

    def tokens_per_update(self) -> float:
        """Tokens read, predicted or not."""
        return self.run.training.batch * self.run.data.length

    def _targets(self, rows: Mapping[str, Tensor]) -> int:
        return len(rows["masked_positions"])

    def _predicted(self, rows: Mapping[str, Tensor]) -> Tensor:
        return rows["labels"].flatten()[rows["masked_positions"]]

    def _measured(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: value for name, value in rows.items() if name != "next_sentence_label"}

    def _sequences(self, ids: Any, samples: int | None, seed: int | None) -> MaskedSequences | SegmentPairs:
        data, vocabulary = self.run.data, self.corpus.tokenizer.get_vocab()
        masking = Masking(mask=vocabulary[MASK], rate=data.mask, random=data.mask_random, kept=data.mask_kept)
        ends = {"begin": vocabulary[SPECIAL["bos_token"]], "end": vocabulary[SPECIAL["eos_token"]]}
        if not self.pairs:
            return MaskedSequences(ids, data.length, masking, **ends, samples=samples, seed=seed)
        pad, word = vocabulary[SPECIAL["pad_token"]], begins_a_word(self.corpus.tokenizer)
        return SegmentPairs(ids, data.length, masking, **ends, pad=pad, word=word, samples=samples, seed=seed)


def begins_a_word(tokenizer: Tokenizer) -> np.ndarray:
    """For each id whether its text begins with a space or an end of line."""
    return np.array([tokenizer.decode([i])[:1].isspace() for i in range(tokenizer.get_vocab_size())])

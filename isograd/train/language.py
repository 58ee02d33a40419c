"""Language modelling of one text: causal, in packed sequences; and what a masked model shares with it."""

import statistics
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from isograd.data import Corpus, PackedSequences, load_corpus
from isograd.data.tokenizers import SPECIAL, for_transformers
from isograd.errors import DataError
from isograd.models import IsogradConfig, IsogradForCausalLM
from isograd.train.run import Run
from isograd.train.task import Task, config_from, first_sequences

TARGETS = ("labels", "shift_labels", "masked_positions", "next_sentence_label")  # what only a loss reads


class OnText(Task):
    """A task whose data is one text, cut into sequences of `data.length`."""

    corpus: Corpus

    def __init__(self, run: Run, corpus: Corpus | None = None) -> None:
        self.run = run
        self.corpus = corpus or load_corpus_of(run)
        self.source, self.sha256 = self.corpus.source, self.corpus.sha256
        self.unigram_entropy = self.corpus.unigram_entropy
        self.samples = self._sequences(self.corpus.train, run.training.steps * run.training.batch, run.data_seed)
        self.comparable = run.training.label_smoothing == 0
        self._check_held_out()

    def _check_held_out(self) -> None:
        """Who asks for validations is told before the training that there is nothing to validate on."""
        if not self.run.training.valid_sequences or not (self.run.training.valid_every or self.run.data.valid):
            return
        try:
            self._sequences(self.corpus.valid, None, None)
        except DataError as error:
            raise DataError(f"the validation part: {error}; name another one (data.valid)") from error
        if (self.corpus.valid < len(SPECIAL)).all():
            raise DataError("the validation part has no character of the training part; name another one (data.valid)")

    @abstractmethod
    def _sequences(self, ids: Any, samples: int | None, seed: int | None) -> Dataset[Any]:
        """Samples with `__getitems__`, which gives a whole batch."""

    @cached_property
    def held_out(self) -> Any:
        """The sequences of the validation part, the same at each validation; empty where there are none."""
        try:
            return self._sequences(self.corpus.valid, None, None)
        except DataError:
            return ()

    @abstractmethod
    def _targets(self, rows: Mapping[str, Tensor]) -> int:
        """What the loss of a batch is the mean of, in any unit."""

    def _measured(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What of a held-out batch the loss is formed of."""
        return rows

    @abstractmethod
    def _predicted(self, rows: Mapping[str, Tensor]) -> Tensor:
        """The ids that a batch's loss is of."""

    def unigram_loss(self, steps: Sequence[int]) -> float:
        batch = self.run.training.batch
        batches = (_batch(self.samples, range((step - 1) * batch, step * batch)) for step in steps)
        return statistics.fmean(float(self._surprise[self._predicted(rows)].mean()) for rows in batches)

    @cached_property
    def _surprise(self) -> Tensor:
        """- ln p of each id by its frequency in training, float64."""
        counts = np.bincount(self.corpus.train, minlength=self.corpus.vocab_size)
        return torch.from_numpy(-np.log(np.maximum(counts, 1) / counts.sum()))

    def held_out_unigram(self) -> float | None:
        total = targets = 0.0
        for rows in self._held_out_batches():
            ids = self._predicted(rows)
            surprise = self._surprise[ids[ids >= 0]]
            total += float(surprise.sum())
            targets += len(surprise)
        return total / targets if targets else None

    def _held_out_batches(self) -> Iterator[Mapping[str, Tensor]]:
        """Those that are measured: of at most `training.valid_sequences` sequences."""
        wanted = self.run.training.valid_sequences
        last = min(wanted, len(self.held_out)) if wanted else 0
        batch = self.run.training.batch
        return (_batch(self.held_out, range(begin, min(begin + batch, last))) for begin in range(0, last, batch))

    def config(self) -> IsogradConfig:
        ids = {name.replace("_token", "_token_id"): i for i, name in enumerate(SPECIAL) if name != "unk_token"}
        length = self.run.data.length
        return config_from(
            self.run,
            vocab_size=self.corpus.vocab_size,
            max_position_embeddings=length,
            is_decoder=self.run.task == "language",
            **ids,
        )

    def first_batch(self, process: int = 0, processes: int = 1) -> Mapping[str, Tensor]:
        rows = _batch(self.samples, first_sequences(self.run, process, processes))
        return {name: value for name, value in rows.items() if name not in TARGETS}

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Mean loss over the targets of at most `training.valid_sequences` held-out sequences, nats."""
        device = next(model.parameters()).device
        total = targets = 0.0
        model.eval()
        for rows in map(self._measured, self._held_out_batches()):
            count = self._targets(rows)
            if count:  # characters that the training part has not are no targets
                total += float(model(**{k: v.to(device) for k, v in rows.items()}).loss) * count
                targets += count
        return {"loss": total / targets if targets else None}

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        return {"validation_loss": held_out["loss"]}

    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "source": corpus.source,
            "sha256": corpus.sha256,
            "characters": corpus.characters,
            "tokens": len(corpus.train),
            "vocab_size": corpus.vocab_size,
            "unigram_entropy": corpus.unigram_entropy,
        }

    def save_tokenizer(self, folder: Path) -> None:
        for_transformers(self.corpus.tokenizer).save_pretrained(folder)


class LanguageModelling(OnText):
    """Causal: each token from those before it. See `Task`."""

    samples: PackedSequences

    def build(self, config: IsogradConfig) -> IsogradForCausalLM:
        return IsogradForCausalLM(config)

    def tokens_per_update(self) -> float:
        return self.run.training.batch * self.run.data.length

    def _targets(self, rows: Mapping[str, Tensor]) -> int:
        return len(rows["input_ids"])  # each predicts equally many

    def _predicted(self, rows: Mapping[str, Tensor]) -> Tensor:
        return rows["shift_labels"]

    def _sequences(self, ids: Any, samples: int | None, seed: int | None) -> PackedSequences:
        return PackedSequences(ids, self.run.data.length, samples, seed=seed)


def _batch(samples: Any, places: range) -> Mapping[str, Tensor]:
    rows: Mapping[str, Tensor] = samples.__getitems__(places)
    return rows


def load_corpus_of(run: Run) -> Corpus:
    """The corpus that a run names; the tokenizer of a masked model has one more token."""
    data = run.data
    return load_corpus(
        data.source,
        level=data.level,
        vocab_size=data.vocab_size,
        field=data.field,
        valid=data.valid,
        documents=data.documents,
        mask=run.task == "masked",
    )

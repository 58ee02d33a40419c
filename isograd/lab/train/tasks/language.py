"""Language modelling of one text: causal, in packed sequences; and what a masked model shares with it."""

import statistics
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from isograd.errors import RecipeError
from isograd.lab.train.run import Data, Model, Run, at_least, share
from isograd.lab.train.tasks.base import (
    CHARACTERS,
    GRADIENT,
    LABEL,
    OUTCOME,
    RATIO,
    SIZE,
    SPEED,
    VALIDATION,
    Column,
    RowRun,
    RowTraining,
    Task,
    config_from,
    pretrained_of,
    with_weights,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from isograd.lab.data import Corpus, PackedSequences
    from isograd.lab.train.pretrained import PreTrained
    from isograd.models import IsogradConfig

TARGETS = ("labels", "shift_labels", "masked_positions", "next_sentence_label")  # what only a loss reads


@dataclass(frozen=True, kw_only=True)
class TextData(Data):
    """One text, cut into sequences."""

    source: str | tuple[str, ...] = "embedded"  # several are read as one
    valid: str | None = None
    field: str = "text"
    documents: Literal["file", "blank-line"] = "file"  # what ends a document of a text file
    level: Literal["char", "bpe", "model"] = "char"  # "model": the tokenizer of model.from
    vocab_size: int = 8192  # of the BPE
    length: int = 32

    def __post_init__(self) -> None:
        at_least(1, "data", self, "length", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class TextTraining(RowTraining):
    """See `RowTraining`."""

    label_smoothing: float = 0.0
    valid_sequences: int = 512
    stop_when_broken: bool | Literal["or-collapsed"] = False  # stop where the loss diverges, and say at which rate;
    # "or-collapsed": also where the run would be called collapsed, if it ended there; see `isograd.outcome`

    def __post_init__(self) -> None:
        super().__post_init__()
        share("training", self, "label_smoothing")
        if self.valid_sequences < 0:
            raise RecipeError(f"training.valid_sequences={self.valid_sequences} must not be negative")
        if not self.valid_every and (self.patience or self.select != "last"):
            raise RecipeError("training.patience and training.select need training.valid_every, the updates in between")
        if self.valid_every and not self.valid_sequences:
            raise RecipeError(
                f"training.valid_every={self.valid_every} and training.valid_sequences=0 contradict each other:"
                " there would be nothing to validate on"
            )


@dataclass(frozen=True, kw_only=True)
class TextRun(RowRun):
    """A run on one text."""

    model: Model = field(default_factory=Model)
    data: TextData = field(default_factory=TextData)
    training: TextTraining = field(default_factory=TextTraining)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data.level == "model" and not self.pretrained:
            raise RecipeError("data.level=model is the tokenizer of model.from, and none is named")

    @property
    def places(self) -> int:
        return self.data.length

    @property
    def vocabulary(self) -> str | None:
        return None if self.data.level == "model" else self.data.level

    def must_find_its_data(self) -> None:
        from isograd.text import must_be_there

        must_be_there(self.data.source)

    def config(self) -> "IsogradConfig":
        from isograd.convert.checkpoints.tokenizers import smallest_bpe

        rows = self.data.vocab_size if self.data.level == "bpe" else CHARACTERS
        least = smallest_bpe(mask=self.has_mask)
        if self.data.level == "bpe" and rows < least:
            raise RecipeError(f"data.vocab_size={rows}: BPE needs at least {least}, the bytes and the special tokens")
        return self.config_with(vocab_size=rows)

    @property
    def has_mask(self) -> bool:
        """Whether the tokenizer has one token more, <mask>."""
        return False

    def config_with(self, **facts: Any) -> "IsogradConfig":
        """The configuration, with what is known of the text."""
        return config_from(self, max_position_embeddings=self.data.length, is_decoder=True, **facts)


@dataclass(frozen=True, kw_only=True)
class LanguageRun(TextRun):
    """A run of a language model."""

    task: Literal["language"] = "language"


class OnText(Task):
    """A task whose data is one text, cut into sequences of `data.length`."""

    lr_range = True
    run: TextRun
    corpus: "Corpus"

    def __init__(self, run: TextRun, corpus: "Corpus | None" = None) -> None:
        self.run = run
        self.pretrained = pretrained_of(run)
        self.corpus = corpus or load_corpus_of(run, self.pretrained)
        self.source, self.sha256 = self.corpus.source, with_weights(self.corpus.sha256, self.pretrained)
        self.unigram_entropy = self.corpus.unigram_entropy
        self.samples = self._sequences(self.corpus.train, run.training.steps * run.training.batch, run.data_seed)
        self.comparable = run.training.label_smoothing == 0
        self._check_held_out()

    def _check_held_out(self) -> None:
        """Refuse before the run what could not be validated."""
        from isograd.convert.checkpoints.tokenizers import SPECIAL
        from isograd.errors import DataError

        if not self.run.training.valid_sequences or not (self.run.training.valid_every or self.run.data.valid):
            return
        try:
            self._sequences(self.corpus.valid, None, None)
        except DataError as error:
            raise DataError(f"the validation part: {error}; name another one (data.valid)") from error
        if not self.pretrained and (self.corpus.valid < len(SPECIAL)).all():
            raise DataError("the validation part has no character of the training part; name another one (data.valid)")

    @abstractmethod
    def _sequences(self, ids: Any, samples: int | None, seed: int | None) -> "Dataset[Any]":
        """Samples with `__getitems__`, which gives a whole batch."""

    @cached_property
    def held_out(self) -> Any:
        """The sequences of the validation part, the same at each validation; empty where there are none."""
        from isograd.errors import DataError

        try:
            return self._sequences(self.corpus.valid, None, None)
        except DataError:
            return ()

    @abstractmethod
    def _targets(self, rows: "Mapping[str, Tensor]") -> int:
        """What the loss of a batch is the mean of, in any unit."""

    def _scored(self, rows: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
        """What of a held-out batch the loss is formed of."""
        return rows

    @abstractmethod
    def _predicted(self, rows: "Mapping[str, Tensor]") -> "Tensor":
        """The ids that a batch's loss is of."""

    def unigram_loss(self, steps: Sequence[int]) -> float:
        batch = self.run.training.batch
        batches = (_batch(self.samples, range((step - 1) * batch, step * batch)) for step in steps)
        return statistics.fmean(float(self._surprise[self._predicted(rows)].mean()) for rows in batches)

    @cached_property
    def _surprise(self) -> "Tensor":
        """- ln p of each id by its frequency in training, float64."""
        import numpy as np
        import torch

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

    def _held_out_batches(self) -> "Iterator[Mapping[str, Tensor]]":
        """Those that are measured: of at most `training.valid_sequences` sequences."""
        wanted = self.run.training.valid_sequences
        last = min(wanted, len(self.held_out)) if wanted else 0
        batch = self.run.training.batch
        return (_batch(self.held_out, range(begin, min(begin + batch, last))) for begin in range(0, last, batch))

    def config(self) -> "IsogradConfig":
        from isograd.convert.checkpoints.tokenizers import SPECIAL

        ids = {name.replace("_token", "_token_id"): i for i, name in enumerate(SPECIAL) if name != "unk_token"}
        return self.run.config_with(vocab_size=self.corpus.vocab_size, **ids)

    def first_batch(self, process: int = 0, processes: int = 1) -> "Mapping[str, Tensor]":
        rows = _batch(self.samples, self.run.first_sequences(process, processes))
        return {name: value for name, value in rows.items() if name not in TARGETS}

    def _validate(self, model: "nn.Module") -> dict[str, float | None]:
        """Mean loss over the targets of at most `training.valid_sequences` held-out sequences, nats."""
        batches = ((rows, self._targets(rows)) for rows in map(self._scored, self._held_out_batches()))
        return {"loss": self.mean_loss(model, batches)}  # characters that the training part has not are no targets

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        return {"validation_loss": held_out["loss"]}

    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        return {
            "source": corpus.source,
            "sha256": self.sha256,
            "characters": corpus.characters,
            "tokens": len(corpus.train),
            "vocab_size": corpus.vocab_size,
            "unigram_entropy": corpus.unigram_entropy,
        }

    def save_tokenizer(self, folder: Path) -> None:
        from isograd.convert.checkpoints.tokenizers import for_transformers

        if self.pretrained:
            self.pretrained.save_tokenizer(folder)
            return
        for_transformers(self.corpus.tokenizer).save_pretrained(folder)


class LanguageModelling(OnText):
    """Causal: each token from those before it. See `Task`."""

    name = "language"
    model = "IsogradForCausalLM"
    recipe: ClassVar[type[Run]] = LanguageRun
    columns = (
        LABEL,
        OUTCOME,
        Column(name="final loss", short="final", field="final_loss", form="{:.3f}"),
        replace(VALIDATION, spare=2),
        RATIO,
        replace(SPEED, spare=3),
        SIZE,
    )
    captions = MappingProxyType(
        {
            "page": "Final loss: mean of the last 20 steps, nats per token.",
            "table": f"losses in nats; g1/gL: {GRADIENT}",
        }
    )
    samples: "PackedSequences"

    def tokens_per_update(self) -> float:
        return self.run.tokens_per_update

    def _targets(self, rows: "Mapping[str, Tensor]") -> int:
        return len(rows["input_ids"])  # each predicts equally many

    def _predicted(self, rows: "Mapping[str, Tensor]") -> "Tensor":
        return rows["shift_labels"]

    def _sequences(self, ids: Any, samples: int | None, seed: int | None) -> "PackedSequences":
        from isograd.lab.data import PackedSequences

        return PackedSequences(ids, self.run.data.length, samples, seed=seed)


def _batch(samples: Any, places: range) -> "Mapping[str, Tensor]":
    rows: Mapping[str, Tensor] = samples.__getitems__(places)
    return rows


def load_corpus_of(run: TextRun, pretrained: "PreTrained | None" = None) -> "Corpus":
    """The corpus that a run names; the tokenizer of a masked model has one more token."""
    from isograd.lab.data import load_corpus

    data = run.data
    return load_corpus(
        data.source,
        level="char" if data.level == "model" else data.level,
        vocab_size=data.vocab_size,
        field=data.field,
        valid=data.valid,
        documents=data.documents,
        mask=run.has_mask,
        reader=pretrained.corpus_reader if pretrained else None,
    )

"""What a training needs to know of its task: data, the model's class and shape, what is measured on held-out text."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from isograd.errors import RecipeError, UnknownPlacement
from isograd.models import IsogradConfig, IsogradPreTrainedModel
from isograd.models.config import TERMS
from isograd.outcome import Verdict, judge
from isograd.train.run import Run

LOOKED_AT = 2000  # steps at the end of a run whose batches are formed again, for their unigram loss


class Task(ABC):
    """One run's data, and what depends on it.

    Attributes:
        run: the recipe, with the number of steps that its epochs come to.
        corpus: the data itself.
        updates_per_epoch: None where a training is not told in epochs.
        source, sha256: what was read.
        unigram_entropy: of the predicted tokens, nats.
        blind_loss: held-out loss of a model that sees no other token; None where the unigram entropy says it.
        comparable: whether the training loss is the cross-entropy of the tokens, and nothing else.
        samples: all batches of the training in their order; one epoch of them is the training.
        lost: what outcome.json says of a training that diverged, beside that.
    """

    run: Run
    corpus: Any
    updates_per_epoch: int | None = None
    source: str
    sha256: str
    unigram_entropy: float
    blind_loss: float | None = None
    comparable: bool = True
    samples: Dataset[Any]
    lost: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def __init__(self, run: Run, corpus: Any = None) -> None:
        """Load what the run names, or take `corpus`, that of another run on the same data."""

    @abstractmethod
    def config(self) -> IsogradConfig:
        """The model's configuration.

        Raises:
            RecipeError: a value that no model has, under the recipe's name for it.
        """

    @abstractmethod
    def build(self, config: IsogradConfig) -> IsogradPreTrainedModel:
        """A fresh model."""

    @abstractmethod
    def first_batch(self, process: int = 0, processes: int = 1) -> Mapping[str, Tensor]:
        """What a calibration profiles: the first micro-batch that this one of the processes trains on."""

    @abstractmethod
    def tokens_per_update(self) -> float:
        """Predicted tokens of one update, on average, all processes together."""

    def unigram_loss(self, steps: Sequence[int]) -> float:
        """Mean loss over these updates (from 1) of a model that knows token frequencies only, nats.

        Where a task does not look at its batches for it, the unigram entropy.
        """
        return self.unigram_entropy

    @abstractmethod
    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """What is measured on held-out text: "loss" (nats per token) at least; None where there is none."""

    def held_out_unigram(self) -> float | None:
        """What `unigram_loss` is on held-out text; None where that is not known."""
        return None

    def judge(
        self,
        rows: Sequence[Mapping[str, Any]],
        held_out: float | None,
        broke_at: int | None = None,
        apart: float | None = None,
    ) -> Verdict:
        """How a run of this task ended.

        Args:
            rows: of metrics.jsonl.
            held_out: the loss in `validate` of the weights that are kept.
            broke_at: the step at which the run was stopped, where it broke.
            apart: how far the gradients of the layers had come apart; see `isograd.outcome.judge`.
        """
        early = [self.unigram_entropy] * len(rows[:-LOOKED_AT])
        return judge(
            [row["loss"] for row in rows],
            [*early, *(self.unigram_loss([row["step"]]) for row in rows[-LOOKED_AT:])],
            steps=[row["step"] for row in rows],
            rates=[row["lr"] for row in rows],
            held_out=held_out,
            held_out_unigram=None if held_out is None else self.held_out_unigram(),
            comparable=self.comparable,
            broke_at=broke_at,
            apart=apart,
        )

    @abstractmethod
    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        """What goes into outcome.json, beside the outcome itself.

        Args:
            held_out: `validate` of the weights that are kept.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What is known of the data, for people."""

    @abstractmethod
    def save_tokenizer(self, folder: Path) -> None:
        """Beside the model."""


def config_from(run: Run, **facts: Any) -> IsogradConfig:
    """The configuration that a run's model section and the facts of its data describe."""
    given: dict[str, Any] = {TERMS.get(name, name): value for name, value in vars(run.model).items()} | facts
    if run.task == "masked" and run.data.packing == "segment-pair":
        given |= {"type_vocab_size": 2, "next_sentence": True}
    try:
        return IsogradConfig(**given)
    except (ValueError, UnknownPlacement) as error:
        ours = {TERMS.get(name, name): f"model.{name}" for name in vars(run.model)}
        raise RecipeError(re.sub(r"\w+(?==)", lambda word: ours.get(word[0], word[0]), str(error))) from error


def first_sequences(run: Run, process: int, processes: int) -> range:
    """Places of a process' first micro-batch; those of all processes are the first `batch / accumulation` sequences."""
    micro = run.training.batch // (run.training.accumulation * processes)
    return range(process * micro, (process + 1) * micro)


def with_steps(run: Run, steps: int) -> Run:
    """The run with so many updates."""
    return replace(run, training=replace(run.training, steps=steps))

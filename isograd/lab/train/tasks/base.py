"""What a training run needs to know of its task: recipe, data, model, what is measured, and what a report shows.

A task is a subclass of `Task` and of `Run`, in a file of its own that imports neither torch nor transformers until data
are loaded: recipes are checked, and reports written, without them.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from isograd.errors import RecipeError, UnknownPlacement
from isograd.lab.train.run import Run, Training, at_least
from isograd.outcome import Verdict, judge

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from isograd.diagnose.watch.baseline import Baseline
    from isograd.lab.train.pretrained import PreTrained
    from isograd.models import IsogradConfig

CHARACTERS = 256  # of a vocabulary of characters, before data are read
LOOKED_AT = 2000  # steps at the end of a run whose batches are formed again, for their unigram loss
GRADIENT = "mean |gradient| of W_2, first layer over last, at step 1 → at the end"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a report's table.

    Attributes:
        short: its name in a terminal.
        field: of outcome.json, or what a report knows how to compute.
        form: of the field's number; None: `field` is computed.
        spare: a narrow terminal leaves out columns with the lowest number first; 0 stays.
    """

    name: str
    short: str
    field: str
    form: str | None = None
    spare: int = 0


LABEL = Column(name="placement", short="placement", field="label")
OUTCOME = Column(name="outcome", short="outcome", field="outcome")
VALIDATION = Column(name="validation loss", short="valid", field="validation_loss", form="{:.3f}")
RATIO = Column(name="first/last gradient ratio", short="g1/gL", field="gradient_ratio")
SPEED = Column(name="tokens/s", short="tok/s", field="tokens_per_second")
SIZE = Column(name="parameters", short="params", field="parameters", spare=1)


class Task(ABC):
    """One run's data, and what depends on it.

    Attributes of the class:
        name: the tag of its recipes.
        model: its class in `isograd.models`.
        recipe: the class of its runs; what that does not hold is no key of the task.
        extra: of isograd, what the task may need beyond the core.
        columns, captions: of reports: the table, and the sentences beside it ("page" in a page, "table" in a terminal).
        charts: of a report's page above those over depth, by their names in `isograd.lab.report.pages.runs`.
        scored: whether runs are compared by a score over the seeds, not by a loss.
        judged: the field of outcome.json that runs are compared by.
        outcome_fields: what outcome.json holds beside the losses.
        stacks: those of the model, where no row of quantities names any.
        needed: keys of run.json without which no report can be written, and their types.
        lr_range: whether a run may stop where its loss rises, and say at which learning rate.
        words: what a report says in place of a language model's words.
        foreign: whether the model is no `IsogradPreTrainedModel`; `loss` is formed here then.

    Attributes:
        run: the recipe, with the number of steps that its epochs come to.
        corpus: the data itself.
        pretrained: the model that is trained further.
        updates_per_epoch: None where a run does not count epochs.
        source, sha256: what was read.
        unigram_entropy: of the predicted tokens, nats.
        blind_loss: held-out loss of a model that sees no other token; None where the unigram entropy says it.
        comparable: whether the training loss is the cross-entropy of the tokens, and nothing else.
        samples: all batches of the run in their order; one epoch of them is the run.
        lost: what outcome.json says of a run that diverged, beside that.
    """

    name: ClassVar[str]
    model: ClassVar[str]
    recipe: ClassVar[type[Run]]
    extra: ClassVar[str] = "data"
    columns: ClassVar[tuple[Column, ...]]
    captions: ClassVar[Mapping[str, str]]
    charts: ClassVar[tuple[str, ...]] = ("loss", "comparison", "equal-loss")
    scored: ClassVar[bool] = False
    judged: ClassVar[str] = "final_loss"
    outcome_fields: ClassVar[tuple[str, ...]] = ()
    stacks: ClassVar[tuple[str, ...]] = ("decoder",)
    needed: ClassVar[Mapping[str, type]] = MappingProxyType({"model.layers": int})
    always_said: ClassVar[tuple[str, ...]] = ("model.placement", "training.warmup")
    lr_range: ClassVar[bool] = False
    words: ClassVar[Mapping[str, str]] = MappingProxyType({})
    foreign: ClassVar[bool] = False
    lost: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    run: Run
    corpus: Any
    pretrained: "PreTrained | None" = None
    updates_per_epoch: int | None = None
    source: str
    sha256: str
    unigram_entropy: float
    blind_loss: float | None = None
    comparable: bool = True
    samples: "Dataset[Any]"

    @abstractmethod
    def __init__(self, run: Run, corpus: Any = None) -> None:
        """Load what the run names, or take `corpus`, that of another run on the same data."""

    @property
    def token_entropy(self) -> float | None:
        """What the early warning and the verdict compare the loss with; None where the loss is not one of tokens."""
        return self.unigram_entropy

    @property
    def baseline(self) -> "Baseline | None":
        """The same, with the unit in which losses are compared with it."""
        from isograd.diagnose.watch.baseline import Baseline

        return None if self.token_entropy is None else Baseline(kind="tokens", value=self.token_entropy)

    @property
    def unit(self) -> float:
        """What stands for one nat, in the loss's own unit."""
        return self.baseline.unit if self.baseline else 1.0

    @abstractmethod
    def config(self) -> Any:
        """The model's configuration; None of a foreign one.

        Raises:
            RecipeError: a value that no model has, under the recipe's name for it.
        """

    @classmethod
    def empty(cls, config: "IsogradConfig") -> Any:
        """A fresh model of this shape."""
        import isograd.models

        return getattr(isograd.models, cls.model)(config)

    def build(self, config: Any) -> Any:
        """The model as it is trained: a fresh one, with the weights of `model.from` where the run has one."""
        model = self.empty(config)
        if self.pretrained is not None:
            model.load_state_dict(self.pretrained.loaded(type(model)).state_dict())
        return model

    def origin(self) -> dict[str, Any]:
        """What resolved.json and outcome.json say of the model that is trained further."""
        if self.pretrained is None:
            return {}
        optimizer = "stored" if self.run.stored_optimizer else "fresh"
        return {"from": {"model": self.pretrained.name, "sha256": self.pretrained.sha256, "optimizer_state": optimizer}}

    @abstractmethod
    def first_batch(self, process: int = 0, processes: int = 1) -> "Mapping[str, Tensor]":
        """What a calibration profiles: the first micro-batch that this one of the processes trains on."""

    @abstractmethod
    def tokens_per_update(self) -> float:
        """Predicted tokens of one update, on average, all processes together."""

    def unigram_loss(self, steps: Sequence[int]) -> float:
        """Mean loss over these updates (from 1) of a model that knows token frequencies only, nats.

        Where a task does not look at its batches for it, the unigram entropy.
        """
        return self.unigram_entropy

    def validate(self, model: "nn.Module") -> dict[str, float | None]:
        """What is measured on held-out text: "loss" (nats per token) at least; None where there is none."""
        import torch

        model.eval()
        with torch.no_grad():
            return self._validate(model)

    def loss(self, model: "nn.Module", batch: "Mapping[str, Any]") -> "Tensor":
        """The loss of a batch, a scalar that has a gradient."""
        loss: Tensor = model(**batch).loss
        return loss

    def built(self) -> dict[str, Any]:
        """What resolved.json says of a foreign model."""
        return {}

    def mean_loss(self, model: "nn.Module", batches: "Iterable[tuple[Mapping[str, Tensor], int]]") -> float | None:
        """Over batches, each with the number of its targets; None where there are none."""
        device = next(model.parameters()).device
        total = targets = 0.0
        for batch, count in batches:
            if count:
                total += float(self.loss(model, {k: v.to(device) for k, v in batch.items()})) * count
                targets += count
        return total / targets if targets else None

    @abstractmethod
    def _validate(self, model: "nn.Module") -> dict[str, float | None]:
        """`validate` of a model in evaluation mode, without gradients."""

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
            broke_at: the step at which the run was stopped, where it diverged.
            apart: how far the gradients of the layers had come apart; see `isograd.outcome.judge`.
        """
        unit, there = self.unit, None if held_out is None else self.held_out_unigram()
        return judge(
            [row["loss"] / unit for row in rows],
            None if self.baseline is None else [level / unit for level in self._unigram_losses(rows)],
            steps=[row["step"] for row in rows],
            rates=[row["lr"] for row in rows],
            held_out=None if held_out is None else held_out / unit,
            held_out_unigram=None if there is None else there / unit,
            comparable=self.comparable,
            broke_at=broke_at,
            apart=apart,
        )

    def _unigram_losses(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """Of each row's batch; of those long ago, whose batches are not formed again, the entropy."""
        early = [self.unigram_entropy] * len(rows[:-LOOKED_AT])
        return [*early, *(self.unigram_loss([row["step"]]) for row in rows[-LOOKED_AT:])]

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


def pretrained_of(run: Run) -> "PreTrained | None":
    """The model that a run trains further, its optimizer's state found where the run wants it."""
    if not run.pretrained:
        return None
    from isograd.lab.train.pretrained import find_pretrained

    found = find_pretrained(run.pretrained)
    if run.stored_optimizer:
        found.moments(run.training.optimizer)
    return found


def with_weights(sha256: str, pretrained: "PreTrained | None") -> str:
    """Of the data, and of the model that is trained further on them: a run goes on with both."""
    return hashlib.sha256(f"{sha256}{pretrained.sha256}".encode()).hexdigest() if pretrained else sha256


def config_from(run: Run, **facts: Any) -> "IsogradConfig":
    """The configuration that a run's model section and the facts of its data describe, or that of `model.from`."""
    if run.pretrained:
        from isograd.lab.train.pretrained import continued

        return continued(run, facts["max_position_embeddings"], next_sentence=facts.get("next_sentence", False))
    from isograd.models import IsogradConfig
    from isograd.models.config import TERMS

    options = run.model.options()
    given: dict[str, Any] = {TERMS.get(name, name): value for name, value in options.items()} | facts
    try:
        return IsogradConfig(**given)
    except (ValueError, UnknownPlacement) as error:
        ours = {TERMS.get(name, name): f"model.{name}" for name in options}
        message = re.sub(r"\w+(?==)", lambda word: ours.get(word[0], word[0]), str(error))
        raise RecipeError(message) from error


@dataclass(frozen=True, kw_only=True)
class RowTraining(Training):
    """`batch` is the global batch in sequences: devices x accumulation x micro-batch."""

    batch: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, "training", self, "batch")
        if self.batch % self.accumulation:
            raise RecipeError(
                f"training.batch={self.batch} does not divide by training.accumulation={self.accumulation}"
            )


@dataclass(frozen=True, kw_only=True)
class RowRun(Run):
    """A run whose batch is a number of sequences."""

    training: RowTraining = field(default_factory=RowTraining)

    def micro_batch(self, processes: int) -> int:
        t = self.training
        micro, rest = divmod(t.batch, t.accumulation * processes)
        if rest or not micro:
            raise RecipeError(
                f"training.batch={t.batch} does not divide by"
                f" {processes} processes x training.accumulation={t.accumulation}"
            )
        return micro

    def first_sequences(self, process: int, processes: int) -> range:
        """Places of a process' first micro-batch; those of all are the first `batch / accumulation` sequences."""
        micro = self.micro_batch(processes)
        return range(process * micro, (process + 1) * micro)

    @property
    def tokens_per_update(self) -> int:
        return self.training.batch * self.places

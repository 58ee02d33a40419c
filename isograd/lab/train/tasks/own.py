"""A model of the user's own: a file's function builds it. On a text it is a language model; or the file brings a task.

What the file may hold: `own_file.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from isograd.errors import RecipeError
from isograd.lab.train.run import Run
from isograd.lab.train.tasks.base import (
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
)
from isograd.lab.train.tasks.language import LanguageModelling, TextData, TextRun, TextTraining
from isograd.lab.train.tasks.own_file import (
    KEPT_KINDS,
    Batches,
    Brought,
    Built,
    brought,
    called,
    module_of,
    parameters,
    read,
    split,
    unchanged,
)
from isograd.outcome import Verdict, in_units

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from isograd.diagnose.watch.baseline import Baseline


def task_for(content: Mapping[str, Any]) -> str:
    """The task of a recipe with `model.build` that names none: the file's own where it has `batches`, else language.

    Raises:
        RecipeError: both say where the data come from.
    """
    file, _ = split(str(content["model"]["build"]))
    data = content.get("data")
    if "batches" not in read(file).names:
        return OwnLanguage.name
    if isinstance(data, Mapping) and "source" in data:
        raise RecipeError(f"{file} has batches(), and data.source={data['source']} is given; leave one of them out")
    return OwnTask.name


class _OwnRun:
    """What both kinds of run of a model of one's own have; they differ in where the data come from."""

    sized = False
    model: Built
    training: Any
    seed: int
    key: Callable[[], str]

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        for key in ("fsdp", "gradient_checkpointing"):
            if getattr(self.training, key):
                raise RecipeError(f"training.{key}=true needs layers that isograd knows; leave it out with model.build")

    def entry(self) -> None:
        """It is in no catalogue."""

    def config(self) -> Any:
        """Only the file knows its shape: no forecast."""
        raise RecipeError(
            "--dry-run forecasts isograd's own models; of model.build nothing is known before it is built"
        )

    def folder_name(self) -> str:
        given = (f"{key}-{value}" for key, value in (self.model.arguments or {}).items())
        words = "-".join([self.model.placement.replace(":", "-"), *given])
        plain = "".join(one if one.isalnum() or one in "-_.+" else "_" for one in words)[:80]
        return f"{plain}-lr{self.training.lr:g}-w{self.training.warmup}-s{self.seed}-{self.key()}"

    def described(self) -> dict[str, Any]:
        return super().described() | {"build": self.model.build, "arguments": self.model.arguments}  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class OwnTextRun(_OwnRun, TextRun):
    """A run of a language model of one's own on one text."""

    task: Literal["own-language"] = "own-language"
    model: Built = field(default_factory=Built)  # type: ignore[assignment]
    data: TextData = field(default_factory=TextData)
    training: TextTraining = field(default_factory=TextTraining)


@dataclass(frozen=True, kw_only=True)
class OwnTraining(RowTraining):
    """`batch` counts batches of the file's own: so many make an update, devices x accumulation x those of one pass."""

    batch: int = 1
    stop_when_broken: bool | Literal["or-collapsed"] = False  # as in language modelling


@dataclass(frozen=True, kw_only=True)
class OwnRun(_OwnRun, RowRun):
    """A run of a model and a task of one's own."""

    task: Literal["own"] = "own"
    model: Built = field(default_factory=Built)
    training: OwnTraining = field(default_factory=OwnTraining)

    @property
    def places(self) -> int:
        """Nobody counts tokens here."""
        return 0

    @property
    def tokens_per_update(self) -> int:
        """Speeds are in updates."""
        return 1

    @property
    def corpus_key(self) -> Any:
        return self.task, self.model.build, self.model.sha256, self.data_seed


class _Own(Task):
    """What both tasks have; see `Task`."""

    foreign = True

    def config(self) -> Any:
        """There is none; a file that has changed since the run was planned is refused before anything is written."""
        unchanged(self.run.model)

    def build(self, config: Any = None) -> Any:
        """A fresh model; `vocab_size` is handed in where it is asked for and not given."""
        made = self._made()
        return made[0] if isinstance(made, tuple) else made

    def _made(self, **offered: Any) -> Any:
        from torch import nn

        model = self.run.model
        assert isinstance(model, Built)
        function = module_of(model, split(model.build)[1])
        given = {key: value for key, value in offered.items() if key in parameters(function)} | (model.arguments or {})
        made = called(model.build, function, **given)
        one = made[0] if isinstance(made, tuple) and len(made) == 2 else made
        if not isinstance(one, nn.Module):
            raise RecipeError(f"{model.build} gives {type(one).__name__}; expected an nn.Module, or (model, loss)")
        if not any(p.requires_grad for p in one.parameters()):
            raise RecipeError(f"{model.build}: the model has no parameters to train")
        return made

    def built(self) -> dict[str, Any]:
        model = self.run.model
        assert isinstance(model, Built)
        return {"built": {"build": model.build, "arguments": model.arguments, "sha256": model.sha256}}

    def first_batch(self, process: int = 0, processes: int = 1) -> "Mapping[str, Tensor]":
        raise NotImplementedError("a model of the user's own is not calibrated")


_ARM = replace(LABEL, name="model", short="model")
_GRADIENTS = replace(RATIO, spare=1)


class OwnLanguage(_Own, LanguageModelling):
    """A causal language model of the user's own: ids (batch, time) -> logits (batch, time, vocabulary). See `Task`."""

    name = "own-language"
    recipe: ClassVar[type[Run]] = OwnTextRun
    columns = (
        _ARM,
        OUTCOME,
        Column(name="final loss", short="final", field="final_loss", form="{:.3f}"),
        replace(VALIDATION, spare=2),
        _GRADIENTS,
        replace(SPEED, spare=3),
        SIZE,
    )
    captions = MappingProxyType(
        {
            "title": "Models compared",
            "page": "Final loss: mean of the last 20 steps, nats per token.",
            "table": "losses in nats; g1/gL: mean |gradient| of a layer's last matrix, first layer over last, at step 1"
            " → at the end",
        }
    )
    words = MappingProxyType({"W_2": "a layer's last matrix", "W₂": "the last matrix", ", ffn": ""})
    needed = MappingProxyType({"model.build": str})

    def build(self, config: Any = None) -> Any:
        made = self._made(vocab_size=self.corpus.vocab_size)
        if isinstance(made, tuple):
            raise RecipeError(f"{self.run.model.placement} gives (model, loss) without batches(); add it to the file")
        return made

    def loss(self, model: "nn.Module", batch: "Mapping[str, Any]") -> "Tensor":
        """Cross-entropy of the next token, nats."""
        from torch.nn import functional

        from isograd.transformer.loss import IGNORE

        ids, labels = batch["input_ids"], batch["shift_labels"]
        output = model(ids)
        logits: Any = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
        shape = tuple(getattr(logits, "shape", ()))
        if shape[:2] != tuple(ids.shape) or len(shape) != 3 or shape[2] < self.corpus.vocab_size:
            wanted = (*ids.shape, self.corpus.vocab_size)
            raise RecipeError(
                f"the model gives {shape or type(output).__name__} for ids {tuple(ids.shape)};"
                f" expected logits {wanted}; `vocab_size` is handed to build where it takes it"
            )
        smoothing = self.run.training.label_smoothing if model.training else 0.0
        flat = logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORE, label_smoothing=smoothing)


class OwnTask(_Own):
    """A task of the user's own, with its own data, loss and baseline. See `Task`."""

    name = "own"
    recipe = OwnRun
    columns = (
        _ARM,
        OUTCOME,
        Column(name="final loss", short="final", field="final_loss", form="{:.4g}"),
        replace(VALIDATION, form="{:.4g}", spare=2),
        _GRADIENTS,
        replace(SPEED, name="updates/s", short="upd/s", spare=3),
        SIZE,
    )
    captions = MappingProxyType(
        {
            "title": "Models compared",
            "page": "Final loss: mean of the last 20 steps, in the loss's own unit.",
            "table": "g1/gL: mean |gradient| of a layer's last matrix, first layer over last, at step 1 → at the end",
        }
    )
    needed = OwnLanguage.needed
    lr_range = True
    words = MappingProxyType(
        {
            ", the loss of a model that knows only how often each token occurs": ", the loss of the best prediction"
            " that does not look at its inputs (where the file gives none, whatever is finite has finished)",
            " (1 nat = 1.44 bits)": "",
            "differences of a few hundredths between arms mean nothing": "differences between arms mean little",
            "0.10 nat below": "a tenth of the baseline (of a cross-entropy 0.10 nat) below",
            "0.5 nat above": "half the baseline (of a cross-entropy 0.5 nat) above",
            "Unigram entropy": "Baseline",
            "unigram entropy": "baseline",
            " (nats per token)": "",
            " (nats)": "",
            " nats": "",
            **OwnLanguage.words,
        }
    )
    run: OwnRun
    corpus: Brought

    def __init__(self, run: OwnRun, corpus: Brought | None = None) -> None:
        self.run, self.model_file = run, split(run.model.build)[0]
        stream = Batches(run.model, run.data_seed, run.training.steps * run.training.batch)
        self.corpus = corpus or brought(run.model, stream)
        self.samples = cast("Dataset[Any]", stream)
        self.source, self.sha256 = str(self.model_file), self.corpus.sha256
        self.unigram_entropy = self.corpus.baseline.value if self.corpus.baseline else None  # type: ignore[assignment]
        self._own: Callable[..., Any] | None = None
        if run.training.stop_when_broken and self.baseline is None:
            raise RecipeError(f"{self.source} has no baseline, which says when a loss has broken; add baseline=NUMBER,"
                              f" or the name of the loss ({', '.join(KEPT_KINDS)})")  # fmt: skip

    @property
    def token_entropy(self) -> None:
        """The loss is none of tokens."""

    @property
    def baseline(self) -> "Baseline | None":
        return self.corpus.baseline

    def build(self, config: Any = None) -> Any:
        made = self._made()
        model, self._own = made if isinstance(made, tuple) else (made, None)
        if self._own is None and "loss" not in read(self.model_file).names:
            raise RecipeError(
                f"{self.model_file} has batches() and no loss(model, batch); add it, or give (model, loss)"
            )
        return model

    def loss(self, model: "nn.Module", batch: "Mapping[str, Any]") -> "Tensor":
        """The mean over the batches of one pass."""
        own = self._own or module_of(self.run.model, "loss")
        losses = [own(model, one) for one in batch["batches"]]
        for one in losses:
            if getattr(one, "shape", None) != ():
                raise RecipeError(
                    f"loss of {self.model_file} gives {tuple(getattr(one, 'shape', ())) or one!r}, no scalar"
                )
        total: Tensor = sum(losses[1:], losses[0]) / len(losses)
        return total

    def tokens_per_update(self) -> float:
        return 1.0

    def held_out_unigram(self) -> float | None:
        return self.corpus.held_out_level

    def judge(
        self,
        rows: Sequence[Mapping[str, Any]],
        held_out: float | None,
        broke_at: int | None = None,
        apart: float | None = None,
    ) -> Verdict:
        verdict = super().judge(rows, held_out, broke_at, apart)
        return in_units(verdict, self.unit, self.baseline.name if self.baseline else "")

    def _validate(self, model: "nn.Module") -> dict[str, float | None]:
        import torch
        from accelerate.utils import send_to_device

        if not self.corpus.held_out:
            return {"loss": None}
        device = next(model.parameters()).device
        with torch.no_grad():
            losses = [
                float(self.loss(model, {"batches": [send_to_device(one, device)]})) for one in self.corpus.held_out
            ]
        return {"loss": sum(losses) / len(losses)}

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        return {"validation_loss": held_out["loss"]}

    def facts(self) -> dict[str, Any]:
        level = self.baseline
        known = {"unigram_entropy": level.value, "baseline": level.name, "unit": level.unit} if level else {}
        return {"source": self.source, "sha256": self.sha256, "held_out_batches": len(self.corpus.held_out), **known}

    def save_tokenizer(self, folder: Path) -> None:
        """There is none."""

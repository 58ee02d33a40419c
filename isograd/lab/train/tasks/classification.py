"""Fine-tuning on a task of GLUE: a pre-trained stack and a fresh head; loss and GLUE's metrics on the dev part."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from isograd.errors import RecipeError
from isograd.lab.train.run import Placed, share
from isograd.lab.train.tasks.base import OUTCOME, VALIDATION, Column, RowRun, RowTraining, Task

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from isograd.lab.data.glue import Examples, GlueData
    from isograd.lab.data.labelled import Encoded, LabelledBatches
    from isograd.lab.train.pretrained import PreTrained
    from isograd.models import IsogradConfig

GlueTask = Literal["mrpc", "rte", "cola", "sst-2", "sts-b", "mnli", "qnli", "qqp"]


@dataclass(frozen=True, kw_only=True)
class Glue:
    """What a pre-trained model is fine-tuned on; see `isograd.lab.data.glue.load_glue`."""

    task: GlueTask = "mrpc"
    source: str = "nyu-mll/glue"  # a folder of .tsv files, or a data set on the hub
    model: str | None = None  # a pre-trained model's folder or hub name, or a run's folder
    scratch: bool = False  # take the shape and the tokenizer of `model`, and fresh weights
    length: int = 128  # tokens of a sequence; longer ones are cut
    warmup: float = 0.06  # of all updates
    dropout: float | None = None  # in place of the pre-trained model's: on branches, the embedding, and in the head
    attention_dropout: float | None = None
    keep: bool = False  # the fine-tuned model, in the run's folder

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise RecipeError(f"glue.warmup={self.warmup} is a share of all updates; it must be in [0, 1)")
        if self.length < 8:
            raise RecipeError(f"glue.length={self.length} must be at least 8")
        share("glue", self, "dropout", "attention_dropout")


@dataclass(frozen=True, kw_only=True)
class FineTuning(RowTraining):
    """See `RowTraining`."""

    epochs: int = 0  # 0: `steps` alone decides, else whichever ends first


@dataclass(frozen=True, kw_only=True)
class ClassificationRun(RowRun):
    """A fine-tuning. It has the shape of `glue.model`; `model.placement` names that one's for whoever reads it."""

    task: Literal["classification"] = "classification"
    model: Placed = field(default_factory=Placed)
    glue: Glue = field(default_factory=Glue)
    training: FineTuning = field(default_factory=FineTuning)

    from_key = "glue.model"
    sized = False
    counts_rows = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.glue.model is None:
            raise RecipeError(
                "glue.model is missing: the pre-trained model's folder (glue.scratch=true takes its shape alone)"
            )
        if self.training.warmup and self.glue.warmup:
            raise RecipeError(
                f"training.warmup={self.training.warmup} (updates) and glue.warmup={self.glue.warmup} (a share of them)"
                " contradict each other; set one of them to 0"
            )

    @property
    def places(self) -> int:
        return self.glue.length

    @property
    def predicted(self) -> float:
        return 0.0

    @property
    def warmup_in_words(self) -> str:
        share = f"warm-up {self.glue.warmup:.0%} of all updates"
        return super().warmup_in_words if self.training.warmup else share

    @property
    def keeps_model(self) -> bool:
        """A grid of fine-tuning runs would fill the disk with models that nobody reads."""
        return self.glue.keep

    @property
    def corpus_key(self) -> Any:
        glue = self.glue
        return self.task, glue.task, glue.source, glue.model, glue.length

    def must_find_its_data(self) -> None:
        from isograd.hub import model_place
        from isograd.lab.data.glue import must_be_there

        model_place(str(self.glue.model))
        must_be_there(self.glue.source)

    def config(self) -> "IsogradConfig":
        from isograd.lab.train.pretrained import find_pretrained

        return find_pretrained(str(self.glue.model)).config

    def folder_name(self) -> str:
        t, weights = self.training, "scratch" if self.glue.scratch else "pretrained"
        return f"{self.glue.task}-{weights}-lr{t.lr:g}-b{t.batch}-e{t.epochs}-s{self.seed}-{self.key()}"

    def described(self) -> dict[str, Any]:
        """The layers are those of the model that is named."""
        glue, t = self.glue, self.training
        settings = {
            "glue": glue.task,
            "model": glue.model,
            "scratch": glue.scratch,
            "batch": t.batch,
            "epochs": t.epochs,
        }
        return super().described() | settings | {"warmup": t.warmup or glue.warmup}


@dataclass(frozen=True, kw_only=True)
class _Corpus:
    """What fine-tunings of one model on one task share."""

    data: "GlueData"
    pretrained: "PreTrained"
    train: "Encoded"
    dev: "Encoded"
    test: "Encoded | None"


class Classification(Task):
    """See `Task`. An epoch is every row once, but for what is left beyond its last whole batch."""

    name = "classification"
    model = "IsogradForSequenceClassification"
    recipe = ClassificationRun
    judged = "validation_loss"
    outcome_fields = ("score", "metric", "scores", "majority", "failed", "kept_weights", "kept_steps")
    stacks = ("encoder",)
    needed = MappingProxyType({"glue.task": str, "glue.model": str, "glue.scratch": bool})
    always_said = ("glue.scratch",)  # the placement is the pre-trained model's
    columns = (
        Column(name="fine-tuning", short="fine-tuning", field="label"),
        OUTCOME,
        Column(name="median", short="median", field="score_median"),
        Column(name="lowest to highest", short="range", field="score_range"),
        Column(name="mean, 95 % interval", short="mean [95 %]", field="score_mean", spare=4),
        Column(name="failed runs", short="failed", field="score_failed"),
        Column(name="majority-class baseline", short="majority", field="score_majority"),
        Column(name="median on test", short="test", field="score_test", spare=3),
        replace(VALIDATION, spare=1),
    )
    captions = MappingProxyType(
        {
            "title": "Fine-tuning",
            "page": "The task's score on its dev part over the seeds; failed runs: not above the majority-class"
            " baseline, or diverged (a loss was not finite); validation loss: cross-entropy in nats, of scores mean"
            " squared error.",
            "table": "of the score on the dev part over the seeds; failed: not above the majority-class baseline, or"
            " diverged",
        }
    )
    charts = ("scores", "worth", "loss")
    scored = True
    lost = MappingProxyType({"failed": True})
    run: ClassificationRun
    corpus: _Corpus
    samples: "LabelledBatches"
    updates_per_epoch: int

    def __init__(self, run: ClassificationRun, corpus: _Corpus | None = None) -> None:
        from isograd.lab.data.labelled import LabelledBatches

        self.corpus = corpus or _load(run.glue)
        self._check_model(run)
        data, shape = self.corpus.data, self.corpus.pretrained
        self.source = f"{data.source} for {shape.name}"
        if not run.glue.scratch:
            _ = shape.stack  # what is wrong with its weights is said before anything is written
        digests = [data.sha256, shape.shape_sha256 if run.glue.scratch else shape.sha256]
        self.sha256 = hashlib.sha256("".join(digests).encode()).hexdigest()
        self.unigram_entropy = _constant_loss(self.corpus.train.labels, bool(data.classes))
        self.samples = LabelledBatches(
            self.corpus.train,
            batch=run.training.batch,
            pad=shape.pad,
            types=bool(shape.config.type_vocab_size),
            seed=run.data_seed,
        )
        self.updates_per_epoch = self.samples.batches
        self.run = _in_updates(run, self.updates_per_epoch)
        self.samples.samples = self.run.training.steps * run.training.batch

    def _check_model(self, run: ClassificationRun) -> None:
        pretrained, length = self.corpus.pretrained, run.glue.length
        theirs = pretrained.config.placement
        if run.model.placement != theirs:
            raise RecipeError(
                f"model.placement={run.model.placement}, and glue.model={pretrained.name} is {theirs};"
                f" set model.placement={theirs}"
            )
        if pretrained.config.max_position_embeddings < length:
            longest = pretrained.config.max_position_embeddings
            raise RecipeError(
                f"glue.length={length}, and glue.model={pretrained.name} has {longest} positions;"
                f" set glue.length={longest}, or pre-train it with data.length={length}"
            )

    @property
    def token_entropy(self) -> None:
        """A fine-tuning that learns nothing is detected by its score, not by its loss: `failed` in outcome.json."""
        return None

    def config(self) -> "IsogradConfig":
        """The pre-trained model's, with as many outputs as the task has classes and the recipe's dropout."""
        from isograd.models import IsogradConfig

        config = IsogradConfig(**self.corpus.pretrained.config.to_diff_dict())
        data, glue = self.corpus.data, self.run.glue
        config.next_sentence = False
        config.problem_type = "single_label_classification" if data.classes else "regression"
        config.id2label = dict(enumerate(data.classes)) if data.classes else {0: "score"}
        config.label2id = {name: i for i, name in config.id2label.items()}
        if glue.scratch:
            config.calibration = None
        if glue.dropout is not None:
            config.hidden_dropout = config.embedding_dropout = glue.dropout
            config.classifier_dropout = None
        if glue.attention_dropout is not None:
            config.attention_dropout = glue.attention_dropout
        return config

    def build(self, config: "IsogradConfig") -> Any:
        """A fresh model, and the pre-trained stack in it unless `glue.scratch`.

        In a regression the head starts at the mean score, where a model that reads nothing ends.
        """
        model = self.empty(config)
        if not self.run.glue.scratch:
            model.model.load_state_dict(self.corpus.pretrained.stack.state_dict())
        if not self.corpus.data.classes:
            model.classifier.bias.data.fill_(self.corpus.data.constant)
        self._built = model
        return model

    def first_batch(self, process: int = 0, processes: int = 1) -> "Mapping[str, Tensor]":
        batch = self.samples.__getitems__(self.run.first_sequences(process, processes))
        return {name: value for name, value in batch.items() if name != "labels"}

    def tokens_per_update(self) -> float:
        """Tokens read, padding not counted."""
        return float(self.corpus.train.ids.lengths.mean()) * self.run.training.batch

    def _validate(self, model: "nn.Module") -> dict[str, float | None]:
        """ "loss" (cross-entropy in nats, or the mean squared error) and every metric, on the dev part."""
        loss, found = self._measured(model, self.corpus.dev)
        return {"loss": loss, **found}

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        """Scores of the dev part, and of the test part where it has labels, beside the majority-class baseline."""
        import torch

        from isograd.lab.evaluate.classification import METRICS, has_failed

        task = self.run.glue.task
        metric = next(iter(METRICS[task]))
        found = {"dev": {name: held_out[name] for name in METRICS[task]}}
        if self.corpus.test:
            with torch.no_grad():
                found["test"] = self._measured(self._built.eval(), self.corpus.test)[1]
        majority = self.majority
        score, loss = held_out[metric], held_out["loss"]
        return {
            "validation_loss": loss,
            "score": score,
            "metric": metric,
            "scores": found,
            "majority": majority["dev"][metric],
            "majority_scores": majority,
            "failed": has_failed(score, majority["dev"][metric]),
            "epochs": self.run.training.steps / self.updates_per_epoch,
        }

    @cached_property
    def majority(self) -> dict[str, dict[str, float]]:
        """Of each part that is scored: the metrics of the training part's commonest class, or of its mean score."""
        from isograd.lab.evaluate.classification import constant_scores

        task, constant = self.run.glue.task, self.corpus.data.constant
        parts = {"dev": self.corpus.dev, "test": self.corpus.test}
        return {name: constant_scores(task, constant, part.labels) for name, part in parts.items() if part}

    def _measured(self, model: "nn.Module", part: "Encoded") -> tuple[float, dict[str, float]]:
        """Mean loss and metrics, in batches of rows of like length."""
        import numpy as np
        import torch

        from isograd.lab.evaluate.classification import scores

        device = next(model.parameters()).device
        order = np.argsort(part.ids.lengths, kind="stable")
        batch, total, outputs = self.run.training.batch, 0.0, []
        for begin in range(0, len(order), batch):
            rows = order[begin : begin + batch]
            inputs = part.batch(rows, self.samples.pad, self.samples.types)
            output = model(**{name: value.to(device) for name, value in inputs.items()})
            total += float(output.loss) * len(rows)
            outputs.append(output.logits.float().cpu())
        logits = torch.cat(outputs)
        predicted = logits.argmax(dim=1) if self.corpus.data.classes else logits[:, 0]
        return total / len(order), scores(self.run.glue.task, predicted.numpy(), part.labels[order])

    def facts(self) -> dict[str, Any]:
        corpus = self.corpus
        parts = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
        return corpus.data.facts() | {
            "sha256": self.sha256,
            "model": corpus.pretrained.name,
            "tokens": int(corpus.train.ids.lengths.sum()),
            "vocab_size": corpus.pretrained.config.vocab_size,
            "cut": {name: part.cut for name, part in parts.items() if part},
            "constant_loss": self.unigram_entropy,
            "majority_scores": self.majority,
            "updates_per_epoch": self.updates_per_epoch,
        }

    def save_tokenizer(self, folder: Path) -> None:
        self.corpus.pretrained.pair_tokenizer(self.run.glue.length).save_pretrained(folder)


def _load(glue: Glue) -> _Corpus:
    from isograd.lab.data.glue import load_glue
    from isograd.lab.data.labelled import encode
    from isograd.lab.train.pretrained import find_one_stack

    assert glue.model is not None
    pretrained = find_one_stack(glue.model)
    data = load_glue(glue.task, glue.source)

    def encoded(part: "Examples") -> "Encoded":
        ends = {"begin": pretrained.begin, "end": pretrained.end}
        return encode(part, pretrained.reader, length=glue.length, **ends, scores=not data.classes)

    return _Corpus(
        data=data,
        pretrained=pretrained,
        train=encoded(data.train),
        dev=encoded(data.dev),
        test=encoded(data.test) if data.test else None,
    )


def _in_updates(run: ClassificationRun, per_epoch: int) -> ClassificationRun:
    """The run with its epochs and its share of warm-up as numbers of updates."""
    steps = run.training.steps
    if run.training.epochs:
        steps = min(steps, run.training.epochs * per_epoch)
    warmup = run.training.warmup or int(run.glue.warmup * steps)
    return replace(run, glue=replace(run.glue, warmup=0.0), training=replace(run.training, steps=steps, warmup=warmup))


def _constant_loss(labels: "np.ndarray", classes: bool) -> float:
    """Of a model that reads nothing: the entropy of the classes in nats, or the variance of the scores."""
    import numpy as np

    if not classes:
        return float(labels.astype(np.float64).var())
    share = np.bincount(labels) / len(labels)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())

"""Fine-tuning on a task of GLUE: a pre-trained tower and a fresh head; loss and GLUE's metrics on the dev part."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isograd.data.glue import Examples, GlueData, load_glue
from isograd.data.labelled import Encoded, LabelledBatches, encode
from isograd.errors import RecipeError
from isograd.evaluate.classification import METRICS, constant_scores, has_failed, scores
from isograd.models import IsogradConfig, IsogradForSequenceClassification
from isograd.outcome import Numbers, Verdict
from isograd.train.pretrained import PreTrained, find_pretrained
from isograd.train.run import Run
from isograd.train.sections import Glue
from isograd.train.task import Task, first_sequences


@dataclass(frozen=True, kw_only=True)
class _Corpus:
    """What fine-tunings of one model on one task share."""

    data: GlueData
    pretrained: PreTrained
    train: Encoded
    dev: Encoded
    test: Encoded | None


class Classification(Task):
    """See `Task`. An epoch is every row once, but for what is left beyond its last whole batch."""

    corpus: _Corpus
    samples: LabelledBatches
    updates_per_epoch: int
    lost = MappingProxyType({"failed": True})

    def __init__(self, run: Run, corpus: _Corpus | None = None) -> None:
        self.corpus = corpus or _load(run.glue)
        self._check_model(run)
        data, shape = self.corpus.data, self.corpus.pretrained
        self.source = f"{data.source} for {shape.name}"
        if not run.glue.scratch:
            _ = shape.tower  # what is wrong with its weights is said before anything is written
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

    def _check_model(self, run: Run) -> None:
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

    def config(self) -> IsogradConfig:
        """The pre-trained model's, with as many outputs as the task has classes and the recipe's dropout."""
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

    @torch.no_grad()
    def build(self, config: IsogradConfig) -> IsogradForSequenceClassification:
        """A fresh model, and the pre-trained tower in it unless `glue.scratch`.

        In a regression the head starts at the mean score, where a model that reads nothing ends.
        """
        model = IsogradForSequenceClassification(config)
        if not self.run.glue.scratch:
            model.model.load_state_dict(self.corpus.pretrained.tower.state_dict())
        if not self.corpus.data.classes:
            model.classifier.bias.fill_(self.corpus.data.constant)
        self._built = model
        return model

    def first_batch(self, process: int = 0, processes: int = 1) -> Mapping[str, Tensor]:
        batch = self.samples.__getitems__(first_sequences(self.run, process, processes))
        return {name: value for name, value in batch.items() if name != "labels"}

    def tokens_per_update(self) -> float:
        """Tokens read, padding not counted."""
        return float(self.corpus.train.ids.lengths.mean()) * self.run.training.batch

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """ "loss" (cross-entropy in nats, or the mean squared error) and every metric, on the dev part."""
        loss, found = self._measured(model, self.corpus.dev)
        return {"loss": loss, **found}

    def judge(
        self,
        rows: Sequence[Mapping[str, Any]],
        held_out: float | None,
        broke_at: int | None = None,
        apart: float | None = None,
    ) -> Verdict:
        """A fine-tuning that learns nothing is not told by its loss, but by its score: `failed` in outcome.json."""
        finite = held_out is not None and math.isfinite(held_out) and all(math.isfinite(row["loss"]) for row in rows)
        reason = "judged by its score, beside that of a constant answer" if finite else "a loss was not finite"
        return Verdict(outcome="finished" if finite else "diverged", reason=reason, numbers=Numbers())

    def measured(self, held_out: Mapping[str, Any]) -> dict[str, Any]:
        """Scores of the dev part, and of the test part where it has labels, beside the majority line."""
        task = self.run.glue.task
        metric = next(iter(METRICS[task]))
        found = {"dev": {name: held_out[name] for name in METRICS[task]}}
        if self.corpus.test:
            found["test"] = self._measured(self._built, self.corpus.test)[1]
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
        task, constant = self.run.glue.task, self.corpus.data.constant
        parts = {"dev": self.corpus.dev, "test": self.corpus.test}
        return {name: constant_scores(task, constant, part.labels) for name, part in parts.items() if part}

    @torch.no_grad()
    def _measured(self, model: nn.Module, part: Encoded) -> tuple[float, dict[str, float]]:
        """Mean loss and metrics, in batches of rows of like length."""
        device = next(model.parameters()).device
        order = np.argsort(part.ids.lengths, kind="stable")
        batch, total, outputs = self.run.training.batch, 0.0, []
        model.eval()
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
    assert glue.model is not None
    pretrained = find_pretrained(glue.model)
    data = load_glue(glue.task, glue.source)

    def encoded(part: Examples) -> Encoded:
        ends = {"begin": pretrained.begin, "end": pretrained.end}
        return encode(part, pretrained.reader, length=glue.length, **ends, scores=not data.classes)

    return _Corpus(
        data=data,
        pretrained=pretrained,
        train=encoded(data.train),
        dev=encoded(data.dev),
        test=encoded(data.test) if data.test else None,
    )


def _in_updates(run: Run, per_epoch: int) -> Run:
    """The run with its epochs and its share of warm-up as numbers of updates."""
    steps = run.training.steps
    if run.training.epochs:
        steps = min(steps, run.training.epochs * per_epoch)
    warmup = run.training.warmup or int(run.glue.warmup * steps)
    return replace(run, glue=replace(run.glue, warmup=0.0), training=replace(run.training, steps=steps, warmup=warmup))


def _constant_loss(labels: np.ndarray, classes: bool) -> float:
    """Of a model that reads nothing: the entropy of the classes in nats, or the variance of the scores."""
    if not classes:
        return float(labels.astype(np.float64).var())
    share = np.bincount(labels) / len(labels)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())

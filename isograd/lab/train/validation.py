"""Validation during training: a row and the weights each time, when to stop, and which weights are kept."""

import math
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

from isograd.errors import RecipeError
from isograd.files import append_rows, read_rows
from isograd.lab.train.run import Kept
from isograd.lab.train.tasks import Task
from isograd.lab.train.trainer import IsogradTrainer

Row = dict[str, Any]
Report = Callable[[Row], None]
ROWS = "validation.jsonl"
WEIGHTS = "validated"


class Validate(TrainerCallback):
    """Every so many updates: `task.validate`, a row of validation.jsonl, and the weights where they may be wanted.

    The rows decide when to stop and what to keep, so a run that goes on after a kill decides the same.
    """

    def __init__(self, trainer: IsogradTrainer, task: Task, folder: Path, report: Report | None = None) -> None:
        self.trainer = trainer
        self.task = task
        self.folder = folder
        self.report = report
        self.every = updates_between(task)
        self._seconds = 0.0  # of training, validations left out
        self._since = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows = read_rows(self.folder / ROWS)
        self._seconds = (rows[-1].get("seconds") or 0.0) if rows else 0.0
        self._since = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        step, t = state.global_step, self.task.run.training
        if step % self.every and step != state.max_steps:
            return control
        self._seconds += time.perf_counter() - self._since
        row = {"step": step, "epoch": self._epoch(step), "seconds": round(self._seconds, 3)}
        row |= self.task.validate(self.trainer.model)
        if self.trainer.is_world_process_zero():
            append_rows(self.folder / ROWS, [row])
        self.trainer.accelerator.wait_for_everyone()
        rows = read_rows(self.folder / ROWS)
        if t.select != "last":
            self._keep(rows)
        if self.report:
            self.report(row)
        if t.patience and since_best(rows) >= t.patience:
            control.should_training_stop = True
            control.should_save = False  # a run that goes on after a kill would go on from here
        self._since = time.perf_counter()
        return control

    def _epoch(self, step: int) -> float | None:
        per_epoch = self.task.updates_per_epoch
        return round(step / per_epoch, 3) if per_epoch else None

    def _keep(self, rows: list[Row]) -> None:
        """Write these weights; remove those that can no longer be chosen."""
        folder = self.folder / WEIGHTS
        self.trainer.save_model(str(folder / f"step-{rows[-1]['step']}"))
        candidates = candidates_of(rows, self.task).values()
        wanted = {f"step-{row['step']}" for each in [*candidates, rows[-1:]] for row in each}
        if self.trainer.is_world_process_zero():
            for path in folder.iterdir():
                if path.name not in wanted:
                    shutil.rmtree(path)


def updates_between(task: Task) -> int:
    """Updates between validations.

    Raises:
        RecipeError: there is none before the last update, and an average is asked for.
    """
    t = task.run.training
    every = t.valid_every or task.updates_per_epoch or t.steps
    if t.select == "average" and t.steps < every:
        raise RecipeError(
            f"training.select=average needs a validation within training.steps={t.steps}, and the first one"
            f" comes at {every}; set training.valid_every"
        )
    return every


def since_best(rows: list[Row]) -> int:
    """How many validations ago the lowest loss was."""
    return len(rows) - 1 - rows.index(best(rows))


def best(rows: list[Row]) -> Row:
    """The row of the lowest loss; the first of equal ones. A loss that is not finite is the highest."""
    return min(rows, key=_loss)


def candidates_of(rows: list[Row], task: Task) -> dict[Kept, list[Row]]:
    """The weights that `training.select` can keep, each by the validations that they are made of."""
    t = task.run.training
    every: dict[Kept, list[Row]] = {"last": rows[-1:], "best": [best(rows)], "average": rows[-t.average :]}
    return every if t.select == "auto" else {t.select: every[t.select]}


def average(files: Iterable[Path]) -> dict[str, Tensor]:
    """Mean of the weights in several safetensors files, summed in float64; each keeps its own type.

    Vaswani et al. 2017, section 6.1, average their last checkpoints; so do the recipes of Liu et al. 2020.
    """
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    each = list(files)
    for file in each:
        for name, value in load_file(file).items():
            kinds[name] = value.dtype
            total[name] = total[name] + value if name in total else value.double()
    return {name: (value / len(each)).to(kinds[name]) for name, value in total.items()}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which weights a run keeps.

    Attributes:
        kept: what they are.
        candidates: of these weights, and of the others whose loss is known: "steps" that they are made of, and what
            was measured on held-out text. "last" and "best" are known of every run; one that is the same weights as
            another before it is left out.
    """

    kept: Kept
    candidates: dict[Kept, Row]

    @property
    def held_out(self) -> Row:
        return self.candidates[self.kept]

    def as_outcome(self) -> Row:
        return {"kept_weights": self.kept, "kept_steps": self.held_out["steps"], "candidates": self.candidates}


def take_chosen(trainer: IsogradTrainer, task: Task, folder: Path) -> Choice | None:
    """Put the chosen weights into the model, those of `training.select`; None of a run without validations.

    "auto" takes the lowest validation loss of the last weights, the best and the average; of equal ones the first.
    """
    rows = read_rows(folder / ROWS)
    if not rows:
        return None
    t = task.run.training
    candidates: dict[Kept, Row] = {"last": _measured(rows[-1])}
    now = trainer.state.global_step
    if t.select == "last" and rows[-1]["step"] != now:  # stopped between two validations
        candidates["last"] = {"steps": [now], **task.validate(trainer.model)}
    if (lowest := best(rows)) is not rows[-1]:
        candidates["best"] = _measured(lowest)
    steps = [row["step"] for row in rows[-t.average :]]
    if t.select in ("average", "auto") and len(steps) > 1:
        _load(trainer, folder, steps)
        candidates["average"] = {"steps": steps, **task.validate(trainer.model)}
    if t.select == "auto":
        kept = min(candidates, key=lambda kind: _loss(candidates[kind]))
    else:
        kept = t.select if t.select in candidates else "last"  # the same weights
    if t.select != "last" and kept != "average":
        _load(trainer, folder, candidates[kept]["steps"])
    return Choice(kept=kept, candidates=candidates)


def _load(trainer: IsogradTrainer, folder: Path, steps: list[int]) -> None:
    """Put the mean of the weights after these steps into the model."""
    weights = average(folder / WEIGHTS / f"step-{step}" / "model.safetensors" for step in steps)
    model = trainer.accelerator.unwrap_model(trainer.model)
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys, missing
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def _measured(row: Row) -> Row:
    """A validation as a candidate."""
    return {"steps": [row["step"]], **{k: v for k, v in row.items() if k not in ("step", "epoch", "seconds")}}


def _loss(row: Row) -> float:
    """A loss that is not finite (None in a file) is the highest."""
    return row["loss"] if row["loss"] is not None and math.isfinite(row["loss"]) else math.inf

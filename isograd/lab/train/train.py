"""From a run to its folder: build, calibrate, train, judge, write. Started again, it goes on where it was."""

import math
import shutil
import statistics
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import set_seed

from isograd.diagnose.calibrate import CalibrationWarning, calibrate
from isograd.diagnose.watch.layers import WHOLE, find_layers
from isograd.diagnose.watch.loops.recover import Recovery
from isograd.diagnose.watch.writers import WARNINGS, judge
from isograd.errors import RecipeError
from isograd.files import append_rows, finite, keep_until, locked, read_object, read_rows, write_json
from isograd.hub import from_pretrained
from isograd.lab.train.callbacks import (
    STATES,
    Diverged,
    EarlyWarning,
    Log,
    Observe,
    Progress,
    first_warning,
    left_course,
    take_back,
)
from isograd.lab.train.checkpoints import CHECKPOINTS, INITIAL, Seal, drop_broken, keep_only, last_checkpoint, step_of
from isograd.lab.train.optim import OPTIMIZER, keep_state, schedule_of
from isograd.lab.train.provenance import provenance
from isograd.lab.train.run import Run, sharded_by
from isograd.lab.train.tasks import Task, task_of
from isograd.lab.train.trainer import IsogradTrainer, check_machine
from isograd.lab.train.validation import ROWS, WEIGHTS, Report, Validate, take_chosen, updates_between
from isograd.models import IsogradConfig
from isograd.outcome import ENDED, LAST, LossWatch, Onset, lr_reached
from isograd.placement import Stack
from isograd.placement.text import final_formula, formulas, legend, numbers


def train(run: Run, folder: Path, progress: Progress | None = None, report: Report | None = None) -> dict[str, Any]:
    """Train `run` in `folder` and return its outcome; a run that has ended already is not trained again.

    A killed or interrupted run goes on from its last checkpoint, to the same numbers. An error during training is the
    outcome "failed"; started again, the run goes on.

    Args:
        progress: called with (step, loss) as the log is written.
        report: called with each validation during the run.

    Raises:
        RecipeError, DataError: the recipe or the data cannot be used here; nothing has been written then.
        FileExistsError: the folder holds a run of another recipe, or on another text.
        FolderBusyError: another process is at work there.
    """
    state = PartialState(cpu=not torch.cuda.is_available())
    done = ended(run, folder)
    if done is not None:
        return done
    check_machine(run)
    task = load_task(run)
    check_text(folder, task)
    config = task.config()
    if task.pretrained and not (folder / "run.json").exists():
        task.build(config)  # what is wrong with its weights is said before anything is written
    set_seed(run.seed)
    with locked(folder) if state.is_main_process else nullcontext():
        done = ended(run, folder)  # another process may have trained it since
        state.wait_for_everyone()
        if done is not None:
            return done
        if state.is_main_process:
            _claim(run, folder)
        state.wait_for_everyone()
        return _trained(task, folder, state, progress, report)


def _trained(
    task: Task, folder: Path, state: PartialState, progress: Progress | None, report: Report | None
) -> dict[str, Any]:
    """The outcome, written whatever happens."""
    began, worked = time.perf_counter(), time.process_time()
    try:
        outcome = _train(task, folder, progress, report)
    except KeyboardInterrupt:
        _write_outcome(folder, {"outcome": "interrupted"}, state)
        raise
    except Exception as error:
        outcome = {"outcome": "failed", "error": " ".join(str(error).split()) or type(error).__name__}
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    outcome["seconds"] = time.perf_counter() - began
    outcome["cpu_seconds"] = time.process_time() - worked  # what it takes on a machine that is busy with other things
    written = _write_outcome(folder, outcome, state)
    for tracker in task.run.training.track if state.is_main_process else ():
        judge(tracker, ": ".join(filter(None, [written["outcome"], written.get("reason") or written.get("error")])))
    if outcome["outcome"] in ENDED and state.is_main_process:
        tidy(folder)
    return written


def tidy(folder: Path, everything: bool = False) -> None:
    """Remove what a run that has ended will not go on from. Not before: a kill in between would cost all its steps.

    A run that diverged or collapsed keeps the model before its first update, and the last checkpoint before it broke:
    `isograd replay` goes back there.

    Args:
        everything: also of a run that broke.
    """
    shutil.rmtree(folder / WEIGHTS, ignore_errors=True)
    if everything or _there(folder / "outcome.json").get("outcome") not in ("diverged", "collapsed"):
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    else:
        keep_only(folder / CHECKPOINTS, broke_from(folder))


def broke_from(folder: Path) -> int | None:
    """The step from which on a run was no longer what it had been, by its files; None where nothing of the kind is.

    The first of: where the loss left its lowest for good, and what a warning says.
    """
    data = _there(folder / "resolved.json").get("data", {})
    level, unit = data.get("unigram_entropy"), data.get("unit") or 1.0
    onset = Onset()
    for row in _losses(folder):
        onset.follow(row["step"], row["loss"] / unit, math.nan if level is None else level / unit)
    return left_course(onset, read_rows(folder / WARNINGS))


def ended(run: Run, folder: Path) -> dict[str, Any] | None:
    """The outcome of `run` in `folder` if it has ended there, else None.

    Raises:
        FileExistsError: the folder holds a run of another recipe.
    """
    if not (folder / "run.json").exists():
        return None
    there = _there(folder / "run.json")
    mine = run.as_dict()
    if {**there, "name": None} != {**mine, "name": None}:
        raise FileExistsError(f"{folder} holds a run of another recipe; choose another folder, or remove it")
    outcome = _there(folder / "outcome.json")
    return outcome if outcome.get("outcome") in ENDED else None


def load_task(run: Run, corpus: Any = None) -> Task:
    """The task of a run, its data loaded.

    Args:
        corpus: `Task.corpus` of another run on the same data, to load it once.

    Raises:
        RecipeError, DataError: what the recipe names cannot be used here.
    """
    kind = task_of(run)
    try:
        task = kind(run, corpus)
    except ImportError as error:
        raise RecipeError(f"task={run.task} needs {error.name}; pip install 'isograd[{kind.extra}]'") from error
    schedule_of(task.run.training, task.updates_per_epoch)  # epochs are updates only now
    updates_between(task)
    return task


def check_text(folder: Path, task: Task) -> None:
    """A run goes on with the text that it began with.

    Raises:
        FileExistsError: the folder holds a run on another text.
    """
    path = folder / "resolved.json"
    if path.exists() and _there(path).get("data", {}).get("sha256") != task.sha256:
        raise FileExistsError(
            f"{folder} holds a run on another text: {task.source} (or how it is read) has changed since;"
            " choose another folder, or remove it"
        )


def gradient_ratio(rows: list[dict[str, Any]], stack: Stack = "decoder") -> float | None:
    """mean |gradient| of W_2 in a stack's first layer over that in its last, each averaged over the steps of `rows`."""
    values: dict[int, list[float]] = {}
    for row in rows:
        whole = row.get("kind") == "layer" and "stack" not in row  # the one stack of a model that is not isograd's
        ours = row.get("kind") == "ffn" and row.get("stack", stack) == stack
        if (whole or ours) and row.get("gradient_mean_abs") is not None:
            values.setdefault(row["layer"], []).append(row["gradient_mean_abs"])
    if not values:
        return None
    first, last = (statistics.fmean(values[layer]) for layer in (min(values), max(values)))
    return first / last if last else None


def _train(task: Task, folder: Path, progress: Progress | None, report: Report | None) -> dict[str, Any]:
    run = task.run
    checkpoint = last_checkpoint(folder / CHECKPOINTS)
    model, said = _model(task, checkpoint)
    if not task.foreign and not checkpoint and run.training.checkpoint_every and PartialState().is_main_process:
        model.save_pretrained(folder / CHECKPOINTS / INITIAL)
    if run.training.gradient_checkpointing:
        # the name in newer versions of transformers, and in older ones, of the same method
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    held = task.pretrained.moments(run.training.optimizer) if task.pretrained and run.stored_optimizer else None
    own_loss = task.loss if task.foreign else None
    trainer = IsogradTrainer(run, model, task.samples, folder / CHECKPOINTS, task.updates_per_epoch, held, own_loss)
    begun = step_of(checkpoint) if checkpoint else 0
    warning = EarlyWarning(trainer, folder, task.baseline, checkpoint)
    if trainer.is_world_process_zero():
        take_back(folder, begun)
    recovery, stops = _recovery(task, checkpoint), _diverged(task, folder, begun, warning)
    log = Log(trainer, folder, progress=progress, diverged=stops, warning=warning, recovery=recovery)
    log.follow([row for row in _losses(folder) if row["step"] <= begun])
    trainer.add_callback(log)
    if task.updates_per_epoch or run.training.valid_every:
        trainer.add_callback(Validate(trainer, task, folder, report))
    trainer.add_callback(Seal(trainer, folder / CHECKPOINTS, lambda: log.broke_from))
    if run.training.probe_every and (not task.foreign or find_layers(model)[0].address != WHOLE):
        trainer.add_callback(Observe(trainer, folder, run.training.probe_every))
    if trainer.is_world_process_zero():
        drop_broken(folder / CHECKPOINTS)
        write_json(folder / "resolved.json", resolved(task, model))
        for name in ("metrics.jsonl", "quantities.jsonl", ROWS, WARNINGS):
            if (folder / name).exists():
                keep_until(folder / name, begun if checkpoint else -1)
        if said:
            append_rows(folder / WARNINGS, said)
    count = sum(p.numel() for p in model.parameters())
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    outcome = _judged(task, trainer, folder, warning.collapse.apart)
    if run.keeps_model:
        trainer.save_model(str(folder / "model"))
    if trainer.is_world_process_zero() and run.keeps_model:
        task.save_tokenizer(folder / "model")
        if run.training.keep_optimizer:
            keep_state(folder / "model" / OPTIMIZER, run.training.optimizer, trainer.optimizer, model)
    rows = read_rows(folder / "quantities.jsonl")
    stack: Stack = "decoder" if task.foreign else model.config.stacks()[-1]
    return (
        outcome
        | {
            "steps": trainer.state.global_step,
            "unigram_entropy": task.unigram_entropy,
            "gradient_ratio_start": gradient_ratio([r for r in rows if r["step"] == 1], stack),
            "gradient_ratio_end": gradient_ratio(
                [r for r in rows if r["step"] > trainer.state.global_step - 50], stack
            ),
            "tokens_per_second": log.tokens_per_second(task.tokens_per_update()),
            "cpu_seconds_per_step": log.cpu_seconds_per_step(),
            "parameters": count,
            "warning": first_warning(folder),
        }
        | task.origin()
    )


def _recovery(task: Task, checkpoint: Path | None) -> Recovery | None:
    """What takes the run back to a good state, where the recipe wants it; as it was at the checkpoint."""
    t = task.run.training
    if t.recover is None:
        return None
    recovery = Recovery(t.recover, t.recoveries, task.token_entropy if task.comparable else None)
    if checkpoint is not None and (checkpoint / STATES).exists():
        recovery.load_state_dict(torch.load(checkpoint / STATES, weights_only=True))
    return recovery


def _judged(task: Task, trainer: IsogradTrainer, folder: Path, apart: float | None) -> dict[str, Any]:
    """Outcome and losses, of the weights that are kept."""
    rows = _losses(folder)
    last = rows[-LAST:]
    final = statistics.fmean(row["loss"] for row in last)
    level = task.unigram_loss([row["step"] for row in last])
    outcome: dict[str, Any] = {"final_loss": final, "unigram_loss": level, "validation_loss": None}
    if task.run.training.stop_when_broken:
        found = [{**row, "loss": row["loss"] / task.unit} for row in rows]
        outcome |= lr_reached(found, [task.unigram_loss([row["step"]]) / task.unit for row in rows])
    if not all(math.isfinite(row["loss"]) for row in rows):
        return task.judge(rows, None).as_dict() | outcome | {"final_loss": None} | dict(task.lost)
    choice = take_chosen(trainer, task, folder)
    held_out = choice.held_out if choice else None
    if not held_out or held_out["loss"] is None:  # in a file that is also a loss which was not finite
        held_out = task.validate(trainer.model)
    verdict = task.judge(rows, held_out["loss"], outcome.get("broke_at"), apart)
    outcome = verdict.as_dict() | outcome | task.measured(held_out)
    return outcome | (choice.as_outcome() if choice else {})


def _diverged(task: Task, folder: Path, step: int, warning: EarlyWarning) -> Diverged | None:
    """What stops a run that diverges, or collapses, where the recipe wants it; it knows the steps until `step`."""
    stop = task.run.training.stop_when_broken
    if not stop:
        return None
    known: list[Mapping[str, Any]] = [row for row in _losses(folder) if row["step"] <= step]
    watch = _followed(LossWatch(task.unigram_entropy / task.unit), task, known)

    def broken(rows: Sequence[Mapping[str, Any]]) -> bool:
        known.extend(rows)
        if _followed(watch, task, rows).broke_at is not None:
            return True
        return stop == "or-collapsed" and task.judge(known, None, None, warning.collapse.apart).outcome == "collapsed"

    return broken


def _followed(watch: LossWatch, task: Task, rows: Sequence[Mapping[str, Any]]) -> LossWatch:
    levels = [task.unigram_loss([row["step"]]) / task.unit for row in rows]
    return watch.follow([row["loss"] / task.unit for row in rows], levels)


def initial_model(run: Run) -> tuple[Task, Any]:
    """The task of a run, and its model before the first update: as `train` draws and calibrates it, on the host."""
    task = load_task(run)
    set_seed(run.seed)
    return task, _model(task, None)[0].cpu()


def _model(task: Task, checkpoint: Path | None) -> tuple[Any, list[dict[str, Any]]]:
    """A fresh model, calibrated on the first micro-batch, or an empty one of the checkpoint's configuration.

    Beside it what the calibration has to say, as rows of warnings.jsonl. It runs where the run will, but on the host,
    with the whole model, before parameters are sharded.
    """
    if task.foreign:  # the Trainer loads its weights
        return task.build(None), []
    if checkpoint:
        return task.build(from_pretrained(IsogradConfig, checkpoint)), []
    model = task.build(task.config())
    if not model.config.calibrated_stacks() or model.config.calibration is not None:
        return model, []
    state = PartialState()
    if not sharded_by(task.run.training):
        model.to(state.device)
    batch = task.first_batch(state.process_index, state.num_processes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        calibrate(model, batch, distributed=state.num_processes > 1, dropout=task.run.training.profile_dropout)
    said = [str(w.message) for w in caught if issubclass(w.category, CalibrationWarning)]
    return model, [{"step": 0, "signal": "calibration", "layer": None, "message": message} for message in said]


def resolved(task: Task, model: Any) -> dict[str, Any]:
    """What was built: formulas, the numbers of every site, sizes, data."""
    sizes = {"parameters": sum(p.numel() for p in model.parameters()), "steps": task.run.training.steps}
    if task.foreign:
        return {"placement": task.run.model.placement} | task.built() | sizes | {"data": task.facts()}
    config = model.config
    entry = config.entry()
    own = {stack: config.of(stack) for stack in config.stacks()}
    other = _of_the_encoder(config)
    sites = [row for stack, its in own.items() for row in _numbers(its, stack)]
    return {
        "placement": task.run.model.placement + (f", {own['encoder'].placement} encoder" if other else ""),
        "formulas": formulas(entry, layers=config.num_hidden_layers) | other,
        "legend": legend(entry, config.num_hidden_layers),
        "final": final_formula(entry),
        "about": entry.about,
        "paper": entry.paper,
        "note": entry.note,
        "sites": sites,
        "init": config.scheme(),
        "calibration": config.calibration,
        **sizes,
        "data": task.facts(),
    } | task.origin()


def _numbers(config: IsogradConfig, stack: Stack) -> list[dict[str, object]]:
    layers, other = config.depths(stack)
    return numbers(config.entry(), layers, stack, other)


def _of_the_encoder(config: IsogradConfig) -> dict[str, str]:
    """Its formulas, where it has another placement than the decoder."""
    its = config.of("encoder")
    if its.placement == config.placement:
        return {}
    lines = formulas(its.entry(), layers=its.depths("encoder")[0])
    last = {"final": line} if (line := final_formula(its.entry())) else {}
    return {f"encoder {kind}": f"{line}  in the encoder" for kind, line in (lines | last).items()}


def _there(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except ValueError as error:
        raise FileExistsError(f"{path} is not JSON; choose another folder, or remove it") from error


def _losses(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [{**row, "loss": float("nan") if row["loss"] is None else row["loss"]} for row in rows]


def _claim(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("outcome.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    write_json(folder / "run.json", run.as_dict())


def _write_outcome(folder: Path, outcome: dict[str, Any], state: PartialState) -> dict[str, Any]:
    whole = outcome | {"provenance": provenance()}
    if state.is_main_process:
        write_json(folder / "outcome.json", whole)
    return finite(whole)

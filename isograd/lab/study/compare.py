"""The main job: one recipe, placements side by side. Planning, and refusing, loads no torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.errors import RecipeError
from isograd.files import locked
from isograd.lab.study.labels import labels
from isograd.lab.study.plan import ARM, Cell, point, products, settings_of
from isograd.lab.train.recipe import load_run, with_overrides
from isograd.lab.train.run import Run
from isograd.lab.train.tasks import task_of
from isograd.lab.train.tasks.language import LanguageRun

if TYPE_CHECKING:
    from isograd.lab.study.engine.jobs import OnEnd, OnStep

DEFAULT = ("post-ln", "pre-ln", "normformer", "admin", "deepnorm")


def plan(
    folder: Path, base: Run | None = None, arms: Sequence[Sequence[str]] = (), seeds: Sequence[int] = ()
) -> list[Cell]:
    """The arms of a comparison, in the order they run.

    Args:
        base: the recipe of all arms; None: the language model that every key's default gives.
        arms: for each a placement (of a model of the user's own arguments of its function) and `key=value` overrides of
            the recipe; none: placements by default, and where the recipe has no warm-up, post-ln once more with half
            the steps.
        seeds: none: the recipe's.

    Raises:
        UnknownPlacement: a name that is not in the catalogue.
        RecipeError: settings that contradict each other.
    """
    base = base or LanguageRun()
    own = base.entry() is None
    wanted = [settings_of(arm, own) for arm in arms or ([[]] if own else _default_arms(base))]
    runs = [with_overrides(base, settings) for settings in wanted]
    for run in runs:
        run.entry()  # refuse an unknown name before anything is written
    return _seeded(folder, runs, seeds or [base.seed])


def _default_arms(base: Run) -> list[list[str]]:
    arms = [[placement] for placement in DEFAULT]
    return (
        arms
        if base.training.warmup
        else [arms[0], ["post-ln", f"training.warmup={base.training.steps // 2}"], *arms[1:]]
    )


def _seeded(folder: Path, runs: Sequence[Run], seeds: Sequence[int]) -> list[Cell]:
    """Each run with each seed once, seed by seed, so that a first whole comparison is there early."""
    runs = list(dict.fromkeys(runs))
    named = list(zip(runs, labels([run.as_dict() for run in runs]), strict=True))
    seeded = [(replace(run, seed=seed), {ARM: label}) for seed in dict.fromkeys(seeds) for run, label in named]
    names = [(run.folder_name(), run, values) for run, values in seeded]
    return [Cell(run=run, name=name, values=values, own_folder=folder / name) for name, run, values in names]


def compare(
    arms: Sequence[Cell],
    on_step: "OnStep",
    on_end: "OnEnd",
    jobs: int | None = None,
    fresh: bool = False,
    on_ready: Callable[[int], None] = lambda left: None,
) -> list[dict[str, Any]]:
    """Train every arm that has not ended yet, and give their results in the order of the arms.

    Args:
        on_step: called with (index of the arm, step, loss) while an arm trains.
        on_end: called with (index, result) when an arm has ended, also when it had ended before.
        jobs: runs at once, each in a process with its share of the cores; None takes one per core, or one in all
            where there is a GPU. With 1, or a single arm, the training runs here, without another process.
        fresh: remove what the arms' folders hold, and train anew.
        on_ready: called with the runs to train when the data are read, if there are any.

    Raises:
        DataError: the data cannot be used.
        RecipeError: settings that no model or this machine has.
        FileExistsError: a folder holds a run of another recipe, or on another text.
        FolderBusyError: another process is at work there.
    """
    from isograd.lab.study.engine.jobs import check_jobs, in_this_process, tasks_of
    from isograd.lab.study.engine.ledger import forget, outcome_in
    from isograd.lab.study.engine.runner import jobs_of, run_cells, survey
    from isograd.lab.study.engine.workers import default_jobs, in_processes

    at_once = min(default_jobs() if jobs is None else jobs, len(arms))
    if at_once < 1:
        raise RecipeError(f"jobs={jobs} must be at least 1")
    folder = arms[0].folder.parent
    tasks = tasks_of([arm.run for arm in arms])
    results: dict[int, dict[str, Any]] = {}

    def on_row(i: int, row: dict[str, Any]) -> None:
        results[i] = result_of(arms[i], row | outcome_in(arms[i].folder))
        on_end(i, results[i])

    with locked(folder):
        check_jobs(jobs_of(arms, folder), tasks, fresh)
        if fresh:
            forget(folder, [arm.name for arm in arms])
        for wrong in survey(arms, folder).broken.values():
            raise FileExistsError(f"{wrong}; choose another folder, or remove it")
        # also a single run that is left: as many threads as it had before it was interrupted, so the same numbers
        engine = in_this_process if at_once == 1 else partial(in_processes, at_once=at_once)
        kept: dict[str, Any] = {"retry": True, "keep_models": True}
        run_cells(arms, folder, engine, on_step, on_row, on_ready=on_ready, **kept)
    return [results[i] for i in range(len(arms))]


def result_of(arm: Cell, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What a program reads of an arm: its settings and how it ended. Losses in nats; None where there is none."""
    settings = arm.run.described() | {"arm": arm.label}
    numbers = ["final_loss", "validation_loss", *task_of(arm.run).outcome_fields]
    numbers += ["gradient_ratio_start", "gradient_ratio_end", "tokens_per_second", "parameters"]
    numbers += ["error"] if "error" in outcome else []
    return (
        settings
        | {"outcome": outcome["outcome"], "reason": outcome.get("reason")}
        | {name: outcome.get(name) for name in [*numbers, "warning"]}
        | {"folder": str(arm.folder)}
    )


GRID: dict[str, Sequence[float]] = {"training.lr": (1e-4,), "training.batch": (32,), "training.epochs": (3,)}
# The ranges are those of Xiong et al. 2020: batch 16 or 32, rates from 1e-5 to 1e-4, 3 to 8 epochs, and six seeds; the
# points inside them are ours.
PAPER = {"training.lr": (1e-5, 2e-5, 5e-5, 1e-4), "training.batch": (16, 32), "training.epochs": (3, 5, 8)}
PAPER_SEEDS = range(6)


def tuned(model: str, task: str, source: str) -> Run:
    """The fine-tuning of a task's own recipe, `glue/TASK`, of this model, which may have fewer positions.

    Raises:
        DataError: there is no such model.
    """
    from isograd.lab.train.pretrained import find_pretrained

    config = find_pretrained(model).config
    settings = {"model.placement": config.placement, "glue.model": model, "glue.source": source}
    run: Any = load_run(Path(f"glue/{task}"), [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    length = min(run.glue.length, config.max_position_embeddings)
    return replace(run, name=None, glue=replace(run.glue, length=length))


def plan_grid(
    folder: Path, base: Run, overrides: Sequence[str], axes: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[Cell]:
    """Every combination of the axes' values, seed by seed, the last axis first.

    Args:
        overrides: of all runs.

    Raises:
        RecipeError: settings that contradict each other.
    """
    first = [f"{key}={values[0]}" for key, values in axes.items()]
    base = with_overrides(base, [*first, *overrides])
    return _seeded(folder, [point(base, [], values)[0] for values in products(axes)], seeds)

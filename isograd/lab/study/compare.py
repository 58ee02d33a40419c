"""The main job: one recipe, placements side by side. Planning, and refusing, loads no torch."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.errors import RecipeError
from isograd.files import locked
from isograd.lab.study.labels import labels
from isograd.lab.train.recipe import with_overrides
from isograd.lab.train.run import Model, Placed, Run
from isograd.lab.train.tasks import task_of
from isograd.lab.train.tasks.classification import ClassificationRun, FineTuning, Glue, GlueTask
from isograd.lab.train.tasks.language import LanguageRun, TextData, TextTraining
from isograd.placement import get

if TYPE_CHECKING:
    from isograd.lab.study.engine.jobs import OnEnd, OnStep

OnReady = Callable[[int, int], None]
DEFAULT: tuple[tuple[str, bool], ...] = (  # placement, with warm-up
    ("post-ln", False),
    ("post-ln", True),
    ("pre-ln", False),
    ("normformer", False),
    ("admin", False),
    ("deepnorm", False),
)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One line of the comparison: a run, the folder it lives in, and what tells it from the other arms, for people."""

    run: Run
    folder: Path
    label: str


def plan(
    folder: Path,
    *,
    placements: Sequence[str] | None = None,
    warmup: int | None = None,
    seeds: Sequence[int] = (0,),
    model: Model | None = None,
    data: TextData | None = None,
    training: TextTraining | None = None,
) -> list[Arm]:
    """The arms of a comparison of language models, in the order they run.

    Args:
        placements: names; None takes the default set, in which post-ln stands twice.
        warmup: steps for all arms; None gives no warm-up, and to the second post-ln of the default set half the steps.

    Raises:
        UnknownPlacement: a name that is not in the catalogue.
        RecipeError: settings that contradict each other.
    """
    base = LanguageRun(model=model or Model(), data=data or TextData(), training=training or TextTraining())
    chosen = [(p, False) for p in placements] if placements else list(DEFAULT)
    half = base.training.steps // 2
    for placement, _ in chosen:
        get(placement)  # refuse an unknown name before anything is written
    pairs = [(p, warmup if warmup is not None else half if warm else 0) for p, warm in chosen]
    return seeded(
        folder,
        [
            replace(base, model=replace(base.model, placement=p), training=replace(base.training, warmup=steps))
            for p, steps in pairs
        ],
        seeds,
    )


def plan_arms(
    folder: Path, base: Run, arms: Sequence[Sequence[str]] = (), seeds: Sequence[int] | None = None
) -> list[Arm]:
    """Arms of any recipe, in the order they run.

    Args:
        base: the recipe.
        arms: for each a placement and `key=value` overrides of the recipe; none: the default set of placements.
        seeds: None takes the recipe's.

    Raises:
        UnknownPlacement: a name that is not in the catalogue.
        RecipeError: settings that contradict each other.
    """
    arms = arms or [[placement] for placement in dict.fromkeys(p for p, _ in DEFAULT)]
    return seeded(folder, [_arm(base, arm) for arm in arms], seeds or [base.seed])


def _arm(base: Run, words: Sequence[str]) -> Run:
    settings = settings_of(words)
    get(words[0])
    return with_overrides(base, settings)


def settings_of(arm: Sequence[str]) -> list[str]:
    """An arm of a recipe, a placement and other settings, as overrides.

    >>> settings_of(["post-ln", "training.warmup = 50"])
    ['model.placement=post-ln', 'training.warmup=50']

    Raises:
        RecipeError: it does not begin with a placement, or sets what cannot differ between arms.
    """
    placement, *overrides = arm
    if "=" in placement:
        raise RecipeError(f"an arm begins with a placement, such as post-ln, not with {placement!r}")
    parts = [override.partition("=") for override in overrides]
    for override, (key, _, _) in zip(overrides, parts, strict=True):
        if key.strip() in ("seed", "name", "task", "model.placement"):
            raise RecipeError(f"{override!r} cannot differ between arms; an arm is a placement and other settings")
    return [f"model.placement={placement}", *(f"{key.strip()}{sign}{value.strip()}" for key, sign, value in parts)]


def seeded(folder: Path, runs: Sequence[Run], seeds: Sequence[int]) -> list[Arm]:
    """Each run with each seed once, seed by seed, so that a first whole comparison is there early."""
    runs = list(dict.fromkeys(runs))
    named = list(zip(runs, labels([run.as_dict() for run in runs]), strict=True))
    seeded = [(replace(run, seed=seed), label) for seed in dict.fromkeys(seeds) for run, label in named]
    return [Arm(run=run, folder=folder / run.folder_name(), label=label) for run, label in seeded]


def compare(
    arms: Sequence[Arm],
    on_step: "OnStep",
    on_end: "OnEnd",
    jobs: int | None = None,
    fresh: bool = False,
    on_ready: OnReady = lambda left, at_once: None,
) -> list[dict[str, Any]]:
    """Train every arm that has not ended yet, and give their results in the order of the arms.

    Args:
        on_step: called with (index of the arm, step, loss) while an arm trains.
        on_end: called with (index, result) when an arm has ended, also when it had ended before.
        jobs: runs at once, each in a process with its share of the cores; None takes one per core, or one in all
            where there is a GPU. With 1, or a single arm, the training runs here, without another process.
        fresh: remove what the arms' folders hold, and train anew.
        on_ready: called with (runs to train, runs at once) when the data are read, if there are any.

    Raises:
        DataError: the data cannot be used.
        RecipeError: settings that no model or this machine has.
        FileExistsError: a folder holds a run of another recipe, or on another text.
        FolderBusyError: another process is at work there.
    """
    from isograd.lab.study.engine.jobs import tasks_of
    from isograd.lab.study.engine.workers import default_jobs
    from isograd.lab.train.train import check_text

    at_once = min(default_jobs() if jobs is None else jobs, len(arms))
    if at_once < 1:
        raise RecipeError(f"jobs={jobs} must be at least 1")
    tasks = tasks_of([arm.run for arm in arms])
    with locked(arms[0].folder.parent):
        if fresh:
            _remove(arms)
        for arm, task in zip(arms, tasks, strict=True):
            check_text(arm.folder, task)
        outcomes = _compare(arms, on_step, on_end, at_once, on_ready)
    return [result_of(arm, outcomes[i]) for i, arm in enumerate(arms)]


def _compare(
    arms: Sequence[Arm], on_step: "OnStep", on_end: "OnEnd", at_once: int, on_ready: OnReady
) -> dict[int, dict[str, Any]]:
    from isograd.lab.study.engine.workers import in_processes
    from isograd.lab.train.train import ended, train

    outcomes: dict[int, dict[str, Any]] = {}

    def keep(index: int, outcome: dict[str, Any]) -> None:
        outcomes[index] = outcome
        on_end(index, result_of(arms[index], outcome))

    before = {i: ended(arm.run, arm.folder) for i, arm in enumerate(arms)}
    if left := sum(outcome is None for outcome in before.values()):
        on_ready(left, at_once)
    for i, outcome in before.items():
        if outcome is not None:
            keep(i, outcome)
    todo = {i: (arms[i].run, arms[i].folder) for i, outcome in before.items() if outcome is None}
    if at_once == 1:
        for i, job in todo.items():
            keep(i, train(*job, partial(on_step, i)))
    elif todo:  # also a single one: as many threads as it had before it was interrupted, so the same numbers
        in_processes(todo, on_step, keep, at_once=at_once)
    return outcomes


def _remove(arms: Sequence[Arm]) -> None:
    for arm in arms:
        if (arm.folder / "run.json").exists():
            shutil.rmtree(arm.folder)


def result_of(arm: Arm, outcome: dict[str, Any]) -> dict[str, Any]:
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


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is tried. `scratch` adds the same from fresh weights."""

    rates: Sequence[float] = (1e-4,)
    batches: Sequence[int] = (32,)
    epochs: Sequence[int] = (3,)
    scratch: bool = False


# The ranges are those of Xiong et al. 2020: batch 16 or 32, rates from 1e-5 to 1e-4, 3 to 8 epochs, and six seeds; the
# points inside them are ours.
PAPER = Grid(rates=(1e-5, 2e-5, 5e-5, 1e-4), batches=(16, 32), epochs=(3, 5, 8))
PAPER_SEEDS = range(6)
LENGTH = 128  # tokens of a sequence, where the model has as many positions


def base_run(model: str, task: GlueTask, source: str, grid: Grid) -> ClassificationRun:
    """The first point of a grid, trained as BERT and RoBERTa are.

    AdamW with decoupled decay, a linear fall of the rate after a short warm-up, dropout 0.1.

    Raises:
        DataError: there is no such model.
        RecipeError: a value of the grid that no training has.
    """
    from isograd.lab.train.pretrained import find_pretrained

    config = find_pretrained(model).config
    length = min(LENGTH, config.max_position_embeddings)
    return ClassificationRun(
        model=Placed(placement=config.placement),
        glue=Glue(task=task, source=source, model=model, length=length, dropout=0.1, attention_dropout=0.1),
        training=FineTuning(
            steps=1_000_000,  # the epochs end it
            lr=grid.rates[0],
            batch=grid.batches[0],
            epochs=grid.epochs[0],
            optimizer="adamw",
            betas=(0.9, 0.98),
            eps=1e-6,
            weight_decay=0.01,
            decay="linear",
            clip=1.0,
            probe_every=0,
            checkpoint_every=200,
        ),
    )


def plan_grid(folder: Path, base: ClassificationRun, grid: Grid, seeds: Sequence[int]) -> list[Arm]:
    """The arms, seed by seed, pre-trained ones before those from scratch.

    Raises:
        RecipeError: settings that contradict each other.
    """
    weights = (False, True) if grid.scratch else (False,)
    points = product(weights, grid.rates, grid.batches, grid.epochs)
    runs = [
        replace(
            base,
            glue=replace(base.glue, scratch=scratch),
            training=replace(base.training, lr=lr, batch=batch, epochs=epochs),
        )
        for scratch, lr, batch, epochs in points
    ]
    return seeded(folder, runs, seeds)

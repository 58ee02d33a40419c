"""The main job: the same model and data, placements side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from isograd.placement import get
from isograd.study.workers import default_jobs, in_processes
from isograd.train.run import Data, Model, Run, Training
from isograd.train.train import ended, load_corpus_of, train

OnStep = Callable[[int, int, float], None]
OnEnd = Callable[[int, dict[str, Any]], None]

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
    """One line of the comparison: a run and the folder it lives in."""

    run: Run
    folder: Path

    @property
    def label(self) -> str:
        """Placement and warm-up, for people."""
        warmup = self.run.training.warmup
        return f"{self.run.model.placement}, {f'warm-up {warmup}' if warmup else 'no warm-up'}"


def plan(
    folder: Path,
    *,
    placements: Sequence[str] | None = None,
    warmup: int | None = None,
    seeds: Sequence[int] = (0,),
    model: Model | None = None,
    data: Data | None = None,
    training: Training | None = None,
) -> list[Arm]:
    """The arms in the order they run: seed by seed, so that a first whole comparison is there early.

    Args:
        placements: names; None takes the default set, in which post-ln stands twice.
        warmup: steps for all arms; None gives no warm-up, and to the second post-ln of the default set half the steps.

    Raises:
        UnknownPlacement: a name that is not in the catalogue.
        RecipeError: settings that contradict each other.
    """
    model, data, training = model or Model(), data or Data(), training or Training()
    chosen = [(p, False) for p in placements] if placements else list(DEFAULT)
    half = training.steps // 2
    for placement, _ in chosen:
        get(placement)  # refuse an unknown name before anything is written
    pairs = [(p, warmup if warmup is not None else half if warm else 0) for p, warm in chosen]
    arms = []
    for seed in seeds:
        for placement, steps in dict.fromkeys(pairs):
            run = Run(
                seed=seed,
                model=replace(model, placement=placement),
                data=data,
                training=replace(training, warmup=steps),
            )
            arms.append(Arm(run=run, folder=folder / name_of(run)))
    return arms


def name_of(run: Run) -> str:
    """A folder's name that people can read and that no other run has."""
    m, t = run.model, run.training
    return f"{m.placement}-{m.layers}l-lr{t.lr:g}-w{t.warmup}-s{run.seed}-{run.key()}"


def compare(arms: Sequence[Arm], on_step: OnStep, on_end: OnEnd, jobs: int | None = None) -> list[dict[str, Any]]:
    """Train every arm that has not ended yet, and give their results in the order of the arms.

    Args:
        on_step: called with (index of the arm, step, loss) while an arm trains.
        on_end: called with (index, result) when an arm has ended, also when it had ended before.
        jobs: processes that train at once, each with its share of the cores; None takes one per core, or one in all
            where there is a GPU. 1 trains here, without another process.

    Raises:
        DataError: the data cannot be used.
        FileExistsError: a folder holds a run of another recipe.
    """
    load_corpus_of(arms[0].run)  # once, before several processes ask for it
    open_arms = [i for i, arm in enumerate(arms) if ended(arm.run, arm.folder) is None]
    jobs = min(jobs or default_jobs(), max(1, len(open_arms)))
    outcomes: dict[int, dict[str, Any]] = {}

    def keep(index: int, outcome: dict[str, Any]) -> None:
        outcomes[index] = outcome
        on_end(index, result_of(arms[index], outcome))

    for i, arm in enumerate(arms):
        if i not in open_arms:
            keep(i, train(arm.run, arm.folder))
    if jobs == 1:
        for i in open_arms:
            keep(i, train(arms[i].run, arms[i].folder, partial(on_step, i)))
    else:
        in_processes({i: (arms[i].run, arms[i].folder) for i in open_arms}, jobs, on_step, keep)
    return [result_of(arm, outcomes[i]) for i, arm in enumerate(arms)]


def result_of(arm: Arm, outcome: dict[str, Any]) -> dict[str, Any]:
    """What a program reads of an arm: its settings and how it ended. Losses in nats; None where there is none."""
    run = arm.run
    settings = {
        "placement": run.model.placement,
        "layers": run.model.layers,
        "lr": run.training.lr,
        "warmup": run.training.warmup,
        "seed": run.seed,
    }
    numbers = (
        "final_loss",
        "validation_loss",
        "gradient_ratio_start",
        "gradient_ratio_end",
        "tokens_per_second",
        "parameters",
        "error",
    )
    return (
        settings
        | {"outcome": outcome["outcome"]}
        | {name: outcome.get(name) for name in numbers if name != "error" or "error" in outcome}
        | {"folder": str(arm.folder)}
    )

"""What a search for the largest rate is asked: whose run, which placements, warm-ups and seeds, from where to where."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isograd.errors import RecipeError
from isograd.lab.study.boundary import RateSearch
from isograd.lab.study.labels import shown
from isograd.lab.study.plan import ARM, load_study
from isograd.lab.train.recipe import load_arms, load_run, read_recipe
from isograd.lab.train.run import Run
from isograd.lab.train.tasks import TASKS, task_of
from isograd.lab.train.tasks.language import TextTraining
from isograd.placement import get

AXES = ("model.placement", "training.warmup", "training.lr")  # of a study's recipe; the rates are what is looked for
SEEDS = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What is searched: each placement with each warm-up and each seed is a chain.

    Attributes:
        base: the user's own run; a chain begins at its rate.
    """

    name: str
    base: Run
    placements: tuple[str, ...]
    warmups: tuple[int, ...]
    seeds: tuple[int, ...]
    search: RateSearch


def load_plan(
    recipe: Path | None,
    overrides: Sequence[str] = (),
    *,
    placements: Sequence[str] = (),
    warmups: Sequence[int] = (),
    seeds: Sequence[int] = (),
    low: float = RateSearch.low,
    high: float = RateSearch.high,
    precision: float = RateSearch.precision,
) -> SearchPlan:
    """The plan of a recipe.

    Where nothing is given, placements, warm-ups and seeds are those of a study's axes, else the recipe's own placement,
    its own warm-up beside none, and three seeds.

    Raises:
        RecipeError: settings that contradict each other, or a rate that no run of this recipe can have.
        UnknownPlacement: a name that is not in the catalogue.
    """
    name, base, axes, seeds_there = _read(recipe, overrides)
    plan = SearchPlan(
        name=name,
        base=base,
        placements=_each(placements or axes.get(AXES[0]) or [base.model.placement]),
        warmups=tuple(sorted(_each(warmups or axes.get(AXES[1]) or [0, base.training.warmup]))),
        seeds=_each(seeds or seeds_there or SEEDS),
        search=RateSearch(start=base.training.lr, low=low, high=high, precision=precision),
    )
    _check(plan)
    return plan


def _read(recipe: Path | None, overrides: Sequence[str]) -> tuple[str, Run, dict[str, list[Any]], list[int]]:
    """Name, own run, axes and seeds."""
    if recipe is None or not read_recipe(recipe).get("axes"):
        base = load_run(recipe, overrides)
        seeds = load_arms(recipe)[1] if recipe else []
        name = base.name or (recipe.stem if recipe else base.model.placement)
        return name, replace(base, name=None), {}, seeds
    study = load_study(recipe, overrides)
    others = {key: values for key, values in study.axes.items() if key not in AXES}
    if ARM in others:
        raise RecipeError(
            f"{recipe}: headroom takes no arms; write axes: {{model.placement: [post-ln, pre-ln]}} instead"
        )
    for key, values in others.items():
        if len(values) > 1:
            raise RecipeError(f"{recipe}: headroom takes one {key}; write {key}={shown(values[0])} after the recipe")
    if study.budget is not None and study.budget.unit == "seconds":
        raise RecipeError(f"{recipe}: headroom takes no budget in seconds; write budget.steps=N after the recipe")
    cell, base = study.cells[0].run, study.base  # the cell has what the budget pays, and the other axes' only values
    model = replace(cell.model, placement=base.model.placement)
    training = replace(cell.training, warmup=base.training.warmup, lr=base.training.lr)
    return study.name, replace(cell, seed=base.seed, model=model, training=training), study.axes, study.seeds


def _each(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _check(plan: SearchPlan) -> None:
    """Refuse before anything is trained what a chain would stumble on."""
    if not task_of(plan.base).lr_range:
        able = " or ".join(name for name, task in TASKS.items() if task.lr_range)
        raise RecipeError(f"headroom is for task={able}, and this is task={plan.base.task}")
    for placement in plan.placements:
        get(placement)
    for warmup in plan.warmups:
        if not 0 <= warmup < plan.base.training.steps:
            raise RecipeError(
                f"a warm-up of {warmup} must be less than training.steps={plan.base.training.steps}:"
                " the peak would never be reached"
            )
        for rate in (plan.search.low, plan.search.high):
            try:
                run_at(plan, plan.placements[0], warmup, plan.seeds[0], rate)
            except RecipeError as error:
                raise RecipeError(f"at a peak rate of {rate:g}: {error}") from error


def run_at(plan: SearchPlan, placement: str, warmup: int, seed: int, rate: float) -> Run:
    """The user's run at this rate. It stops where its loss breaks; what is only looked at, or kept, is left out."""
    training = plan.base.training
    assert isinstance(training, TextTraining)
    training = replace(
        training,
        lr=rate,
        warmup=warmup,
        stop_when_broken=True,
        probe_every=0,
        valid_every=0,
        patience=0,
        select="last",
        track=(),
    )
    return replace(plan.base, seed=seed, model=replace(plan.base.model, placement=placement), training=training)

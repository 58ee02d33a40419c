"""A study from its recipe: axes over any keys of a run, and the cells that they come to."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from isograd.placement import UnknownPlacement, get
from isograd.study.compare import name_of
from isograd.study.labels import flat, labels, shown
from isograd.train.forecast import tokens_per_update
from isograd.train.recipe import COMPARED, arms_in, known_keys, nearest, overridden, read_recipe, run_from_dict
from isograd.train.run import RecipeError, Run
from isograd.train.task import with_steps

Unit = Literal["steps", "tokens", "seconds"]
FIXED = ("seed", "name", "task")  # no axis may be over these
ARM = "arm"  # the axis of a recipe's `arms`


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What each cell may spend: updates, tokens, or seconds of this machine."""

    unit: Unit
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:,g} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a study.

    Attributes:
        name: of its folder, and in the ledger; made of everything that can change a number.
        values: its value on each axis, and of each key that an arm sets.
    """

    run: Run
    name: str
    values: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid: every arm with every combination of the axes' values, each with every seed.

    Attributes:
        axes: key -> its values, in the recipe's order.
        keep_models: whether the cells' trained weights stay.
        cells: seed by seed, so that a first whole grid is there early.
    """

    name: str
    base: Run
    axes: dict[str, list[Any]]
    seeds: list[int]
    budget: Budget | None
    keep_models: bool
    cells: list[Cell]


def load_study(recipe: Path, overrides: Sequence[str] = ()) -> Study:
    """The study of a YAML recipe and `key=value` overrides. A budget in seconds is still to be turned into updates.

    An override of an axis' key takes the axis' place: `training.lr=[1e-3,3e-3]` other values, `training.lr=1e-3` none
    but this.

    Raises:
        RecipeError: no such file, an unknown key, a value of the wrong type, settings that contradict each other.
        UnknownPlacement: a placement that is not in the catalogue.
    """
    content = read_recipe(recipe)
    axes = dict(_axes(content.get("axes") or {}, recipe))
    plain = []
    for override in overrides:
        key = override.partition("=")[0]
        if key.strip() in axes:
            value = _at(overridden({}, [override]), key.strip())
            axes[key.strip()] = value if isinstance(value, list) else [value]
        elif key.partition(".")[0].strip() in COMPARED:
            content = _without_other_unit(content, key.strip())
            overridden(content, [override])
        else:
            plain.append(override)
    base = run_from_dict(overridden({k: v for k, v in content.items() if k not in COMPARED}, plain))
    arms, seeds = arms_in(content, recipe)
    if not axes and not arms:
        raise RecipeError(f"{recipe}: a study needs axes, such as axes: {{training.lr: [3.0e-4, 1.0e-3]}}")
    _check_overrides(plain, axes, arms)
    keep = content.get("keep_models", False)
    if not isinstance(keep, bool):
        raise RecipeError(f"{recipe}: keep_models is true or false")
    study = Study(
        name=base.name or recipe.stem,
        base=replace(base, name=None),
        axes=axes,
        seeds=list(dict.fromkeys(seeds or [base.seed])),
        budget=_budget(content.get("budget"), recipe),
        keep_models=keep,
        cells=[],
    )
    return _spread(study, arms)


def _spread(study: Study, arms: Sequence[Sequence[str]]) -> Study:
    """The study with its cells, and its axes' values as a run has them (1e-3 is text in YAML)."""
    points = [_point(study.base, arm, values) for arm in arms or [[]] for values in _products(study.axes)]
    runs = [_paid(run, study.budget) for run, _ in points]
    named = labels([run_from_dict(overridden(study.base.as_dict(), _settings(arm))).as_dict() for arm in arms])
    grid: list[tuple[Run, dict[str, Any]]] = []
    for i, (run, (_, keys)) in enumerate(zip(runs, points, strict=True)):
        arm = {ARM: named[i * len(arms) // len(points)]} if arms else {}
        grid.append((run, arm | keys))
    cells = [_cell(replace(run, seed=seed), values) for seed in study.seeds for run, values in grid]
    axes = ([ARM] if arms else []) + list(study.axes)
    found = {key: [*_distinct(cell.values[key] for cell in cells)] for key in axes}
    return replace(study, axes=found, cells=list({cell.name: cell for cell in cells}.values()))


def with_cells(study: Study, change: Callable[[Run], Run]) -> Study:
    """The study with every cell's run changed, and named anew."""
    return replace(study, cells=[_cell(change(cell.run), cell.values) for cell in study.cells])


def _cell(run: Run, values: dict[str, Any]) -> Cell:
    return Cell(run=run, name=name_of(run), values=values)


def _distinct(values: Iterator[Any]) -> Iterator[Any]:
    """Each once; a value may be a list."""
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
            yield value


def _point(base: Run, arm: Sequence[str], values: Mapping[str, Any]) -> tuple[Run, dict[str, Any]]:
    """The run of an arm at these values, and what it has at the keys that these set."""
    settings = _settings(arm)
    content = overridden(base.as_dict(), settings)
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (content[section] if section else content)[name] = value
    try:
        run = run_from_dict(content)
        get(run.model.placement)
    except (RecipeError, UnknownPlacement) as error:
        named = ", ".join([*settings, *(f"{key}={shown(value)}" for key, value in values.items())])
        raise RecipeError(f"the cell {named}: {error}") from error
    has = dict(flat(run.as_dict()))
    keys = dict.fromkeys([*(text.partition("=")[0] for text in settings), *values])
    return run, {key: has[key] for key in keys}


def _settings(arm: Sequence[str]) -> list[str]:
    """An arm of a recipe as overrides: a placement and other settings."""
    if not arm:
        return []
    if "=" in arm[0]:
        raise RecipeError(f"an arm begins with a placement, such as post-ln, not with {arm[0]!r}")
    return [f"model.placement={arm[0]}", *arm[1:]]


def _products(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _axes(content: Any, recipe: Path) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(content, Mapping):
        raise RecipeError(f"{recipe}: axes is keys and lists, such as axes: {{training.lr: [3.0e-4, 1.0e-3]}}")
    known = known_keys()
    for key, values in flat(content):
        if key in FIXED:
            instead = "; write seeds: [1, 2, 3]" if key == "seed" else ""
            raise RecipeError(f"{recipe}: axes over {key!r} are not possible{instead}")
        if key not in known:
            raise RecipeError(f"{recipe}: axes: unknown key {key!r}; did you mean {nearest(key, known)!r}?")
        if not isinstance(values, list) or not values:
            raise RecipeError(f"{recipe}: axes: {key} needs a list of values, such as [1, 2]")
        yield key, values


def _without_other_unit(content: dict[str, Any], key: str) -> dict[str, Any]:
    """`budget.tokens=N` takes the place of a recipe's budget in steps."""
    return {**content, "budget": {}} if key.startswith("budget.") else content


def _check_overrides(plain: Sequence[str], axes: Mapping[str, Any], arms: Sequence[Sequence[str]]) -> None:
    """Each key is set once: an axis or an arm would take back what the recipe or another says."""
    by_arms = {text.partition("=")[0].strip() for arm in arms for text in _settings(arm)}
    for key in axes:
        if key in by_arms:
            raise RecipeError(f"{key} is an axis, and an arm sets it, too; take it out of one")
    for override in plain:
        key = override.partition("=")[0].strip()
        if key in by_arms:
            raise RecipeError(f"{override}: the recipe's arms set {key} themselves")


def _at(content: Mapping[str, Any], key: str) -> Any:
    value: Any = content
    for part in key.split("."):
        value = value[part]
    return value


def _budget(content: Any, recipe: Path) -> Budget | None:
    if content is None:
        return None
    units = get_args(Unit)
    if not isinstance(content, Mapping) or len(content) != 1 or next(iter(content)) not in units:
        raise RecipeError(f"{recipe}: budget is one of {', '.join(units)}, such as budget: {{steps: 300}}")
    unit, amount = next(iter(content.items()))
    if type(amount) not in (int, float) or not 0 < amount < math.inf:
        raise RecipeError(f"{recipe}: budget: {unit} is {amount!r}; it must be a number above 0")
    return Budget(unit=unit, amount=amount)


def _paid(run: Run, budget: Budget | None) -> Run:
    """The run with the updates that a budget pays; one in seconds is known once speeds are measured."""
    if budget is None or budget.unit == "seconds":
        return run
    if budget.unit == "steps":
        return with_steps(run, math.ceil(budget.amount))
    return with_steps(run, math.ceil(budget.amount / tokens_per_update(run)))

"""A study from its recipe: axes over any keys of a run, and the cells that they come to."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from isograd.errors import RecipeError, UnknownPlacement, hint
from isograd.lab.study.labels import flat, labels, shown
from isograd.lab.train.recipe import (
    ARGUMENTS,
    COMPARED,
    arms_in,
    is_known,
    known_keys,
    overridden,
    read_recipe,
    run_from_dict,
    set_key,
)
from isograd.lab.train.run import Run, with_steps

Unit = Literal["steps", "tokens", "seconds"]
FIXED = ("seed", "name", "task")  # no axis may be over these
STEPS = "training.steps"
CELLS = "cells"  # the folder of the runs in a study's
ARM = "arm"  # the axis of a recipe's `arms`


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What each cell may spend: updates, tokens, or seconds of this machine."""

    unit: Unit
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:,g} {self.unit}"


def budget_of(content: Any, recipe: Path) -> Budget | None:
    """The `budget` of a recipe; None where it has none.

    Raises:
        RecipeError: another unit, several, or no number.
    """
    if content is None:
        return None
    units = get_args(Unit)
    if not isinstance(content, Mapping) or len(content) != 1 or next(iter(content)) not in units:
        raise RecipeError(f"{recipe}: budget is one of {', '.join(units)}, such as budget: {{steps: 300}}")
    unit, amount = next(iter(content.items()))
    if isinstance(amount, str):  # 1e6 is text in YAML
        with suppress(ValueError):
            amount = float(amount)
    if type(amount) not in (int, float) or not 0 < amount <= sys.float_info.max:
        raise RecipeError(f"{recipe}: budget: {unit} is {amount!r}; it must be a number above 0")
    return Budget(unit=unit, amount=amount)


def provided(content: dict[str, Any], budget: Budget | None) -> dict[str, Any]:
    """With as many updates as a budget can come to, lest a schedule be refused for the recipe's own number of them."""
    training = content.get("training") or {}
    if budget is None or budget.unit == "seconds" or not isinstance(training, Mapping):
        return content
    return {**content, "training": {**training, "steps": math.ceil(budget.amount)}}


def paid(run: Run, budget: Budget | None) -> Run:
    """The run with the updates that a budget pays; one in seconds is known once speeds are measured."""
    if budget is None or budget.unit == "seconds":
        return run
    if budget.unit == "steps":
        return with_steps(run, math.ceil(budget.amount))
    if not run.places:
        raise RecipeError(
            f"a budget of {budget} counts tokens, which task={run.task} has not; write budget: {{steps: N}}"
        )
    return with_steps(run, math.ceil(budget.amount / run.tokens_per_update))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of many.

    Attributes:
        name: of its folder, and in the ledger; made of everything that can change a number.
        values: its value on each axis, and of each key that an arm sets.
        own_folder: where it lives, if not among the cells of a study's folder.
    """

    run: Run
    name: str
    values: dict[str, Any]
    own_folder: Path | None = None

    @property
    def label(self) -> str:
        """What tells its arm from the others, for people."""
        return str(self.values.get(ARM, self.name))

    @property
    def folder(self) -> Path:
        """Of an arm of a comparison."""
        return self.place(Path())

    def place(self, folder: Path) -> Path:
        """Its folder, where it belongs to a study in this one."""
        return self.own_folder or folder / CELLS / self.name


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid: every arm with every combination of the axes' values, each with every seed.

    Attributes:
        axes: key -> its values, in the recipe's order.
        grids: where the recipe has `also`, its own axes, and for each row of that what stands in their place.
        keep_models: whether the cells' trained weights stay.
        cells: seed by seed, so that a first whole grid is there early.
    """

    name: str
    base: Run
    axes: dict[str, list[Any]]
    grids: list[dict[str, list[Any]]]
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
    studied = [text for text in overrides if _of_study(_key(text))]
    for override in studied:
        content = overridden(_without_other_unit(content, _key(override)), [override])
    axes = dict(_axes(content.get("axes") or {}, recipe))
    plain, replaced = [], set()
    for override in (text for text in overrides if text not in studied):
        key = _key(override).removeprefix("axes.")
        if key in axes or key != _key(override):
            value = _at(overridden({}, [override]), _key(override))
            axes |= _axes({key: value if isinstance(value, list) else [value]}, recipe)
            replaced.add(key)
        else:
            plain.append(override)
    budget = budget_of(content.get("budget"), recipe)
    base = overridden({k: v for k, v in content.items() if k not in COMPARED}, plain)
    arms, seeds = arms_in(content, recipe)
    if not axes and not arms:
        raise RecipeError(f"{recipe}: a study needs axes, such as axes: {{training.lr: [3.0e-4, 1.0e-3]}}")
    own = isinstance(model := base.get("model"), dict) and bool(model.get("build"))
    _check_overrides(plain, axes, [settings_of(arm, own) for arm in arms], budget)
    if seeds and "seed" in map(_key, plain):
        raise RecipeError(f"{recipe}: seeds are {seeds}, and seed is set, too; write seeds=[NUMBERS]")
    run = paid(run_from_dict(provided(base, budget)), budget)
    keep = content.get("keep_models", False)
    if not isinstance(keep, bool):
        raise RecipeError(f"{recipe}: keep_models is true or false")
    study = Study(
        name=run.name or recipe.stem,
        base=replace(run, name=None),
        axes=axes,
        grids=_grids(content.get("also") or [], axes, replaced, recipe),
        seeds=list(dict.fromkeys(seeds or [run.seed])),
        budget=budget,
        keep_models=keep,
        cells=[],
    )
    return _spread(study, arms)


def _spread(study: Study, arms: Sequence[Sequence[str]]) -> Study:
    """The study with its cells, and its axes' values as a run has them (1e-3 is text in YAML)."""
    points = [values for axes in study.grids or [study.axes] for values in products(axes)]
    grid = [point(study.base, arm, values, study.budget) for arm in arms or [[]] for values in points]
    if arms:
        each = len(grid) // len(arms)
        named = labels([run.as_dict() for run, _ in grid[::each]])
        grid = [(run, {ARM: named[i // each]} | values) for i, (run, values) in enumerate(grid)]
    cells = [_cell(replace(run, seed=seed), values) for seed in study.seeds for run, values in grid]
    axes = ([ARM] if arms else []) + list(study.axes)
    found = {key: [*_distinct(cell.values[key] for cell in cells)] for key in axes}
    return replace(study, axes=found, cells=list({cell.name: cell for cell in cells}.values()))


def with_cells(study: Study, change: Callable[[Run], Run]) -> Study:
    """The study with every cell's run changed, and named anew."""
    return replace(study, cells=[_cell(change(cell.run), cell.values) for cell in study.cells])


def _cell(run: Run, values: dict[str, Any]) -> Cell:
    return Cell(run=run, name=run.folder_name(), values=values)


def _distinct(values: Iterator[Any]) -> Iterator[Any]:
    """Each once; a value may be a list."""
    seen: list[Any] = []
    for value in values:
        if value not in seen:
            seen.append(value)
            yield value


def point(
    base: Run, arm: Sequence[str], values: Mapping[str, Any], budget: Budget | None = None
) -> tuple[Run, dict[str, Any]]:
    """The run of an arm at these values, and what it has at the keys that these set."""
    settings = settings_of(arm, base.entry() is None) if arm else []
    content = overridden(provided(base.as_dict(), budget), settings)
    for key, value in values.items():
        set_key(content, key.split("."), value)
    try:
        run = paid(run_from_dict(content), budget)
        run.entry()
    except (RecipeError, UnknownPlacement) as error:
        named = ", ".join([*settings, *(f"{key}={shown(value)}" for key, value in values.items())])
        raise RecipeError(f"the cell {named}: {error}") from error
    has = dict(flat(run.as_dict()))
    keys = dict.fromkeys([*map(_key, settings), *values])
    return run, {key: has[key] for key in keys}


def settings_of(arm: Sequence[str], own: bool = False) -> list[str]:
    """An arm of a recipe, a placement and other settings, as overrides; of a model of the user's `own` arguments of its
    function and other settings.

    >>> settings_of(["post-ln", "training.warmup = 50"])
    ['model.placement=post-ln', 'training.warmup=50']
    >>> settings_of(["norm=pre", "training.warmup=50"], own=True)
    ['model.arguments.norm=pre', 'training.warmup=50']

    Raises:
        RecipeError: it does not begin with a placement, or sets what cannot differ between arms.
    """
    if own:
        return [_of_own(word) for word in arm]
    placement, *overrides = arm
    if "=" in placement:
        raise RecipeError(f"an arm begins with a placement, such as post-ln, not with {placement!r}")
    parts = [override.partition("=") for override in overrides]
    for override, (key, _, _) in zip(overrides, parts, strict=True):
        if key.strip() in ("seed", "name", "task", "model.placement"):
            raise RecipeError(f"{override!r} cannot differ between arms; an arm is a placement and other settings")
    return [f"model.placement={placement}", *(f"{key.strip()}{sign}{value.strip()}" for key, sign, value in parts)]


def _of_own(word: str) -> str:
    """A word of an arm of a model of the user's own, as an override."""
    key, sign, value = (part.strip() for part in word.partition("="))
    if not sign or key in ("seed", "name", "task"):
        raise RecipeError(f"{word!r}: an arm of a model of your own is arguments of its function and other settings,"
                          " such as norm=pre training.warmup=100")  # fmt: skip
    return f"{key if '.' in key else ARGUMENTS + key}={value}"


def products(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _axes(content: Any, recipe: Path) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(content, Mapping):
        raise RecipeError(f"{recipe}: axes is keys and lists, such as axes: {{training.lr: [3.0e-4, 1.0e-3]}}")
    known = known_keys()
    twice = [key for key, count in Counter(key for key, _ in flat(content)).items() if count > 1]
    if twice:
        raise RecipeError(f"{recipe}: axes: {twice[0]} is a duplicate key")
    for key, values in flat(content):
        if key in FIXED:
            instead = "; write seeds: [1, 2, 3]" if key == "seed" else ""
            raise RecipeError(f"{recipe}: axes over {key!r} are not possible{instead}")
        if not is_known(key, known):
            raise RecipeError(f"{recipe}: axes: unknown key {key!r}; {hint(key, known)}")
        if not isinstance(values, list) or not values:
            raise RecipeError(f"{recipe}: axes: {key} needs a list of values, such as [1, 2]")
        yield key, values


def _grids(also: Any, axes: dict[str, list[Any]], replaced: Container[str], recipe: Path) -> list[dict[str, list[Any]]]:
    """The recipe's axes, and those of each further grid with the values that it names; [] where there is none.

    Args:
        replaced: keys that an override has set, for all grids alike.
    """
    if not isinstance(also, list):
        raise RecipeError(f"{recipe}: also is a list of axes, such as also: [{{model.layers: [24, 48]}}]")
    found = [axes]
    for own in (dict(_axes(row, recipe)) for row in also):
        for key in own:
            if key not in axes:
                raise RecipeError(f"{recipe}: also: {key} is not among the axes; {hint(key, axes)}")
        found.append({**axes, **{key: values for key, values in own.items() if key not in replaced}})
    return found if also else []


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _of_study(key: str) -> bool:
    """Whether an override is none of the run, nor of a single axis."""
    return key.partition(".")[0] in COMPARED and not key.startswith("axes.")


def _without_other_unit(content: dict[str, Any], key: str) -> dict[str, Any]:
    """`budget.tokens=N` takes the place of a recipe's budget in steps."""
    return {**content, "budget": {}} if key.startswith("budget.") else content


def _check_overrides(
    plain: Sequence[str], axes: Mapping[str, Any], arms: Sequence[Sequence[str]], budget: Budget | None
) -> None:
    """Each key is set once: an axis, an arm or the budget would take back what the recipe or another says."""
    by_arms = {_key(text) for arm in arms for text in arm}
    for key in axes:
        if key in by_arms:
            raise RecipeError(f"{key} is an axis, and an arm sets it, too; take it out of one")
    if budget and STEPS in {*axes, *by_arms, *map(_key, plain)}:
        raise RecipeError(f"{STEPS} and the budget of {budget} contradict each other; take one of them out")
    for override in plain:
        if _key(override) in by_arms:
            raise RecipeError(f"{override}: the recipe's arms set {_key(override)} themselves")


def _at(content: Mapping[str, Any], key: str) -> Any:
    value: Any = content
    for part in key.split("."):
        value = value[part]
    return value

"""The maximum stable learning rate, by placement and warm-up: a chain of short runs each. Planning loads no torch.

FOLDER/
  headroom.json   settings, every chain with each rate tried and what became of it, boundaries, cost
  ledger.jsonl    a row per run
  cells/NAME/     the runs; headroom.json is made of them, so the same command goes on after a kill
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.errors import RecipeError
from isograd.files import locked, read_object, read_rows, write_json
from isograd.lab.study.boundary import Boundary, RateSearch, RateVerdict, first_rate, next_rate, over_seeds, verdict_of
from isograd.lab.study.labels import names, shown
from isograd.lab.study.plan import ARM, Cell, load_study, products, settings_of
from isograd.lab.train.recipe import ARGUMENTS, load_arms, load_run, read_recipe, with_overrides
from isograd.lab.train.run import Run
from isograd.lab.train.tasks import TASKS, task_of
from isograd.placement import get

if TYPE_CHECKING:
    from isograd.lab.study.engine.jobs import Engine

Row = dict[str, Any]

HEADROOM = "headroom.json"
AXES = ("model.placement", "training.warmup", "training.lr")  # of a study's recipe; the rates are what is looked for
SEEDS = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What is searched: each placement with each warm-up and each seed is a chain.

    Attributes:
        base: the user's own run; a chain begins at its rate.
        placements: of a model of the user's own the names of its arms, and `arms` their runs, by name.
    """

    name: str
    base: Run
    placements: tuple[str, ...]
    warmups: tuple[int, ...]
    seeds: tuple[int, ...]
    search: RateSearch
    arms: Mapping[str, Run] = field(default_factory=dict)


def load_plan(
    recipe: Path | None,
    overrides: Sequence[str] = (),
    *,
    placements: Sequence[str] = (),
    arms: Sequence[Sequence[str]] = (),
    warmups: Sequence[int] = (),
    seeds: Sequence[int] = (),
    low: float = RateSearch.low,
    high: float = RateSearch.high,
    precision: float = RateSearch.precision,
) -> SearchPlan:
    """The plan of a recipe.

    Where nothing is given, placements, warm-ups and seeds are those of a study's axes, else the recipe's own placement,
    its own warm-up beside none, and three seeds.

    Args:
        arms: of a model of the user's own, as `isograd compare` takes them.

    Raises:
        RecipeError: settings that contradict each other, or a rate that no run of this recipe can have.
        UnknownPlacement: a name that is not in the catalogue.
    """
    name, base, axes, seeds_there = _read(recipe, overrides)
    own = _own_arms(base, arms or _swept(axes) or (load_arms(recipe)[0] if recipe else []), placements)
    plan = SearchPlan(
        name=name,
        base=base,
        arms=own,
        placements=tuple(own) or _each(placements or axes.get(AXES[0]) or [base.model.placement]),
        warmups=tuple(sorted(_each(warmups or axes.get(AXES[1]) or [0, base.training.warmup]))),
        seeds=_each(seeds or seeds_there or SEEDS),
        search=RateSearch(start=base.training.lr, low=low, high=high, precision=precision),
    )
    _check(plan)
    return plan


def _swept(axes: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """The axes over arguments of a model of the user's own, as arms."""
    own = {key: values for key, values in axes.items() if key.startswith(ARGUMENTS)}
    return [[f"{key}={json.dumps(value)}" for key, value in point.items()] for point in products(own)] if own else []


def _own_arms(base: Run, arms: Sequence[Sequence[str]], placements: Sequence[str]) -> dict[str, Run]:
    """By what tells them apart; {} of isograd's own models."""
    if base.entry() is not None:
        if arms:
            raise RecipeError("--find max-lr takes arms of a model of your own; write --placements instead")
        return {}
    if placements:
        raise RecipeError("--placements are of isograd's own models; write --arm norm=post, once for each arm")
    runs = [with_overrides(base, settings_of(arm, own=True)) for arm in arms or [[]]]
    for run in runs:
        if (run.training.lr, run.training.warmup) != (base.training.lr, base.training.warmup):
            raise RecipeError("--find max-lr searches training.lr itself, for each --warmup; take both out of the arms")
    return dict(zip(names([run.as_dict() for run in runs]), runs, strict=True))


def _read(recipe: Path | None, overrides: Sequence[str]) -> tuple[str, Run, dict[str, list[Any]], list[int]]:
    """Name, own run, axes and seeds."""
    if recipe is None or not read_recipe(recipe).get("axes"):
        base = load_run(recipe, overrides)
        seeds = load_arms(recipe)[1] if recipe else []
        name = base.name or (recipe.stem if recipe else base.model.placement)
        return name, replace(base, name=None), {}, seeds
    study = load_study(recipe, overrides)
    others = {k: values for k, values in study.axes.items() if k not in AXES and not k.startswith(ARGUMENTS)}
    if ARM in others:
        raise RecipeError(
            f"{recipe}: --find max-lr takes no arms; write axes: {{model.placement: [post-ln, pre-ln]}} instead"
        )
    for key, values in others.items():
        if len(values) > 1:
            raise RecipeError(
                f"{recipe}: --find max-lr takes one {key}; write {key}={shown(values[0])} after the recipe"
            )
    if study.budget is not None and study.budget.unit == "seconds":
        raise RecipeError(f"{recipe}: --find max-lr takes no budget in seconds; write budget.steps=N after the recipe")
    cell, base = study.cells[0].run, study.base  # the cell has what the budget pays, and the other axes' only values
    model = replace(cell.model, placement=base.model.placement) if base.entry() else base.model
    training = replace(cell.training, warmup=base.training.warmup, lr=base.training.lr)
    return study.name, replace(cell, seed=base.seed, model=model, training=training), study.axes, study.seeds


def _each(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _check(plan: SearchPlan) -> None:
    """Refuse before anything is trained what a chain would stumble on."""
    if not task_of(plan.base).lr_range:
        able = " or ".join(name for name, task in TASKS.items() if task.lr_range)
        raise RecipeError(f"--find max-lr is for task={able}, and this is task={plan.base.task}")
    for placement in plan.placements if not plan.arms else ():
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
    base = plan.arms.get(placement) or replace(plan.base, model=replace(plan.base.model, placement=placement))
    changes: dict[str, Any] = {"stop_when_broken": True}  # not every task has the key
    training = replace(
        base.training,
        lr=rate,
        warmup=warmup,
        **changes,
        probe_every=0,
        valid_every=0,
        patience=0,
        select="last",
        track=(),
    )
    return replace(base, seed=seed, training=training)


@dataclass(kw_only=True)
class Chain:
    """The search of one placement, warm-up and seed.

    Attributes:
        tried: rate -> what its losses say of it, and how the run ended; in the order in which they were trained.
    """

    placement: str
    warmup: int
    seed: int
    tried: dict[float, Row] = field(default_factory=dict)

    def next(self, search: RateSearch) -> float | Boundary:
        return next_rate({rate: trial["verdict"] for rate, trial in self.tried.items()}, search)

    def __str__(self) -> str:
        return f"{self.placement}, {f'warm-up {self.warmup}' if self.warmup else 'no warm-up'}, seed {self.seed}"


def headroom(
    plan: SearchPlan,
    folder: Path,
    engine: "Engine",
    *,
    on_step: Callable[[Chain, float, int, float], None] = lambda *_: None,
    on_trial: Callable[[Chain, Row], None] = lambda *_: None,
    on_note: Callable[[str], None] = lambda line: None,
    retry: bool = False,
) -> Row:
    """Search every chain to its end, round by round; returns what headroom.json says.

    Killed at any moment and called again, it goes on: what was trained answers from disk.

    Args:
        on_step: called with (chain, rate, step, loss) while a run trains.
        on_trial: called with (chain, what stands in its `tried`) when a run has ended, or had before.
        on_note: called with a line for each thing that a user should know of.
        retry: train once more what failed.

    Raises:
        RecipeError, DataError: the recipe or the data cannot be used here; nothing has been written then.
        FileExistsError: the folder holds a search on another text.
        FolderBusyError: another process is at work there.
    """
    from isograd.lab.study.engine.jobs import check_jobs, tasks_of
    from isograd.lab.study.engine.ledger import outcome_in, write_ledger
    from isograd.lab.study.engine.runner import jobs_of, run_cells

    chains = [
        Chain(placement=placement, warmup=warmup, seed=seed)
        for placement in plan.placements
        for warmup in plan.warmups
        for seed in plan.seeds
    ]
    facts = tasks_of([plan.base])[0].facts()
    check_jobs(jobs_of([_cell(plan, chain, first_rate(plan.search)) for chain in chains], folder))
    rows: dict[str, Row] = {}
    with locked(folder):
        while wanted := [(chain, rate) for chain in chains if isinstance(rate := chain.next(plan.search), float)]:
            cells = [_cell(plan, chain, rate) for chain, rate in wanted]

            def tried(i: int, row: Row, verdict: RateVerdict, seconds: float) -> None:
                chain, rate = wanted[i]
                chain.tried[rate] = _trial(rate, row, verdict, seconds)
                on_trial(chain, chain.tried[rate])

            def on_row(i: int, row: Row) -> None:
                place = cells[i].place(folder)  # noqa: B023
                tried(i, row, _verdict(row, place), outcome_in(place).get("seconds") or 0.0)

            def stepped(i: int, step: int, loss: float) -> None:
                on_step(*wanted[i], step, loss)

            found = run_cells(cells, folder, engine, stepped, on_row, retry=retry, on_note=on_note)
            rows |= {row["cell"]: row for row in found}
            for i, cell in enumerate(cells):
                if cell.name not in rows:  # its files are broken: nothing is known of it
                    error = f"{cell.place(folder)} cannot be read"
                    tried(i, {"cell": cell.name, "outcome": "failed", "error": error}, "failed", 0.0)
            write_ledger(folder, list(rows.values()))  # in the order in which they were wanted
            content = _content(plan, chains, facts)
            write_json(folder / HEADROOM, content)
    return content


def _cell(plan: SearchPlan, chain: Chain, rate: float) -> Cell:
    run = run_at(plan, chain.placement, chain.warmup, chain.seed, rate)
    values = dict(zip(AXES, (chain.placement, chain.warmup, rate), strict=True))
    return Cell(run=run, name=run.folder_name(), values=values)


def _trial(rate: float, row: Row, verdict: RateVerdict, seconds: float) -> Row:
    found = {"lr": rate, "verdict": verdict, "cell": row["cell"], "outcome": row["outcome"]}
    found |= {"steps": row.get("steps") or 0, **{key: row.get(key) for key in ("final_loss", "broke_at", "error")}}
    return {name: value for name, value in (found | {"seconds": seconds}).items() if value is not None}


def _verdict(row: Row, folder: Path) -> RateVerdict:
    rows = read_rows(folder / "metrics.jsonl")
    if row["outcome"] == "failed" or not rows:
        return "failed"
    losses = [math.nan if one["loss"] is None else one["loss"] for one in rows]
    rates, broke = [one["lr"] for one in rows], row.get("broke_at") is not None
    unit = read_object(folder / "resolved.json").get("data", {}).get("unit", 1.0)
    return verdict_of(row["outcome"], [loss / unit for loss in losses], rates, row["unigram_entropy"] / unit, broke)


def _content(plan: SearchPlan, chains: Sequence[Chain], facts: Row) -> Row:
    from isograd.lab.train.provenance import provenance

    trials = [trial for chain in chains for trial in chain.tried.values()]
    return {
        "name": plan.name,
        "base": plan.base.as_dict(),
        "placements": plan.placements,
        "warmups": plan.warmups,
        "seeds": plan.seeds,
        "search": asdict(plan.search),
        "data": facts,
        "chains": [_chain(chain, plan.search) for chain in chains],
        "levels": list(_levels(plan, chains)),
        "cost": {
            "runs": len(trials),
            "updates": sum(trial["steps"] for trial in trials),
            "seconds": round(sum(trial["seconds"] for trial in trials), 1),
        },
        "provenance": provenance(),
    }


def _chain(chain: Chain, search: RateSearch) -> Row:
    found = chain.next(search)
    return {
        "placement": chain.placement,
        "warmup": chain.warmup,
        "seed": chain.seed,
        "tried": [trial | {"verdict": _in_place(trial, found)} for trial in chain.tried.values()],
        "boundary": asdict(found) if isinstance(found, Boundary) else None,
    }


def _in_place(trial: Row, found: float | Boundary) -> str:
    """Above a rate that trained none is too small, however slow it looked: more steps would tell."""
    low = found.low if isinstance(found, Boundary) and found.kind == "between" else None
    slow = trial["verdict"] == "slow" and low is not None and trial["lr"] > low
    return "undecided" if slow else str(trial["verdict"])


def _levels(plan: SearchPlan, chains: Sequence[Chain]) -> Iterator[Row]:
    """Over the seeds of each placement and warm-up. An end that is open is None: 0 below, infinite above."""
    for placement in plan.placements:
        for warmup in plan.warmups:
            mine = [c.next(plan.search) for c in chains if (c.placement, c.warmup) == (placement, warmup)]
            level = over_seeds([found for found in mine if isinstance(found, Boundary)])
            yield {"placement": placement, "warmup": warmup, "level": asdict(level) if level else None}

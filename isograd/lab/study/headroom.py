"""The maximum stable learning rate, by placement and warm-up: a chain of short runs each.

FOLDER/
  headroom.json   settings, every chain with each rate tried and what became of it, boundaries, cost
  ledger.jsonl    a row per run
  cells/NAME/     the runs; headroom.json is made of them, so the same command goes on after a kill
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from isograd.files import locked, read_rows, write_json
from isograd.lab.study.boundary import Boundary, RateSearch, RateVerdict, first_rate, next_rate, over_seeds, verdict_of
from isograd.lab.study.engine.jobs import Engine, check_jobs, tasks_of
from isograd.lab.study.engine.ledger import Row, outcome_in, write_ledger
from isograd.lab.study.engine.runner import run_cells
from isograd.lab.study.headroom_plan import AXES, SearchPlan, run_at
from isograd.lab.study.plan import CELLS, Cell
from isograd.lab.train.provenance import provenance

HEADROOM = "headroom.json"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One rate of a chain: what its losses say of it, and how the run ended."""

    lr: float
    verdict: RateVerdict
    cell: str
    outcome: str
    steps: int = 0
    final_loss: float | None = None
    broke_at: int | None = None
    error: str | None = None
    seconds: float = 0.0


@dataclass(kw_only=True)
class Chain:
    """The search of one placement, warm-up and seed; trials in the order they were made."""

    placement: str
    warmup: int
    seed: int
    tried: dict[float, Trial] = field(default_factory=dict)

    def next(self, search: RateSearch) -> float | Boundary:
        return next_rate({rate: trial.verdict for rate, trial in self.tried.items()}, search)

    def __str__(self) -> str:
        return f"{self.placement}, {f'warm-up {self.warmup}' if self.warmup else 'no warm-up'}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Called while a search runs."""

    step: Callable[[Chain, float, int, float], None] = lambda *_: None  # chain, rate, step, loss
    trial: Callable[[Chain, Trial], None] = lambda *_: None  # a run has ended, or had before
    note: Callable[[str], None] = lambda *_: None


def chains_of(plan: SearchPlan) -> list[Chain]:
    """In the order of placements, warm-ups and seeds."""
    return [
        Chain(placement=placement, warmup=warmup, seed=seed)
        for placement in plan.placements
        for warmup in plan.warmups
        for seed in plan.seeds
    ]


def headroom(plan: SearchPlan, folder: Path, engine: Engine, watch: Listener | None = None, retry: bool = False) -> Row:
    """Search every chain to its end, round by round; returns what headroom.json says.

    Killed at any moment and called again, it goes on: what was trained answers from disk.

    Args:
        retry: train once more what failed.

    Raises:
        RecipeError, DataError: the recipe or the data cannot be used here; nothing has been written then.
        FileExistsError: the folder holds a search on another text.
        FolderBusyError: another process is at work there.
    """
    watch = watch or Listener()
    chains = chains_of(plan)
    facts = tasks_of([plan.base])[0].facts()
    first = [_cell(plan, chain, first_rate(plan.search)) for chain in chains]
    check_jobs([(cell.run, folder / CELLS / cell.name) for cell in first])
    rows: dict[str, Row] = {}
    with locked(folder):
        while wanted := [(chain, rate) for chain in chains if isinstance(rate := chain.next(plan.search), float)]:
            _train(plan, wanted, rows, folder, engine, watch, retry)
            write_ledger(folder, list(rows.values()))
            content = _content(plan, chains, facts)
            write_json(folder / HEADROOM, content)
    return content


def _train(
    plan: SearchPlan,
    wanted: Sequence[tuple[Chain, float]],
    rows: dict[str, Row],
    folder: Path,
    engine: Engine,
    watch: Listener,
    retry: bool,
) -> None:
    """One round: the next rate of each chain that has one. Rows are kept in the order in which they were wanted."""
    cells = [_cell(plan, chain, rate) for chain, rate in wanted]

    def on_row(i: int, row: Row) -> None:
        (chain, rate), place = wanted[i], folder / CELLS / cells[i].name
        chain.tried[rate] = _trial(rate, row, place)
        watch.trial(chain, chain.tried[rate])

    def on_step(i: int, step: int, loss: float) -> None:
        watch.step(*wanted[i], step, loss)

    found = run_cells(cells, folder, engine, on_step, on_row, retry=retry, on_note=watch.note)
    rows |= {row["cell"]: row for row in found}
    for (chain, rate), cell in zip(wanted, cells, strict=True):
        if rate not in chain.tried:  # its files are broken: nothing is known of it
            error = f"{folder / CELLS / cell.name} cannot be read"
            chain.tried[rate] = Trial(lr=rate, verdict="failed", cell=cell.name, outcome="failed", error=error)
            watch.trial(chain, chain.tried[rate])


def _cell(plan: SearchPlan, chain: Chain, rate: float) -> Cell:
    run = run_at(plan, chain.placement, chain.warmup, chain.seed, rate)
    return Cell(
        run=run, name=run.folder_name(), values=dict(zip(AXES, (chain.placement, chain.warmup, rate), strict=True))
    )


def _trial(rate: float, row: Row, folder: Path) -> Trial:
    return Trial(
        lr=rate,
        verdict=_verdict(row, folder),
        cell=row["cell"],
        outcome=row["outcome"],
        steps=row.get("steps") or 0,
        final_loss=row.get("final_loss"),
        broke_at=row.get("broke_at"),
        error=row.get("error"),
        seconds=outcome_in(folder).get("seconds") or 0.0,
    )


def _verdict(row: Row, folder: Path) -> RateVerdict:
    rows = read_rows(folder / "metrics.jsonl")
    if row["outcome"] == "failed" or not rows:
        return "failed"
    losses = [math.nan if one["loss"] is None else one["loss"] for one in rows]
    rates, broke = [one["lr"] for one in rows], row.get("broke_at") is not None
    return verdict_of(row["outcome"], losses, rates, row["unigram_entropy"], broke)


def _content(plan: SearchPlan, chains: Sequence[Chain], facts: Row) -> Row:
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
            "updates": sum(trial.steps for trial in trials),
            "seconds": round(sum(trial.seconds for trial in trials), 1),
        },
        "provenance": provenance(),
    }


def _chain(chain: Chain, search: RateSearch) -> Row:
    found = chain.next(search)
    trials = [asdict(trial) | {"verdict": _in_place(trial, found)} for trial in chain.tried.values()]
    return {
        "placement": chain.placement,
        "warmup": chain.warmup,
        "seed": chain.seed,
        "tried": [{name: value for name, value in trial.items() if value is not None} for trial in trials],
        "boundary": asdict(found) if isinstance(found, Boundary) else None,
    }


def _in_place(trial: Trial, found: float | Boundary) -> RateVerdict:
    """Above a rate that trained none is too small, however slow it looked: more steps would tell."""
    low = found.low if isinstance(found, Boundary) and found.kind == "between" else None
    return "undecided" if low is not None and trial.verdict == "slow" and trial.lr > low else trial.verdict


def _levels(plan: SearchPlan, chains: Sequence[Chain]) -> Iterator[Row]:
    """Over the seeds of each placement and warm-up. An end that is open is None: 0 below, infinite above."""
    for placement in plan.placements:
        for warmup in plan.warmups:
            mine = [c.next(plan.search) for c in chains if (c.placement, c.warmup) == (placement, warmup)]
            level = over_seeds([found for found in mine if isinstance(found, Boundary)])
            yield {"placement": placement, "warmup": warmup, "level": asdict(level) if level else None}

"""How long cells take here: measured once per shape on short runs, and kept beside the study."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from isograd.errors import RecipeError
from isograd.files import read_json, write_json
from isograd.lab.study.engine.jobs import Engine
from isograd.lab.study.engine.ledger import outcome_in
from isograd.lab.study.faults import fault
from isograd.lab.study.labels import flat
from isograd.lab.study.plan import CELLS, Cell, Study, with_cells
from isograd.lab.train.run import Run, with_steps

SPEEDS = "speeds.json"
STEPS = 40  # of a measurement; the median of its tens counts
ROUNDS = 3
FREE = (  # keys on which the time of an update does not depend
    "name",
    "seed",
    "data.seed",
    "model.init",
    "model.initializer_range",
    *(f"training.{key}" for key in ("steps", "epochs", "lr", "warmup", "first", "warmup_from", "decay", "decay_to")),
    *(f"training.{key}" for key in ("decay_at", "power", "betas", "eps", "weight_decay", "clip", "valid_every")),
    *(f"training.{key}" for key in ("checkpoint_every", "stop_when_broken", "patience", "select", "average")),
)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds per update, and those that a run takes beside its updates: building, validation, writing."""

    update: float
    beside: float

    def of(self, steps: int) -> float:
        return self.beside + steps * self.update


def shape_of(run: Run) -> str:
    """What tells apart runs whose updates take different times."""
    return json.dumps({key: value for key, value in flat(run.as_dict()) if key not in FREE})


def known(cells: Sequence[Cell], folder: Path) -> dict[str, Speed]:
    """By shape: from the cells that have ended, else as they were measured before."""
    found = _kept(folder)
    seen: dict[str, list[Speed]] = {}
    for cell in cells:
        place = folder / CELLS / cell.name
        outcome = outcome_in(place) if fault(place, rows=False) is None else {}
        speed = speed_of(cell.run, outcome)
        if speed is not None and outcome["outcome"] in ("finished", "undecided"):
            seen.setdefault(shape_of(cell.run), []).append(speed)
    return found | {shape: _median(speeds) for shape, speeds in seen.items()}


def measured(
    cells: Sequence[Cell], folder: Path, engine: Engine, on_measured: Callable[[int, int], None], ended: bool = True
) -> dict[str, Speed]:
    """By shape of the cells, those that are not known measured by short runs on the study's own engine.

    Each shape is trained in turn, several times, so that a moment's load falls on all alike; the median counts. What
    was measured is kept in speeds.json.

    Args:
        on_measured: called with how many of how many runs have ended.
        ended: take the speeds of cells that have ended, where there are any. Not for a budget in seconds, of which the
            number of updates must stay as it is.

    Raises:
        RecipeError: a shape cannot be trained; with its error.
    """
    speeds = known(cells, folder) if ended else _kept(folder)
    shapes = {shape_of(cell.run): cell.run for cell in cells}
    missing = {shape: run for shape, run in shapes.items() if shape not in speeds}
    if not missing:
        return speeds
    taken: dict[str, list[Speed]] = {}
    total, done = ROUNDS * len(missing), 0
    with TemporaryDirectory() as scratch:
        order = [(shape, _short(run)) for _ in range(ROUNDS) for shape, run in missing.items()]

        def on_end(i: int, outcome: dict[str, Any]) -> None:
            nonlocal done
            shape, run = order[i]
            speed = speed_of(run, outcome)
            if speed is None:
                why = outcome.get("error", outcome["outcome"])
                raise RecipeError(f"{run.model.placement} cannot be timed: {why}")
            taken.setdefault(shape, []).append(speed)
            done += 1
            on_measured(done, total)

        jobs = {i: (run, Path(scratch) / str(i)) for i, (_, run) in enumerate(order)}
        engine(jobs, lambda *_: None, on_end)
    found = {shape: _median(of) for shape, of in taken.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SPEEDS, {shape: vars(speed) for shape, speed in (_kept(folder) | found).items()})
    return speeds | found


def speed_of(run: Run, outcome: Mapping[str, Any]) -> Speed | None:
    """From how a run ended; None where it took no step."""
    rate, steps = outcome.get("tokens_per_second"), outcome.get("steps")
    if not rate or not steps or "seconds" not in outcome:
        return None
    update = run.tokens_per_update / rate
    return Speed(update=update, beside=max(0.0, outcome["seconds"] - steps * update))


def seconds_of(cells: Sequence[Cell], speeds: Mapping[str, Speed], workers: int = 1) -> float:
    """What cells take together on so many workers."""
    return sum(speeds[shape_of(cell.run)].of(cell.run.training.steps) for cell in cells) / workers


def with_seconds(study: Study, speeds: Mapping[str, Speed]) -> Study:
    """The study with the updates that a budget in seconds pays for at these speeds."""
    if study.budget is None or study.budget.unit != "seconds":
        return study
    seconds = study.budget.amount

    def paid(run: Run) -> Run:
        return with_steps(run, max(1, math.floor(seconds / speeds[shape_of(run)].update)))

    return with_cells(study, paid)


def _short(run: Run) -> Run:
    t = replace(run.training, steps=STEPS, warmup=0, warmup_from=0.0, decay="constant", decay_to=0.0, decay_at=0)
    whole: dict[str, Any] = {"stop_when_broken": False} if t.stop_when_broken else {}  # not every task has the key
    return replace(run, training=replace(t, power=1.0, checkpoint_every=0, **whole))


def _median(speeds: Sequence[Speed]) -> Speed:
    return Speed(
        update=statistics.median(one.update for one in speeds),
        beside=statistics.median(one.beside for one in speeds),
    )


def _kept(folder: Path) -> dict[str, Speed]:
    """What stands in speeds.json; of a damaged file nothing, and all is measured again."""
    try:
        speeds = {shape: Speed(**kept) for shape, kept in read_json(folder / SPEEDS).items()}
        whole = all(0 < one.update < math.inf and 0 <= one.beside < math.inf for one in speeds.values())
    except (OSError, ValueError, TypeError, AttributeError):  # also other names, or no numbers
        return {}
    return speeds if whole else {}

"""Trains the cells of a study that have not ended, whatever happened before, and keeps the ledger."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isograd.files import append_rows, is_locked
from isograd.lab.study.engine.jobs import Engine, Job, OnStep
from isograd.lab.study.engine.ledger import LEDGER, Row, damage, outcome_in, row_of, state_of, write_ledger
from isograd.lab.study.plan import Cell
from isograd.lab.train.train import tidy
from isograd.outcome import ENDED

OnRow = Callable[[int, Row], None]
OnNote = Callable[[str], None]
PAUSE = 1.0  # seconds between looks at cells that another process is at work at
ASIDE = "broken"  # where broken cells are moved to, beside the others


def jobs_of(cells: Sequence[Cell], folder: Path) -> list[Job]:
    """Each cell's run, and its folder."""
    return [(cell.run, cell.place(folder)) for cell in cells]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a study's folder holds.

    Attributes:
        rows: of the cells that have ended, or failed, by their place.
        todo: places of the cells that are to be trained.
        broken: places of those whose files are not what a run writes, and what is wrong.
        notes: a line for each thing that a user should know of.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    todo: list[int] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def survey(cells: Sequence[Cell], folder: Path, retry: bool = False) -> Survey:
    """What has ended, and what is to be trained; with `retry` also cells that failed or are broken. Writes nothing."""
    found = Survey()
    for i, cell in enumerate(cells):
        place = cell.place(folder)
        state, note = state_of(cell, place)
        if state == "broken":
            found.broken[i] = str(note)
        if note:
            found.notes.append(note)
        if state == "ended" or (state == "failed" and not retry):
            found.rows[i] = row_of(cell, outcome_in(place))
        elif state != "broken" or retry:
            found.todo.append(i)
    found.notes.extend(f"{line}; the ledger is made again from the cells" for line in damage(folder))
    return found


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    engine: Engine,
    on_step: OnStep,
    on_row: OnRow,
    *,
    retry: bool = False,
    keep_models: bool = False,
    on_note: OnNote = lambda line: None,
    on_ready: Callable[[int], None] = lambda left: None,
) -> list[Row]:
    """Train what has not ended, and give the rows of the ledger in the order of the cells.

    Killed at any moment and called again, it goes on to the same rows. Broken cells are reported and left as they are.
    Cells that another process is at work at are waited for.

    Args:
        on_step: called with (place of the cell, step, loss) while a cell trains.
        on_row: called with (place, row) for each cell that has ended, those of before first.
        retry: train failed cells once more, and broken ones from the start, their files moved into `cells/broken`.
        keep_models: keep the trained weights, which are most of what a small run writes.
        on_note: called with a line for each thing that a user should know of.
        on_ready: called with how many cells are to be trained, if there are any, before the first one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = survey(cells, folder, retry)
    for line in found.notes:
        on_note(line)
    if retry:
        for i in found.broken:
            _move_aside(cells[i].place(folder))
    rows = found.rows
    for i, row in rows.items():
        if row["outcome"] in ENDED:
            tidy(cells[i].place(folder), everything=not keep_models)  # the last kill may have come before this
        on_row(i, row)
    write_ledger(folder, [rows[i] for i in sorted(rows)])
    if found.todo:
        on_ready(len(found.todo))

    def on_end(i: int, outcome: Row) -> None:
        if outcome["outcome"] == "interrupted":
            return
        rows[i] = row_of(cells[i], outcome)
        if not keep_models:
            shutil.rmtree(cells[i].place(folder) / "model", ignore_errors=True)
            if outcome["outcome"] in ENDED:
                tidy(cells[i].place(folder), everything=True)
        append_rows(folder / LEDGER, [rows[i]])
        on_row(i, rows[i])

    jobs = jobs_of(cells, folder)
    while left := {i: jobs[i] for i in found.todo if i not in rows}:
        if free := {i: job for i, job in left.items() if not is_locked(job[1])}:
            engine(free, on_step, on_end)
        else:
            time.sleep(PAUSE)
    in_order = [rows[i] for i in sorted(rows)]
    write_ledger(folder, in_order)
    return in_order


def _move_aside(cell: Path) -> None:
    """Nothing is lost: beside what was broken before."""
    into = cell.parent / ASIDE
    into.mkdir(exist_ok=True)
    taken = {path.name for path in into.iterdir()}
    name = next(name for i in range(1, len(taken) + 2) if (name := f"{cell.name}-{i}") not in taken)
    cell.rename(into / name)

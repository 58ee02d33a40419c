"""What became of the cells: their states on disk, and the ledger, a row per ended cell.

STUDY/
  study.json      axes, seeds, budget, the recipe, and the name of every cell
  ledger.jsonl    a row per ended cell, in the order of study.json; nothing in it depends on how fast a machine was
  cells/NAME/     the run's own files; the ledger is made of them, and made again where it is damaged
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from isograd.files import finite, read_json, read_object, read_rows, write_json, write_text
from isograd.lab.study.faults import fault
from isograd.lab.study.plan import Cell, Study
from isograd.lab.train.checkpoints import last_checkpoint
from isograd.outcome import ENDED

Row = dict[str, Any]
State = Literal["new", "begun", "failed", "broken", "ended"]

LEDGER, STUDY = "ledger.jsonl", "study.json"
NUMBERS = (
    "reason",
    "steps",
    "final_loss",
    "validation_loss",
    "perplexity",
    "bleu",
    "score",
    "metric",
    "majority",
    "broke_at",
    "lr_reached",
    "kept_weights",
    "kept_steps",
    "unigram_entropy",
    "unigram_loss",
    "gradient_ratio_start",
    "gradient_ratio_end",
    "parameters",
    "warning",
    "error",
)


def row_of(cell: Cell, outcome: Mapping[str, Any]) -> Row:
    """A cell's row of the ledger; losses in nats, None where there is none."""
    known = {name: outcome[name] for name in NUMBERS if name in outcome}
    return {
        "cell": cell.name,
        "values": cell.values,
        "seed": cell.run.seed,
        "outcome": outcome["outcome"],
        **finite(known),
    }


def write_study(study: Study, folder: Path, threads: int) -> None:
    """study.json, from which a report knows what belongs together."""
    budget = {study.budget.unit: study.budget.amount} if study.budget else None
    content = {
        "name": study.name,
        "axes": study.axes,
        **({"grids": study.grids} if study.grids else {}),
        "seeds": study.seeds,
        "budget": budget,
        "threads": threads,
        "base": study.base.as_dict(),
        "cells": [{"cell": cell.name, "values": cell.values, "seed": cell.run.seed} for cell in study.cells],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STUDY, content)


def write_ledger(folder: Path, rows: Sequence[Row]) -> None:
    """These rows, and after them those of other cells that were there: of other shards, of an earlier recipe.

    A ledger that says this already is left alone.
    """
    path = folder / LEDGER
    mine = {row["cell"] for row in rows}
    others = [row for row, _ in _lines(path) if row is not None and row["cell"] not in mine]
    text = "".join(json.dumps(row) + "\n" for row in [*rows, *others])
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)


def forget(folder: Path, cells: Collection[str]) -> None:
    """Take the rows of these cells out: they are trained anew."""
    if (path := folder / LEDGER).exists():
        kept = [row for row, _ in _lines(path) if row is not None and row["cell"] not in cells]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))


def damage(folder: Path) -> list[str]:
    """What is wrong with the ledger, a line for each row that cannot be read; a last one cut off by a kill is none."""
    path = folder / LEDGER
    return [f"{path}, line {i}: not a row" for i, (row, whole) in enumerate(_lines(path), 1) if row is None and whole]


def _lines(path: Path) -> Iterator[tuple[Row | None, bool]]:
    """Each line's row, None where it is none, and whether the line has ended."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for i, line in enumerate(lines, start=1):
        if line or i < len(lines):
            yield _row(line), i < len(lines)


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    right = isinstance(row, dict) and isinstance(row.get("cell"), str) and isinstance(row.get("outcome"), str)
    return row if right else None


def state_of(cell: Cell, folder: Path) -> tuple[State, str | None]:
    """How far a cell has come in its folder, and what is to be said of it.

    "broken": files that are not what a run writes, or of another run; nothing is trained there.
    """
    if not (folder / "run.json").exists() and not (folder / "outcome.json").exists():
        return "new", None
    wrong = fault(folder, rows=False) or _of_another(cell, folder)
    if wrong:
        return "broken", wrong
    outcome = outcome_in(folder).get("outcome")
    if outcome in ENDED:
        return "ended", None
    if outcome == "failed":
        return "failed", None
    if wrong := fault(folder):  # what it would go on from
        return "broken", wrong
    trained = read_rows(folder / "metrics.jsonl")
    every = cell.run.training.checkpoint_every
    if every and len(trained) > every and last_checkpoint(folder / "checkpoints") is None:
        return "begun", f"{folder}: no complete checkpoint is left of {len(trained)} steps; it begins anew"
    return "begun", None


def outcome_in(folder: Path) -> Row:
    """outcome.json, {} where there is none."""
    return read_object(folder / "outcome.json")


def _of_another(cell: Cell, folder: Path) -> str | None:
    there = read_json(folder / "run.json")
    same = {**there, "name": None} == {**cell.run.as_dict(), "name": None}
    return None if same else f"{folder} holds a run of another recipe"

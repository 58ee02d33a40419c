"""Studies that train in seconds."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from isograd.lab.study.engine.jobs import in_this_process
from isograd.lab.study.engine.ledger import LEDGER, Row
from isograd.lab.study.engine.runner import run_cells
from isograd.lab.study.plan import Cell, Study, load_study

AXES = {"model.placement": ["post-ln", "pre-ln"], "training.lr": [1e-3, 3e-3]}


def content(text: Path | str = "embedded", **changes: Any) -> dict[str, Any]:
    """A recipe of eight cells of two small layers; `changes` are top-level keys, sections merged."""
    whole: dict[str, Any] = {
        "name": "tiny",
        "model": {"layers": 2, "width": 16, "heads": 2},
        "data": {"source": str(text), "length": 8},
        "training": {"batch": 4, "valid_sequences": 4, "probe_every": 5, "checkpoint_every": 4},
        "axes": deepcopy(AXES),
        "seeds": [1, 2],
        "budget": {"steps": 6},
    }
    for key, value in changes.items():
        merged = key in ("model", "data", "training")
        whole[key] = {**whole[key], **value} if merged else value
    return {key: value for key, value in whole.items() if value is not None}


def recipe(folder: Path, *, text: Path | str = "embedded", file: str = "recipe.yaml", **changes: Any) -> Path:
    """`content` as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    path.write_text(yaml.safe_dump(content(text, **changes), sort_keys=False))
    return path


def study(folder: Path, *overrides: str, text: Path | str = "embedded", **changes: Any) -> Study:
    return load_study(recipe(folder, text=text, **changes), overrides)


class Told:
    """What a runner says while it works."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.rows: list[int] = []
        self.notes: list[str] = []

    def step(self, place: int, step: int, loss: float) -> None:
        self.steps.append((place, step))

    def row(self, place: int, row: Row) -> None:
        self.rows.append(place)

    @property
    def trained(self) -> set[int]:
        """Places of the cells of which a step was told."""
        return {place for place, _ in self.steps}


def ran(cells: list[Cell], folder: Path, told: Told | None = None, **options: Any) -> list[Row]:
    """The rows of `run_cells` of `run_cells`."""
    told = told or Told()
    engine = options.pop("engine", in_this_process)
    return run_cells(cells, folder, engine, told.step, told.row, on_note=told.notes.append, **options)


def ledger(folder: Path) -> bytes:
    return (folder / LEDGER).read_bytes()

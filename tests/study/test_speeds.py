"""What runs take: measured once per shape, kept, and turned into updates."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from isograd.errors import RecipeError
from isograd.files import write_json
from isograd.lab.study.engine.jobs import Job, OnEnd, OnStep, in_this_process
from isograd.lab.study.plan import Study
from isograd.lab.study.speeds import SPEEDS, Speed, known, measured, seconds_of, shape_of, speed_of, with_seconds
from tests.study.arms import read
from tests.study.tiny_study import ran, study

DEPTHS = {"model.layers": [2, 8], "training.lr": [1e-3, 3e-3]}


def shapes(folder: Path, *overrides: str, **axes: list[Any]) -> int:
    """How many shapes the cells of these axes have."""
    given = {key.replace("__", "."): values for key, values in axes.items()}
    return len({shape_of(cell.run) for cell in study(folder, *overrides, axes=given).cells})


def test_a_shape_is_what_takes_another_time(tmp_path: Path) -> None:
    for alike in (
        {"training__lr": [1e-3, 1e-2], "training__betas": [[0.9, 0.98], [0.9, 0.999]]},
        {"training__warmup": [0, 3], "training__decay": ["constant", "cosine"]},
        {"training__weight_decay": [0.0, 0.1], "training__eps": [1e-8, 1e-6], "training__clip": [0.0, 1.0]},
        {"data__seed": [None, 4], "model__initializer_range": [0.02, 0.01]},
    ):
        assert shapes(tmp_path, **alike) == 1, alike
    for other in (
        {"training__batch": [2, 4]},
        {"model__placement": ["post-ln", "pre-ln"]},
        {"model__layers": [2, 3]},
        {"model__width": [16, 32]},
        {"data__length": [8, 9]},
        {"training__optimizer": ["adam", "sgd"]},
        {"training__precision": ["fp32", "bf16"]},
        {"training__probe_every": [0, 1]},
        {"model__dropout": [0.0, 0.1]},
    ):
        assert shapes(tmp_path, **other) == 2, other


class Counting:
    """The engine `here`, and how many jobs it was given."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
        self.jobs += jobs.values()
        in_this_process(jobs, on_step, on_end)


@pytest.fixture(scope="module")
def timed(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Counting, dict[str, Speed]]:
    """A study of two shapes with a budget in seconds, measured."""
    base = tmp_path_factory.mktemp("speeds")
    planned = study(base, text=text, axes=DEPTHS, seeds=[1, 2], budget={"seconds": 0.1})
    engine, told = Counting(), list[tuple[int, int]]()
    speeds = measured(planned.cells, base / "study", engine, lambda *counts: told.append(counts), ended=False)
    assert told == [(i, 6) for i in range(1, 7)]
    return planned, base / "study", engine, speeds


Timed = tuple[Study, Path, Counting, dict[str, Speed]]


def test_each_shape_is_measured_once_in_turn(timed: Timed) -> None:
    planned, folder, engine, speeds = timed
    assert [run.model.layers for run, _ in engine.jobs] == [2, 8] * 3  # a moment's load falls on both
    assert len({place for _, place in engine.jobs}) == 6 and not any(place.exists() for _, place in engine.jobs)
    assert set(speeds) == {shape_of(cell.run) for cell in planned.cells} and len(speeds) == 2
    assert [path.name for path in folder.iterdir()] == [SPEEDS]
    assert read(folder / SPEEDS) == {shape: vars(speed) for shape, speed in speeds.items()}
    for speed in speeds.values():
        assert 0 < speed.update < math.inf and 0 <= speed.beside < math.inf
        assert speed.of(10) == pytest.approx(speed.beside + 10 * speed.update)


def _no_engine(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
    raise AssertionError("something is measured again")


def _untold(done: int, total: int) -> None:
    raise AssertionError("nothing is measured")


def test_not_measured_again(timed: Timed) -> None:
    planned, folder, _, speeds = timed
    before = (folder / SPEEDS).stat().st_mtime_ns
    for ended in (True, False):
        assert measured(planned.cells, folder, _no_engine, _untold, ended=ended) == speeds
    assert (folder / SPEEDS).stat().st_mtime_ns == before


def _cut(content: str) -> str:
    return content[: len(content) // 2]


def _garbage(content: str) -> str:
    return "\0\1"


def _list(content: str) -> str:
    return "[1, 2]"


def _numbers(content: str) -> str:
    return json.dumps(dict.fromkeys(json.loads(content), 3))


def _texts(content: str) -> str:
    return json.dumps({shape: {"update": "fast", "beside": 0.1} for shape in json.loads(content)})


def _nulls(content: str) -> str:
    return json.dumps({shape: {"update": None, "beside": None} for shape in json.loads(content)})


def _zeros(content: str) -> str:
    return json.dumps({shape: {"update": 0.0, "beside": 0.0} for shape in json.loads(content)})


def _other_names(content: str) -> str:
    return json.dumps({shape: {"step": 1.0, "beside": 0.1} for shape in json.loads(content)})


@pytest.mark.parametrize("damage", [_cut, _garbage, _list, _numbers, _texts, _nulls, _zeros, _other_names])
def test_a_damaged_file_is_measured_anew(timed: Timed, tmp_path: Path, damage: Callable[[str], str]) -> None:
    planned, folder, _, _ = timed
    (tmp_path / SPEEDS).write_text(damage((folder / SPEEDS).read_text()))
    assert known(planned.cells, tmp_path) == {}
    (tmp_path / SPEEDS).unlink()
    assert known(planned.cells, tmp_path) == {}


def test_measured_again_where_it_was_damaged(timed: Timed, tmp_path: Path) -> None:
    planned, folder, _, speeds = timed
    kept = read(folder / SPEEDS)
    lost = shape_of(planned.cells[0].run)
    (tmp_path / SPEEDS).write_text(json.dumps({**kept, lost: 3}))
    engine = Counting()
    found = measured(planned.cells, tmp_path, engine, lambda *_: None)
    assert [run.model.layers for run, _ in engine.jobs] == [2, 8] * 3
    assert set(found) == set(speeds)
    assert measured(planned.cells, tmp_path, _no_engine, _untold) == found


def test_seconds_buy_more_updates_of_a_smaller_model(timed: Timed) -> None:
    planned, _, _, _ = timed
    updates = {2: 0.0095, 8: 0.03}
    speeds = {
        shape_of(cell.run): Speed(update=updates[cell.values["model.layers"]], beside=0.2) for cell in planned.cells
    }
    paid = with_seconds(planned, speeds)  # of 0.1 seconds each
    assert {cell.values["model.layers"]: cell.run.training.steps for cell in paid.cells} == {2: 10, 8: 3}
    assert len({cell.name for cell in paid.cells}) == 8
    assert not {cell.name for cell in paid.cells} & {cell.name for cell in planned.cells}
    assert [cell.values for cell in paid.cells] == [cell.values for cell in planned.cells]
    assert seconds_of(paid.cells, speeds, workers=2) == pytest.approx(
        sum(speeds[shape_of(cell.run)].of(cell.run.training.steps) for cell in paid.cells) / 2
    )


def test_a_budget_that_pays_for_no_update_pays_for_one(timed: Timed) -> None:
    planned, _, _, speeds = timed
    slow = {shape: Speed(update=1e6, beside=0.0) for shape in speeds}
    assert {cell.run.training.steps for cell in with_seconds(planned, slow).cells} == {1}


def test_other_budgets_stay(text: Path, tmp_path: Path) -> None:
    planned = study(tmp_path, text=text)
    assert with_seconds(planned, {}) is planned


def test_the_same_updates_once_cells_have_ended(timed: Timed) -> None:
    """Else a study in seconds would never end: each call would have other cells."""
    planned, folder, _, speeds = timed
    paid = with_seconds(planned, speeds)
    rows = ran(paid.cells[:1], folder)
    assert rows[0]["outcome"] in ("finished", "undecided") and rows[0]["steps"] == paid.cells[0].run.training.steps
    path = folder / "cells" / paid.cells[0].name / "outcome.json"
    path.write_text(json.dumps({**read(path), "outcome": "finished", "tokens_per_second": 7.0}))
    again = with_seconds(planned, measured(planned.cells, folder, _no_engine, _untold, ended=False))
    assert [cell.name for cell in again.cells] == [cell.name for cell in paid.cells]
    seen = known(paid.cells, folder)  # an estimate of the time that is left takes what was seen
    shape = shape_of(paid.cells[0].run)
    assert seen[shape].update == pytest.approx(4 * 8 / 7)
    assert {key: speed for key, speed in seen.items() if key != shape} == {
        key: speed for key, speed in speeds.items() if key != shape
    }


@pytest.mark.parametrize(
    "outcome", ["", "[]", "{", "3", '{"tokens_per_second": 5, "steps": 3, "seconds": 1}', '{"outcome": "finished"}']
)
def test_damaged_outcomes_tell_no_speed(timed: Timed, tmp_path: Path, outcome: str) -> None:
    planned = timed[0]
    place = tmp_path / "cells" / planned.cells[0].name
    place.mkdir(parents=True)
    write_json(place / "run.json", planned.cells[0].run.as_dict())
    (place / "outcome.json").write_text(outcome)
    assert known(planned.cells, tmp_path) == {}


def test_what_an_outcome_tells(timed: Timed) -> None:
    run = timed[0].cells[0].run  # 32 tokens per update
    outcome = {"tokens_per_second": 64.0, "steps": 10, "seconds": 7.5}
    assert speed_of(run, outcome) == Speed(update=0.5, beside=2.5)
    assert speed_of(run, {**outcome, "seconds": 4.0}) == Speed(update=0.5, beside=0.0)
    for lost in outcome:
        assert speed_of(run, {key: value for key, value in outcome.items() if key != lost}) is None
    assert speed_of(run, {**outcome, "tokens_per_second": None}) is None


def test_what_cannot_be_timed(text: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone.txt"
    planned = study(tmp_path, text=gone)
    with pytest.raises(RecipeError, match=r"post-ln cannot be timed: .*gone\.txt"):
        measured(planned.cells, tmp_path / "study", in_this_process, lambda *_: None)
    assert not (tmp_path / "study").exists()

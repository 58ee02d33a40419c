"""What `run_cells` trains, and what it leaves alone, whatever it finds in a study's folder."""

import json
import multiprocessing as mp
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from isograd.files import locked
from isograd.lab.study.engine.jobs import Job, OnEnd, OnStep, check_jobs, in_this_process
from isograd.lab.study.engine.ledger import LEDGER, Row, write_study
from isograd.lab.study.engine.runner import PAUSE, jobs_of, run_cells, survey
from isograd.lab.study.engine.workers import in_processes, local
from isograd.lab.study.plan import Cell, Study
from isograd.machine import cores
from isograd.placement import Norm, Placement, Residual, Site, register
from tests.build import few, in_turn
from tests.study.arms import TEXT, lines, read
from tests.study.tiny_study import Told, ledger, ran, study

AXES = {"training.lr": [1e-3, 1e30]}  # the second diverges
SMALL: dict[str, Any] = {"axes": AXES, "budget": {"steps": 25}, "training": {"checkpoint_every": 10}}
TOLD = [(0, 10), (0, 20), (0, 25)]  # of the first cell; its tens and its end
STOPPED_AT = 20  # ten behind a checkpoint


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A study that nothing has disturbed, and the same one stopped in the middle of its first cell."""

    study: Study
    folder: Path
    stopped: Path
    rows: list[Row]

    @property
    def cells(self) -> list[Cell]:
        return self.study.cells

    def place(self, folder: Path, i: int = 0) -> Path:
        return folder / "cells" / self.cells[i].name


@pytest.fixture(scope="module")
def plain(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    base = tmp_path_factory.mktemp("plain")
    planned = study(base, text=text, **SMALL)
    folder, stopped = base / "study", base / "stopped"
    rows = ran(planned.cells, folder)
    found = Trained(study=planned, folder=folder, stopped=stopped, rows=rows)
    shutil.copytree(folder, stopped)
    shutil.rmtree(found.place(stopped))
    (stopped / LEDGER).unlink()
    with pytest.raises(KeyboardInterrupt):
        run_cells(planned.cells, stopped, in_this_process, _interrupt, lambda *_: None)
    (found.place(stopped) / "outcome.json").unlink()  # a kill would have left none
    return found


def _interrupt(place: int, step: int, loss: float) -> None:
    if step == STOPPED_AT:
        raise KeyboardInterrupt


@pytest.fixture
def folder(plain: Trained, tmp_path: Path) -> Path:
    """A copy of the study that has ended, to be damaged."""
    return _copy(plain.folder, tmp_path)


@pytest.fixture
def stopped(plain: Trained, tmp_path: Path) -> Path:
    """A copy of the study that was stopped."""
    return _copy(plain.stopped, tmp_path)


def _copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy"))


def whole(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: when it was changed, and what stands in it."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def test_a_row_says_what_the_outcome_says(plain: Trained) -> None:
    assert [row["cell"] for row in plain.rows] == [cell.name for cell in plain.cells]
    assert [row["outcome"] for row in plain.rows] == ["undecided", "diverged"] * 2
    assert lines(plain.folder / LEDGER) == plain.rows
    for row, cell in zip(plain.rows, plain.cells, strict=True):
        outcome = read(plain.folder / "cells" / cell.name / "outcome.json")
        assert row["values"] == cell.values == {"training.lr": cell.run.training.lr} and row["seed"] == cell.run.seed
        for name in ("outcome", "final_loss", "validation_loss", "unigram_entropy", "parameters", "warning"):
            assert row[name] == outcome[name], name
        assert row["steps"] == len(lines(plain.folder / "cells" / cell.name / "metrics.jsonl"))
        assert not {"seconds", "tokens_per_second", "provenance"} & set(row)  # another machine, another ledger
    assert [row["steps"] for row in plain.rows] == [25, 10] * 2  # it looks every ten steps
    assert len({json.dumps(row["final_loss"]) for row in plain.rows}) == 3  # null of both that diverged


def test_the_second_call_changes_nothing(plain: Trained, folder: Path) -> None:
    before, told = whole(folder), Told()
    for retry in (False, True):
        assert ran(plain.cells, folder, told, retry=retry) == plain.rows
        assert whole(folder) == before
    assert (told.steps, told.rows, told.notes) == ([], [0, 1, 2, 3] * 2, [])  # one that diverged is a result


def test_only_new_cells_are_trained(plain: Trained, folder: Path, text: Path, tmp_path: Path) -> None:
    more = study(tmp_path, "seeds=[1,5,2]", "training.lr=[1e-3]", text=text, **SMALL)
    told = Told()
    rows = ran(more.cells, folder, told)
    assert told.trained == {1} and told.rows == [0, 2, 1]
    assert [rows[0], rows[2]] == plain.rows[::2] and rows[1]["seed"] == 5
    others = [row for row in plain.rows if row["outcome"] == "diverged"]
    assert lines(folder / LEDGER) == [*rows, *others]  # of the recipe as it was: nothing is lost
    assert ran(plain.cells, folder) == plain.rows
    assert lines(folder / LEDGER) == [*plain.rows, rows[1]]


def test_study_json(plain: Trained, tmp_path: Path) -> None:
    write_study(plain.study, tmp_path / "new", 3)
    content = read(tmp_path / "new/study.json")
    assert list(content) == ["name", "axes", "seeds", "budget", "threads", "base", "cells"]
    assert (content["name"], content["axes"], content["seeds"]) == ("tiny", AXES, [1, 2])
    assert (content["budget"], content["threads"]) == ({"steps": 25}, 3)
    assert content["base"] == plain.study.base.as_dict()
    assert content["cells"] == [{key: row[key] for key in ("cell", "values", "seed")} for row in plain.rows]


def test_it_goes_on_from_the_checkpoint(plain: Trained, stopped: Path) -> None:
    told = Told()
    assert lines(stopped / LEDGER) == plain.rows[1:]
    assert ran(plain.cells, stopped, told) == plain.rows
    assert told.steps == TOLD[1:] and told.rows == [1, 2, 3, 0] and told.notes == []
    assert ledger(stopped) == ledger(plain.folder)


@pytest.mark.parametrize("after", [False, True])
def test_killed_around_the_writing_of_an_outcome(
    plain: Trained, stopped: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Neither costs the steps that were trained, and no checkpoints are left."""
    for name in ("_write_outcome", "tidy")[after:]:
        monkeypatch.setattr(f"isograd.lab.train.train.{name}", lambda *_: os._exit(9))
    runner = mp.get_context("fork").Process(target=ran, args=(plain.cells, stopped))
    runner.start()
    runner.join()
    assert runner.exitcode == 9 and (plain.place(stopped) / "outcome.json").exists() == after
    assert (plain.place(stopped) / "checkpoints/checkpoint-20/sealed.json").exists()
    monkeypatch.undo()
    told = Told()
    assert ran(plain.cells, stopped, told) == plain.rows
    assert told.steps == told.notes == []
    assert not list(stopped.glob("cells/*/checkpoints"))
    assert ledger(stopped) == ledger(plain.folder)


def _drop(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def _cut(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _unseal(checkpoint: Path) -> None:
    (checkpoint / "sealed.json").unlink()


def _half_seal(checkpoint: Path) -> None:
    (checkpoint / "sealed.json").write_text('{"model.saf')


@pytest.mark.parametrize("damage", few([_drop, _cut, _unseal, _half_seal], [_cut]))
def test_a_missing_or_broken_checkpoint(plain: Trained, stopped: Path, damage: Callable[[Path], None]) -> None:
    damage(plain.place(stopped) / "checkpoints/checkpoint-10")
    told = Told()
    assert ran(plain.cells, stopped, told) == plain.rows
    assert told.steps == TOLD
    assert len(told.notes) == 1 and told.notes[0].endswith("no complete checkpoint is left of 20 steps; it begins anew")
    assert plain.cells[0].name in told.notes[0]
    assert ledger(stopped) == ledger(plain.folder)


@in_turn("rest, name", [b'{"step": 21, "lo', b"\xff\xfe", b"\0\0\0", b""], ["metrics.jsonl", "quantities.jsonl"])
def test_a_last_row_cut_off_by_a_kill_is_no_damage(plain: Trained, stopped: Path, name: str, rest: bytes) -> None:
    with (plain.place(stopped) / name).open("ab") as file:
        file.write(rest)
    told = Told()
    assert ran(plain.cells, stopped, told) == plain.rows
    assert told.steps == TOLD[1:] and told.notes == []
    assert ledger(stopped) == ledger(plain.folder)


def _corrupt_row(cell: Path) -> str:
    return _replaced(cell / "metrics.jsonl", '"step": 3', '"step" 3', "metrics.jsonl, line 3: not JSON")


def _wrong_row(cell: Path) -> str:
    return _replaced(cell / "metrics.jsonl", '"step": 3', '"step": "3"', "metrics.jsonl, line 3: step is no number")


def _corrupt_quantity(cell: Path) -> str:
    path = cell / "quantities.jsonl"
    path.write_bytes(b"\xff\xfe\n" + path.read_bytes())
    return "quantities.jsonl, line 1: not JSON"


def _half_run(cell: Path) -> str:
    text = (cell / "run.json").read_text()
    (cell / "run.json").write_text(text[: len(text) // 2])
    return "run.json: not JSON"


def _other_run(cell: Path) -> str:
    return _replaced(cell / "run.json", '"clip": 0.0', '"clip": 0.5', "holds a run of another recipe")


def _half_outcome(cell: Path) -> str:
    (cell / "outcome.json").write_text('{"outcome": "fini')
    return "outcome.json: not JSON"


def _empty_outcome(cell: Path) -> str:
    (cell / "outcome.json").write_text("")
    return "outcome.json: not JSON"


def _list_for_outcome(cell: Path) -> str:
    (cell / "outcome.json").write_text("[1]")
    return "outcome.json: not a JSON object"


def _unknown_outcome(cell: Path) -> str:
    (cell / "outcome.json").write_text('{"outcome": "splendid"}')
    return 'outcome.json: outcome is "splendid"'


def _no_run(cell: Path) -> str:
    (cell / "outcome.json").write_text('{"outcome": "finished"}')
    (cell / "run.json").unlink()
    return "run.json is missing beside the other files"


def _replaced(path: Path, old: str, new: str, said: str) -> str:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return said


DAMAGES = [
    _corrupt_row,
    _wrong_row,
    _corrupt_quantity,
    _half_run,
    _other_run,
    _half_outcome,
    _empty_outcome,
    _list_for_outcome,
    _unknown_outcome,
    _no_run,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_cells_are_told_of_and_left_as_they_are(
    plain: Trained, stopped: Path, damage: Callable[[Path], str]
) -> None:
    said = damage(plain.place(stopped))
    before, told = whole(stopped), Told()
    assert ran(plain.cells, stopped, told) == plain.rows[1:]
    assert whole(stopped) == before
    assert (told.steps, told.rows) == ([], [1, 2, 3])
    assert len(told.notes) == 1 and said in told.notes[0] and plain.cells[0].name in told.notes[0]
    assert survey(plain.cells, stopped).broken == {0: told.notes[0]}


@pytest.mark.parametrize("damage", few([_corrupt_row, _other_run, _half_outcome], [_corrupt_row]))
def test_broken_cells_are_trained_anew_on_demand(plain: Trained, stopped: Path, damage: Callable[[Path], str]) -> None:
    """What was there is kept, each time."""
    for time in (1, 2):
        damage(plain.place(stopped))
        before = {path.name: path.read_bytes() for path in plain.place(stopped).glob("*.json*")}
        told = Told()
        assert ran(plain.cells, stopped, told, retry=True) == plain.rows
        assert told.steps == TOLD and len(told.notes) == 1
        aside = stopped / f"cells/broken/{plain.cells[0].name}-{time}"
        assert {path.name: path.read_bytes() for path in aside.glob("*.json*")} == before
        assert ledger(stopped) == ledger(plain.folder)
        (plain.place(stopped) / "outcome.json").unlink()
    told = Told()
    ran(plain.cells, stopped, told)
    assert "no complete checkpoint" in told.notes[0]


def _garbage(rows: list[bytes]) -> list[bytes]:
    return [rows[0], b'{"cell": "half', b"[]", b"{}", b"\xff\xfe", *rows[2:]]


def _twice(rows: list[bytes]) -> list[bytes]:
    return [*rows, rows[0], rows[2]]


def _other_numbers(rows: list[bytes]) -> list[bytes]:
    return [row.replace(b'"undecided"', b'"collapsed"') for row in rows]


def _disordered(rows: list[bytes]) -> list[bytes]:
    return rows[::-1]


def _nothing(rows: list[bytes]) -> list[bytes]:
    return []


LEDGERS = [(_garbage, (2, 3, 4, 5)), (_twice, ()), (_other_numbers, ()), (_disordered, ()), (_nothing, ())]


@pytest.mark.parametrize(("damage", "where"), LEDGERS)
def test_a_damaged_ledger_is_made_again_from_the_cells(
    plain: Trained, folder: Path, damage: Callable[[list[bytes]], list[bytes]], where: tuple[int, ...]
) -> None:
    path = folder / LEDGER
    path.write_bytes(b"".join(row + b"\n" for row in damage(path.read_bytes().splitlines())))
    told = Told()
    assert ran(plain.cells, folder, told) == plain.rows
    assert told.steps == [] and ledger(folder) == ledger(plain.folder)
    assert told.notes == [f"{path}, line {n}: not a row; the ledger is made again from the cells" for n in where]


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_ledger_cut_off_by_a_kill(plain: Trained, folder: Path, length: int) -> None:
    (folder / LEDGER).write_bytes(ledger(folder)[:length])
    told = Told()
    assert ran(plain.cells, folder, told) == plain.rows
    assert told.notes == [] and ledger(folder) == ledger(plain.folder)


def test_a_cell_that_fails_does_not_stop_the_others(text: Path, tmp_path: Path) -> None:
    """Its data are gone between planning and training; once they are back, it is trained, but on demand only."""
    sources = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in sources:
        path.write_text(TEXT)
    planned = study(tmp_path, text=text, axes={"data.source": [str(p) for p in sources]}, seeds=[1])
    folder = tmp_path / "study"
    sources[0].unlink()
    rows = ran(planned.cells, folder)
    assert [row["outcome"] for row in rows] == ["failed", "undecided"]
    assert str(sources[0]) in rows[0]["error"] and "\n" not in rows[0]["error"]
    sources[0].write_text(TEXT)
    told = Told()
    assert ran(planned.cells, folder, told) == rows and told.steps == []
    again = ran(planned.cells, folder, told, retry=True)
    assert told.trained == {0} and again[1] == rows[1]
    assert "error" not in again[0] and again[0]["final_loss"] == rows[1]["final_loss"]  # the same text
    assert lines(folder / LEDGER) == again


def test_code_that_raises(plain: Trained, text: Path, tmp_path: Path, own_catalogue: None) -> None:
    def unbuildable(site: Site) -> float:
        raise RuntimeError("no such\nlaw")

    register("unbuildable", Placement(each=Residual(post=Norm(), skip=unbuildable)))
    axes = {"model.placement": ["unbuildable", "pre-ln"]}
    planned = study(tmp_path, text=text, **{**SMALL, "axes": axes}, seeds=[1])
    rows = ran(planned.cells, tmp_path / "study")
    assert [row["outcome"] for row in rows] == ["failed", "undecided"] and rows[0]["error"] == "no such law"
    told = Told()
    assert ran(planned.cells, tmp_path / "study", told) == rows and told.steps == []
    assert ran(planned.cells, tmp_path / "study", told, retry=True) == rows
    assert rows[1]["final_loss"] == plain.rows[0]["final_loss"]  # the same cell, but for an axis more


def test_a_place_where_nothing_can_be_written(plain: Trained, stopped: Path) -> None:
    """The cell fails; the others are trained."""
    for i in (0, 2):
        shutil.rmtree(plain.place(stopped, i))
    plain.place(stopped).write_text("a file")
    rows = ran(plain.cells, stopped)
    assert [row["outcome"] for row in rows] == ["failed", "diverged", "undecided", "diverged"]
    assert "is a file" in rows[0]["error"]
    plain.place(stopped).unlink()
    assert ran(plain.cells, stopped) == plain.rows


def test_another_text_under_the_same_name(text: Path, tmp_path: Path) -> None:
    """Never two texts in one study: refused where it is planned, and by the cell itself."""
    mine = tmp_path / "mine.txt"
    mine.write_text(TEXT)
    planned = study(tmp_path, text=mine, axes=AXES)
    cells, folder = planned.cells[::2], tmp_path / "study"
    ran(cells[:1], folder)
    mine.write_text(TEXT.replace("wolf", "bear"))
    with pytest.raises(FileExistsError, match=r"holds a run on another text: .*mine\.txt"):
        check_jobs(jobs_of(cells, folder))
    check_jobs(jobs_of(cells[1:], folder))
    (folder / "cells" / cells[0].name / "outcome.json").unlink()
    before = whole(folder / "cells" / cells[0].name)
    rows = ran(cells, folder)
    assert [row["outcome"] for row in rows] == ["failed", "undecided"] and "has changed since" in rows[0]["error"]
    assert whole(folder / "cells" / cells[0].name) == before


def test_a_cell_that_another_process_holds_is_waited_for(
    plain: Trained, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends there while this one waits for the third time."""
    shutil.rmtree(plain.place(stopped, 2))
    told = Told()
    waited: list[float] = []
    with ExitStack() as stack:

        def wait(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                stack.close()

        stack.enter_context(locked(plain.place(stopped)))
        monkeypatch.setattr("isograd.lab.study.engine.runner.time", SimpleNamespace(sleep=wait))
        assert ran(plain.cells, stopped, told) == plain.rows
    assert told.rows == [1, 3, 2, 0] and waited == [PAUSE] * 3
    assert ledger(stopped) == ledger(plain.folder)


def test_a_cell_that_another_process_takes_first(plain: Trained, stopped: Path) -> None:
    """Between the look at it and its training: it is no failure, and comes later."""
    calls = []

    def raced(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
        calls.append(list(jobs))
        with ExitStack() as stack:
            if len(calls) == 1:
                stack.enter_context(locked(jobs[0][1]))
            in_this_process(jobs, on_step, on_end)

    assert ran(plain.cells, stopped, engine=raced) == plain.rows
    assert calls == [[0], [0]]
    assert ledger(stopped) == ledger(plain.folder)


def test_two_runners_at_once(plain: Trained, tmp_path: Path) -> None:
    """Each cell once, and each of them ends with the whole ledger."""
    folder = tmp_path / "study"
    context = mp.get_context("fork")  # torch is loaded already
    results = [tmp_path / f"{i}.json" for i in range(2)]
    runners = [context.Process(target=_run, args=(plain.cells, folder, path)) for path in results]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
        assert runner.exitcode == 0
    steps = [read(path) for path in results]
    assert ledger(folder) == ledger(plain.folder)
    trained = [{place for place, _ in told} for told in steps]
    assert sorted([*trained[0], *trained[1]]) == [0, 1, 2, 3]
    assert sorted(step for told in steps for _, step in told) == [10] * 4 + [20] * 2 + [25] * 2


def _run(cells: list[Cell], folder: Path, result: Path) -> None:
    told = Told()
    ran(cells, folder, told)
    result.write_text(json.dumps(told.steps))


def test_shards_together_are_the_study(plain: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    for shard in (1, 0):
        assert ran(plain.cells[shard::2], folder) == plain.rows[shard::2]
    assert lines(folder / LEDGER) == [*plain.rows[0::2], *plain.rows[1::2]]
    told = Told()
    assert ran(plain.cells, folder, told) == plain.rows and told.steps == []
    assert ledger(folder) == ledger(plain.folder)


def test_models_stay_on_demand(plain: Trained, tmp_path: Path) -> None:
    assert not list(plain.folder.glob("cells/*/model")) and not list(plain.folder.glob("cells/*/checkpoints"))
    rows = ran(plain.cells[:1], tmp_path / "study", keep_models=True)
    assert rows == plain.rows[:1]
    assert (plain.place(tmp_path / "study") / "model/model.safetensors").stat().st_size > 0


@pytest.mark.slow
def test_in_processes_each_with_its_gpu(plain: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with one thread each, the same numbers as here; what this process sees is as before."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen: set[tuple[str, ...]] = set()

    def look(place: int, step: int, loss: float) -> None:
        environs = [psutil.Process(p.pid).environ() for p in mp.active_children()]
        seen.add(tuple(sorted(environ["CUDA_VISIBLE_DEVICES"] for environ in environs)))

    engine = partial(in_processes, at_once=2, threads=1, gpus=("0", "1"))
    rows = run_cells(plain.cells, tmp_path / "study", engine, look, lambda *_: None)
    assert rows == plain.rows and ledger(tmp_path / "study") == ledger(plain.folder)
    assert ("0", "1") in seen and seen <= {("0", "1"), ("0",), ("1",)}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ and not mp.active_children()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system pins no process")
@pytest.mark.skipif(cores() < 2, reason="one core is nothing to share")
def test_workers_that_fill_the_cores_have_their_own(plain: Trained, tmp_path: Path) -> None:
    """Each has its share and nobody else's; a pool that leaves cores free is not pinned."""
    everywhere = sorted(os.sched_getaffinity(0))

    def seen(workers: int, threads: int) -> set[tuple[int, ...]]:
        found: set[tuple[int, ...]] = set()

        def look(place: int, step: int, loss: float) -> None:
            found.update(tuple(psutil.Process(p.pid).cpu_affinity()) for p in mp.active_children())

        folder = tmp_path / f"{workers}-{threads}"
        assert run_cells(plain.cells[:2], folder, local(workers, threads), look, lambda *_: None) == plain.rows[:2]
        return found - {tuple(everywhere)}

    each = seen(len(everywhere), 1)
    assert each and all(len(share) == 1 for share in each)
    assert not seen(1, 1)

"""A study on a Ray cluster: the local engine's numbers, whoever dies and wherever it trains."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from isograd.placement import CATALOGUE, Norm, Placement, Residual, Site, register
from isograd.study.on_ray import on_ray
from isograd.study.plan import Cell
from isograd.study.runner import run_cells
from isograd.train.run import Data, Model, RecipeError, Run, Training
from tests.study.arms import lines, read, same_numbers
from tests.study.tiny_study import here

SHORT = ("post-ln", "pre-ln", "of-the-driver")
LONG = "long"
HANDLE = 700  # of an open folder
IGNORED = (lambda *_: None, lambda *_: None)


@dataclass(frozen=True)
class Always:
    """A law of one's own."""

    value: float

    def __call__(self, site: Site) -> float:
        return self.value


class Deadly:
    """A law that ends whoever reads it."""

    def __call__(self, site: Site) -> float:
        return 0.5

    def __reduce__(self) -> Any:
        return os._exit, (1,)


@pytest.fixture(scope="module", autouse=True)
def _placement() -> Iterator[None]:
    """In this process alone; a worker has it with the job."""
    register("of-the-driver", Placement(each=Residual(post=Norm(), skip=Always(0.5))))
    yield
    del CATALOGUE["of-the-driver"]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module", autouse=True)
def _cluster(scratch: Path) -> Iterator[None]:
    """Two workers, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", "of these processes")
        patch.setenv("TMPDIR", str(scratch))  # of the workers; this process has looked it up before
        import ray

        small = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        ray.init(address="local", log_to_driver=False, logging_level="ERROR", **small)
    yield
    ray.shutdown()


def cell(name: str, text: Path, placement: str, steps: int = 12) -> Cell:
    run = Run(
        model=Model(placement=placement, layers=2, width=16, heads=2),
        data=Data(source=str(text), length=8),
        training=Training(steps=steps, batch=4, valid_sequences=4, probe_every=4, checkpoint_every=40),
    )
    return Cell(run=run, name=name, values={"model.placement": placement, "training.steps": steps})


@pytest.fixture(scope="module")
def cells(text: Path) -> list[Cell]:
    return [cell(LONG, text, "pre-ln", steps=200), *(cell(name, text, name) for name in SHORT)]


@pytest.fixture(scope="module")
def there(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What becomes of the same cells in this process, as in those of the local engine."""
    folder = tmp_path_factory.mktemp("here")
    run_cells(cells, folder, here, *IGNORED)
    return folder


def same_study(folder: Path, there: Path, cells: list[Cell]) -> None:
    names = {cell.name for cell in cells}
    expected = [row for row in lines(there / "ledger.jsonl") if row["cell"] in names]
    assert lines(folder / "ledger.jsonl") == expected != []
    assert {row["outcome"] for row in expected} == {"finished"}
    assert {path.name for path in (folder / "cells").iterdir()} == names  # nothing of ours is left beside them


def test_the_local_engines_numbers(cells: list[Cell], there: Path, tmp_path: Path) -> None:
    """Of every file; the steps are told on the way."""
    told: dict[int, list[int]] = {}
    rows: list[int] = []
    run_cells(
        cells,
        tmp_path,
        on_ray(),
        lambda i, step, loss: told.setdefault(i, []).append(step),
        lambda i, row: rows.append(i),
    )
    assert sorted(rows) == [0, 1, 2, 3]
    assert told[0] == sorted(set(told[0])) and told[0][-1] <= 200
    same_study(tmp_path, there, cells)
    same_numbers(tmp_path / "cells", there / "cells")
    again: list[Any] = []
    run_cells(cells, tmp_path, on_ray(), lambda *news: again.append(news), lambda *_: None)
    assert not again


@pytest.mark.parametrize("visible", [True, False])
def test_a_worker_killed_in_mid_cell(
    visible: bool, cells: list[Cell], there: Path, tmp_path: Path, scratch: Path
) -> None:
    """Another goes on from the checkpoint, to the same numbers; also where it does not see the study's folder."""
    own = tmp_path / "cells" / LONG
    with killing_at(lambda: own if visible else next(scratch.glob("isograd-*"), own)) as killed:
        run_cells(cells[:1], tmp_path if visible else seen_from_here_alone(tmp_path), on_ray(), *IGNORED)
    assert len(killed) == 1
    same_study(tmp_path, there, cells[:1])
    mine, expected = (lines(folder / "cells" / LONG / "metrics.jsonl") for folder in (tmp_path, there))
    assert mine[0].pop("lr") == 0.009 and expected[0].pop("lr") == 0.001  # begun anew, the mark would be gone
    assert mine == expected
    assert not list(scratch.glob("isograd-*"))


@contextmanager
def killing_at(folder: Callable[[], Path]) -> Iterator[list[int]]:
    """SIGKILL to the one worker that trains, once it has a checkpoint; the first row of its log is marked."""
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while not (folder() / "checkpoints/checkpoint-80/sealed.json").exists():
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        (worker,) = [p for p in psutil.Process().children(recursive=True) if p.cmdline()[:1] == ["ray::_task"]]
        worker.suspend()
        log = folder() / "metrics.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"lr": 0.001', b'"lr": 0.009', 1))
        worker.kill()
        killed.append(worker.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        thread.join()


def seen_from_here_alone(folder: Path) -> Path:
    """Another name of a folder, which means nothing in another process."""
    names = Path("/proc/self/fd")
    if not names.exists():
        pytest.skip("needs /proc")
    handle = os.open(folder, os.O_RDONLY)
    os.dup2(handle, HANDLE)
    os.close(handle)
    return names / str(HANDLE)


def test_the_files_come_from_where_the_folder_is_not_seen(
    cells: list[Cell], there: Path, tmp_path: Path, scratch: Path
) -> None:
    """All of them, also of a cell that failed."""
    gone = replace(cells[1].run.data, source=str(tmp_path / "gone.txt"))
    chosen = [*cells[1:], Cell(run=replace(cells[1].run, data=gone), name="gone", values={})]
    rows = run_cells(chosen, seen_from_here_alone(tmp_path), on_ray(), *IGNORED)
    assert [row["outcome"] for row in rows] == ["finished"] * 3 + ["failed"]
    assert "gone.txt" in rows[3]["error"]
    assert read(tmp_path / "cells/gone/outcome.json")["error"] == rows[3]["error"]
    shutil.rmtree(tmp_path / "cells/gone")
    for one in chosen[:3]:
        mine, expected = (folder / "cells" / one.name for folder in (tmp_path, there))
        assert {p.name for p in mine.iterdir()} == {p.name for p in expected.iterdir()}
        assert (mine / "quantities.jsonl").read_text() == (expected / "quantities.jsonl").read_text()
    shutil.rmtree(next(scratch.glob("isograd-*")))  # the one that failed may go on there
    assert not list(scratch.glob("isograd-*"))


def test_a_cell_that_fails_does_not_end_the_others(cells: list[Cell], there: Path, tmp_path: Path, text: Path) -> None:
    """Tried again once its file is there, it has the same numbers."""
    own = tmp_path / "own.txt"
    chosen = cells[1:3]
    chosen[0] = replace(chosen[0], run=replace(chosen[0].run, data=replace(chosen[0].run.data, source=str(own))))
    one, other = run_cells(chosen, tmp_path, on_ray(), *IGNORED)
    assert (one["outcome"], other["outcome"]) == ("failed", "finished")
    assert "own.txt" in one["error"] and "\n" not in one["error"]
    own.write_text(text.read_text())
    run_cells(chosen, tmp_path, on_ray(), *IGNORED, retry=True)
    same_study(tmp_path, there, chosen)


def test_what_never_answers_is_a_failure_of_one_line(cells: list[Cell], tmp_path: Path) -> None:
    """A process that dies as often as it is tried; a placement that the worker cannot read."""
    register("deadly", Placement(each=Residual(post=Norm(), skip=Deadly())), overwrite=True)
    chosen = [cell("deadly", Path(cells[0].run.data.source), "deadly"), cells[1]]
    one, other = run_cells(chosen, tmp_path, on_ray(retries=0), *IGNORED)
    assert (one["outcome"], other["outcome"]) == ("failed", "finished")
    assert "died" in one["error"] and "\n" not in one["error"]
    assert read(tmp_path / "cells/deadly/outcome.json")["error"] == one["error"]
    del CATALOGUE["deadly"]


def test_what_no_machine_has_is_refused(cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be waited for without end."""
    for engine in (on_ray(threads=3), on_ray(gpus=1)):
        with pytest.raises(RecipeError, match=r"no machine of the cluster has \d CPUs and \d GPUs"):
            run_cells(cells, tmp_path, engine, *IGNORED)
    assert not list((tmp_path / "cells").iterdir())
    with pytest.raises(RecipeError, match=r"ray://HOST:PORT, or auto, not '10.0.0.1:6379'"):
        on_ray("10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecipeError, match=r"pip install 'isograd\[ray\]'"):
        on_ray()

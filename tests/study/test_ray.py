"""A study on a Ray cluster: the local engine's numbers, whoever dies and wherever it trains."""

import gc
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from isograd.errors import RecipeError
from isograd.lab.study.engine.jobs import in_this_process
from isograd.lab.study.engine.on_ray import on_ray
from isograd.lab.study.engine.runner import run_cells
from isograd.lab.study.plan import Cell
from isograd.lab.train.run import Model
from isograd.lab.train.tasks.language import LanguageRun, TextData, TextTraining
from isograd.placement import CATALOGUE, Norm, Placement, Residual, Site, register
from tests.study.arms import lines, read, same_numbers
from tests.study.processes import Sent, hold
from tests.study.tiny_study import Told

pytestmark = [
    pytest.mark.slow,  # a cluster takes as long to begin as a hundred other tests
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for workers in /proc"),
]

SHORT = ("post-ln", "pre-ln", "of-the-driver")
LONG = "long"  # a cell, and its placement
KILLED_AT = 50  # ten steps behind its checkpoint
HANDLE = 700  # of an open folder
RATE, MARK = '"lr": 0.001', '"lr": 0.009'
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


def long(sign: Path) -> Placement:
    """Pre-LN; the first worker that has trained it for so long is held."""
    return Placement(each=Residual(pre=Norm(), skip=Sent(hold, KILLED_AT, sign)), final=Norm())


@pytest.fixture(scope="module", autouse=True)
def _placement() -> Iterator[None]:
    """In this process alone; a worker has it with the job."""
    register("of-the-driver", Placement(each=Residual(post=Norm(), skip=Always(0.5))))
    register(LONG, long(Path()))
    yield
    del CATALOGUE["of-the-driver"], CATALOGUE[LONG]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """Of a short name: Ray's sockets stand below it, and a socket's path has 107 characters at most."""
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="module", autouse=True)
def _cluster(scratch: Path) -> Iterator[None]:
    """Two workers, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", "of these processes")
        patch.setenv("TMPDIR", str(scratch))  # of the workers; this process has looked it up before
        import ray

        started(ray)
    yield
    ray.shutdown()


def started(ray: Any, tries: int = 4) -> None:
    """A cluster here. Ray gives its own processes 30 s, which a busy machine may need more often than once; what it had
    begun is ended then, or the next test that collects garbage would be blamed for processes that nobody waited for.
    """
    small = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    for more in reversed(range(tries)):
        try:
            ray.init(address="local", log_to_driver=False, logging_level="ERROR", **small)
        except Exception as problem:
            if not more or "timed out" not in str(problem):
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                ray.shutdown()
                gc.collect()
        else:
            return


def cell(name: str, text: Path, placement: str, steps: int = 12) -> Cell:
    run = LanguageRun(
        model=Model(placement=placement, layers=2, width=16, heads=2),
        data=TextData(source=str(text), length=8),
        training=TextTraining(steps=steps, batch=4, valid_sequences=4, probe_every=4, checkpoint_every=40),
    )
    return Cell(run=run, name=name, values={"model.placement": placement, "training.steps": steps})


@pytest.fixture(scope="module")
def cells(text: Path) -> list[Cell]:
    return [cell(LONG, text, LONG, steps=60), *(cell(name, text, name) for name in SHORT)]


@pytest.fixture(scope="module")
def there(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What becomes of the same cells in this process, as in those of the local engine."""
    folder = tmp_path_factory.mktemp("here")
    run_cells(cells, folder, in_this_process, *IGNORED)
    return folder


def same_study(folder: Path, there: Path, cells: list[Cell]) -> None:
    names = {cell.name for cell in cells}
    mine, expected = ([r for r in lines(f / "ledger.jsonl") if r["cell"] in names] for f in (folder, there))
    assert mine == expected and len(mine) == len(cells)
    assert not {row["outcome"] for row in expected} & {"failed", "interrupted"}
    assert {path.name for path in (folder / "cells").iterdir()} == names  # nothing of ours is left beside them


def test_a_worker_killed_in_mid_cell(cells: list[Cell], there: Path, tmp_path: Path) -> None:
    """Another goes on from the checkpoint: the local engine's numbers, in every file."""
    told = Told()
    with killing_at(lambda: tmp_path / "cells" / LONG, tmp_path / "held") as killed:
        run_cells(cells, tmp_path, on_ray(), told.step, told.row)
    assert len(killed) == 1
    assert sorted(told.rows) == [0, 1, 2, 3]
    assert 0 in told.trained and all(0 < step <= 60 for _, step in told.steps)
    same_study(tmp_path, there, cells)
    unmark(tmp_path)
    same_numbers(tmp_path / "cells", there / "cells")
    again = Told()
    run_cells(cells, tmp_path, on_ray(), again.step, again.row)
    assert not again.steps


def test_where_the_folder_is_not_seen(cells: list[Cell], there: Path, tmp_path: Path, scratch: Path) -> None:
    """The files come from there, of a cell that failed, too; one that was killed has gone on there."""
    gone = replace(cells[1].run.data, source=str(tmp_path / "gone.txt"))
    failing = Cell(run=replace(cells[1].run, data=gone), name="gone", values={})
    with (
        seen_from_here_alone(tmp_path) as folder,
        killing_at(lambda: training_in(scratch), tmp_path / "held") as killed,
    ):
        *_, failed = run_cells([*cells[:2], failing], folder, on_ray(), *IGNORED)
    assert len(killed) == 1
    assert failed["outcome"] == "failed" and "gone.txt" in failed["error"]
    assert read(tmp_path / "cells/gone/outcome.json")["error"] == failed["error"]
    (left,) = scratch.glob("isograd-*")  # where the one that failed may go on
    shutil.rmtree(left)
    shutil.rmtree(tmp_path / "cells/gone")
    same_study(tmp_path, there, cells[:2])
    unmark(tmp_path)
    for one in cells[:2]:
        mine, expected = (folder / "cells" / one.name for folder in (tmp_path, there))
        assert {p.name for p in mine.iterdir()} == {p.name for p in expected.iterdir()}
        for name in ("metrics.jsonl", "quantities.jsonl", "resolved.json"):
            assert (mine / name).read_text() == (expected / name).read_text()


@contextmanager
def killing_at(folder: Callable[[], Path], sign: Path) -> Iterator[list[int]]:
    """SIGKILL to the first worker that has trained the long cell for so long; the first row of its log is marked."""
    register(LONG, long(sign), overwrite=True)
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while not sign.exists():
            if ended.wait(0.01):
                return
        log = folder() / "metrics.jsonl"
        log.write_text(log.read_text().replace(RATE, MARK, 1))
        killed.append(int(sign.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def training_in(scratch: Path) -> Path:
    return next((path.parent for path in scratch.glob("isograd-*/checkpoints")), scratch)


def unmark(folder: Path) -> None:
    """The mark is there: begun anew, the run would have written the row again."""
    log = folder / "cells" / LONG / "metrics.jsonl"
    text = log.read_text()
    assert text.count(MARK) == 1
    log.write_text(text.replace(MARK, RATE))


@contextmanager
def seen_from_here_alone(folder: Path) -> Iterator[Path]:
    """Another name of a folder, which means nothing in another process."""
    handle = os.open(folder, os.O_RDONLY)
    os.dup2(handle, HANDLE)
    os.close(handle)
    yield Path("/proc/self/fd") / str(HANDLE)
    os.close(HANDLE)


def test_a_cell_that_fails_does_not_end_the_others(cells: list[Cell], there: Path, tmp_path: Path, text: Path) -> None:
    """Tried again once its file is there, it has the same numbers."""
    own = tmp_path / "own.txt"
    chosen = cells[1:3]
    chosen[0] = replace(chosen[0], run=replace(chosen[0].run, data=replace(chosen[0].run.data, source=str(own))))
    one, other = run_cells(chosen, tmp_path, on_ray(), *IGNORED)
    assert (one["outcome"], other["outcome"]) == ("failed", "undecided")
    assert "own.txt" in one["error"] and "\n" not in one["error"]
    own.write_text(text.read_text())
    run_cells(chosen, tmp_path, on_ray(), *IGNORED, retry=True)
    same_study(tmp_path, there, chosen)


def test_what_never_answers_is_a_failure_of_one_line(cells: list[Cell], tmp_path: Path) -> None:
    """A process that dies as often as it is tried; a placement that the worker cannot read."""
    register("deadly", Placement(each=Residual(post=Norm(), skip=Deadly())), overwrite=True)
    chosen = [cell("deadly", Path(cells[0].run.data.source), "deadly"), cells[1]]
    one, other = run_cells(chosen, tmp_path, on_ray(retries=0), *IGNORED)
    assert (one["outcome"], other["outcome"]) == ("failed", "undecided")
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

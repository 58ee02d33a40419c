"""A study that is killed at any change of any file ends with the ledger of one that nothing has disturbed."""

import multiprocessing as mp
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from isograd.lab.study.engine import server
from isograd.lab.study.engine.jobs import Engine, in_this_process
from isograd.lab.study.engine.workers import in_processes
from isograd.lab.study.plan import Cell, load_study
from isograd.placement import CATALOGUE, Residual, register
from tests.cli.test_compare import gone, session
from tests.study.processes import Death, Sent, mortal, order
from tests.study.tiny_study import ledger, ran, recipe

LIFE = 100  # changes of files; a run of 60 steps makes more than twice as many
PLACEMENTS = ("post-ln", "pre-ln")


@pytest.fixture
def orders(tmp_path: Path, own_catalogue: None) -> Iterator[Path]:
    """Of deaths that are to come; a worker that trains a mortal placement obeys them."""
    folder = tmp_path / "orders"
    order([], folder)
    for name in PLACEMENTS:
        each = CATALOGUE[name].each
        assert isinstance(each, Residual)
        law = Sent(mortal_worker, folder)
        register(f"mortal-{name}", replace(CATALOGUE[name], each=replace(each, scale=law)))
    yield folder


_mortal: set[int] = set()


def mortal_worker(orders: Path) -> None:
    """Once, however many jobs it is sent."""
    if os.getpid() not in _mortal:
        _mortal.add(os.getpid())
        mortal(orders, "worker", "parent")


def planned(folder: Path, text: Path, seeds: int) -> list[Cell]:
    """Cells of 60 steps; each has six checkpoints, the last of which are gone with the run."""
    axes = {"model.placement": [f"mortal-{name}" for name in PLACEMENTS], "training.lr": [1e-3, 1e-2]}
    training = {"checkpoint_every": 10, "valid_every": 20}
    path = recipe(folder, text=text, axes=axes, seeds=[*range(seeds)], budget={"steps": 60}, training=training)
    return load_study(path).cells


def workers(at_once: int) -> Engine:
    return partial(in_processes, at_once=at_once, threads=1, retries=2)


def runner(cells: list[Cell], folder: Path, orders: Path, engine: Engine) -> int:
    """The exit code of a process that trains the study; it leaves nobody behind."""
    process = mp.get_context("fork").Process(target=_run, args=(cells, folder, orders, engine))
    process.start()
    process.join()
    assert process.pid and process.exitcode is not None
    assert gone(process.pid), [psutil.Process(pid).cmdline() for pid in session(process.pid)]
    return process.exitcode


def _run(cells: list[Cell], folder: Path, orders: Path, engine: Engine) -> None:
    os.setsid()
    server._owner = 0  # no server: the parent of a worker is the runner
    mortal(orders, "runner")
    ran(cells, folder, engine=engine)


def killed(cells: list[Cell], folder: Path, orders: Path, engine: Engine, lives: list[list[Death]]) -> None:
    """Each life of the runner ends with its last death; the one after them is the study's end."""
    for deaths in lives:
        order(deaths, orders)
        assert runner(cells, folder, orders, engine) == -signal.SIGKILL, "the study was over before"
        assert not [*orders.iterdir()]
    assert runner(cells, folder, orders, engine) == 0


@pytest.mark.slow
def test_eight_kills(text: Path, tmp_path: Path, orders: Path) -> None:
    """Of a runner that trains by itself, anywhere in what it writes."""
    cells = planned(tmp_path, text, 1)
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    killed(cells, tmp_path / "killed", orders, in_this_process, [[("runner", draw.randint(1, LIFE))] for _ in range(8)])
    ran(cells, tmp_path / "undisturbed")
    assert ledger(tmp_path / "killed") == ledger(tmp_path / "undisturbed"), f"seed {seed}"


@pytest.mark.slow
def test_workers_and_runners_killed(text: Path, tmp_path: Path, orders: Path) -> None:
    """A worker; the runner while the next worker trains; the runner at its own work, with a cell that has ended."""
    cells = planned(tmp_path, text, 1)
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    lives = [
        [("worker", draw.randint(1, LIFE)), ("parent", draw.randint(1, LIFE))],
        [("runner", draw.randint(1, 8))],
    ]
    killed(cells, tmp_path / "killed", orders, workers(1), lives)
    ran(cells, tmp_path / "undisturbed")
    assert ledger(tmp_path / "killed") == ledger(tmp_path / "undisturbed"), f"seed {seed}"


@pytest.mark.slow
def test_twenty_kills(text: Path, tmp_path: Path, orders: Path) -> None:
    """By two workers; at the third death in a row without a step the engine would give a job up."""
    cells = planned(tmp_path, text, 8)
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    lives = []
    for _ in range(20):
        deaths = [("worker", draw.randint(1, LIFE)) for _ in range(draw.randint(0, 2))]
        last = draw.choice([("parent", LIFE), ("runner", 12)])
        lives.append([*deaths, (last[0], draw.randint(1, last[1]))])
    killed(cells, tmp_path / "killed", orders, workers(2), lives)
    ran(cells, tmp_path / "undisturbed")
    assert ledger(tmp_path / "killed") == ledger(tmp_path / "undisturbed"), f"seed {seed}"
    assert ledger(tmp_path / "killed").count(b"\n") == 32

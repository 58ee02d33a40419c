"""A study that is killed at random moments ends with the ledger of one that nothing has disturbed."""

import multiprocessing as mp
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from isograd.study.plan import Cell, load_study
from isograd.study.workers import in_processes
from tests.cli.test_compare import gone_within, session
from tests.study.tiny_study import ledger, ran, recipe

AXES = {"model.placement": ["post-ln", "pre-ln"], "training.lr": [1e-3, 1e-2]}
DEATHS = 2  # of workers under one runner; at the third in a row without a step the engine would give its job up
ORPHANED = 60  # seconds, on a busy machine: a worker in its start-up looks for its parent at the end of that


class Runner(Protocol):
    """A process in a session of its own that trains a study."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


@dataclass(kw_only=True)
class Killer:
    """Starts a runner again and again, and kills it or one of its workers at random moments.

    Attributes:
        span: seconds behind the first step of a start within which most kills fall.
        begins: seconds from a start to its first step, as seen so far; the other kills fall in there.
        hits: how often what was killed, and whether in the middle of a cell.
    """

    start: Callable[[], Runner]
    folder: Path
    random: random.Random
    span: float
    begins: float = 4.0
    hits: Counter[str] = field(default_factory=Counter)

    def kill(self, times: int) -> None:
        """Until so many kills; of each runner that was killed no process is left."""
        while self.hits.total() < times:
            runner = self.start()
            try:
                self._kill_workers(runner, times)
                self._count("runner", any(map(self._in_cell, self._workers(runner.pid))))
            finally:
                with suppress(ProcessLookupError):
                    os.kill(runner.pid, signal.SIGKILL)
                runner.wait()
            assert gone_within(ORPHANED, runner.pid), [psutil.Process(pid).cmdline() for pid in session(runner.pid)]

    def _kill_workers(self, runner: Runner, times: int) -> None:
        """None to two of them, and then the moment has come at which the runner is to be killed."""
        for _ in range(self.random.randint(0, DEATHS)):
            self._wait(runner)
            workers = self._workers(runner.pid)
            if workers and self.hits.total() < times - 1:
                pid = self.random.choice(workers)
                self._count("worker", self._in_cell(pid))
                os.kill(pid, signal.SIGKILL)
        self._wait(runner)

    def _count(self, what: str, in_cell: bool) -> None:
        self.hits[f"{what} {'in' if in_cell else 'outside of'} a cell"] += 1

    def _wait(self, runner: Runner) -> None:
        """A random time from now, or from the next step."""
        begin, before = time.monotonic(), self._written()
        early = self.random.random() < 0.4
        end = begin + self.random.uniform(0, self.begins) if early else begin + 300
        while time.monotonic() < end:
            assert runner.poll() is None, "the study was over before it was killed often enough"
            if not early and self._written() != before:
                early = True
                self.begins = (self.begins + time.monotonic() - begin) / 2
                end = time.monotonic() + self.random.uniform(0, self.span)
            time.sleep(0.005)
        assert early, "nothing trains"

    def _written(self) -> list[int]:
        """Bytes of each log of steps."""
        return [path.stat().st_size for path in self.folder.glob("cells/*/metrics.jsonl")]

    def _workers(self, runner: int) -> list[int]:
        """Without the keeper of shared resources, which is a child, too."""
        return [p.pid for p in psutil.Process(runner).children() if "spawn_main" in " ".join(_words(p))]

    def _in_cell(self, worker: int) -> bool:
        """Whether it holds the folder of a cell that has been trained for some steps."""
        for handle in Path(f"/proc/{worker}/fd").glob("*"):
            try:
                target = handle.readlink()
            except OSError:  # closed by now
                continue
            if target.parent.name == "cells" and (target / "metrics.jsonl").exists():
                return True
        return False


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class Forked:
    """A runner without its start-up: a fork of this process, with a worker that is a process like any other."""

    def __init__(self, cells: list[Cell], folder: Path) -> None:
        self._process: ForkProcess = mp.get_context("fork").Process(target=_run, args=(cells, folder))
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        return self._process.exitcode or 0


def _run(cells: list[Cell], folder: Path) -> None:
    os.setsid()
    ran(cells, folder, engine=partial(in_processes, at_once=1, threads=1, retries=2, strict=False))


def _command(path: Path, folder: Path) -> "subprocess.Popen[bytes]":
    """A runner as a user starts it; what it says on stderr is kept beside its folder."""
    line = [sys.executable, "-m", "isograd", "study", str(path), "--out", str(folder), "--workers", "2"]
    with folder.with_suffix(".txt").open("wb") as said:
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)


def _recipe(folder: Path, text: Path, steps: int, seeds: int) -> Path:
    return recipe(
        folder,
        text=text,
        axes=AXES,
        seeds=[*range(seeds)],
        budget={"steps": steps},
        training={"checkpoint_every": 10, "valid_every": 20},
    )


def test_three_kills(text: Path, tmp_path: Path) -> None:
    """Here short; the undisturbed study is trained without processes."""
    cells = load_study(_recipe(tmp_path, text, 150, 1)).cells
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    seed = random.randrange(10**6)
    killer = Killer(start=lambda: Forked(cells, killed), folder=killed, random=random.Random(seed), span=0.3)
    killer.kill(3)
    runner = Forked(cells, killed)
    assert runner.wait() == 0 and gone_within(ORPHANED, runner.pid)
    ran(cells, undisturbed)
    assert ledger(killed) == ledger(undisturbed), f"seed {seed}"


@pytest.mark.slow
def test_twenty_kills(text: Path, tmp_path: Path) -> None:
    path = _recipe(tmp_path, text, 300, 16)
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    assert _command(path, undisturbed).wait() == 0
    killer = Killer(start=lambda: _command(path, killed), folder=killed, random=random.Random(seed), span=2.5)
    killer.kill(20)
    print(dict(killer.hits), f"{len(list(killed.glob('cells/*/outcome.json')))} of 64 cells had ended by then")
    assert _command(path, killed).wait() == 0, killed.with_suffix(".txt").read_text()
    assert ledger(killed) == ledger(undisturbed)
    assert ledger(killed).count(b"\n") == 64 and not (killed / "cells/broken").exists()

"""Which job is begun next, and the server that forks workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isograd.lab.study.engine.workers import in_order
from isograd.lab.train.recipe import load_run
from isograd.lab.train.run import Run


def run(placement: str, seed: int, layers: int = 4) -> Run:
    return load_run(None, [f"model.placement={placement}", f"model.layers={layers}", f"seed={seed}"])


def test_the_most_work_first_and_a_seed_after_the_other() -> None:
    runs = [run("pre-ln", seed, layers) for seed in (1, 2) for layers in (6, 12, 24, 48)]
    assert in_order(dict(enumerate(runs)), 2) == [3, 2, 1, 0, 7, 6, 5, 4]


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_alike_stays_in_order(workers: int) -> None:
    runs = [run("pre-ln", seed, layers=4) for seed in (3, 1, 2)]
    assert in_order(dict(enumerate(runs)), workers) == [0, 1, 2]


def test_one_worker_takes_all_in_order() -> None:
    runs = [run("pre-ln", 1, layers) for layers in (6, 48, 12)]
    assert in_order(dict(enumerate(runs)), 1) == [0, 1, 2]


SCRIPT = """
import os, sys
from multiprocessing import forkserver
from isograd.lab.study.engine import server

server.begin(%s)
print(forkserver._forkserver._forkserver_pid is not None, "torch" in sys.modules)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned elsewhere")
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="workers are spawned where there is a GPU")
@pytest.mark.parametrize(("workers", "begins"), [(None, True), (2, True), (1, False)])
def test_the_server_begins_before_torch(workers: int | None, begins: bool) -> None:
    """Nothing here has imported torch; one worker needs no server, nor does a process that has one core."""
    begins = begins and len(os.sched_getaffinity(0)) > 1
    ran = subprocess.run([sys.executable, "-c", SCRIPT % workers], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(begins), "False"]

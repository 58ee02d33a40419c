"""Which job is begun next, and the server that forks workers."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from isograd.lab.study.engine.waiting import Waiting
from isograd.lab.train.recipe import load_run
from isograd.lab.train.run import Run


def run(placement: str, seed: int, layers: int = 4) -> Run:
    return load_run(None, [f"model.placement={placement}", f"model.layers={layers}", f"seed={seed}"])


def trained(runs: Sequence[Run], seconds: Mapping[str, float], workers: int) -> tuple[list[int], float]:
    """The order in which jobs begin, and when the last one ends, if a job takes what its placement takes."""
    waiting, begun, now, busy = Waiting(dict(enumerate(runs)), workers), [], 0.0, dict[int, float]()
    while waiting or busy:
        while waiting and len(busy) < workers:
            begun.append(waiting.take())
            busy[begun[-1]] = now + seconds[runs[begun[-1]].model.placement]
        ended = min(busy, key=lambda i: busy[i])
        now = busy.pop(ended)
        waiting.took(ended, seconds[runs[ended].model.placement])
    return begun, now


def test_no_worker_is_left_with_a_long_one() -> None:
    """Seed by seed in order, two workers take 3.4; the least is the half of 6.4."""
    runs = [run(placement, seed) for seed in (1, 2) for placement in ("post-ln", "pre-ln", "normformer")]
    seconds = {"post-ln": 1.0, "pre-ln": 1.0, "normformer": 1.2}
    begun, until = trained(runs, seconds, workers=2)
    assert begun == [0, 1, 2, 5, 3, 4] and until == pytest.approx(3.2)


def test_the_most_work_first_and_a_seed_after_the_other() -> None:
    runs = [run("pre-ln", seed, layers) for seed in (1, 2) for layers in (6, 12, 24, 48)]
    waiting = Waiting(dict(enumerate(runs)), 2)
    assert [waiting.take() for _ in runs] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert not waiting


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_alike_stays_in_order(workers: int) -> None:
    runs = [run("pre-ln", seed, layers=4) for seed in (3, 1, 2)]
    waiting = Waiting(dict(enumerate(runs)), workers)
    assert [waiting.take() for _ in runs] == [0, 1, 2]


def test_one_worker_takes_all_in_order() -> None:
    runs = [run("pre-ln", 1, layers) for layers in (6, 48, 12)]
    assert trained(runs, {"pre-ln": 1.0}, workers=1)[0] == [0, 1, 2]


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


ORPHAN = """
import os, time
from isograd.lab.study.engine.server import ending_with_parent

read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        with ending_with_parent():
            os.write(write, b"in")
            while True:
                time.sleep(1)
    os.read(read, 2)
    os._exit(0)
os.close(write)
os.wait()
assert os.read(read, 1) == b""  # the one that was left has ended, else this waits for ever
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are spawned elsewhere")
def test_a_server_that_still_imports_does_not_outlive_its_parent() -> None:
    subprocess.run([sys.executable, "-c", ORPHAN], check=True, timeout=300)

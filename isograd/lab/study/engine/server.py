"""The server that forks workers: it has imported what trains, once and not seconds in each.

Here is no torch: the server can begin before this process imports the same, so that both do it at once.
"""

import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

from isograd.machine import cores

PRELOADED = "isograd.lab.study.engine.preloaded"
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA's, of WSL, AMD's
_owner: int | None = None  # the process whose workers the server forks


def context(gpus: bool) -> ForkServerContext | SpawnContext:
    """How workers start: forked by the server.

    Spawned where that cannot be: another system than Linux; a machine with GPUs, whose driver a fork may not share; a
    process that was itself forked from the owner of the server.
    """
    global _owner
    if sys.platform != "linux" or gpus or _owner not in (None, os.getpid()):
        return mp.get_context("spawn")
    _owner = os.getpid()
    found = mp.get_context("forkserver")
    found.set_forkserver_preload([PRELOADED])
    return found


def begin(workers: int | None = None) -> None:
    """Start the server now; nothing where it will not be needed, or would only take a core from this process.

    Args:
        workers: how many processes are asked for; one may be none.
    """
    if workers == 1 or cores() == 1 or any(Path(driver).exists() for driver in _DRIVERS):
        return
    if isinstance(context(gpus=False), ForkServerContext):
        with deaf_to_interrupts():
            forkserver.ensure_running()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """What starts here does not hear Ctrl-C, which a terminal sends to every process: this one ends its workers."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it starts with the first process otherwise, and lifts the block
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

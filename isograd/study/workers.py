"""Several small trainings at once, each in a process with its share of the cores.

Small models leave most of a machine idle when several threads work on one of them; one process per core does not.

A worker and this process talk through one pipe: a job goes in; its steps and its end come out. There is no lock and
no queue between them, so a worker that is killed takes nothing along but its own job.
"""

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import torch

from isograd.placement import get, register
from isograd.train.allocator import keep_freed_memory
from isograd.train.metrics import write_json
from isograd.train.provenance import provenance
from isograd.train.run import Run
from isograd.train.train import train

Job = tuple[Run, Path]
OnStep = Callable[[int, int, float], None]
OnEnd = Callable[[int, dict[str, Any]], None]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """One per core; one in all where trainings share a GPU."""
    return 1 if torch.cuda.is_available() else cores()


def in_processes(jobs: Mapping[int, Job], at_once: int, on_step: OnStep, on_end: OnEnd) -> None:
    """Train every job, at most `at_once` of them together; both callbacks run in this process.

    A process that dies (out of memory, say) makes the outcome of its job "failed", and another takes its place.
    However this function ends, no process is left behind.

    Raises:
        DataError, RecipeError, FileExistsError, OSError: as `train` raises them.
    """
    waiting = deque(jobs.items())
    threads = max(1, cores() // at_once)
    workers = [_Worker(threads) for _ in range(min(at_once, len(jobs)))]
    try:
        for worker in workers:
            worker.begin(*waiting.popleft())
        while busy := {id(w.pipe): w for w in workers if w.job is not None}:
            for pipe in wait_for([w.pipe for w in busy.values()]):
                worker = busy[id(pipe)]
                index, news = worker.hear()
                if isinstance(news, tuple):
                    on_step(index, *news)
                    continue
                if waiting:
                    worker.begin(*waiting.popleft())
                else:
                    worker.end()
                on_end(index, news)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """This process' side of a worker: its process, its end of the pipe, the job it is at."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.job: Job | None = None
        self._start()

    def begin(self, index: int, job: Job) -> None:
        if not self.process.is_alive():
            self._start()
        self.index, self.job = index, job
        with suppress(OSError):  # it has died just now: `hear` will say so
            self.pipe.send((get(job[0].model.placement), *job))  # it may be registered in this process only

    def hear(self) -> tuple[int, Any]:
        """The job's index with (step, loss), or with its outcome; an error of the worker is raised here."""
        try:
            news = self.pipe.recv()
        except (EOFError, OSError):
            news = self._died()
        if isinstance(news, Exception):
            raise news
        if not isinstance(news, tuple):
            self.job = None
        return self.index, news

    def end(self) -> None:
        """At once, whatever it does: its files are whole at any time."""
        self.job = None
        self.pipe.close()
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.threads))
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()

    def _died(self) -> dict[str, Any]:
        """Said in the folder too, since the process no longer can."""
        assert self.job is not None
        run, folder = self.job
        self.process.join(5)
        how = f"the process that trained it died (exit code {self.process.exitcode}); start again to go on"
        outcome = {"outcome": "failed", "error": how, "provenance": provenance()}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", run.as_dict())
        write_json(folder / "outcome.json", outcome)
        return outcome


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
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


def _work(pipe: Connection, threads: int) -> None:
    """A worker's life: job after job, until the other side has gone."""
    from transformers.utils import logging

    torch.set_num_threads(threads)
    keep_freed_memory()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            placement, run, folder = pipe.recv()
        except EOFError:
            return
        register(run.model.placement, placement, overwrite=True)
        pipe.send(_outcome(run, folder, pipe))


def _outcome(run: Run, folder: Path, pipe: Connection) -> dict[str, Any] | Exception:
    try:
        return train(run, folder, lambda step, loss: pipe.send((step, loss)))
    except Exception as error:  # raised again on the other side
        return error


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)

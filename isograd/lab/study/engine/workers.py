"""Several small runs at once, each in a process with its share of the cores.

Small models leave most of a machine idle when several threads work on one of them; one process per core does not.

A worker and this process talk through one pipe: a job goes in; its steps and its end come out. There is no lock and
no queue between them, so a worker that is killed takes nothing along but its own job.
"""

import multiprocessing as mp
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

import torch

from isograd.lab.study.engine import server
from isograd.lab.study.engine.jobs import Engine, Job, OnEnd, OnStep, attempt, prepare, write_failed
from isograd.lab.study.engine.server import deaf_to_interrupts
from isograd.lab.train.run import Model, Run
from isograd.machine import cores


def default_jobs() -> int:
    """One per core; one in all where runs share a GPU."""
    return 1 if torch.cuda.is_available() else cores()


def share(at_once: int) -> int:
    """Of the cores, where so many processes share them."""
    return max(1, cores() // at_once)


def local(workers: int | None = None, threads: int = 1, retries: int = 2) -> Engine:
    """The engine of this machine: a pool of processes, each with so many threads; where there are GPUs, one each.

    Where the pool fills the cores, each process is pinned to its own.

    Args:
        workers: processes at once; None: as many as there are GPUs, or as the cores have room for.
        retries: how often a job is tried again whose process died; it goes on from its last checkpoint.
    """
    return partial(
        in_processes,
        at_once=at_once(workers, threads),
        threads=threads,
        gpus=visible_gpus(),
        pinned=True,
        retries=retries,
    )


def at_once(workers: int | None, threads: int) -> int:
    """How many processes the local engine starts; see there."""
    return workers or len(visible_gpus()) or max(1, cores() // threads)


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to say for each GPU that this process sees."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(i) for i in range(count)]


def in_processes(
    jobs: Mapping[int, Job],
    on_step: OnStep,
    on_end: OnEnd,
    *,
    at_once: int,
    threads: int | None = None,
    gpus: Sequence[str] = (),
    pinned: bool = False,
    retries: int = 0,
) -> None:
    """Train every job, at most `at_once` of them together; both callbacks run in this process.

    A process that dies (out of memory, say) makes the outcome of its job "failed" once it was tried again `retries`
    times without coming further, and another takes its place. However this function ends, no process is left behind.

    Args:
        threads: of each process; None: its share of the cores.
        gpus: the first process sees the first of them only, and so on, round and round; empty: all see all.
        pinned: give each process cores of its own, if all together have as many threads as there are cores.
    """
    waiting = in_order({index: run for index, (run, _) in jobs.items()}, at_once)
    deaths: Counter[int] = Counter()  # of each job since it last came further than ever
    farthest: Counter[int] = Counter()
    each = threads or share(at_once)
    shares = _shares(at_once, each) if pinned and not gpus else None
    workers = [
        _Worker(each, shares[i] if shares else None, gpus[i % len(gpus)] if gpus else None)
        for i in range(min(at_once, len(jobs)))
    ]
    try:
        for worker in workers:
            index = waiting.pop(0)
            worker.begin(index, jobs[index])
        while busy := {id(w.pipe): w for w in workers if w.job is not None}:
            for pipe in wait_for([w.pipe for w in busy.values()]):
                worker = busy[id(pipe)]
                index, news = worker.hear()
                if isinstance(news, tuple):
                    if news[0] > farthest[index]:
                        farthest[index], deaths[index] = news[0], 0
                    on_step(index, *news)
                    continue
                if news is None:  # its process died
                    deaths[index] += 1
                    if deaths[index] <= retries:
                        worker.begin(index, jobs[index])
                        continue
                    news = _lost(jobs[index], worker.process.exitcode)
                if waiting:
                    begun = waiting.pop(0)
                    worker.begin(begun, jobs[begun])
                else:
                    worker.end()
                on_end(index, news)
    finally:
        for worker in workers:
            worker.end()


def in_order(runs: Mapping[int, Run], workers: int) -> list[int]:
    """Which job is begun after which: seed by seed, so that a first whole grid is there early.

    Within a seed the most work first, lest one worker be at work at the end while the others have nothing to do; what
    is alike stays in order, and all does where one worker does everything.
    """
    if workers == 1:
        return list(runs)
    seeds = list(dict.fromkeys(run.seed for run in runs.values()))
    return sorted(runs, key=lambda index: (seeds.index(runs[index].seed), -_effort(runs[index])))


def _effort(run: Run) -> float:
    """Updates x tokens x layers x width^2: no seconds, but in their order."""
    layers = (run.layers or 1) + (run.encoder_layers or 0)
    width = run.model.width if isinstance(run.model, Model) else 1
    return float(run.training.steps * run.tokens_per_update * layers * width**2)


def _shares(workers: int, threads: int) -> list[set[int]] | None:
    """The cores of each worker; None where these do not come out even, or the system has no such thing.

    A smaller pool is not pinned: two of them would sit on the same cores, beside free ones.
    """
    if not hasattr(os, "sched_getaffinity") or workers * threads != cores():
        return None
    mine = sorted(os.sched_getaffinity(0))
    return [set(mine[i * threads : (i + 1) * threads]) for i in range(workers)]


class _Worker:
    """This process' side of a worker: its process, its end of the pipe, the job it is at."""

    def __init__(self, threads: int, share: set[int] | None, gpu: str | None) -> None:
        self.life = (threads, share)
        self.gpu = gpu
        self.job: Job | None = None
        self._start()

    def begin(self, index: int, job: Job) -> None:
        if not self.process.is_alive():
            self._start()
        self.index, self.job = index, job
        with suppress(OSError):  # it has died just now: `hear` will say so
            self.pipe.send((job[0].entry(), *job))  # it may be registered in this process only

    def hear(self) -> tuple[int, Any]:
        """The job's index with (step, loss), with its outcome, or with None if the process died."""
        try:
            news = self.pipe.recv()
        except (EOFError, OSError):
            news = None
            self.process.join(5)
        if not isinstance(news, tuple):
            self.job = None
        return self.index, news

    def end(self) -> None:
        """At once, whatever it does: its files are whole at any time."""
        self.job = None
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()  # last: a run that still trains would take it for an error of its own

    def _start(self) -> None:
        context = server.context(bool(visible_gpus())) if self.gpu is None else mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        with deaf_to_interrupts(), _seeing(self.gpu):
            self.process = context.Process(target=_work, args=(theirs, dict(os.environ), *self.life))
            self.process.start()
        theirs.close()


def _lost(job: Job, code: int | None) -> dict[str, Any]:
    """Said in the folder too, since the process no longer can."""
    return write_failed(job, f"the process that trained it died (exit code {code}); start again to go on")


@contextmanager
def _seeing(gpu: str | None) -> Iterator[None]:
    """What starts here sees this GPU alone."""
    if gpu is None:
        yield
        return
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        os.environ |= {"CUDA_VISIBLE_DEVICES": before} if before is not None else {}


def _work(pipe: Connection, environ: dict[str, str], threads: int, share: set[int] | None) -> None:
    """A worker's life: job after job, until the other side has gone."""
    os.environ.clear()  # a server's is that of its first worker
    os.environ.update(environ)
    if share is not None:
        os.sched_setaffinity(0, share)
    prepare(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(news: Any) -> None:
        try:
            pipe.send(news)
        except OSError:  # nobody hears it any more: an interrupt, which is no failure of the run
            os._exit(1)

    while True:
        try:
            placement, *job = pipe.recv()
        except EOFError:
            return
        tell(attempt(placement, (job[0], job[1]), lambda step, loss: tell((step, loss))))


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)

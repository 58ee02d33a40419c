"""Several small trainings at once, each in a process with its share of the cores.

Small models leave most of a machine idle when several threads work on one of them; one process per core does not.
"""

import multiprocessing as mp
import os
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import torch

from isograd.train.run import Run
from isograd.train.train import train

Job = tuple[Run, Path]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """One per core; one in all where trainings share a GPU."""
    return 1 if torch.cuda.is_available() else cores()


def in_processes(
    jobs: Mapping[int, Job],
    at_once: int,
    on_step: Callable[[int, int, float], None],
    on_end: Callable[[int, dict[str, Any]], None],
) -> None:
    """Train every job in a pool of `at_once` processes; both callbacks run in this process.

    A process that dies (out of memory, say) makes the outcome "failed" for the jobs that it took along.

    Raises:
        DataError, FileExistsError: as `train` raises them.
    """
    context = mp.get_context("spawn")
    news: Any = context.Queue()
    pool = ProcessPoolExecutor(at_once, context, _begin, (news, max(1, cores() // at_once)))
    try:
        index_of: dict[Future[dict[str, Any]], int] = {pool.submit(_train, i, *job): i for i, job in jobs.items()}
        pending = set(index_of)
        while pending:
            ended, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            _tell(news, on_step)
            for future in ended:
                on_end(index_of[future], _result(future))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in context_children(pool):
            process.terminate()


def context_children(pool: ProcessPoolExecutor) -> list[Any]:
    """The pool's processes that are still there."""
    return [p for p in (getattr(pool, "_processes", None) or {}).values() if p.is_alive()]


def _result(future: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return future.result()
    except BrokenProcessPool:
        return {"outcome": "failed", "error": "the process that trained it died; start the same command again"}


def _tell(news: Any, on_step: Callable[[int, int, float], None]) -> None:
    while True:
        try:
            on_step(*news.get_nowait())
        except queue.Empty:
            return


_news: Any = None


def _begin(news: Any, threads: int) -> None:
    """In a new process: its threads, its quiet, and an end when its parent has gone."""
    global _news  # the pool offers no other way to hand a queue to its processes
    _news = news
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _train(index: int, run: Run, folder: Path) -> dict[str, Any]:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return train(run, folder, lambda step, loss: _news.put((index, step, loss)))

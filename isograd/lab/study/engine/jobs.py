"""A job: a run and the folder that it lives in, and what a worker does with it."""

import gc
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isograd.errors import FolderBusyError
from isograd.files import write_json
from isograd.lab.study.faults import fault
from isograd.lab.train.callbacks import Progress
from isograd.lab.train.provenance import provenance
from isograd.lab.train.run import Run
from isograd.lab.train.tasks import Task
from isograd.lab.train.train import check_text, load_task, train
from isograd.lab.train.trainer import check_machine
from isograd.machine import keep_freed_memory
from isograd.placement import Placement, register

Job = tuple[Run, Path]
OnStep = Callable[[int, int, float], None]
OnEnd = Callable[[int, dict[str, Any]], None]
Engine = Callable[[Mapping[int, Job], OnStep, OnEnd], None]
"""Trains every job. One that raises an error, or whose process dies too often, ends as "failed", one in whose folder
another process is at work as "interrupted"; neither ends the others."""


def prepare(threads: int) -> None:
    """Make this process a worker: so many threads, and nothing said on its own."""
    from transformers.utils import logging

    torch.set_num_threads(threads)
    keep_freed_memory()
    gc.freeze()  # what is imported lives to the end; each run makes a full collection, which went through all of it
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def attempt(placement: Placement | None, job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """The outcome of a job, whatever happens; see `Engine`."""
    run, folder = job
    if placement is not None:
        register(run.model.placement, placement, overwrite=True)  # it may be known in another process only
    try:
        return train(run, folder, progress)
    except FolderBusyError as error:
        return {"outcome": "interrupted", "error": str(error)}
    except FileExistsError as error:  # the folder is not this job's; nothing is written there
        return {"outcome": "failed", "error": str(error)}
    except Exception as error:
        return write_failed(job, " ".join(str(error).split()) or type(error).__name__)


def write_failed(job: Job, how: str) -> dict[str, Any]:
    """The outcome of a job that failed outside of its training, left in its folder if anything can be written there."""
    run, folder = job
    outcome = {"outcome": "failed", "error": how, "provenance": provenance()}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", run.as_dict())
        write_json(folder / "outcome.json", outcome)
    return outcome


def tasks_of(runs: Sequence[Run]) -> list[Task]:
    """The task of each run, every corpus loaded once.

    Raises:
        DataError: the data cannot be used.
        RecipeError: settings that no model or this machine has.
    """
    corpora: dict[Any, Any] = {}
    tasks = []
    for run in runs:
        check_machine(run)
        task = load_task(run, corpora.get(run.corpus_key))
        task.config()
        corpora[run.corpus_key] = task.corpus
        tasks.append(task)
    return tasks


def check_jobs(jobs: Sequence[Job], tasks: Sequence[Task] | None = None, fresh: bool = False) -> None:
    """Refuse what cannot be trained, and folders of runs on another text.

    Args:
        tasks: those of the runs, where they are known.
        fresh: remove what the folders hold.

    Raises:
        DataError, RecipeError: as `tasks_of`.
        FileExistsError: the text has changed since; runs on both would not be a comparison.
    """
    for (_, folder), task in zip(jobs, tasks or tasks_of([run for run, _ in jobs]), strict=True):
        if fresh and (folder / "run.json").exists():
            shutil.rmtree(folder)
        if fault(folder, rows=False) is None:
            check_text(folder, task)


def in_this_process(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
    """The engine without processes: one job after another."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    for index, (run, folder) in jobs.items():
        on_end(index, attempt(run.entry(), (run, folder), partial(on_step, index)))

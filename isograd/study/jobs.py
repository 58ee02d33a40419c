"""A job: a run and the folder that it lives in, and what a worker does with it."""

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from isograd.errors import FolderBusyError
from isograd.files import write_json
from isograd.placement import Placement, register
from isograd.train.callbacks import Progress
from isograd.train.memory import keep_freed_memory
from isograd.train.provenance import provenance
from isograd.train.run import Run
from isograd.train.train import train

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


def attempt(placement: Placement, job: Job, progress: Progress | None = None) -> dict[str, Any]:
    """The outcome of a job, whatever happens; see `Engine`."""
    try:
        return trained(placement, job, progress)
    except FolderBusyError as error:
        return {"outcome": "interrupted", "error": str(error)}
    except FileExistsError as error:  # the folder is not this job's; nothing is written there
        return {"outcome": "failed", "error": str(error)}
    except Exception as error:
        return write_failed(job, " ".join(str(error).split()) or type(error).__name__)


def trained(placement: Placement, job: Job, progress: Progress | None) -> dict[str, Any]:
    """`train`, the placement registered, which may be known in another process only."""
    run, folder = job
    register(run.model.placement, placement, overwrite=True)
    return train(run, folder, progress)


def write_failed(job: Job, how: str) -> dict[str, Any]:
    """The outcome of a job that failed outside of its training, left in its folder if anything can be written there."""
    run, folder = job
    outcome = {"outcome": "failed", "error": how, "provenance": provenance()}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", run.as_dict())
        write_json(folder / "outcome.json", outcome)
    return outcome

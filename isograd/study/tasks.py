"""What runs are trained on, looked at before the first of them starts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isograd.study.jobs import Job
from isograd.train.run import Run
from isograd.train.tasks import Task
from isograd.train.train import load_task
from isograd.train.trainer import check_machine


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


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse what cannot be trained, and folders of runs on another text.

    Raises:
        DataError, RecipeError: as `tasks_of`.
        FileExistsError: the text has changed since; runs on both would not be a comparison.
    """
    for (_, folder), task in zip(jobs, tasks_of([run for run, _ in jobs]), strict=True):
        if _text_of(folder) not in (None, task.sha256):
            raise FileExistsError(
                f"{folder} was trained on another text: {task.source} (or how it is read) has changed since;"
                " choose another folder"
            )


def _text_of(folder: Path) -> str | None:
    """The hash of what a run was trained on; None where nothing tells."""
    try:
        found = json.loads((folder / "resolved.json").read_text(encoding="utf-8"))["data"]["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None

"""One file per task. A new one is its file, its line here, and its recipe."""

from isograd.lab.train.run import Run
from isograd.lab.train.tasks.base import Column, Task
from isograd.lab.train.tasks.classification import Classification
from isograd.lab.train.tasks.language import LanguageModelling
from isograd.lab.train.tasks.masked import MaskedLanguageModelling
from isograd.lab.train.tasks.own import OwnLanguage, OwnTask
from isograd.lab.train.tasks.translation import Translation

__all__ = ["DEFAULT", "TASKS", "Column", "Task", "task_of"]

DEFAULT = LanguageModelling.name
TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (LanguageModelling, MaskedLanguageModelling, Translation, Classification, OwnLanguage, OwnTask)
}


def task_of(run: Run) -> type[Task]:
    """The task of a run."""
    return TASKS[run.task]

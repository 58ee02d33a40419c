"""Names -> the harness' tasks: from the hub by the harness itself, or the same definitions on local rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from isograd.errors import DataError, first_line
from isograd.lab.evaluate.harness import DEFINITIONS, Dataset, Group, TaskManager, quiet_harness
from isograd.lab.evaluate.local_tasks import LOCAL, Row, find_tasks, read_task, whole_of

TASKS = (
    "hellaswag",
    "piqa",
    "winogrande",
    "openbookqa",
    "arc_easy",
    "arc_challenge",
    "lambada_openai",
    "blimp",
)
_FOLDERS = ("arc", "blimp", "hellaswag", "lambada", "openbookqa", "piqa", "storycloze", "winogrande")


def load_tasks(names: Sequence[str] | None, data: Path | None) -> dict[str, Any]:
    """Tasks and groups of tasks, by name, with their documents.

    Args:
        names: any that the harness knows; None takes what `data` has, or `TASKS`.
        data: a folder of files; None leaves it to the harness, which asks the Hugging Face hub.

    Raises:
        DataError: an unknown name, or data that is not there or not as it should be.
    """
    files = find_tasks(data) if data else {}
    chosen = list(dict.fromkeys(names or files or TASKS))
    manager = _manager(chosen)
    chosen = [one for name in chosen for one in _members(manager, name, files)]
    if data:
        return {name: _local(manager, name, files, data) for name in chosen}
    return {name: _from_hub(manager, name) for name in chosen}


def _manager(names: Iterable[str]) -> TaskManager:
    """Of the tasks named here; of all that the harness has where a name is none of them, which takes seconds."""
    manager = TaskManager(include_defaults=False, include_path=[DEFINITIONS / folder for folder in _FOLDERS])
    others = set(names) - set(manager.all_tasks)
    if not others:
        return manager
    manager = TaskManager()
    for name in sorted(others - set(manager.all_tasks)):
        near = get_close_matches(name, LOCAL, 1) or get_close_matches(name, manager.all_tasks, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(TASKS)}, or another of lm-eval's"
        raise DataError(f"unknown task {name!r}: {hint}")
    return manager


def _members(manager: TaskManager, name: str, files: Mapping[str, Path]) -> list[str]:
    """A tag's tasks (of local ones those that have a file), or the name itself."""
    if name not in manager.all_tags:
        return [name]
    members = sorted(manager.task_index[name].tags)
    return [member for member in members if member in files] or members


def _from_hub(manager: TaskManager, name: str) -> Any:
    try:
        with quiet_harness():
            loaded = manager.load([name])
    except Exception as error:  # the hub raises many kinds; a user needs one line
        raise DataError(
            f"{name}: its data cannot be loaded from the hub ({first_line(error)}); with files: --data FOLDER"
        ) from error
    return loaded.get("groups", {}).get(name) or loaded["tasks"][name]


def _local(manager: TaskManager, name: str, files: Mapping[str, Path], folder: Path) -> Any:
    whole = whole_of(name)
    if whole is None:
        raise DataError(f"{name}: is read from the hub alone; from files there are {', '.join(LOCAL)}")
    if whole not in files:
        raise DataError(f"{folder}: no file for {name}; there are {', '.join(path.name for path in files.values())}")
    rows = read_task(whole, files[whole])
    if unknown := sorted(set(rows) - set(manager.all_subtasks)):
        raise DataError(f"{files[whole]}: {unknown[0].removeprefix(f'{whole}_')!r} is no part of {whole}")
    if name != whole and name not in rows:
        raise DataError(f"{files[whole]}: no rows of {name}")
    chosen = sorted(rows) if name == whole else [name]
    try:
        with quiet_harness():
            loaded = manager.load([{"group": "local", "task": [_on_rows(task, rows[task]) for task in chosen]}])
    except Exception as error:  # of the harness' templates, of its functions, and of Arrow
        raise DataError(f"{files[whole]}: the harness cannot read its rows ({first_line(error)})") from error
    return _group(manager, name, loaded["tasks"]) if name in manager.all_groups else loaded["tasks"][name]


def _on_rows(task: str, rows: list[Row]) -> dict[str, Any]:
    """What the harness gets in place of its `dataset_path`."""
    return {
        "task": task,
        "custom_dataset": _giving(rows),
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
    }


def _giving(rows: list[Row]) -> Callable[..., dict[str, Dataset]]:
    def dataset(**_: Any) -> dict[str, Dataset]:
        return {"test": Dataset.from_list(rows)}

    return dataset


def _group(manager: TaskManager, name: str, tasks: Mapping[str, Any]) -> Any:
    """The harness' group, which says how its members are averaged, of the members that are there."""
    config = {key: value for key, value in manager.task_index[name].cfg.items() if key not in ("task", "tag")}
    group = Group.from_config(config)
    for task in tasks.values():
        group.add(task)
    return group

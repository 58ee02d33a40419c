"""Five of GLUE's tasks as sentences and labels: from tab-separated files, and through `datasets`.

The files are those of GLUE's own download, or those that a task was first published as; they are read without quote
handling, since sentences hold unbalanced quotation marks.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from isograd.data.glue_rows import TASKS, Kind, Row, hub_rows, table_rows
from isograd.data.text import OPEN
from isograd.errors import DataError

__all__ = ["TASKS", "Examples", "GlueData", "load_glue"]

HELD_OUT = 10  # one row in ten, where there is no dev part; of MRPC's 4,076 that is as many as GLUE's own dev part has
HUB = "nyu-mll/glue"


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Rows of one part.

    Attributes:
        second: None in a task of single sentences.
        labels: class ids, or scores.
    """

    first: list[str]
    second: list[str] | None
    labels: list[float]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class GlueData:
    """One task.

    Attributes:
        test: None where there is none, or none with labels.
        held_out: whether `dev` is a part of the training file, since there is no dev file.
        classes: their names in the order of their ids; empty where labels are scores.
        source: what was read, for people.
        sha256: of all rows.
    """

    task: str
    train: Examples
    dev: Examples
    test: Examples | None
    held_out: bool
    classes: tuple[str, ...]
    source: str
    sha256: str

    @property
    def constant(self) -> float:
        """What a model that reads nothing says of every row: the commonest class of `train`, or its mean score.

        Of equally common classes the first.
        """
        labels = self.train.labels
        return Counter(sorted(labels)).most_common(1)[0][0] if self.classes else fmean(labels)

    def facts(self) -> dict[str, Any]:
        """For people."""
        rows = {"train": len(self.train), "dev": len(self.dev)}
        rows |= {"test": len(self.test)} if self.test else {}
        dev = (
            f"held out of the training file by label and hash, one row in {HELD_OUT}"
            if self.held_out
            else "its own file"
        )
        facts = {"source": self.source, "sha256": self.sha256, "glue": self.task, "rows": rows, "dev": dev}
        return facts | {"classes": list(self.classes), "constant": self.constant}


def load_glue(task: str, source: str | Path = HUB) -> GlueData:
    """The rows of a task.

    Args:
        task: "mrpc", "rte", "cola", "sst-2" or "sts-b".
        source: a folder of tab-separated files (plain, .gz or .xz), of the task or of all tasks; a folder of Parquet
            files that `datasets` reads; or a data set's name on the hub, whose configurations are called as GLUE's.

    Raises:
        DataError: in one line what is wrong with the input.
    """
    if task not in TASKS:
        raise DataError(f"{task!r} is no task of GLUE that is known here; known are {', '.join(TASKS)}")
    kind, place = TASKS[task], Path(source)
    if not place.is_dir() and (place.exists() or place.is_absolute() or str(source).startswith((".", "~"))):
        raise DataError(f"{source}: {'is a file; name a folder' if place.exists() else 'no such folder'}")
    folder = _folder(place, task, kind) if place.is_dir() else None
    parts = _files(folder, kind) if folder else _hub(str(source), kind)
    return _data(task, kind, parts, str(folder or f"{source} ({kind.config})"))


def _data(task: str, kind: Kind, parts: dict[str, list[Row]], source: str) -> GlueData:
    held_out = not parts["dev"]
    if held_out:
        parts["train"], parts["dev"] = _hold_out(parts["train"], source)
    digest = hashlib.sha256(json.dumps([task, parts], sort_keys=True).encode())
    return GlueData(
        task=task,
        train=_examples(parts["train"], kind),
        dev=_examples(parts["dev"], kind),
        test=_examples(parts["test"], kind) if parts["test"] else None,
        held_out=held_out,
        classes=kind.classes,
        source=source,
        sha256=digest.hexdigest(),
    )


def _examples(rows: list[Row], kind: Kind) -> Examples:
    second = [row[1] for row in rows if row[1] is not None]
    return Examples(
        first=[row[0] for row in rows],
        second=second if kind.pairs else None,
        labels=[row[2] for row in rows if row[2] is not None],
    )


def _hold_out(rows: list[Row], source: str) -> tuple[list[Row], list[Row]]:
    """Every tenth of the rows in the order of their labels, then of a hash of their sentences, with all its copies.

    So both parts have the same shares of classes, and the choice depends on the rows alone.
    """
    marks = [hashlib.sha256(json.dumps(sorted(filter(None, row[:2]))).encode()).digest() for row in rows]
    labels: dict[bytes, float] = {}
    for row, mark in zip(rows, marks, strict=True):
        labels[mark] = min(row[2] or 0, labels.get(mark, row[2] or 0))
    if len(labels) < HELD_OUT:
        raise DataError(f"{source}: no dev part, and {len(rows)} rows of train are too few to hold some out")
    both: tuple[list[Row], list[Row]] = ([], [])
    held = set(sorted(labels, key=lambda mark: (labels[mark], mark))[::HELD_OUT])
    for row, mark in zip(rows, marks, strict=True):
        both[mark in held].append(row)
    return both


def _folder(place: Path, task: str, kind: Kind) -> Path | None:
    """Where the task's training file is; None where `datasets` may know better."""
    named = [place / name for name in dict.fromkeys((kind.folder, task, kind.config, kind.folder.lower()))]
    others = {name for other in TASKS.values() if other is not kind for name in (other.folder, other.config)}
    own = [] if place.name in others else [place]
    for folder in (*named, *own):
        if _file(folder, kind.files["train"]):
            return folder
    if any(place.glob("**/*.parquet")) or (place / "README.md").is_file():
        return None
    there = next((folder for folder in named if folder.is_dir()), place)
    looked_for = " or ".join(kind.files["train"])
    found = ", ".join(sorted(path.name for path in there.iterdir())[:8]) or "nothing"
    raise DataError(f"{there}: no training part of {task}: looked for {looked_for} (also .gz, .xz), found {found}")


def _file(folder: Path, names: Iterable[str]) -> Path | None:
    candidates = (folder / f"{name}{packed}" for name in names for packed in ("", *OPEN))
    return next((path for path in candidates if path.is_file()), None)


def _files(folder: Path, kind: Kind) -> dict[str, list[Row]]:
    found = {part: _file(folder, names) for part, names in kind.files.items()}
    return {
        part: _labelled(table_rows(path, kind, labelled=part != "test")) if path else [] for part, path in found.items()
    }


def _hub(source: str, kind: Kind) -> dict[str, list[Row]]:
    data: Mapping[str, Any] = hub_rows(source, kind)
    return {part: _labelled(data.get(part, [])) for part in ("train", "dev", "test")}


def _labelled(rows: list[Row]) -> list[Row]:
    """All or none: GLUE keeps the labels of its test parts."""
    return [] if any(row[2] is None for row in rows) else rows

"""Eight of GLUE's tasks as sentences and labels: from tab-separated files, and through `datasets`.

The files are those of GLUE's own download, or those that a task was first published as; they are read without quote
handling, since sentences hold unbalanced quotation marks.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from isograd.errors import DataError, first_line
from isograd.hub import absent, load_dataset
from isograd.text import OPEN, file_text, must_have_datasets

HELD_OUT = 10  # one row in ten, where there is no dev part; of MRPC's 4,076 that is as many as GLUE's own dev part has
HUB = "nyu-mll/glue"
Row = tuple[str, str | None, float | None]  # first, second, label; None where there is none
Columns = Mapping[str, str]  # "first", "second", "label" -> the name of a column

_PAIR = {"first": "sentence1", "second": "sentence2"}
_QUESTIONS = {"first": "question1", "second": "question2"}
_SINGLE = {"first": "sentence", "label": "label"}
_MSR = {"first": "#1 String", "second": "#2 String", "label": "Quality"}
_OWN = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
_PARTS = {"train": "train", "dev": "validation", "test": "test"}  # as `datasets` call them


def _named_files(**first: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {part: (*first.get(part, ()), *names) for part, names in _OWN.items()}


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Where a task's rows are, and what they mean.

    Attributes:
        folder: of GLUE's download.
        config: of the data set on the hub.
        headers: names of columns, each way that they are known.
        unheaded: the columns of files that have no header.
        classes: names in the order of their ids, which are the hub's; empty: scores from 0 to 5.
        files: names in a folder for each part, the first one found is read.
        parts: what the hub calls each part.
        torn: whether the published file has truncated rows; they are left out.
    """

    folder: str
    config: str
    headers: Sequence[Columns]
    classes: tuple[str, ...]
    unheaded: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=_named_files)
    parts: Mapping[str, str] = field(default_factory=lambda: _PARTS)
    torn: bool = False

    @property
    def pairs(self) -> bool:
        return "second" in self.headers[0]


TASKS = {
    "mrpc": GlueTask(
        folder="MRPC",
        config="mrpc",
        headers=(_MSR, _PAIR | {"label": "label"}),
        classes=("not_equivalent", "equivalent"),
        files=_named_files(train=("msr_paraphrase_train.txt",), test=("msr_paraphrase_test.txt",)),
    ),
    "rte": GlueTask(
        folder="RTE",
        config="rte",
        headers=(_PAIR | {"label": "label"},),
        classes=("entailment", "not_entailment"),
    ),
    "cola": GlueTask(
        folder="CoLA",
        config="cola",
        headers=(_SINGLE,),
        classes=("unacceptable", "acceptable"),
        unheaded=("source", "label", "mark", "sentence"),
    ),
    "sst-2": GlueTask(folder="SST-2", config="sst2", headers=(_SINGLE,), classes=("negative", "positive")),
    "sts-b": GlueTask(
        folder="STS-B",
        config="stsb",
        headers=(_PAIR | {"label": "score"}, _PAIR | {"label": "label"}),
        classes=(),
        unheaded=("genre", "file", "year", "index", "score", "sentence1", "sentence2"),
        files=_named_files(**{part: (f"sts-{part}.tsv", f"sts-{part}.csv") for part in _OWN}),
    ),
    "mnli": GlueTask(
        folder="MNLI",
        config="mnli",
        headers=(_PAIR | {"label": "gold_label"}, {"first": "premise", "second": "hypothesis", "label": "label"}),
        classes=("entailment", "neutral", "contradiction"),
        files=_named_files(dev=("dev_matched.tsv",), test=("test_matched.tsv",)),
        parts=_PARTS | {"dev": "validation_matched", "test": "test_matched"},
    ),
    "qnli": GlueTask(
        folder="QNLI",
        config="qnli",
        headers=({"first": "question", "second": "sentence", "label": "label"},),
        classes=("entailment", "not_entailment"),
    ),
    "qqp": GlueTask(
        folder="QQP",
        config="qqp",
        headers=tuple(_QUESTIONS | {"label": label} for label in ("is_duplicate", "label")),
        classes=("not_duplicate", "duplicate"),
        torn=True,
    ),
}


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
        """What a model that reads nothing predicts for every row: the commonest class of `train`, or its mean score.

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
        task: a key of `TASKS`.
        source: a folder of tab-separated files (plain, .gz or .xz), of the task or of all tasks; a folder of Parquet
            files that `datasets` reads; or a data set's name on the hub, whose configurations are called as GLUE's.

    Raises:
        DataError: in one line what is wrong with the input.
    """
    if task not in TASKS:
        raise DataError(f"{task!r} is not a task of GLUE; expected one of {', '.join(TASKS)}")
    kind, place = TASKS[task], Path(source)
    must_be_there(str(source))
    folder = _folder(place, task, kind) if place.is_dir() else None
    parts = _files(folder, kind) if folder else _hub(str(source), kind)
    return _data(task, kind, parts, str(folder or f"{source} ({kind.config})"))


def _data(task: str, kind: GlueTask, parts: dict[str, list[Row]], source: str) -> GlueData:
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


def _examples(rows: list[Row], kind: GlueTask) -> Examples:
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


def _folder(place: Path, task: str, kind: GlueTask) -> Path | None:
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


def _files(folder: Path, kind: GlueTask) -> dict[str, list[Row]]:
    found = {part: _file(folder, names) for part, names in kind.files.items()}
    return {part: _labelled(_table(path, kind, part)) if path else [] for part, path in found.items()}


def _labelled(rows: list[Row]) -> list[Row]:
    """All or none: GLUE keeps the labels of its test parts."""
    return [] if any(row[2] is None for row in rows) else rows


def _table(path: Path, kind: GlueTask, part: str) -> list[Row]:
    """The rows of a tab-separated file, with a header or without."""
    lines = [line.split("\t") for line in file_text(path).removesuffix("\n").split("\n")]
    names: Sequence[str] = lines[0]
    begin = 1
    if kind.unheaded and _named(names, kind, part) is None:
        names, begin = kind.unheaded, 0
        if len(lines[0]) < len(names):
            raise DataError(
                f"{path}, line 1: {len(lines[0])} columns; expected {', '.join(names)} with no header, or a header with"
                f" {', '.join(kind.headers[0].values())}"
            )
    written = [(f"{path}, line {i}", line) for i, line in enumerate(lines[begin:], begin + 1) if "".join(line).strip()]
    rows = list(_rows(str(path), names, written, kind, part))
    if not rows:
        raise DataError(f"{path}: has a header and no rows")
    return rows


def _named(names: Sequence[str], kind: GlueTask, part: str) -> Columns | None:
    """The way of naming columns of which these have all."""
    return next((columns for columns in kind.headers if not _lacking(columns, names, part)), None)


def _lacking(columns: Columns, names: Sequence[str], part: str) -> list[str]:
    return [name for role, name in columns.items() if name not in names and (part != "test" or role != "label")]


def _rows(
    where: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]], kind: GlueTask, part: str
) -> Iterator[Row]:
    """Rows of a part, each with where it stands, by the names of its columns.

    Raises:
        DataError: a column is missing, or a row is not as it should be.
    """
    columns = _named(names, kind, part)
    if columns is None:
        lacking = min((_lacking(columns, names, part) for columns in kind.headers), key=len)
        raise DataError(
            f"{where}: no column{'s' if len(lacking) > 1 else ''} {' and '.join(map(repr, lacking))};"
            f" found {', '.join(map(repr, names[:10]))}"
        )
    places = {role: names.index(name) for role, name in columns.items() if name in names}
    needed = max(places.values()) + 1
    for here, row in rows:
        if kind.torn and (len(row) < needed or not all(str(row[place]).strip() for place in places.values())):
            continue
        if len(row) < needed:
            raise DataError(f"{here}: {len(row)} columns, expected at least {needed}, divided by tabs")
        yield _row({role: row[place] for role, place in places.items()}, kind, part, here)


def _row(cells: Mapping[str, Any], kind: GlueTask, part: str, where: str) -> Row:
    first, second = cells["first"], cells["second"] if kind.pairs else None
    for text in (first, second) if kind.pairs else (first,):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: a sentence is missing")
    label = cells.get("label")
    hidden = label is None or (part == "test" and label == -1)
    return first, second, None if hidden else _label(str(label), kind, where)


def _label(said: str, kind: GlueTask, where: str) -> float:
    if not kind.classes:
        return _score(said, where)
    known = {str(i): i for i in range(len(kind.classes))} | {name: i for i, name in enumerate(kind.classes)}
    if said.strip() not in known:
        names = ", ".join(f"{name} ({i})" for i, name in enumerate(kind.classes))
        raise DataError(f"{where}: label {said!r} is unknown; known are {names}")
    return known[said.strip()]


def _score(said: str, where: str) -> float:
    try:
        score = float(said)
    except ValueError as error:
        raise DataError(f"{where}: score {said!r} is no number") from error
    if not 0 <= score <= 5:
        raise DataError(f"{where}: score {said!r} is not from 0 to 5")
    return score


def _hub(source: str, kind: GlueTask) -> dict[str, list[Row]]:
    """The parts of a data set, as far as it has them."""
    data = _loaded(source, kind)
    if "train" not in data:
        raise DataError(f"{source} ({kind.config}): no part 'train'; found {', '.join(data)}")
    found: dict[str, list[Row]] = {part: [] for part in kind.parts}
    for part, name in kind.parts.items():
        if name in data:
            where, names = f"{source} ({kind.config}), {part}", data[name].column_names
            columns = zip(*(data[name][column] for column in names), strict=True)
            rows = ((f"{where}, row {i}", row) for i, row in enumerate(columns, 1))
            found[part] = _labelled(list(_rows(where, names, rows, kind, part)))
    return found


def must_be_there(source: str) -> None:
    """Refuse what can be neither a folder nor a data set's name, before anything is read.

    Raises:
        DataError: in one line what is wrong.
    """
    place = Path(source)
    if not place.is_dir() and (place.exists() or place.is_absolute() or source.startswith((".", "~"))):
        raise DataError(f"{source}: {'is a file; name a folder' if place.exists() else 'no such folder'}")
    if place.is_dir():
        return
    must_have_datasets(source)
    if why := absent(source, "dataset"):
        raise DataError(f"{source}: no such folder here, and as a data set on the hub it cannot be loaded: {why}")


def _loaded(source: str, kind: GlueTask) -> Any:
    must_have_datasets(source)
    inner = Path(source) / kind.config
    try:
        return load_dataset(str(inner)) if inner.is_dir() else load_dataset(source, kind.config)
    except Exception as error:  # the hub raises many kinds; a user needs one line
        what = "as a data set" if Path(source).exists() else "no such folder here, and as a data set on the hub"
        raise DataError(
            f"{source} ({kind.config}): {what} it cannot be loaded: {first_line(error)}; name a folder with"
            f" {kind.folder}/{kind.files['train'][-1]} to read files"
        ) from error

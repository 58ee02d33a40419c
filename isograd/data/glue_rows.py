"""The rows of a task of GLUE, and what its columns and labels are called where."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isograd.data.text import file_text, first_line
from isograd.errors import DataError

Row = tuple[str, str | None, float | None]  # first, second, label; None where there is none
Columns = Mapping[str, str]  # "first", "second", "label" -> the name of a column

_PAIR = {"first": "sentence1", "second": "sentence2"}
_SINGLE = {"first": "sentence", "label": "label"}
_MSR = {"first": "#1 String", "second": "#2 String", "label": "Quality"}
_OWN = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
_PARTS = {"train": "train", "dev": "validation", "test": "test"}  # as `datasets` call them


def _files(**first: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {part: (*first.get(part, ()), *names) for part, names in _OWN.items()}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Where a task's rows are, and what they mean.

    Attributes:
        folder: of GLUE's download.
        config: of the data set on the hub.
        headers: names of columns, each way that they are known.
        places: of columns in files that have no header, and what these files' columns are.
        classes: names in the order of their ids, which are the hub's; empty: scores from 0 to 5.
        files: names in a folder for each part, the first one found is read.
    """

    folder: str
    config: str
    headers: Sequence[Columns]
    classes: tuple[str, ...]
    places: Mapping[str, int] = field(default_factory=dict)
    shape: str = ""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=_files)

    @property
    def pairs(self) -> bool:
        return "second" in self.headers[0]


TASKS = {
    "mrpc": Kind(
        folder="MRPC",
        config="mrpc",
        headers=(_MSR, _PAIR | {"label": "label"}),
        classes=("not_equivalent", "equivalent"),
        files=_files(train=("msr_paraphrase_train.txt",), test=("msr_paraphrase_test.txt",)),
    ),
    "rte": Kind(
        folder="RTE",
        config="rte",
        headers=(_PAIR | {"label": "label"},),
        classes=("entailment", "not_entailment"),
    ),
    "cola": Kind(
        folder="CoLA",
        config="cola",
        headers=(_SINGLE,),
        classes=("unacceptable", "acceptable"),
        places={"first": 3, "label": 1},
        shape="source, label, mark, sentence",
    ),
    "sst-2": Kind(folder="SST-2", config="sst2", headers=(_SINGLE,), classes=("negative", "positive")),
    "sts-b": Kind(
        folder="STS-B",
        config="stsb",
        headers=(_PAIR | {"label": "score"}, _PAIR | {"label": "label"}),
        classes=(),
        places={"first": 5, "second": 6, "label": 4},
        shape="genre, file, year, index, score, sentence 1, sentence 2",
        files=_files(**{part: (f"sts-{part}.tsv", f"sts-{part}.csv") for part in _OWN}),
    ),
}


def table_rows(path: Path, kind: Kind, labelled: bool = True) -> list[Row]:
    """The rows of a tab-separated file, with a header or without.

    Args:
        labelled: a column of labels must be there.

    Raises:
        DataError: with the line.
    """
    lines = file_text(path).removesuffix("\n").split("\n")
    places, begin = _places(path, lines[0].split("\t"), kind, labelled)
    rows = list(_table(path, lines, places, begin, kind))
    if not rows:
        raise DataError(f"{path}: has a header and no rows")
    return rows


def _places(path: Path, cells: list[str], kind: Kind, labelled: bool) -> tuple[Mapping[str, int], int]:
    """Where the columns are, and in which line the rows begin (from 0)."""
    columns = _named(cells, kind, labelled)
    if columns:
        return {role: cells.index(name) for role, name in columns.items() if name in cells}, 1
    if not kind.places:
        raise DataError(f"{path}: {_missing(cells, kind, labelled)}")
    if len(cells) <= max(kind.places.values()):
        names = ", ".join(kind.headers[0].values())
        raise DataError(
            f"{path}, line 1: {len(cells)} columns; expected {kind.shape} with no header, or a header with {names}"
        )
    return kind.places, 0


def _named(names: Iterable[str], kind: Kind, labelled: bool) -> Columns | None:
    """The way of naming columns of which these have all."""
    there = set(names)
    return next((columns for columns in kind.headers if not _lacking(columns, there, labelled)), None)


def _lacking(columns: Columns, there: set[str], labelled: bool) -> list[str]:
    return [name for role, name in columns.items() if name not in there and (labelled or role != "label")]


def _missing(names: Iterable[str], kind: Kind, labelled: bool) -> str:
    """By the way of naming that lacks least."""
    found = list(names)
    lacking = min((_lacking(columns, set(found), labelled) for columns in kind.headers), key=len)
    quoted = " and ".join(map(repr, lacking))
    return f"no column{'s' if len(lacking) > 1 else ''} {quoted}; found {', '.join(map(repr, found[:10]))}"


def _table(path: Path, lines: list[str], places: Mapping[str, int], begin: int, kind: Kind) -> Iterator[Row]:
    needed = max(places.values()) + 1
    for number, line in enumerate(lines[begin:], start=begin + 1):
        if not line.strip():
            continue
        cells = line.split("\t")
        where = f"{path}, line {number}"
        if len(cells) < needed:
            raise DataError(f"{where}: {len(cells)} columns, expected at least {needed}, divided by tabs")
        yield _row({role: cells[place] for role, place in places.items()}, kind, where)


def _row(cells: Mapping[str, Any], kind: Kind, where: str) -> Row:
    sentences = [cells.get(role) for role in ("first", "second")]
    for text in sentences[: 1 + kind.pairs]:
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: a sentence is missing")
    first, second = sentences
    label = cells.get("label")
    return str(first), second if kind.pairs else None, None if label is None else _label(str(label), kind, where)


def _label(said: str, kind: Kind, where: str) -> float:
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


def hub_rows(source: str, kind: Kind) -> dict[str, list[Row]]:
    """The parts of a data set: "train", "dev", "test" as far as it has them; of a hidden label (-1) None.

    Raises:
        DataError: it cannot be loaded, or is none of this task.
    """
    data = _loaded(source, kind)
    if "train" not in data:
        raise DataError(f"{source} ({kind.config}): no part 'train'; found {', '.join(data)}")
    return {part: list(_of_hub(data[name], part, source, kind)) for part, name in _PARTS.items() if name in data}


def _of_hub(data: Any, part: str, source: str, kind: Kind) -> Iterator[Row]:
    where = f"{source} ({kind.config}), {part}"
    columns = _named(data.column_names, kind, labelled=part != "test")
    if columns is None:
        raise DataError(f"{where}: {_missing(data.column_names, kind, part != 'test')}")
    there = {role: data[name] for role, name in columns.items() if name in data.column_names}
    for number, values in enumerate(zip(*there.values(), strict=True), start=1):
        cells = dict(zip(there, values, strict=True))
        if part == "test" and cells.get("label") == -1:
            cells["label"] = None
        yield _row(cells, kind, f"{where}, row {number}")


def _loaded(source: str, kind: Kind) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"data set {source!r} needs the datasets library; pip install 'isograd[data]'") from error
    inner = Path(source) / kind.config
    try:
        return datasets.load_dataset(str(inner)) if inner.is_dir() else datasets.load_dataset(source, kind.config)
    except Exception as error:  # the hub raises many kinds; a user needs one line
        what = "as a data set" if Path(source).exists() else "no such folder here, and as a data set on the hub"
        raise DataError(
            f"{source} ({kind.config}): {what} it cannot be loaded: {first_line(error)}; name a folder with"
            f" {kind.folder}/{kind.files['train'][-1]} to read files"
        ) from error

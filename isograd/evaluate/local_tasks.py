"""A folder of files -> the rows of zero-shot tasks. JSON lines, plain, .gz or .xz; StoryCloze also as CSV."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isograd.data.text import OPEN, file_text, json_rows
from isograd.errors import DataError
from isograd.evaluate import local_rows as rows
from isograd.evaluate.local_rows import Form, Reader, Row

VALID = ("val", "valid", "validation", "dev")
TEST = ("test",)


@dataclass(frozen=True, kw_only=True)
class LocalTask:
    """Where the rows of a task lie.

    Attributes:
        stems: names of its file, up to the suffix; a part, and "partial", may follow.
        parts: the part of the data set that the harness scores, as file names call it.
        forms: of a row; the first is the hub's.
        member: the field that says which of the harness' tasks a row belongs to, where a file holds several.
        suffixes: of the file, before .gz or .xz.
    """

    stems: tuple[str, ...]
    forms: tuple[Form, ...]
    parts: tuple[str, ...] = ()
    member: str | None = None
    suffixes: tuple[str, ...] = ("jsonl", "json")

    def called(self, stem: str) -> bool:
        """Whether a file of this stem holds the task."""
        plain = stem.lower().replace("_", "-").removesuffix("-partial")
        return any(plain in (own, *(f"{own}-{part}" for part in self.parts)) for own in self.stems)


def find_tasks(folder: Path) -> dict[str, Path]:
    """The tasks that a folder has a file for, in the order of the table.

    Raises:
        DataError: no such folder, no known file in it, or two for one task.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: is a file; name its folder" if folder.exists() else f"{folder}: no such folder")
    found: dict[str, Path] = {}
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        for name in filter(lambda name: _holds(path, LOCAL[name]), LOCAL):
            if name in found:
                raise DataError(f"{folder}: both {found[name].name} and {path.name} hold {name}; keep one")
            found[name] = path
    if not found:
        known = ", ".join("-".join((task.stems[0], *task.parts[:1])) for task in LOCAL.values())
        raise DataError(
            f"{folder}: no file of a known task; expected JSON lines (.jsonl, also .gz or .xz) named {known}"
        )
    return {name: found[name] for name in LOCAL if name in found}


def whole_of(name: str) -> str | None:
    """The task whose file holds it: itself, that of which it is a member, or None.

    >>> whole_of("piqa"), whole_of("blimp_wh_island"), whole_of("boolq")
    ('piqa', 'blimp', None)
    """
    return next(
        (one for one, task in LOCAL.items() if name == one or (task.member and name.startswith(f"{one}_"))), None
    )


def read_task(name: str, path: Path) -> dict[str, list[Row]]:
    """Rows in the hub's form, by the name of the harness' task.

    Raises:
        DataError: in one line what is wrong, and where.
    """
    task = LOCAL[name]
    found: dict[str, list[Row]] = {}
    for where, row in _rows(path):
        converted = rows.convert(task.forms, Reader(row, where))
        member = f"{name}_{converted[task.member]}" if task.member else name
        found.setdefault(member, []).append(converted)
    if not found:
        raise DataError(f"{path}: holds no rows")
    return found


def _holds(path: Path, task: LocalTask) -> bool:
    if path.is_dir():
        return task.member is not None and task.called(path.name)
    name = path.with_suffix("").name if path.suffix in OPEN else path.name
    stem, _, suffix = name.rpartition(".")
    return suffix in task.suffixes and task.called(stem)


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Every row with where it stands; of a folder those of all its files."""
    if path.is_dir():
        for part in sorted(path.glob("*.jsonl*")):
            yield from _rows(part)
        return
    text = file_text(path)
    if ".csv" in path.suffixes[-2:]:
        yield from ((f"{path}, row {i}", row) for i, row in enumerate(csv.DictReader(io.StringIO(text)), start=1))
        return
    for number, row in json_rows(text, path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, found a {type(row).__name__}")
        yield where, row


_CLOZE = (
    Form(
        fields=(
            *(f"input_sentence_{i}" for i in range(1, 5)),
            "sentence_quiz1",
            "sentence_quiz2",
            "answer_right_ending",
        )
    ),
    Form(
        fields=(
            *(f"InputSentence{i}" for i in range(1, 5)),
            "RandomFifthSentenceQuiz1",
            "RandomFifthSentenceQuiz2",
            "AnswerRightEnding",
        ),
        convert=rows.storycloze,
    ),
)
_ARC = (
    Form(fields=("question", "choices", "answerKey")),
    Form(fields=("query", "choices", "gold"), convert=rows.arc),
)

LOCAL: dict[str, LocalTask] = {
    "hellaswag": LocalTask(
        stems=("hellaswag",),
        parts=VALID,
        forms=(
            Form(fields=("activity_label", "ctx_a", "ctx_b", "endings", "label")),
            Form(fields=("ctx", "endings", "label"), convert=rows.hellaswag),
        ),
    ),
    "piqa": LocalTask(
        stems=("piqa",), parts=VALID, forms=(Form(fields=("goal", "sol1", "sol2", "label"), convert=rows.piqa),)
    ),
    "winogrande": LocalTask(
        stems=("winogrande",),
        parts=VALID,
        forms=(
            Form(fields=("sentence", "option1", "option2", "answer")),
            Form(fields=("context_options", "continuation", "gold"), convert=rows.winogrande),
        ),
    ),
    "openbookqa": LocalTask(
        stems=("openbookqa",),
        parts=TEST,
        forms=(
            Form(fields=("question_stem", "choices", "answerKey")),
            Form(fields=("question_stem", "choices", "label"), convert=rows.openbookqa),
        ),
    ),
    "arc_easy": LocalTask(stems=("arc-easy",), parts=TEST, forms=_ARC),
    "arc_challenge": LocalTask(stems=("arc-challenge",), parts=TEST, forms=_ARC),
    "lambada_openai": LocalTask(
        stems=("lambada-openai", "lambada"),
        parts=TEST,
        forms=(Form(fields=("text",)), Form(fields=("context", "continuation"), convert=rows.lambada)),
    ),
    "blimp": LocalTask(
        stems=("blimp",),
        member="UID",
        forms=(Form(fields=("UID", "field", "linguistics_term", "sentence_good", "sentence_bad"), convert=rows.blimp),),
    ),
    "storycloze_2016": LocalTask(
        stems=("storycloze-2016", "storycloze"), forms=_CLOZE, suffixes=("jsonl", "json", "csv")
    ),
    "storycloze_2018": LocalTask(stems=("storycloze-2018",), forms=_CLOZE, suffixes=("jsonl", "json", "csv")),
}

"""Names -> the harness' tasks: from the hub by the harness itself, or the same definitions on the rows of local files.

Files are JSON lines, plain, .gz or .xz; StoryCloze also as CSV. A row comes in one of two forms: the hub's (a data set
that was written to JSON lines elsewhere), which passes as it is, or that of the evaluation files that go around, where
fields are joined or already filled in; those are put back into the hub's. Prompt and scoring stay those of
lm-evaluation-harness' own definition of the task.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from isograd.errors import DataError, first_line
from isograd.lab.evaluate.harness import DEFINITIONS, Dataset, Group, TaskManager, quiet_harness
from isograd.text import OPEN, file_text, json_rows

Row = dict[str, Any]
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


@dataclass(frozen=True)
class RowReader:
    """The fields of one row; what is missing or of another type is a `DataError` that says where."""

    row: Row
    where: str

    def text(self, name: str) -> str:
        value = self.row[name]
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{self.where}: {name!r} must be a text, and is {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.row[name]
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(v, str) and v.strip() for v in value):
            raise DataError(f"{self.where}: {name!r} must be a list of at least two texts, and is {value!r}")
        return value

    def index(self, name: str, count: int) -> int:
        value = self.row[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            raise DataError(
                f"{self.where}: {name!r} must be the number of a choice, 0 to {count - 1}, and is {value!r}"
            )
        return value


Forms = Mapping[str, Callable[[RowReader], Row] | None]  # fields, and what makes the hub's row of them; None: it is one


def _converted(forms: Forms, reader: RowReader) -> Row:
    """The hub's row of a row in any of the forms."""
    for fields, convert in forms.items():
        if all(name in reader.row for name in fields.split()):
            return convert(reader) if convert else {name: reader.row[name] for name in fields.split()}
    expected = "; or ".join(fields.replace(" ", ", ") for fields in forms)
    raise DataError(f"{reader.where}: a key is missing; expected {expected}; found {', '.join(map(str, reader.row))}")


def hellaswag(row: RowReader) -> Row:
    """The harness capitalises `ctx_b`, the sentence that was begun; here it is what follows the last one that ended."""
    activity, _, context = row.text("ctx").partition(": ")
    if not context.strip():
        raise DataError(f"{row.where}: 'ctx' must begin with its activity and a colon, and is {row.row['ctx']!r}")
    begun = "" if context[-1] in ".!?" else re.split(r"(?<=[.!?]) +", context)[-1]
    endings = row.texts("endings")
    return {
        "activity_label": activity,
        "ctx_a": context[: len(context) - len(begun)].rstrip(" "),
        "ctx_b": begun,
        "endings": endings,
        "label": str(row.index("label", len(endings))),
    }


def piqa(row: RowReader) -> Row:
    texts = {name: row.text(name) for name in ("goal", "sol1", "sol2")}
    return {**texts, "label": row.index("label", 2)}


def winogrande(row: RowReader) -> Row:
    """The options are where the two contexts differ, from the word on that does."""
    contexts, continuation = row.texts("context_options"), row.text("continuation")
    if len(contexts) != 2 or contexts[0] == contexts[1] or "_" in contexts[0] + contexts[1]:
        raise DataError(f"{row.where}: 'context_options' must be two texts that end differently, without a '_'")
    pairs = enumerate(zip(*contexts, strict=False))
    alike = next((i for i, (one, other) in pairs if one != other), min(map(len, contexts)))
    shared = re.sub(r"\w*$", "", contexts[0][:alike])
    options = [context.removeprefix(shared) for context in contexts]
    return {
        "sentence": f"{shared}_ {continuation}",
        "option1": options[0],
        "option2": options[1],
        "answer": str(row.index("gold", 2) + 1),
    }


def openbookqa(row: RowReader) -> Row:
    return {"question_stem": row.text("question_stem"), **_lettered(row, "label")}


def arc(row: RowReader) -> Row:
    """The words "Question: " are the prompt's, and the harness writes them."""
    return {"question": row.text("query").removeprefix("Question: "), **_lettered(row, "gold")}


def _lettered(row: RowReader, answer: str) -> Row:
    texts = row.texts("choices")
    letters = [chr(ord("A") + i) for i in range(len(texts))]
    return {"choices": {"text": texts, "label": letters}, "answerKey": letters[row.index(answer, len(texts))]}


def lambada(row: RowReader) -> Row:
    """The harness takes what follows the last space for the word to be found."""
    word = row.text("continuation").removeprefix(" ")
    if " " in word:
        raise DataError(f"{row.where}: 'continuation' must be one word, and is {word!r}")
    return {"text": f"{row.text('context').rstrip(' ')} {word}"}


def blimp(row: RowReader) -> Row:
    return {name: row.text(name) for name in BLIMP.split()}


def storycloze(row: RowReader) -> Row:
    """As the authors' files have it."""
    answer = str(row.row["AnswerRightEnding"]).strip()
    if answer not in ("1", "2"):
        raise DataError(f"{row.where}: 'AnswerRightEnding' must be 1 or 2, and is {answer!r}")
    return {
        **{f"input_sentence_{i}": row.text(f"InputSentence{i}") for i in range(1, 5)},
        **{f"sentence_quiz{i}": row.text(f"RandomFifthSentenceQuiz{i}") for i in (1, 2)},
        "answer_right_ending": int(answer),
    }


VALID = ("val", "valid", "validation", "dev")
TEST = ("test",)


@dataclass(frozen=True, kw_only=True)
class LocalTask:
    """Where the rows of a task lie.

    Attributes:
        stems: names of its file, up to the suffix; a part, and "partial", may follow.
        parts: the part of the data set that the harness scores, as file names call it.
        forms: of a row, by their fields; the first is the hub's.
        member: the field that says which of the harness' tasks a row belongs to, where a file holds several.
        suffixes: of the file, before .gz or .xz.
    """

    stems: tuple[str, ...]
    forms: Forms
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
        converted = _converted(task.forms, RowReader(row, where))
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


BLIMP = "UID field linguistics_term sentence_good sentence_bad"
_SENTENCES = "InputSentence1 InputSentence2 InputSentence3 InputSentence4"
_INPUTS = "input_sentence_1 input_sentence_2 input_sentence_3 input_sentence_4"
_CLOZE: Forms = {
    f"{_INPUTS} sentence_quiz1 sentence_quiz2 answer_right_ending": None,
    f"{_SENTENCES} RandomFifthSentenceQuiz1 RandomFifthSentenceQuiz2 AnswerRightEnding": storycloze,
}
_ARC: Forms = {"question choices answerKey": None, "query choices gold": arc}
_TABLES = ("jsonl", "json", "csv")

LOCAL: dict[str, LocalTask] = {
    "hellaswag": LocalTask(
        stems=("hellaswag",),
        parts=VALID,
        forms={"activity_label ctx_a ctx_b endings label": None, "ctx endings label": hellaswag},
    ),
    "piqa": LocalTask(stems=("piqa",), parts=VALID, forms={"goal sol1 sol2 label": piqa}),
    "winogrande": LocalTask(
        stems=("winogrande",),
        parts=VALID,
        forms={"sentence option1 option2 answer": None, "context_options continuation gold": winogrande},
    ),
    "openbookqa": LocalTask(
        stems=("openbookqa",),
        parts=TEST,
        forms={"question_stem choices answerKey": None, "question_stem choices label": openbookqa},
    ),
    "arc_easy": LocalTask(stems=("arc-easy",), parts=TEST, forms=_ARC),
    "arc_challenge": LocalTask(stems=("arc-challenge",), parts=TEST, forms=_ARC),
    "lambada_openai": LocalTask(
        stems=("lambada-openai", "lambada"), parts=TEST, forms={"text": None, "context continuation": lambada}
    ),
    "blimp": LocalTask(stems=("blimp",), member="UID", forms={BLIMP: blimp}),
    "storycloze_2016": LocalTask(stems=("storycloze-2016", "storycloze"), forms=_CLOZE, suffixes=_TABLES),
    "storycloze_2018": LocalTask(stems=("storycloze-2018",), forms=_CLOZE, suffixes=_TABLES),
}

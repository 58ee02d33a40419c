"""One row of a local file -> the fields that lm-evaluation-harness' own definition of the task reads.

A row comes in one of two forms: the hub's (a data set that was written to JSON lines elsewhere), which passes as it is,
or that of the evaluation files that go around, where fields are joined or already filled in; those are put back into
the hub's. Prompt and scoring stay the harness'.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from isograd.errors import DataError

Row = dict[str, Any]


@dataclass(frozen=True)
class Reader:
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


@dataclass(frozen=True, kw_only=True)
class Form:
    """Fields of a row, and what makes the hub's row of it; None where it is one already."""

    fields: tuple[str, ...]
    convert: Callable[[Reader], Row] | None = None


def convert(forms: Sequence[Form], reader: Reader) -> Row:
    """The hub's row of a row in any of the forms.

    Raises:
        DataError: a field is missing, or does not hold what it should.
    """
    for form in forms:
        if all(name in reader.row for name in form.fields):
            return form.convert(reader) if form.convert else {name: reader.row[name] for name in form.fields}
    expected = "; or ".join(", ".join(form.fields) for form in forms)
    raise DataError(f"{reader.where}: a key is missing; expected {expected}; found {', '.join(map(str, reader.row))}")


def hellaswag(row: Reader) -> Row:
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


def piqa(row: Reader) -> Row:
    texts = {name: row.text(name) for name in ("goal", "sol1", "sol2")}
    return {**texts, "label": row.index("label", 2)}


def winogrande(row: Reader) -> Row:
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


def openbookqa(row: Reader) -> Row:
    return {"question_stem": row.text("question_stem"), **_lettered(row, "label")}


def arc(row: Reader) -> Row:
    """The words "Question: " are the prompt's, and the harness writes them."""
    return {"question": row.text("query").removeprefix("Question: "), **_lettered(row, "gold")}


def _lettered(row: Reader, answer: str) -> Row:
    texts = row.texts("choices")
    letters = [chr(ord("A") + i) for i in range(len(texts))]
    return {"choices": {"text": texts, "label": letters}, "answerKey": letters[row.index(answer, len(texts))]}


def lambada(row: Reader) -> Row:
    """The harness takes what follows the last space for the word to be found."""
    word = row.text("continuation").removeprefix(" ")
    if " " in word:
        raise DataError(f"{row.where}: 'continuation' must be one word, and is {word!r}")
    return {"text": f"{row.text('context').rstrip(' ')} {word}"}


def blimp(row: Reader) -> Row:
    return {name: row.text(name) for name in ("UID", "field", "linguistics_term", "sentence_good", "sentence_bad")}


def storycloze(row: Reader) -> Row:
    """As the authors' files have it."""
    answer = str(row.row["AnswerRightEnding"]).strip()
    if answer not in ("1", "2"):
        raise DataError(f"{row.where}: 'AnswerRightEnding' must be 1 or 2, and is {answer!r}")
    return {
        **{f"input_sentence_{i}": row.text(f"InputSentence{i}") for i in range(1, 5)},
        **{f"sentence_quiz{i}": row.text(f"RandomFifthSentenceQuiz{i}") for i in (1, 2)},
        "answer_right_ending": int(answer),
    }

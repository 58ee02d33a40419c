"""Files -> rows as the hub has them."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from isograd.errors import DataError
from isograd.lab.evaluate.harness_tasks import TASKS, find_tasks, load_tasks, read_task
from tests.evaluate import items
from tests.evaluate.items import LABEL, prompts, write
from tests.golden import WHOLE

REAL = WHOLE.parent / "data/zeroshot"
CLOZE = {
    "InputStoryid": "138d",
    **{f"InputSentence{i}": f"Sentence {i}." for i in range(1, 5)},
    "RandomFifthSentenceQuiz1": "It ended, well.",
    "RandomFifthSentenceQuiz2": "It did not.",
    "AnswerRightEnding": "2",
}


def only(task: str, path: Path) -> dict[str, Any]:
    (row,) = read_task(task, path)[task]
    return row


def asked(task: Any) -> list[tuple[Any, Any, list[str], Any]]:
    """What the harness' definition makes of the first document."""
    document = task.eval_docs[0]
    return task.doc_to_text(document), task.doc_to_choice(document), task.doc_to_target(document)


@pytest.mark.parametrize(
    ("ctx", "whole", "begun"),
    [
        ("Clean and jerk: A lady walks. She bends down. the lady", "A lady walks. She bends down.", "the lady"),
        ("Horseback riding: . two women, a boy", ".", "two women, a boy"),
        ("Running: a man in the U.S. runs fast", "a man in the U.S.", "runs fast"),  # cannot be told from two sentences
        ("Sailing: they", "", "they"),
        ("How to: knit: Buy wool. Buy needles.", "knit: Buy wool. Buy needles.", ""),
        ("Cooking: He said: Eat! Then he left. He ate?", "He said: Eat! Then he left. He ate?", ""),
    ],
)
def test_hellaswag_is_divided_where_a_sentence_was_begun(ctx: str, whole: str, begun: str, tmp_path: Path) -> None:
    row = only("hellaswag", write(tmp_path, "hellaswag", [{"ctx": ctx, "endings": ["a", "b"], "label": 1}]))
    assert (row["ctx_a"], row["ctx_b"], row["label"]) == (whole, begun, "1")
    assert row["activity_label"] == ctx.split(": ")[0]


@pytest.mark.parametrize(
    ("one", "other", "option"),
    [
        ("so Sarah", "so Maria", "Sarah"),
        ("but the blanket", "but the bed", "blanket"),  # not "lanket"
        ("in the red car", "in the red car park", "car"),
        ("in the red car park", "in the red car", "car park"),
        ("(the cat", "(the dog", "cat"),
    ],
)
def test_winogrande_gets_its_blank_back(one: str, other: str, option: str, tmp_path: Path) -> None:
    row = {"context_options": [one, other], "continuation": "won.", "gold": 0}
    made = only("winogrande", write(tmp_path, "winogrande", [row]))
    assert (made["option1"], made["answer"]) == (option, "1")
    assert [made["sentence"].replace("_", made[name]) for name in ("option1", "option2")] == [
        f"{one} won.",
        f"{other} won.",
    ]


def test_storycloze_as_its_authors_give_it(tmp_path: Path) -> None:
    """A comma within a field; the same of JSON lines, in either naming."""
    quoted = ",".join(f'"{value}"' for value in CLOZE.values())
    (tmp_path / "storycloze_2016.csv").write_text(f"{','.join(CLOZE)}\r\n{quoted}\r\n")
    (tmp_path / "storycloze_2018.jsonl").write_text(json.dumps(CLOZE) + "\n")
    tasks = load_tasks(["storycloze"], tmp_path)
    expected = "Sentence 1. Sentence 2. Sentence 3. Sentence 4.", ["It ended, well.", "It did not."], 1
    assert {name: asked(task) for name, task in tasks.items()} == {
        "storycloze_2016": expected,
        "storycloze_2018": expected,
    }


@pytest.mark.parametrize("task", LABEL)
def test_the_prompt_is_the_published_one(task: str, tmp_path: Path) -> None:
    row = items.items(task)[0] | {LABEL[task]: 1}
    write(tmp_path, task, [row])
    text, choices, target = asked(load_tasks(None, tmp_path)[task])
    pairs = prompts(task, row)
    if task == "winogrande":  # the harness gives the label as the text, the contexts as choices, and what follows both
        assert (text, choices, f" {target}") == (1, [context for context, _ in pairs], pairs[0][1])
    else:
        assert [(text, f" {choice}") for choice in choices] == pairs
        assert int(target) == 1


def test_rows_in_the_hubs_form_pass_as_they_are(tmp_path: Path) -> None:
    """Once converted, a row is read again as the same; further fields are left out."""
    for task in LABEL:
        write(tmp_path, task, [items.items(task)[0] | {LABEL[task]: 1, "source_id": 7}])
        row = only(task, tmp_path / items.FILES[task])
        again = write(tmp_path, task, [row | {"split": "val"}])
        assert only(task, again) == row, task


def test_files_are_found_by_name(tmp_path: Path) -> None:
    """The part that the harness scores, in any spelling and packing; nothing else, and never two."""
    for name in ("HellaSwag_validation.jsonl", "arc-easy-dev.jsonl", "piqa-train.jsonl", "notes.txt", ".piqa.jsonl"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "winogrande_val.jsonl.xz").write_bytes(lzma.compress(b"{}\n"))
    (tmp_path / "blimp").mkdir()
    found = find_tasks(tmp_path)
    assert {name: path.name for name, path in found.items()} == {
        "hellaswag": "HellaSwag_validation.jsonl",
        "winogrande": "winogrande_val.jsonl.xz",
        "blimp": "blimp",
    }
    (tmp_path / "hellaswag.jsonl").write_text("{}\n")
    with pytest.raises(
        DataError, match=r"both HellaSwag_validation.jsonl and hellaswag.jsonl hold hellaswag; keep one"
    ):
        find_tasks(tmp_path)


def test_blimp_as_its_authors_give_it(tmp_path: Path) -> None:
    """A file per paradigm, in a folder."""
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name in ("wh_island", "adjunct_island"):
        row = {"sentence_good": "a", "sentence_bad": "b", "UID": name, "field": "syntax", "linguistics_term": "island"}
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    assert {name: len(rows) for name, rows in read_task("blimp", folder).items()} == {
        "blimp_adjunct_island": 3,
        "blimp_wh_island": 3,
    }
    assert list(load_tasks(["blimp_wh_island"], tmp_path)) == ["blimp_wh_island"]


GOOD: dict[str, dict[str, Any]] = {
    "hellaswag": {"ctx": "Act: he", "endings": ["a", "b"], "label": 0},
    "piqa": {"goal": "a", "sol1": "b", "sol2": "c", "label": 0},
    "winogrande": {"context_options": ["the a", "the b"], "continuation": "c", "gold": 0},
    "openbookqa": {"question_stem": "a", "choices": ["b", "c"], "label": 0},
    "arc_easy": {"query": "a", "choices": ["b", "c"], "gold": 0},
    "lambada_openai": {"context": "a", "continuation": "b"},
    "blimp": {"UID": "wh_island", "field": "f", "linguistics_term": "l", "sentence_good": "a", "sentence_bad": "b"},
}


@pytest.mark.parametrize(
    ("task", "change", "said"),
    [
        ("piqa", {"sol2": None}, r"line 2: 'sol2' must be a text, and is None"),
        ("piqa", {"label": 2}, r"line 2: 'label' must be the number of a choice, 0 to 1, and is 2"),
        ("piqa", {"label": True}, r"line 2: 'label' must be the number of a choice"),
        ("hellaswag", {"ctx": "no activity"}, r"line 2: 'ctx' must begin with its activity and a colon"),
        ("hellaswag", {"endings": ["a"]}, r"line 2: 'endings' must be a list of at least two texts"),
        ("winogrande", {"context_options": ["a", "a"]}, r"line 2: 'context_options' must be two texts that end"),
        ("winogrande", {"context_options": ["a _ b", "a _ c"]}, r"without a '_'"),
        ("openbookqa", {"label": "A"}, r"line 2: 'label' must be the number of a choice, 0 to 1, and is 'A'"),
        ("arc_easy", {"choices": "ab"}, r"line 2: 'choices' must be a list"),
        ("lambada_openai", {"continuation": "two words"}, r"line 2: 'continuation' must be one word"),
        ("blimp", {"UID": "nosuch_island"}, r"'nosuch_island' is no part of blimp"),
        ("blimp", {"sentence_bad": ""}, r"line 2: 'sentence_bad' must be a text"),
    ],
)
def test_a_row_that_is_not_as_it_should_be(task: str, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path, task, [GOOD[task], GOOD[task] | change])
    with pytest.raises(DataError, match=f"^{path}.*{said}"):
        load_tasks(None, tmp_path)


@pytest.mark.parametrize("task", GOOD)
def test_a_missing_key(task: str, tmp_path: Path) -> None:
    """What was expected, in either form, and what was found."""
    gone = list(GOOD[task])[-1]
    path = write(tmp_path, task, [GOOD[task], {k: v for k, v in GOOD[task].items() if k != gone}])
    with pytest.raises(DataError, match=rf"^{path}, line 2: a key is missing; expected .*{gone}.*; found (?!.*{gone})"):
        load_tasks(None, tmp_path)


def test_what_the_harness_cannot_read_is_said_with_the_file(tmp_path: Path) -> None:
    """Rows in the hub's form are not looked into."""
    path = write(tmp_path, "openbookqa", [{"question_stem": "a", "choices": ["b", "c"], "answerKey": "A"}])
    with pytest.raises(DataError, match=rf"^{path}: the harness cannot read its rows \("):
        load_tasks(None, tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason="the real files lie beside the repository of their developers alone")
def test_the_real_files() -> None:
    """Their counts, HellaSwag's 3,243 rows with a sentence that was begun, and that all of BLiMP is known."""
    found = find_tasks(REAL)
    assert tuple(found) == TASKS
    rows = {name: read_task(name, path) for name, path in found.items() if name != "blimp"}
    counts = {name: len(of[name]) for name, of in rows.items()}
    assert counts == dict(zip(TASKS, (10042, 1838, 1267, 500, 2376, 1172, 5153), strict=False))
    begun = [row["ctx_b"] for row in rows["hellaswag"]["hellaswag"] if row["ctx_b"]]
    assert len(begun) == 3243 and max(len(text.split()) for text in begun) < 40
    for row in rows["winogrande"]["winogrande"]:
        assert row["sentence"].count("_") == 1 and row["option1"] != row["option2"]
    tasks = load_tasks(["blimp"], REAL)
    assert [len(task.eval_docs) for task in tasks["blimp"].get_all_tasks()] == [1000] * 67

"""Accuracies against log-likelihoods that are summed by hand."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.evaluate.harness_tasks import load_tasks
from isograd.lab.evaluate.loading import load_causal_model
from isograd.lab.evaluate.zero_shot import Score, ZeroShot, zero_shot
from tests.evaluate import items
from tests.evaluate.items import COUNT, LABEL, log_likelihood, prompts, write, wrong_prompts

CHOSEN = tuple(LABEL)


@pytest.fixture(scope="module", name="loaded")
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return load_causal_model(items.saved(tmp_path_factory.mktemp("causal")))


@pytest.fixture(scope="module", name="exact")
def _exact(loaded: tuple[Any, Any]) -> tuple[Any, Any]:
    """The same in fp64, for sums by hand."""
    return copy.deepcopy(loaded[0]).double(), loaded[1]


def argmax(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def scored(loaded: tuple[Any, Any], folder: Path, **options: Any) -> ZeroShot:
    return zero_shot(*loaded, load_tasks(None, folder), **options)


def by_metric(found: ZeroShot) -> dict[str, Score]:
    return {score.metric: score for score in found.scores}


def stderr(accuracy: float, count: int) -> float:
    return math.sqrt(accuracy * (1 - accuracy) / (count - 1))


@pytest.mark.parametrize("task", CHOSEN)
def test_an_accuracy_is_that_of_the_sums(
    task: str, loaded: tuple[Any, Any], exact: tuple[Any, Any], tmp_path: Path
) -> None:
    """Every fourth label is not the likeliest choice: 3/4 are right, to the last item."""
    rows, expected_norm = items.items(task), 0
    for i, row in enumerate(rows):
        sums = [log_likelihood(*exact, *pair) for pair in prompts(task, row)]
        row[LABEL[task]] = (argmax(sums) + (i % 4 == 0)) % len(sums)
        lengths = map(len, items.choices(task, row))
        expected_norm += argmax([s / n for s, n in zip(sums, lengths, strict=True)]) == row[LABEL[task]]
    write(tmp_path, task, rows)
    found = by_metric(scored(loaded, tmp_path))
    assert found["acc"].value == 0.75 and found["acc"].n == COUNT
    assert found["acc"].stderr == pytest.approx(stderr(0.75, COUNT))
    assert found["acc"].chance == (0.5 if task in ("piqa", "winogrande") else 0.25)
    assert ("acc_norm" in found) == (task != "winogrande")
    if "acc_norm" in found:
        expected_norm /= COUNT
        assert found["acc_norm"].value == expected_norm != 0.75
        assert found["acc_norm"].stderr == pytest.approx(stderr(expected_norm, COUNT))


@pytest.mark.parametrize("task", CHOSEN)
def test_another_prompt_chooses_otherwise(
    task: str, loaded: tuple[Any, Any], exact: tuple[Any, Any], tmp_path: Path
) -> None:
    """Negative control: the check above sees a prompt that is off by a capital, a space or a line."""
    rows = items.items(task)
    for row in rows:
        row[LABEL[task]] = argmax([log_likelihood(*exact, *pair) for pair in wrong_prompts(task, row)])
    write(tmp_path, task, rows)
    assert by_metric(scored(loaded, tmp_path))["acc"].value < 1


PARADIGMS = {
    "adjunct_island": ("syntax", "island_effects"),
    "wh_island": ("syntax", "island_effects"),
    "principle_A_case_1": ("syntax/semantics", "binding"),
    "principle_A_domain_1": ("syntax_semantics", "binding"),
    "anaphor_gender_agreement": ("morphology", "anaphor_agreement"),
}


def blimp(exact: tuple[Any, Any], prefix: str = "</s>") -> list[dict[str, Any]]:
    """Of paradigm i, the likelier sentence is the good one in all but i of 24 pairs."""
    rows = []
    for i, (name, (field, term)) in enumerate(PARADIGMS.items()):
        for j, row in enumerate(items.items("blimp")):
            good, bad = (log_likelihood(*exact, *pair, prefix=prefix) for pair in prompts("blimp", row))
            if (good > bad) != (j >= i):
                row = {"sentence_good": row["sentence_bad"], "sentence_bad": row["sentence_good"]}
            rows.append(row | {"UID": name, "field": field, "linguistics_term": term, "pairID": str(j)})
    return rows


def test_blimp(loaded: tuple[Any, Any], exact: tuple[Any, Any], tmp_path: Path) -> None:
    """A paradigm weighs as much as another; the error of a mean is sqrt(sum of squares) / count."""
    write(tmp_path, "blimp", blimp(exact))
    found = scored(loaded, tmp_path)
    values = {f"blimp_{name}": 1 - i / COUNT for i, name in enumerate(PARADIGMS)}
    errors = {name: stderr(value, COUNT) for name, value in values.items()}
    members = {score.task: score for score in found.details["blimp"]["task"]}
    assert {name: score.value for name, score in members.items()} == pytest.approx(values)
    assert {name: score.stderr for name, score in members.items()} == pytest.approx(errors)
    (whole,) = found.scores
    assert (whole.task, whole.metric, whole.n, whole.chance) == ("blimp", "acc", 5 * COUNT, 0.5)
    assert whole.value == pytest.approx(sum(values.values()) / 5)
    assert whole.stderr == pytest.approx(math.hypot(*errors.values()) / 5)
    kinds = {score.task: score for score in found.details["blimp"]["field"]}
    assert list(kinds) == ["morphology", "syntax", "syntax_semantics"]
    assert kinds["syntax"].value == pytest.approx(1 - 1 / 2 / COUNT)
    both = math.hypot(errors["blimp_principle_A_case_1"], errors["blimp_principle_A_domain_1"])
    assert kinds["syntax_semantics"].stderr == pytest.approx(both / 2)
    assert [score.task for score in found.details["blimp"]["linguistics_term"]] == [
        "anaphor_agreement",
        "binding",
        "island_effects",
    ]
    assert found.prefix == "</s>" and found.texts == 2 * 5 * COUNT


def test_another_start_chooses_otherwise(loaded: tuple[Any, Any], exact: tuple[Any, Any], tmp_path: Path) -> None:
    """The negative control of </s> before a text: the harness' own default, <s>, which isograd's runs never show."""
    write(tmp_path, "blimp", blimp(exact, prefix="<s>"))
    (score,) = scored(loaded, tmp_path).scores
    assert score.value != pytest.approx(1 - 2 / COUNT)

"""The page of a study: what a rule says of every cell is found again, from whole folders and from broken ones."""

import statistics
from pathlib import Path

import pytest

from isograd.report.study_page import StudyReport, write_study_report
from tests.report.study_written import PLACEMENTS, Row, warmup_rule, write_study
from tests.report.test_page import checked

RATES = [3e-4, 1e-3, 3e-3]
WARMUP: Row = {"model.placement": PLACEMENTS, "training.warmup": [0, 50, 150], "training.lr": RATES}


@pytest.fixture(scope="module")
def warmup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study") / "warmup", WARMUP, warmup_rule)


@pytest.fixture(scope="module")
def report(warmup: Path) -> StudyReport:
    return write_study_report(warmup)


def test_the_page_stands_alone(report: StudyReport) -> None:
    page = checked(report.page)
    assert report.page.parent.name == "report"
    for sentence in report.summary:
        assert " ".join(sentence.split()) in page.text
    for name in ("map", "pace", "learning-rates", "losses", "gradients"):
        assert (report.page.parent / f"{name}.svg").exists() and (report.page.parent / f"{name}.png").exists()
    assert "sha256 of the data" in page.text and "torch" in page.text and "cells per hour" in page.text


def test_numbers_by_hand(report: StudyReport) -> None:
    """Medians, counts and the best arm, by Python's own statistics and the rule itself."""
    arms = {(a["model.placement"], a["training.warmup"], a["training.lr"]): a for a in report.results["arms"]}
    assert len(arms) == 45
    for (placement, warm, rate), arm in arms.items():
        values = {"model.placement": placement, "training.warmup": warm, "training.lr": rate}
        ends = [warmup_rule(values, seed) for seed in (1, 2, 3)]
        assert [arm[how]["count"] for how in ("collapsed", "diverged")] == [
            ends.count("collapsed"),
            ends.count("diverged"),
        ]
        if all(isinstance(end, float) for end in ends):
            assert arm["median"] == pytest.approx(statistics.median(end for end in ends if isinstance(end, float)))
            assert arm["interval"]["low"] == min(ends) and arm["interval"]["high"] == max(ends)

"""The strip of scores: every seed once, failed ones marked, the median of all, the majority-class baseline."""

import statistics
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from isograd.lab.report.pages import finetuning
from isograd.lab.report.runs import ArmFiles, arms_of, find_runs
from tests.report.written import written

SCORES = {False: [0.72, 0.70, 0.684, 0.71, 0.74], True: [0.684, 0.66, 0.69, 0.70, 0.684]}
LINE = 0.684


def tuned(folder: Path, task: str, scratch: bool, seed: int, **outcome: Any) -> Path:
    glue = {"task": task, "scratch": scratch, "model": "runs/small", "length": 32, "warmup": 0.06}
    return written(folder, "pre-ln", seed, task="classification", outcome=outcome, glue=glue, epochs=3)


def scored(folder: Path, task: str = "mrpc", metric: str = "accuracy") -> None:
    for scratch, scores in SCORES.items():
        for seed, score in enumerate(scores):
            outcome = {"score": score, "metric": metric, "majority": LINE, "failed": score <= LINE}
            tuned(folder, task, scratch, seed, **outcome)


def arms(folder: Path) -> list[ArmFiles]:
    return arms_of(find_runs([folder]))


def marks(axes: Axes, marker: str) -> dict[str, list[float]]:
    """By colour the drawn scores."""
    found: dict[str, list[float]] = {}
    for line in axes.lines:
        if line.get_marker() == marker and np.size(line.get_xdata()) == 1 and line.get_color() != "none":
            found.setdefault(str(line.get_color()), []).append(float(np.asarray(line.get_xdata())[0]))
    return found


def test_every_seed_once(tmp_path: Path) -> None:
    scored(tmp_path)
    drawn = finetuning.score_strips(arms(tmp_path))
    assert drawn is not None
    (axes,) = drawn.panels
    assert axes.get_title() == "accuracy of mrpc"
    good, bad = marks(axes, "o"), marks(axes, "X")
    every = [score for scores in SCORES.values() for score in scores]
    assert sorted(chain(*good.values())) == sorted(score for score in every if score > LINE)
    assert sorted(chain(*bad.values())) == sorted(score for score in every if score <= LINE)
    ys = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines if np.size(line.get_ydata()) == 1]
    assert len(set(ys)) == len(ys)  # no dot hides another
    (line,) = (line for line in axes.lines if line.get_label() == "majority-class baseline")
    assert set(np.asarray(line.get_xdata()).tolist()) == {LINE}
    bars = [float(bar.get_segments()[0][0][0]) for bar in axes.collections]  # type: ignore[attr-defined]
    assert bars == [statistics.median(SCORES[arm.first.run["glue"]["scratch"]]) for arm in arms(tmp_path)]


def test_two_tasks_two_panels(tmp_path: Path) -> None:
    scored(tmp_path, "mrpc")
    scored(tmp_path, "cola", "matthews")
    drawn = finetuning.score_strips(arms(tmp_path))
    assert drawn is not None
    assert {axes.get_title() for axes in drawn.panels} == {"accuracy of mrpc", "matthews of cola"}
    assert [len(axes.get_yticks()) for axes in drawn.panels] == [2, 2]


def test_a_run_that_diverged_counts_in_the_median(tmp_path: Path) -> None:
    """Of 0.70, 0.72 and one without a score the middle is 0.70; of the two alone it would be 0.71."""
    for seed, score in enumerate((0.70, 0.72)):
        tuned(tmp_path, "rte", False, seed, score=score, metric="accuracy", majority=0.5, failed=False)
    tuned(tmp_path, "rte", False, 2, outcome="diverged", failed=True)
    drawn = finetuning.score_strips(arms(tmp_path))
    assert drawn is not None
    (axes,) = drawn.panels
    assert float(axes.collections[0].get_segments()[0][0][0]) == pytest.approx(0.70)  # type: ignore[attr-defined]
    assert "1 of 3 without a score" in axes.get_yticklabels()[0].get_text().replace("\n", " ")


def test_keys_that_are_not_there(tmp_path: Path) -> None:
    """No majority-class baseline, no metric, no verdict: the dots alone; without any score nothing."""
    tuned(tmp_path / "some", "mrpc", False, 0, score=0.7)
    drawn = finetuning.score_strips(arms(tmp_path / "some"))
    assert drawn is not None and drawn.panels[0].get_title() == "score of mrpc"
    assert len(marks(drawn.panels[0], "o")) == 1
    tuned(tmp_path / "line", "mrpc", False, 0, score=0.6, majority=0.6)
    drawn = finetuning.score_strips(arms(tmp_path / "line"))
    assert drawn is not None and len(marks(drawn.panels[0], "X")) == 1
    tuned(tmp_path / "none", "mrpc", False, 0)
    assert finetuning.score_strips(arms(tmp_path / "none")) is None

"""The speed-up to equal loss: curves by hand, with seeds that do not reach it, and the wrong ways to take it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isograd.report import finding_figures, pace
from isograd.report.folders import find_runs
from isograd.report.runs import ArmFiles, arms_of, reference_of
from isograd.report.runs_page import write_report
from isograd.report.sections import findings
from tests.report.test_page import checked
from tests.report.written import curve, written


def arms(folder: Path) -> list[ArmFiles]:
    return arms_of(find_runs([folder]))


@pytest.mark.parametrize(
    ("points", "target", "want"),
    [
        ([(10, 4.0), (20, 3.0), (30, 2.0)], 2.5, 25.0),
        ([(10, 4.0), (20, 3.0), (30, 2.0)], 2.0, 30.0),
        ([(10, 4.0), (20, 3.0), (30, 2.0)], 1.9, None),
        ([(10, 4.0), (20, 2.0), (30, 3.0), (40, 1.0)], 2.5, 17.5),  # the first time, not the last
        ([(10, 2.0), (20, 1.0)], 3.0, 10),  # there before anybody looked
        ([], 1.0, None),
    ],
)
def test_where_a_loss_is_reached(points: list[tuple[float, float]], target: float, want: float | None) -> None:
    assert pace.reached(points, target) == want


def test_against_numpy() -> None:
    """On curves that only fall, the inverse of numpy's interpolation."""
    random = np.random.default_rng(0)
    for _ in range(50):
        x = np.cumsum(random.uniform(1, 9, 12))
        y = 5 - np.cumsum(random.uniform(0.01, 0.3, 12))
        target = random.uniform(y[-1], y[0])
        want = np.interp(-target, -y, x)
        assert pace.reached(list(zip(x.tolist(), y.tolist(), strict=True)), float(target)) == pytest.approx(want)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Pre-ln ends at 2.0 after 40 steps and 4 s; normformer is there after 30 steps, at 1.2 s for ten."""
    for seed, (ends, quick) in enumerate([(2.0, 2.0), (2.2, 2.2), (2.4, 2.4)]):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(5.0, 4.0, 3.0, ends))
        rows = curve(4.0, 3.0, quick, 1.5, seconds=1.2)
        written(tmp_path, "normformer", seed, outcome={}, validation=rows)
        written(tmp_path, "post-ln", seed, outcome={"outcome": "collapsed"}, validation=curve(4.0, 3.0, 3.0, 3.0))
    return tmp_path


def test_by_hand(study: Path) -> None:
    post, norm = pace.paces(arms(study))
    assert (norm.arm, norm.reference) == ("normformer, no warm-up", "pre-ln, no warm-up")
    assert norm.targets == {0: 2.0, 1: 2.2, 2: 2.4}
    assert norm.steps == {0: 0.75, 1: 0.75, 2: 0.75}
    assert norm.seconds == pytest.approx(dict.fromkeys(range(3), 3.6 / 4))
    assert pace.said(norm) == (
        "normformer, no warm-up reaches pre-ln, no warm-up's final validation loss (mean 2.200)"
        " in 0.75 [0.75 to 0.75] of the steps and 0.90 [0.90 to 0.90] of the time (median of 3 seeds)."
        " In steps too few seeds (p = 0.25, corrected 0.5)."
    )
    assert set(post.steps.values()) == {math.inf}
    assert pace.said(post).endswith(
        "does not reach pre-ln, no warm-up's final validation loss (mean 2.200) with any of 3 seeds."
    )
    *said, why = findings(arms(study))["pace"]
    assert said == [pace.said(post), pace.said(norm)]
    assert why.startswith("p is corrected for 2 comparisons by Holm's method. An exact test of 3 seeds cannot give")


def test_the_reference_by_the_same_rule(tmp_path: Path) -> None:
    """The reference was at its final loss before it ended. Timed to its end it would seem slower: 0.75 for 1.5."""
    written(tmp_path, "pre-ln", outcome={}, validation=curve(3.0, 2.0, 1.9, 2.0))
    written(tmp_path, "normformer", outcome={}, validation=curve(3.0, 2.5, 2.0, 1.9))
    (one,) = pace.paces(arms(tmp_path))
    assert one.steps == {0: 1.5} and "(one seed)" in pace.said(one)


def test_a_ratio_of_means_is_not_the_median_of_ratios(tmp_path: Path) -> None:
    """Seeds are paired: each against its own target."""
    for seed, last in enumerate((1.0, 2.0)):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(4.0, 3.5, 3.0, last))
        written(tmp_path, "normformer", seed, outcome={}, validation=curve(4.0, 3.0, last, last))
    (one,) = pace.paces(arms(tmp_path))
    assert one.steps == {0: 0.75, 1: 0.75}


def test_one_seed_of_three_does_not_reach(study: Path) -> None:
    written(study, "deepnorm", 0, outcome={}, validation=curve(3.0, 2.0, 1.5, 1.0))
    written(study, "deepnorm", 1, outcome={}, validation=curve(3.0, 2.9, 2.2, 2.1))
    written(study, "deepnorm", 2, outcome={"outcome": "diverged"}, validation=curve(3.0, None))
    one = next(p for p in pace.paces(arms(study)) if p.arm.startswith("deepnorm"))
    assert one.steps == {0: 0.5, 1: 0.75, 2: math.inf}
    said = pace.said(one)
    assert "0.75 [0.50 to not reached] of the steps" in said and "1 of them did not reach it" in said
    assert "too few seeds (p = 1, corrected" in said  # what has not been reached is beyond 1


def test_a_spread_around_one(tmp_path: Path) -> None:
    for seed, rows in enumerate([curve(3.0, 2.0, 1.0, 0.5), curve(5.0, 4.0, 3.5, 2.0, 0.5)]):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(4.0, 3.0, 2.0, 1.0))
        written(tmp_path, "normformer", seed, outcome={}, validation=rows)
    (one,) = pace.paces(arms(tmp_path))
    assert min(one.steps.values()) < 1 < max(one.steps.values())
    assert pace.said(one).endswith("In steps too few seeds (p = 1).")


def test_six_seeds_say_sooner(tmp_path: Path) -> None:
    """And the negative control: a seventh, far later, takes it back."""
    for seed in range(7):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(4.0, 3.0, 2.0, 1.0))
        rows = curve(3.0, 2.0, 1.0, 0.5) if seed < 6 else curve(4.0, 4.0, 4.0, 4.0)
        written(tmp_path, "normformer", seed, outcome={}, validation=rows)
    (one,) = pace.paces([replace(arm, runs=arm.runs[:6]) for arm in arms(tmp_path)])
    assert pace.said(one).endswith("In steps sooner (p = 0.031).")
    (one,) = pace.paces(arms(tmp_path))
    assert pace.said(one).endswith("In steps no difference seen (p = 0.36).")


def test_which_reference(study: Path) -> None:
    """Named by label or placement; what has not finished with every seed ends nowhere."""
    everything = arms(study)
    assert pace.paces(everything, "normformer")[0].reference == "normformer, no warm-up"
    assert pace.paces(everything, "normformer, no warm-up") == pace.paces(everything, "normformer")
    assert pace.paces(everything, "post-ln") == []  # it has collapsed
    assert reference_of(everything, "nothing") is None
    written(study, "pre-ln", 3, outcome=None, validation=curve(5.0, 4.0))
    assert pace.paces(arms(study))[0].reference == "normformer, no warm-up"


def test_in_time_a_line_ends_with_its_first_seed(tmp_path: Path) -> None:
    """A slow seed that has not ended: without it the mean would go back in time, and does not in steps."""
    written(tmp_path, "pre-ln", 0, outcome={}, validation=curve(5.0, 4.0, 3.0, 2.0))
    written(tmp_path, "pre-ln", 1, outcome={}, validation=curve(5.0, 4.0, seconds=9.0))
    [arm] = arms(tmp_path)
    assert arm.validation("loss", "seconds")[0] == [5.0, 10.0]
    assert arm.validation("loss", "step")[0] == [10, 20, 30, 40]


def test_without_seconds_or_common_seeds(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in curve(4.0, 3.0)]
    written(tmp_path, "pre-ln", outcome={}, validation=rows)
    written(tmp_path, "normformer", outcome={}, validation=rows)
    written(tmp_path, "deepnorm", 7, outcome={}, validation=rows)
    (one,) = pace.paces(arms(tmp_path))
    assert one.seconds == {} and "time" not in pace.said(one)
    drawn = finding_figures.pace_curves(arms(tmp_path))
    assert drawn is not None and [axes.get_xlabel() for axes in drawn.panels] == ["step"]


def test_what_the_figure_marks(study: Path) -> None:
    """A diamond where each mean curve crosses the line, in both panels; none for the arm that does not."""
    drawn = finding_figures.pace_curves(arms(study))
    assert drawn is not None
    for axes, x, reference in zip(drawn.panels, (30.0, 3.6), (40.0, 4.0), strict=True):
        marks = [np.asarray(line.get_xydata())[0].tolist() for line in axes.lines if line.get_marker() == "D"]
        assert marks == [pytest.approx([reference, 2.2]), pytest.approx([x, 2.2])]
        (level,) = (line for line in axes.lines if str(line.get_label()).startswith("where"))
        assert level.get_label() == "where pre-ln, no warm-up ends: 2.200"
    page = checked(write_report(find_runs([study]), study))
    assert "0.75 [0.75 to 0.75] of the steps" in page.text


def test_validated_once(tmp_path: Path) -> None:
    written(tmp_path, "pre-ln", outcome={}, validation=curve(4.0))
    assert finding_figures.pace_curves(arms(tmp_path)) is None
    assert "by time" not in checked(write_report(find_runs([tmp_path]), tmp_path)).text

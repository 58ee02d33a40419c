"""The speed-up to equal loss: curves by hand, with seeds that do not reach it, and the wrong ways to take it."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isograd.lab.report import equal_loss
from isograd.lab.report.compared import Compared, verdicts
from isograd.lab.report.pages.runs import findings, write_report
from isograd.lab.report.runs import ArmFiles, arms_of, find_runs, reference_of
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
    assert equal_loss.reached(points, target) == want


def test_against_numpy() -> None:
    """On curves that only fall, the inverse of numpy's interpolation."""
    random = np.random.default_rng(0)
    for _ in range(50):
        x = np.cumsum(random.uniform(1, 9, 12))
        y = 5 - np.cumsum(random.uniform(0.01, 0.3, 12))
        target = random.uniform(y[-1], y[0])
        want = np.interp(-target, -y, x)
        assert equal_loss.reached(list(zip(x.tolist(), y.tolist(), strict=True)), float(target)) == pytest.approx(want)


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
    post, norm = equal_loss.speeds(arms(study))
    assert (norm.mine, norm.theirs) == ("normformer, no warm-up", "pre-ln, no warm-up")
    assert steps(norm) == pytest.approx({0: 0.75, 1: 0.75, 2: 0.75})
    assert norm.size == "0.75 (0.75 to 0.75)"
    assert norm.more == ["0.90 (0.90 to 0.90)", "2.200"]
    assert said(norm) == (
        "Too few seeds to compare steps to equal loss with pre-ln, no warm-up: normformer, no warm-up (lower with"
        " 3 of 3 seeds)."
    )
    assert set(steps(post).values()) == {math.inf}
    assert post.size == "not reached"
    (*_, line, why) = findings(arms(study))
    assert line.startswith(
        "Too few seeds to compare steps to equal loss with pre-ln, no warm-up: post-ln, no warm-up (hi"
    )
    assert why.startswith("p is corrected for 2 comparisons by Holm's method. An exact test of 3 seeds cannot give")


def said(one: Compared) -> str:
    return next(verdicts([one], equal_loss.WORDS))


def steps(one: Compared) -> dict[int, float]:
    """The ratio of each seed, whose logarithm is compared."""
    return {seed: math.exp(difference) for seed, difference in one.found.differences.items()}


def test_the_reference_by_the_same_rule(tmp_path: Path) -> None:
    """The reference was at its final loss before it ended. Timed to its end it would seem slower: 0.75 for 1.5."""
    written(tmp_path, "pre-ln", outcome={}, validation=curve(3.0, 2.0, 1.9, 2.0))
    written(tmp_path, "normformer", outcome={}, validation=curve(3.0, 2.5, 2.0, 1.9))
    (one,) = equal_loss.speeds(arms(tmp_path))
    assert steps(one) == pytest.approx({0: 1.5})


def test_a_ratio_of_means_is_not_the_median_of_ratios(tmp_path: Path) -> None:
    """Seeds are paired: each against its own target."""
    for seed, last in enumerate((1.0, 2.0)):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(4.0, 3.5, 3.0, last))
        written(tmp_path, "normformer", seed, outcome={}, validation=curve(4.0, 3.0, last, last))
    (one,) = equal_loss.speeds(arms(tmp_path))
    assert steps(one) == pytest.approx({0: 0.75, 1: 0.75})


def test_one_seed_of_three_does_not_reach(study: Path) -> None:
    written(study, "deepnorm", 0, outcome={}, validation=curve(3.0, 2.0, 1.5, 1.0))
    written(study, "deepnorm", 1, outcome={}, validation=curve(3.0, 2.9, 2.2, 2.1))
    written(study, "deepnorm", 2, outcome={"outcome": "diverged"}, validation=curve(3.0, None))
    one = next(p for p in equal_loss.speeds(arms(study)) if p.mine.startswith("deepnorm"))
    assert steps(one) == pytest.approx({0: 0.5, 1: 0.75, 2: math.inf})
    assert one.size == "0.75 (0.50 to not reached)"
    assert one.found.verdict == "too few seeds" and one.found.p == 1  # what has not been reached is beyond 1


def test_a_spread_around_one(tmp_path: Path) -> None:
    for seed, rows in enumerate([curve(3.0, 2.0, 1.0, 0.5), curve(5.0, 4.0, 3.5, 2.0, 0.5)]):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(4.0, 3.0, 2.0, 1.0))
        written(tmp_path, "normformer", seed, outcome={}, validation=rows)
    (one,) = equal_loss.speeds(arms(tmp_path))
    assert min(steps(one).values()) < 1 < max(steps(one).values())
    assert one.found.verdict == "too few seeds"


def test_six_seeds_say_sooner(tmp_path: Path) -> None:
    """And the negative control: a seventh, far later, takes it back."""
    for seed in range(7):
        written(tmp_path, "pre-ln", seed, outcome={}, validation=curve(4.0, 3.0, 2.0, 1.0))
        rows = curve(3.0, 2.0, 1.0, 0.5) if seed < 6 else curve(4.0, 4.0, 4.0, 4.0)
        written(tmp_path, "normformer", seed, outcome={}, validation=rows)
    (one,) = equal_loss.speeds([replace(arm, runs=arm.runs[:6]) for arm in arms(tmp_path)])
    assert said(one).startswith(
        "Fewer steps to equal loss than pre-ln, no warm-up: normformer, no warm-up by 0.75 (n = 6)"
    )
    (one,) = equal_loss.speeds(arms(tmp_path))
    assert said(one).startswith("No difference seen in steps to equal loss from") and round(one.found.p, 2) == 0.36


def test_which_reference(study: Path) -> None:
    """Named by label or placement; what has not finished with every seed ends nowhere."""
    everything = arms(study)
    assert equal_loss.speeds(everything, "normformer")[0].theirs == "normformer, no warm-up"
    assert equal_loss.speeds(everything, "normformer, no warm-up") == equal_loss.speeds(everything, "normformer")
    assert equal_loss.speeds(everything, "post-ln") == []  # it has collapsed
    assert reference_of(everything, "nothing") is None
    written(study, "pre-ln", 3, outcome=None, validation=curve(5.0, 4.0))
    assert equal_loss.speeds(arms(study))[0].theirs == "normformer, no warm-up"


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
    (one,) = equal_loss.speeds(arms(tmp_path))
    assert one.more[0] == "–"
    drawn = equal_loss.speed_curves(arms(tmp_path))
    assert drawn is not None and [axes.get_xlabel() for axes in drawn.panels] == ["step"]


def test_what_the_figure_marks(study: Path) -> None:
    """A diamond where each mean curve crosses the line, in both panels; none for the arm that does not."""
    drawn = equal_loss.speed_curves(arms(study))
    assert drawn is not None
    for axes, x, reference in zip(drawn.panels, (30.0, 3.6), (40.0, 4.0), strict=True):
        marks = [np.asarray(line.get_xydata())[0].tolist() for line in axes.lines if line.get_marker() == "D"]
        assert marks == [pytest.approx([reference, 2.2]), pytest.approx([x, 2.2])]
        (level,) = (line for line in axes.lines if str(line.get_label()).startswith("final loss of"))
        assert level.get_label() == "final loss of pre-ln, no warm-up: 2.200"
    page = checked(write_report(find_runs([study]), study))
    assert "0.75 (0.75 to 0.75)" in page.text


def test_validated_once(tmp_path: Path) -> None:
    written(tmp_path, "pre-ln", outcome={}, validation=curve(4.0))
    assert equal_loss.speed_curves(arms(tmp_path)) is None
    assert "Steps to equal loss" not in checked(write_report(find_runs([tmp_path]), tmp_path)).text

"""The learning rate reached: where a loss breaks, where it only seems to hold, and ratios of what was not reached."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isograd.lab.report.compared import Compared, verdicts
from isograd.lab.report.pages import lr_range
from isograd.lab.report.pages.runs import results_table, write_report
from isograd.lab.report.runs import ArmFiles, arms_of, find_runs, read_run
from isograd.outcome import lr_reached
from tests.report.test_page import checked
from tests.report.written import ENTROPY, ramp, written

FALL = [5.0, 4.5, 4.0, 3.5, 3.0] * 2 + [2.0] * 30
BREAKS = FALL + [3.0] * 20
RETURNS = [5.0] * 10 + [2.7] * 20 + [ENTROPY + 0.05] * 40
NEVER = [5.0] * 10 + [ENTROPY + 0.02] * 60


def run(folder: Path, placement: str, seed: int, losses: list[float], peak: float = 0.1) -> Path:
    """With the outcome that a training of these losses has."""
    found: dict[str, Any] = {**lr_reached(ramp(losses, peak), ENTROPY)}
    return written(folder, placement, seed, outcome=found, metrics=ramp(losses, peak), stop_when_broken=True, lr=0.1)


def arms(folder: Path) -> list[ArmFiles]:
    return arms_of(find_runs([folder]))


def test_a_loss_that_breaks(tmp_path: Path) -> None:
    """Ten steps at 2.0 are best; five of 3.0 among ten are 0.5 above."""
    end = lr_range.end_of(read_run(run(tmp_path, "pre-ln", 0, BREAKS)))
    assert end is not None and (end.how, end.rate) == ("diverged", pytest.approx(0.1 * 45 / 60))
    assert end.loss == pytest.approx(2.5) and str(end) == "0.075"


def test_a_loss_that_returns_to_the_entropy(tmp_path: Path) -> None:
    """The negative control is a higher entropy: to this one the same loss has not come back, and it never jumps."""
    end = lr_range.end_of(read_run(run(tmp_path, "post-ln", 0, RETURNS)))
    means = [sum(RETURNS[i - 10 : i]) / 10 for i in range(10, len(RETURNS) + 1)]
    learnt = next(i for i, mean in enumerate(means) if mean < ENTROPY - 0.1)
    step = next(i for i, mean in enumerate(means) if i > learnt and mean >= ENTROPY) + 10
    assert end is not None and (end.how, end.rate) == ("diverged", pytest.approx(0.1 * step / len(RETURNS)))
    assert lr_reached(ramp(RETURNS), ENTROPY + 1)["broke_at"] is None


def test_a_loss_that_never_fell(tmp_path: Path) -> None:
    folder = run(tmp_path, "post-ln", 0, NEVER)
    assert read_run(folder).outcome == {"outcome": "finished", "broke_at": None, "lr_reached": None}
    assert lr_range.end_of(read_run(folder)) is None


def test_a_loss_that_holds(tmp_path: Path) -> None:
    end = lr_range.end_of(read_run(run(tmp_path, "pre-ln", 0, FALL)))
    assert end is not None and (end.how, end.rate, str(end)) == ("stable", pytest.approx(0.1), "above 0.1")


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    losses: list[Any] = [*FALL, None, None]
    metrics = ramp(losses)
    known = [{**row, "loss": math.nan if row["loss"] is None else row["loss"]} for row in metrics]
    outcome = {"outcome": "diverged", **lr_reached(known, ENTROPY)}
    folder = written(tmp_path, "pre-ln", outcome=outcome, metrics=metrics, stop_when_broken=True)
    end = lr_range.end_of(read_run(folder))
    assert end is not None and (end.how, end.loss, end.rate) == ("diverged", None, pytest.approx(0.1 * 41 / 42))
    lr_range.range_curves(arms(tmp_path), ENTROPY)


def test_a_run_that_has_not_ended(tmp_path: Path) -> None:
    folder = written(tmp_path, "pre-ln", outcome=None, metrics=ramp(FALL), stop_when_broken=True)
    assert lr_range.end_of(read_run(folder)) is None
    checked(write_report([folder], tmp_path))


def broken_at(step: int) -> list[float]:
    """Breaks at a given share of the peak: a hundred steps, a jump of all ten of a mean."""
    return [5.0] * 10 + [2.0] * (step - 11) + [9.0] + [2.0] * (100 - step)


def study(folder: Path, *pairs: tuple[int | None, int | None]) -> Path:
    """Pre-ln and normformer, each with the percent of the peak at which it breaks."""
    for seed, steps in enumerate(pairs):
        for placement, step in zip(("pre-ln", "normformer"), steps, strict=True):
            run(folder, placement, seed, broken_at(step) if step else [5.0] * 10 + [2.0] * 90)
    return folder


def said(one: Compared) -> str:
    return next(verdicts([one], lr_range.WORDS))


def values(one: Compared) -> dict[int, float]:
    """The ratio of each seed, whose logarithm is compared."""
    return {seed: math.exp(difference) for seed, difference in one.found.differences.items()}


def test_ratios_are_paired_by_seed(tmp_path: Path) -> None:
    (one,) = lr_range.ratios(arms(study(tmp_path, (40, 60), (50, 60), (80, 88))))
    assert values(one) == pytest.approx({0: 1.5, 1: 1.2, 2: 1.1})
    assert (one.size, one.more) == ("× 1.20 (1.10 to 1.50)", ["–"])
    assert (
        said(one)
        == "Too few seeds to compare with pre-ln, no warm-up: normformer, no warm-up (higher with 3 of 3 seeds)."
    )


def test_six_seeds_decide(tmp_path: Path) -> None:
    """All on one side, and the negative control: three on either."""
    (one,) = lr_range.ratios(arms(study(tmp_path / "one", *[(40, 60)] * 6)))
    assert said(one) == (
        "Stable up to a higher learning rate than pre-ln, no warm-up: normformer, no warm-up by × 1.50 (n = 6)."
    )
    (one,) = lr_range.ratios(arms(study(tmp_path / "both", *[(40, 60), (60, 40)] * 3)))
    assert said(one) == "No difference seen from pre-ln, no warm-up: normformer, no warm-up (n = 6)."


def test_what_was_not_reached(tmp_path: Path) -> None:
    """An arm that held has at least this ratio, one whose reference held at most; of both nothing is known."""
    (one,) = lr_range.ratios(arms(study(tmp_path, (50, None), (None, 80), (None, None))))
    assert values(one) == pytest.approx({0: 2.0, 1: 0.8})
    assert one.more == ["seed 0: at least; seed 1: at most; 1 of 3 seeds without a ratio"]


def test_nothing_to_compare(tmp_path: Path) -> None:
    (one,) = lr_range.ratios(arms(study(tmp_path / "held", (None, None))))
    assert one.size == "both stable up to the highest rate"
    run(tmp_path / "never", "pre-ln", 0, BREAKS)
    run(tmp_path / "never", "post-ln", 0, NEVER)
    (one,) = lr_range.ratios(arms(tmp_path / "never"))
    assert one.size == "no seed with which both trained"


def test_the_page(tmp_path: Path) -> None:
    for seed, (pre, post) in enumerate([(BREAKS, RETURNS), (FALL, NEVER)]):
        run(tmp_path, "pre-ln", seed, pre)
        run(tmp_path, "post-ln", seed, post)
    found = arms(tmp_path)
    assert list(lr_range.rates_table(found)) == [
        ("learning rate reached", "seed 0", "seed 1"),
        ("post-ln, no warm-up", str(lr_range.end_of(found[0].runs[0])), "not trained"),
        ("pre-ln, no warm-up", "0.075", "above 0.1"),
    ]
    header, *lines = results_table(found)
    of = [dict(zip(header, cells, strict=True)) for cells in lines]
    assert {*of[0]["outcome"].split(", ")} == {"1 diverged", "1 not trained"}
    assert of[1]["learning rate reached"] == "0.0875 (0.075 to 0.1)"
    page = checked(write_report(find_runs([tmp_path]), tmp_path, everything=True))
    for words in ("LR range test", "above 0.1", "Highest learning rate reached: ", "Pre-LN"):
        assert words in page.text
    assert "Training loss" not in page.text and "Collapsed:" not in page.text
    assert (tmp_path / "lr-range.svg").exists()


def test_what_the_figure_marks(tmp_path: Path) -> None:
    run(tmp_path, "pre-ln", 0, BREAKS)
    run(tmp_path, "post-ln", 0, RETURNS)
    run(tmp_path, "post-ln", 1, NEVER)
    (axes,) = lr_range.range_curves(arms(tmp_path), ENTROPY).panels
    marks = [line for line in axes.lines if line.get_marker() == "X" and np.size(line.get_xdata())]
    drawn = [(line.get_marker(), *np.asarray(line.get_xydata())[0].tolist()) for line in marks]
    ends = [end for arm in arms(tmp_path) for end in map(lr_range.end_of, arm.runs) if end]
    assert drawn == [("X", ends[0].rate, ends[0].loss), ("X", ends[1].rate, ends[1].loss)]

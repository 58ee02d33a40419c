"""What is said of fine-tunings: the sentence follows the one rule, and has its negative controls."""

from pathlib import Path
from typing import Any

import pytest

from isograd.lab.report.pages import finetuning
from isograd.lab.report.runs import ArmFiles, RunFiles


def run(score: float | None, *, seed: int = 0, scratch: bool = False, model: str = "m", **outcome: Any) -> RunFiles:
    told: dict[str, Any] = {"outcome": "diverged", "failed": True}
    if score is not None:
        told = {"outcome": "finished", "score": score, "metric": "accuracy", "failed": score <= 0.68, "majority": 0.68}
        told |= {"majority_scores": {"dev": {"accuracy": 0.68}}, "scores": {"dev": {"accuracy": score}}}
    glue = {"task": "mrpc", "model": model, "scratch": scratch}
    empty: dict[str, Any] = {"resolved": {}, "metrics": [], "quantities": [], "validation": []}
    return RunFiles(
        folder=Path("run"), run={"task": "classification", "seed": seed, "glue": glue}, outcome=told | outcome, **empty
    )


def arm(label: str, scores: list[float | None], **of: Any) -> ArmFiles:
    return ArmFiles(label=label, runs=[run(score, seed=seed, **of) for seed, score in enumerate(scores)])


HIGH, LOW = [0.71, 0.72, 0.73, 0.74, 0.75, 0.73], [0.66, 0.67, 0.68, 0.69, 0.70, 0.68]


def said(tuned_scores: list[float | None], scratch_scores: list[float | None]) -> str:
    return next(iter(finetuning.findings([arm("tuned", tuned_scores), arm("scratch", scratch_scores, scratch=True)])))


def test_above_below_and_no_difference() -> None:
    """Six seeds, all of one sign: 2 / 2^6."""
    assert said(HIGH, LOW) == "Higher score than scratch: tuned by 0.050 (n = 6)."
    assert said(LOW, HIGH) == "Lower score than scratch: tuned by 0.050 (n = 6)."
    assert said(HIGH, HIGH) == "No difference seen from scratch: tuned (n = 6)."
    assert said([*HIGH[:5], 0.66], LOW).startswith("No difference seen")
    low = [score - 0.1 for score in HIGH]
    (one,) = finetuning.compared([arm("tuned", low), arm("scratch", [0.5] * 6, scratch=True)])
    assert one.more == ["0.630 / 0.500", "neither, 0.680"]
    (one,) = finetuning.compared([arm("tuned", HIGH), arm("scratch", LOW, scratch=True)])
    assert one.more == ["0.730 / 0.680", "yes"]


def test_few_seeds_tell_nothing_however_far_apart() -> None:
    """2 / 2^5 = 0.0625; of the seeds that both have."""
    assert said(HIGH[:5], LOW[:5]) == "Too few seeds to compare with scratch: tuned (higher with 5 of 5 seeds)."
    assert said(HIGH, LOW[:2]) == "Too few seeds to compare with scratch: tuned (higher with 2 of 2 seeds)."
    _, why = finetuning.findings([arm("tuned", HIGH[:5]), arm("scratch", LOW[:5], scratch=True)])
    assert why == "An exact test of 5 seeds cannot give p below 0.062, whatever the difference: it takes 6 seeds."


def test_two_tasks_are_corrected_for() -> None:
    """What six seeds show of one task, they do not show of one of two."""
    group = [arm("tuned", HIGH), arm("scratch", LOW, scratch=True)]
    other = [arm("tuned", HIGH, model="n"), arm("scratch", HIGH, scratch=True, model="n")]
    assert {one.found.verdict for one in finetuning.compared([*group, *other])} == {"too few seeds"}
    *_, why = finetuning.findings([*group, *other])
    assert "p is corrected for 2 comparisons by Holm's method." in why


def test_a_diverged_run_counts_below_all_others() -> None:
    assert said([None] * 6, LOW).startswith("Lower score than scratch: tuned")
    arm_ = arm("tuned", [0.7, None, 0.72])
    assert (
        finetuning.median_score(arm_),
        finetuning.CELLS["score_range"](arm_),
        finetuning.CELLS["score_mean"](arm_),
    ) == (
        "0.700",
        "0.700 to 0.720",
        "–",
    )
    assert finetuning.CELLS["score_failed"](arm_) == "1 of 3"


def test_what_has_not_ended_is_not_counted() -> None:
    broken = ArmFiles(label="tuned", runs=[run(0.7), run(None, outcome="failed"), run(None, outcome="interrupted")])
    assert finetuning.CELLS["score_failed"](broken) == "0 of 1" and finetuning.median_score(broken) == "0.700"


def test_the_best_arm_of_each_side_by_model() -> None:
    arms = [
        arm("low", LOW),
        arm("high", HIGH),
        arm("scratch", LOW, scratch=True),
        arm("other", LOW, model="n"),
        arm("other scratch", LOW, scratch=True, model="n"),
        arm("alone", HIGH, model="o"),
    ]
    one, other = finetuning.compared(arms)
    assert (one.mine, one.theirs, one.more[0]) == ("high", "scratch", "0.730 / 0.680")
    assert (other.mine, other.theirs, other.found.verdict) == ("other", "other scratch", "too few seeds")


def test_the_summary_counts_failed_runs() -> None:
    arms = [arm("tuned", [0.7, 0.68]), arm("scratch", [0.6, None], scratch=True)]
    assert finetuning.headline(arms) == (
        "accuracy of mrpc: the majority-class baseline is 0.680. 3 of 4 runs failed: not above it, or diverged."
    )


def test_cells_of_several_seeds() -> None:
    found = arm("tuned", HIGH)
    assert (
        finetuning.CELLS["score_range"](found),
        finetuning.baseline(found),
        finetuning.CELLS["score_test"](found),
    ) == (
        "0.710 to 0.750",
        "0.680",
        "–",
    )
    assert finetuning.CELLS["score_mean"](found) == "0.730 [0.715, 0.745]"  # 2.571 x 0.01414 / sqrt(6) on either side
    assert finetuning.as_dict(found)["median"] == pytest.approx(0.73)

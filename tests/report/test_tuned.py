"""What is said of fine-tunings: the sentence follows the one rule, and has its negative controls."""

from pathlib import Path
from typing import Any

import pytest

from isograd.report import tuned
from isograd.report.runs import ArmFiles, RunFiles


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
    return next(iter(tuned.findings([arm("tuned", tuned_scores), arm("scratch", scratch_scores, scratch=True)])))


def test_above_below_and_no_difference() -> None:
    """Six seeds, all of one sign: 2 / 2^6."""
    above, below = "higher with 6 of 6 seeds (n = 6, p = 0.031)", "lower with 6 of 6 seeds (n = 6, p = 0.031)"
    assert said(HIGH, LOW).endswith(f"pre-training is above training from scratch, {above}.")
    assert said(LOW, HIGH).endswith(f"pre-training is below training from scratch, {below}.")
    assert said(HIGH, HIGH).endswith("no difference seen (n = 6, p = 1).")
    one_against = [*HIGH[:5], 0.66]
    assert "no difference seen, higher with 5 of 6 seeds (n = 6, p = 0.0" in said(one_against, LOW)
    low = [score - 0.1 for score in HIGH]
    assert said(low, [0.5] * 6).endswith("p = 0.031), and neither is above the majority line at 0.680.")
    assert said(low, low).endswith("p = 1), and neither is above the majority line at 0.680.")
    assert said(HIGH, LOW).startswith("accuracy of mrpc, medians: tuned 0.730, scratch 0.680;")


def test_few_seeds_tell_nothing_however_far_apart() -> None:
    """2 / 2^5 = 0.0625; of the seeds that both have."""
    assert "too few seeds, higher with 5 of 5 seeds (n = 5, p = 0.062)" in said(HIGH[:5], LOW[:5])
    assert "too few seeds, higher with 2 of 2 seeds (n = 2" in said(HIGH, LOW[:2])
    _, why = tuned.findings([arm("tuned", HIGH[:5]), arm("scratch", LOW[:5], scratch=True)])
    assert why == "An exact test of 5 seeds cannot give p below 0.062, whatever the difference: it takes 6 seeds."


def test_two_tasks_are_corrected_for() -> None:
    """What six seeds show of one task, they do not show of one of two."""
    group = [arm("tuned", HIGH), arm("scratch", LOW, scratch=True)]
    other = [arm("tuned", HIGH, model="n"), arm("scratch", HIGH, scratch=True, model="n")]
    one, two, why = tuned.findings([*group, *other])
    assert "too few seeds, higher with 6 of 6 seeds (n = 6, p = 0.031, corrected 0.062)" in one and "too few" in two
    assert "p is corrected for 2 comparisons by Holm's method." in why


def test_a_diverged_run_counts_below_all_others() -> None:
    assert "pre-training is below" in said([None] * 6, LOW)
    assert "tuned –" in said([None] * 6, LOW)
    arm_ = arm("tuned", [0.7, None, 0.72])
    assert (tuned.median(arm_), tuned.ends(arm_), tuned.mean(arm_)) == ("0.700", "0.700 to 0.720", "–")
    assert tuned.failures(arm_) == "1 of 3"


def test_what_has_not_ended_is_not_counted() -> None:
    broken = ArmFiles(label="tuned", runs=[run(0.7), run(None, outcome="failed"), run(None, outcome="interrupted")])
    assert tuned.failures(broken) == "0 of 1" and tuned.median(broken) == "0.700"


def test_the_best_arm_of_each_side_by_model() -> None:
    arms = [
        arm("low", LOW),
        arm("high", HIGH),
        arm("scratch", LOW, scratch=True),
        arm("other", LOW, model="n"),
        arm("other scratch", LOW, scratch=True, model="n"),
        arm("alone", HIGH, model="o"),
    ]
    found = list(tuned.findings(arms))
    assert len(found) == 3 and found[2].startswith("p is corrected for 2 comparisons")
    assert "medians: high 0.730, scratch 0.680 (each the best of up to 2 arms by its median)" in found[0]
    assert "other 0.680, other scratch 0.680; too few seeds" in found[1]


def test_the_summary_counts_failed_runs() -> None:
    arms = [arm("tuned", [0.7, 0.68]), arm("scratch", [0.6, None], scratch=True)]
    assert tuned.summary(arms) == (
        "accuracy of mrpc: the majority line is at 0.680. 3 of 4 runs failed: not above that line, or diverged."
    )


def test_cells_of_several_seeds() -> None:
    found = arm("tuned", HIGH)
    assert (tuned.ends(found), tuned.majority(found), tuned.test(found)) == ("0.710 to 0.750", "0.680", "–")
    assert tuned.mean(found) == "0.730 [0.715, 0.745]"  # 2.571 x 0.01414 / sqrt(6) on either side
    assert tuned.as_dict(found)["median"] == pytest.approx(0.73)

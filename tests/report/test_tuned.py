"""What is said of fine-tunings: the sentence follows the test, and has its foils."""

from pathlib import Path
from typing import Any

import pytest

from isograd.report import tuned
from isograd.report.runs import ArmFiles, RunFiles


def run(score: float | None, *, scratch: bool = False, model: str = "m", **outcome: Any) -> RunFiles:
    told: dict[str, Any] = {"outcome": "diverged", "failed": True}
    if score is not None:
        told = {"outcome": "finished", "score": score, "metric": "accuracy", "failed": score <= 0.68, "majority": 0.68}
        told |= {"majority_scores": {"dev": {"accuracy": 0.68}}, "scores": {"dev": {"accuracy": score}}}
    glue = {"task": "mrpc", "model": model, "scratch": scratch}
    empty: dict[str, Any] = {"resolved": {}, "metrics": [], "quantities": [], "validation": []}
    return RunFiles(folder=Path("run"), run={"task": "classification", "glue": glue}, outcome=told | outcome, **empty)


def arm(label: str, scores: list[float | None], **of: Any) -> ArmFiles:
    return ArmFiles(label=label, runs=[run(score, **of) for score in scores])


HIGH, LOW = [0.71, 0.72, 0.73, 0.74, 0.75], [0.66, 0.67, 0.68, 0.69, 0.70]


def said(tuned_scores: list[float | None], scratch_scores: list[float | None]) -> str:
    (found,) = tuned.findings([arm("tuned", tuned_scores), arm("scratch", scratch_scores, scratch=True)])
    return found


def test_above_below_and_no_difference() -> None:
    assert said(HIGH, LOW).endswith("pre-training is above training from scratch (n = 5, rank sum p = 0.0079).")
    assert said(LOW, HIGH).endswith("pre-training is below training from scratch (n = 5, rank sum p = 0.0079).")
    assert said(HIGH, HIGH).endswith("no difference seen (n = 5, rank sum p = 1).")
    overlapping = [0.67, 0.68, 0.69, 0.70, 0.74]
    assert "no difference seen (n = 5, rank sum p = 0." in said(overlapping, LOW)
    low = [score - 0.1 for score in HIGH]
    assert said(low, [0.5] * 5).endswith("p = 0.0079), and neither is above the majority line at 0.680.")
    assert said(low, low).endswith("p = 1), and neither is above the majority line at 0.680.")
    assert said(HIGH, LOW).startswith("accuracy of mrpc, medians: tuned 0.730, scratch 0.680;")


def test_few_seeds_tell_nothing_however_far_apart() -> None:
    """2 / C(6, 3) = 0.1; of four and four 2 / 70."""
    assert said(HIGH[:3], LOW[:3]).endswith("n = 3 is too few seeds to tell a difference from their spread.")
    assert "above" in said(HIGH[:4], LOW[:4])
    assert "n = 5 and 2 is too few" in said(HIGH, LOW[:2])


def test_a_diverged_run_counts_below_all_others() -> None:
    assert "pre-training is below" in said([None] * 5, LOW)
    assert "tuned –" in said([None] * 5, LOW)
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
    assert len(found) == 2
    assert "medians: high 0.730, scratch 0.680 (each the best of up to 2 arms by its median)" in found[0]
    assert "other 0.680, other scratch 0.680; no difference" in found[1]


def test_the_summary_counts_failed_runs() -> None:
    arms = [arm("tuned", [0.7, 0.68]), arm("scratch", [0.6, None], scratch=True)]
    assert tuned.summary(arms) == (
        "accuracy of mrpc: the majority line is at 0.680. 3 of 4 runs failed: not above that line, or diverged."
    )


def test_cells_of_several_seeds() -> None:
    found = arm("tuned", HIGH)
    assert (tuned.ends(found), tuned.majority(found), tuned.test(found)) == ("0.710 to 0.750", "0.680", "–")
    assert tuned.mean(found) == "0.730 [0.710, 0.750]"  # 2.776 x 0.01581 / sqrt(5) on either side
    assert tuned.as_dict(found)["median"] == pytest.approx(0.73)

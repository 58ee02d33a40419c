"""Each fault is named, and its healthy twin is silent."""

import pytest

import isograd
from isograd.lint.step import Preflight
from tests.preflight.program import program

FAULTS = [
    "loss-shifted", "target-leaks", "padding-scored", "loss-of-probabilities", "same-rows", "same-batch",
    "epochs-alike", "targets-constant", "batch-without-targets", "eval-mode", "gradients-add-up",
    "gradients-lost", "clip-after-step", "gradient-missing", "optimizer-of-another-model",
    "optimizer-lacks-parameters", "parameter-held-twice", "muon-groups", "eps-large", "betas-swapped",
    "lr-high", "lr-zero", "weight-decay-high", "schedule-ends-early", "warmup-too-long", "schedule-too-long",
    "schedule-not-stepped", "updates-rounded", "clip-before-unscale", "scaler-bypassed", "scaler-not-updated",
    "scaler-missing", "resume-loses", "resume-fails",
]  # fmt: skip
IN_PARTS = ["accumulation-undivided", "step-each-part", "schedule-per-batch"]


def loud(report: Preflight) -> set[str]:
    return {one.code for one in report if one.severity != "info"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    found = loud(isograd.preflight(program(fault)))
    assert fault in found, found


@pytest.mark.parametrize("fault", IN_PARTS)
def test_a_fault_of_accumulation_is_named(fault: str) -> None:
    found = loud(isograd.preflight(program(fault, accumulate=4)))
    assert fault in found, found


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("own_step", [True, False])
def test_the_healthy_twin_is_silent(accumulate: int, own_step: bool) -> None:
    report = isograd.preflight(program(accumulate=accumulate, own_step=own_step))
    assert not loud(report), str(report)
    assert all(said for group, said in report.groups.items() if group != "processes"), report.groups


def test_an_unmasked_model_reads_its_target() -> None:
    assert "target-leaks" in loud(isograd.preflight(program("unmasked")))

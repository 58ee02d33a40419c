"""All that a study's page shows: who was compared with whom, and what came out."""

from collections.abc import Sequence
from dataclasses import dataclass

from isograd.lab.report.study.arms import (
    RATE,
    ArmsCompared,
    Design,
    Group,
    StudyArm,
    Tuned,
    comparisons,
    design_of,
    measure_of,
    reference_among,
    showcase,
    study_arms,
    tuned,
)
from isograd.lab.report.study.files import StudyFiles, shown_value

LOSSES = {"validation_loss": "validation loss", "final_loss": "training loss (mean of the last 20 steps)"}
LAYERS, STEPS = "model.layers", "training.steps"
SAME = 0.01  # nats; seeds hold out other sequences, mask other tokens


@dataclass(frozen=True, kw_only=True)
class StudyFindings:
    """All that the page shows."""

    design: Design
    arms: Sequence[StudyArm]
    chosen: Sequence[Tuned]
    compared: Sequence[ArmsCompared]
    reference: str
    measure: str
    entropy: float | None
    groups: Sequence[Group]

    @property
    def what(self) -> str:
        return f"{LOSSES[self.measure]} (nats)"


def found_in(study: StudyFiles, named: str | None = None) -> StudyFindings:
    """Everything that is written and drawn.

    Args:
        named: what the others are compared with; None: pre-ln, or the first.

    Raises:
        ValueError: nothing is called so.
    """
    design = design_of(study)
    reference = reference_among(design, named)
    if reference is None:
        raise ValueError(f"nothing called {named} is compared here; there are {'; '.join(design.who)}")
    arms = study_arms(study, design)
    chosen = tuned(arms, design)
    groups = showcase(chosen, arms, design)
    return StudyFindings(
        design=design,
        arms=arms,
        chosen=chosen,
        compared=comparisons(chosen, arms, design, reference),
        reference=reference,
        measure=measure_of(study),
        entropy=_entropy(study),
        groups=groups,
    )


def _entropy(study: StudyFiles) -> float | None:
    """The one of all cells; None where they are of different texts."""
    known = [value for cell in study.cells if (value := cell.number("unigram_entropy")) is not None]
    return known[0] if known and max(known) - min(known) < SAME else None


def at_rate(arm: StudyArm) -> str:
    return f"{arm.who}, LR {shown_value(arm.values[RATE])}" if RATE in arm.values else arm.who

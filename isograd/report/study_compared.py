"""What is compared with what: each placement's best arm with the reference's, under each condition."""

from collections.abc import Sequence
from dataclasses import dataclass

from isograd.report.pace import Pace, paces
from isograd.report.runs import ArmFiles, Row
from isograd.report.study_arms import Design, StudyArm, Tuned, overall
from isograd.study.paired import Paired, paired


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One best arm against the reference's best arm.

    Attributes:
        condition: under which both were chosen; None: over all conditions.
    """

    condition: Row | None
    mine: StudyArm
    theirs: StudyArm
    found: Paired


def reference_among(design: Design, named: str | None = None) -> str:
    """The one `named`, else pre-ln where it is there, else the first."""
    if named in design.who:
        return str(named)
    return next((who for who in design.who if who.split(",")[0] == "pre-ln"), design.who[0])


def comparisons(chosen: Sequence[Tuned], arms: Sequence[StudyArm], design: Design, reference: str) -> list[Compared]:
    """Under each condition, then over all; without those of which one trained at no rate."""
    groups: list[tuple[Row | None, list[StudyArm]]] = [
        (condition, [one.best for one in chosen if one.condition == condition and one.best is not None])
        for condition in design.conditions
    ]
    if tunable(design):
        groups.append((None, overall(arms, design)))
    found = []
    for condition, best in groups:
        theirs = next((arm for arm in best if arm.who == reference), None)
        for mine in best:
            if theirs is not None and mine is not theirs:
                result = paired(mine.losses, theirs.losses)
                found.append(Compared(condition=condition, mine=mine, theirs=theirs, found=result))
    return found


def tunable(design: Design) -> bool:
    """Whether the other axes are settings of the training, which each placement may choose for itself."""
    return len(design.conditions) > 1 and all(key.startswith("training.") for key in design.others)


def showcase(
    chosen: Sequence[Tuned], arms: Sequence[StudyArm], design: Design
) -> list[tuple[Row | None, list[StudyArm]]]:
    """Best arms whose curves are drawn: of each condition; over all of them, too, where that can be said.

    Under a condition under which nothing of a placement trained, the arm of its lowest median stands for it.
    """
    groups: list[tuple[Row | None, list[StudyArm]]] = []
    for condition in design.conditions:
        here = [one for one in chosen if one.condition == condition]
        groups.append((condition, [one.best or min(one.arms, key=lambda arm: arm.median) for one in here]))
    groups = [(condition, shown) for condition, shown in groups if shown]
    return [(None, overall(arms, design)), *groups] if tunable(design) else groups


def pace_of(arms: Sequence[StudyArm], reference: str) -> tuple[list[ArmFiles], list[Pace]]:
    """The runs of these arms, named by what is compared, and how soon each is where the reference ends."""
    runs = [ArmFiles(label=arm.label, runs=of.runs) for arm in arms if (of := arm.files()) is not None]
    named = next((arm.label for arm in arms if arm.who == reference), None)
    if not any(run.validation for arm in runs for run in arm.runs):
        return runs, []
    return runs, paces(runs, named)

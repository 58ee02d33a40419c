"""What is compared with what: each placement's best arm with the reference's, under each condition."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isograd.report.pace import Pace, paces
from isograd.report.runs import ArmFiles, Row, RunFiles
from isograd.report.study_arms import Design, StudyArm, Tuned, overall
from isograd.report.study_words import counted
from isograd.statistics import Comparison, compare, side_by_side

Group = tuple[Row | None, list[StudyArm]]  # arms under a condition; None: each over all conditions


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One best arm against the reference's best arm.

    Attributes:
        condition: under which both were chosen; None: over all conditions.
    """

    condition: Row | None
    mine: StudyArm
    theirs: StudyArm
    found: Comparison


def reference_among(design: Design, named: str | None = None) -> str | None:
    """The one `named` by its label or the placement that this begins with, else pre-ln, else the first.

    None where there is none of that name.
    """
    if named in design.who:
        return named
    found = [who for who in design.who if who.partition(",")[0] == (named or "pre-ln")]
    return found[0] if found else None if named else design.who[0]


def comparisons(chosen: Sequence[Tuned], arms: Sequence[StudyArm], design: Design, reference: str) -> list[Compared]:
    """Under each condition, then over all; without those of which one trained at no rate. Corrected for each other."""
    groups: list[Group] = [
        (condition, [one.best for one in chosen if one.condition == condition and one.best is not None])
        for condition in design.conditions
    ]
    if tunable(design):
        groups.append((None, overall(arms, design)))
    pairs = [
        (condition, mine, theirs)
        for condition, best in groups
        for theirs in best
        for mine in best
        if theirs.who == reference and mine is not theirs
    ]
    found = side_by_side([compare(mine.losses, theirs.losses) for _, mine, theirs in pairs])
    return [
        Compared(condition=condition, mine=mine, theirs=theirs, found=one)
        for (condition, mine, theirs), one in zip(pairs, found, strict=True)
    ]


def tunable(design: Design) -> bool:
    """Whether the other axes are settings of the training, which each placement may choose for itself."""
    return len(design.conditions) > 1 and all(key.startswith("training.") for key in design.others)


def showcase(chosen: Sequence[Tuned], arms: Sequence[StudyArm], design: Design) -> list[Group]:
    """Best arms whose curves are drawn: over all conditions where that can be said, then of each condition.

    For what trained nowhere the arm of its lowest median stands.
    """
    groups: list[Group] = []
    if tunable(design):
        best = {arm.who: arm for arm in overall(arms, design)}
        others = {who: [arm for arm in arms if arm.who == who] for who in design.who if who not in best}
        best |= {who: min(mine, key=lambda arm: arm.median) for who, mine in others.items() if mine}
        groups.append((None, [best[who] for who in design.who if who in best]))
    for condition in design.conditions:
        here = [one for one in chosen if one.condition == condition]
        groups.append((condition, [one.shown for one in here]))
    return [group for group in groups if group[1]]


@dataclass(frozen=True, kw_only=True)
class Race:
    """Arms of one group with their files, and how soon each is where the reference ends."""

    condition: Row | None
    runs: list[ArmFiles]
    paces: list[Pace]


def races(groups: Sequence[Group], design: Design, reference: str) -> list[Race]:
    """Of each group that can tell; of the first alone where it is that over all conditions."""
    groups = groups[:1] if groups and groups[0][0] is None else groups
    found = []
    for condition, arms in groups:
        runs = in_line(arms, design)
        named = next((run.label for run, who in zip(runs, design.who, strict=True) if who == reference), None)
        if any(run.validation for of in runs for run in of.runs) and (known := paces(runs, named)):
            found.append(Race(condition=condition, runs=runs, paces=known))
    return found


def in_line(arms: Sequence[StudyArm], design: Design) -> list[ArmFiles]:
    """The runs of these arms, one of each that is compared, so that each has its own colour in every figure.

    Of what is not among them, or has no files here, an empty run.
    """
    return [_files(who, next((arm for arm in arms if arm.who == who), None)) for who in design.who]


def _files(who: str, arm: StudyArm | None) -> ArmFiles:
    runs = [] if arm is None else [cell.files for cell in arm.cells if cell.files is not None]
    if arm is None or not runs:
        return ArmFiles(label=f"{who} (no runs here)", runs=[_EMPTY])
    wrong = counted(cell.how for cell in arm.cells)
    return ArmFiles(label=f"{who} ({wrong})" if wrong else who, runs=runs)


_EMPTY = RunFiles(
    folder=Path(),
    run={"seed": -1, "model": {"placement": ""}},
    resolved={},
    outcome={"outcome": "interrupted"},
    metrics=[],
    quantities=[],
    validation=[],
)

"""A study's results as a program reads them: rows of arms, comparisons and cells."""

from dataclasses import asdict

from isograd.report.runs import Row
from isograd.report.study_arms import StudyArm
from isograd.report.study_compared import Compared
from isograd.report.study_files import COUNTED, Cell
from isograd.report.study_verdicts import compared_said
from isograd.statistics import Interval


def arm_row(arm: StudyArm) -> Row:
    return {
        "arm": arm.label,
        **arm.values,
        "measure": arm.measure,
        "median": arm.median,
        "interval": _interval(arm.interval),
        "n": arm.n,
        "losses": {str(seed): loss for seed, loss in arm.losses.items()},
        **{how: {"count": arm.count(how), "rate": _interval(arm.rate(how))} for how in COUNTED[1:]},
    }


def _interval(interval: Interval | None) -> Row | None:
    return None if interval is None else asdict(interval)


def comparison_row(one: Compared, what: str) -> Row:
    found = one.found
    return {
        "arm": one.mine.label,
        "reference": one.theirs.label,
        "under": one.condition,
        "n": found.n,
        "differences": {str(seed): value for seed, value in found.differences.items()},
        "median": found.median,
        "interval": _interval(found.interval),
        "p": found.p,
        "p_corrected": found.corrected,
        "verdict": found.verdict,
        "said": compared_said(one, what),
    }


def cell_row(cell: Cell) -> Row:
    """A row of results.csv: where the cell stands on the axes, and how it ended."""
    hidden = ("provenance", "cell", "seed", "outcome", "values")
    numbers = {name: value for name, value in cell.outcome.items() if name not in hidden}
    return {"cell": cell.name, **cell.values, "seed": cell.seed, "outcome": cell.how, **numbers}

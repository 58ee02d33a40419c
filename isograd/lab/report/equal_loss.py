"""Steps to equal loss: how soon an arm reaches the reference's final validation loss, in steps and in time."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from isograd.lab.report.compared import Compared, table, verdicts
from isograd.lab.report.figures import Subject, over_seeds, without_peak
from isograd.lab.report.page import Section, Table
from isograd.lab.report.runs import ArmFiles, RunFiles, paired, reference_of
from isograd.lab.report.style import INK, LEVEL_LINE, Drawing, drawing, label
from isograd.lab.statistics import Comparison, compare_ratios, side_by_side
from isograd.outcome import reached


@dataclass(frozen=True, kw_only=True)
class EqualLoss:
    """One arm against the reference, seed by seed.

    Attributes:
        targets: the reference's last validation loss, for each seed that both arms have.
        steps, seconds: for each seed what the arm took to reach it over what the reference took, infinite where the
            arm did not reach it; {} where it is not known.
        found: `steps` against 1, by the one rule.
    """

    arm: str
    reference: str
    targets: Mapping[int, float]
    steps: Mapping[int, float]
    seconds: Mapping[int, float]
    found: Comparison


def speeds(arms: Sequence[ArmFiles], named: str | None = None) -> list[EqualLoss]:
    """Every other arm against the reference arm; [] where there is nothing to compare.

    Args:
        named: label or placement of the reference; None: see `reference_of`.
    """
    reference = reference_of([arm for arm in arms if _is_whole(arm)], named)
    found = [_speed(arm, reference) for arm in arms if arm is not reference] if reference else []
    found = [speed for speed in found if speed.steps]
    corrected = side_by_side([speed.found for speed in found])
    return [replace(speed, found=one) for speed, one in zip(found, corrected, strict=True)]


def _is_whole(arm: ArmFiles) -> bool:
    """Whether every seed finished, with validations: only then its last loss is where it ends."""
    return set(arm.outcomes) == {"finished"} and all(_points(run, "step") for run in arm.runs)


def _points(run: RunFiles, x: str) -> list[tuple[float, float]]:
    """Step or seconds, and the loss of each validation."""
    known = (row for row in run.validation if row.get(x) is not None and row.get("loss") is not None)
    return [(row[x], row["loss"]) for row in known]


def _speed(arm: ArmFiles, reference: ArmFiles) -> EqualLoss:
    pairs = paired(arm, reference)
    steps = dict(_ratios(pairs, "step"))
    return EqualLoss(
        arm=arm.label,
        reference=reference.label,
        targets={seed: _points(theirs, "step")[-1][1] for seed, (_, theirs) in pairs.items()},
        steps=steps,
        seconds=dict(_ratios(pairs, "seconds")),
        found=compare_ratios(steps),
    )


def _ratios(pairs: Mapping[int, tuple[RunFiles, RunFiles]], x: str) -> Iterator[tuple[int, float]]:
    """Both by one rule: the reference, too, is timed to where it first was at the loss at which it ends."""
    for seed, (mine, theirs) in pairs.items():
        target = _points(theirs, "step")[-1][1]
        took = reached(_points(theirs, x), target)
        if took and _points(mine, x):
            mine_took = reached(_points(mine, x), target)
            yield seed, math.inf if mine_took is None else mine_took / took


WORDS = {
    "lower": "fewer steps to equal loss than",
    "higher": "more steps to equal loss than",
    "no difference seen": "no difference seen in steps to equal loss from",
    "too few seeds": "too few seeds to compare steps to equal loss with",
}


def compared(found: Sequence[EqualLoss], where: str = "") -> list[Compared]:
    """For the table and the verdicts."""
    return [
        Compared(
            mine=one.arm,
            theirs=one.reference,
            found=one.found,
            size=spread(one.steps),
            where=where,
            more=[spread(one.seconds) if one.seconds else "–", f"{statistics.fmean(one.targets.values()):.3f}"],
        )
        for one in found
    ]


def speed_table(found: Sequence[EqualLoss]) -> Table | None:
    return table(compared(found), "share of its steps", more=["share of its time", "loss (mean)"])


def spread(ratios: Mapping[int, float]) -> str:
    """ "0.76 (0.71 to 0.79)": the median over seeds, and the lowest to the highest.

    >>> spread({0: 0.8, 1: 0.7, 2: math.inf}), spread({0: 0.5}), spread({0: math.inf, 1: math.inf})
    ('0.80 (0.70 to not reached)', '0.50', 'not reached')
    """
    values = [*ratios.values()]
    middle = _shown(statistics.median(values))
    ends = f" ({_shown(min(values))} to {_shown(max(values))})"
    return middle if len(values) == 1 or not any(map(math.isfinite, values)) else middle + ends


def _shown(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "not reached"


def section(about: Subject, name: str = "equal-loss", where: str = "") -> Section:
    found = speeds(about.arms, about.reference)
    return Section(
        name=name,
        title=f"Steps to equal loss{f': {where}' if where else ''}",
        sentence=_TEXT,
        figure=partial(speed_curves, about.arms, about.reference),
        table=speed_table(found),
        verdicts=list(verdicts([one for one in compared(found) if one.found.n > 1], WORDS)),
    )


_TEXT = (
    "Validation loss, the mean over seeds and a band from the lowest to the highest. Diamonds: where a curve first"
    " reaches the reference's final validation loss, on straight lines between validations. Times exclude validation"
    " and compare only where each run had the machine to itself."
)


def speed_curves(arms: Sequence[ArmFiles], named: str | None = None) -> Drawing | None:
    """Validation loss over steps and over training time, and where each arm reaches the reference's final loss.

    None where no run was validated twice.
    """
    shown = [x for x in ("step", "seconds") if any(len(_points(run, x)) > 1 for arm in arms for run in arm.runs)]
    if not shown:
        return None
    unit, size = _unit(max(row.get("seconds") or 0 for arm in arms for run in arm.runs for row in run.validation))
    found = speeds(arms, named)
    target = next((_last(arm) for arm in arms if found and arm.label == found[0].reference), None)
    drawn = drawing(len(shown), height=3.9, sharey=True)
    for axes, x in zip(drawn.panels, shown, strict=True):
        for arm in arms:
            at, mean, low, high = arm.validation("loss", x)
            at = [value / size for value in at] if x == "seconds" else at
            over_seeds(axes, arm, (at, mean, low, high), arm.label)
            crossing = None if target is None else reached(list(zip(at, mean, strict=True)), target)
            if target is not None and crossing is not None:
                look = {"color": arm.look["color"], "markeredgecolor": INK, "markersize": 7, "zorder": 4}
                axes.plot([crossing], [target], "D", **look)
        if target is not None:
            axes.axhline(target, **LEVEL_LINE, label=f"final loss of {found[0].reference}: {target:.3f}")
        label(axes, x if x == "step" else f"training time ({unit})", "validation loss (nats)" if x == "step" else "")
        axes.set_xlim(left=0)
    without_peak(drawn.panels[0], [arm.validation("loss", "step")[1] for arm in arms])
    return drawn


def _last(arm: ArmFiles) -> float:
    return arm.validation("loss", "step")[1][-1]


def _unit(longest: float) -> tuple[str, float]:
    """What to tell times in of which this is the longest, and its length in seconds."""
    units = {"hours": 3600.0, "minutes": 60.0}
    return next(((name, size) for name, size in units.items() if longest >= 2 * size), ("seconds", 1.0))

"""Steps to equal loss: how soon an arm reaches the reference's final validation loss, in steps and in time."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from isograd.lab.report.compared import Compared, corrected, table, verdicts
from isograd.lab.report.figures import Subject, over_seeds, without_peak
from isograd.lab.report.page import Section
from isograd.lab.report.runs import ArmFiles, RunFiles, paired, reference_of
from isograd.lab.report.style import INK, LEVEL_LINE, Drawing, drawing, label
from isograd.lab.statistics import compare_ratios
from isograd.outcome import reached


def speeds(arms: Sequence[ArmFiles], named: str | None = None) -> list[Compared]:
    """Every other arm against the reference arm, seed by seed: what it took to reach that one's last validation loss,
    over what that one took, infinite where it did not reach it; against 1, by the one rule.

    Args:
        named: label or placement of the reference; None: see `reference_of`.

    Returns:
        [] where there is nothing to compare.
    """
    reference = reference_of([arm for arm in arms if _is_whole(arm)], named)
    found = [_speed(arm, reference) for arm in arms if arm is not reference] if reference else []
    return corrected([speed for speed in found if speed is not None])


def _is_whole(arm: ArmFiles) -> bool:
    """Whether every seed finished, with validations: only then its last loss is where it ends."""
    return set(arm.outcomes) == {"finished"} and all(_points(run, "step") for run in arm.runs)


def _points(run: RunFiles, x: str) -> list[tuple[float, float]]:
    """Step or seconds, and the loss of each validation."""
    known = (row for row in run.validation if row.get(x) is not None and row.get("loss") is not None)
    return [(row[x], row["loss"]) for row in known]


def _speed(arm: ArmFiles, reference: ArmFiles) -> Compared | None:
    pairs = paired(arm, reference)
    steps, seconds = (dict(_ratios(pairs, x)) for x in ("step", "seconds"))
    if not steps:
        return None
    targets = [_points(theirs, "step")[-1][1] for _, theirs in pairs.values()]
    return Compared(
        mine=arm.label,
        theirs=reference.label,
        found=compare_ratios(steps),
        size=spread(steps),
        more=[spread(seconds) if seconds else "–", f"{statistics.fmean(targets):.3f}"],
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
        table=table(found, "share of its steps", more=["share of its time", "loss (mean)"]),
        verdicts=list(verdicts([one for one in found if one.found.n > 1], WORDS)),
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
    target = next((_last(arm) for arm in arms if found and arm.label == found[0].theirs), None)
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
            axes.axhline(target, **LEVEL_LINE, label=f"final loss of {found[0].theirs}: {target:.3f}")
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

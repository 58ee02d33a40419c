"""How soon an arm reaches the validation loss at which another one ends: in steps, and in training time."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from isograd.report.runs import ArmFiles, RunFiles, paired, reference_of
from isograd.statistics import Comparison, compare_ratios, side_by_side

Points = Sequence[tuple[float, float]]  # where (step or seconds), loss


def reached(points: Points, target: float) -> float | None:
    """Where the loss first comes down to `target`, None if it never does; between two points on a straight line.

    >>> reached([(10, 4.0), (20, 3.0), (30, 3.5), (40, 2.5)], 3.25)
    17.5
    >>> reached([(10, 4.0), (20, 3.0)], 2.9) is None
    True
    """
    before: tuple[float, float] | None = None
    for x, loss in points:
        if loss <= target:
            if before is None:
                return x  # there at the first look: no later than this
            part = (before[1] - target) / (before[1] - loss)
            return before[0] + part * (x - before[0])
        before = (x, loss)
    return None


@dataclass(frozen=True, kw_only=True)
class Pace:
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


def paces(arms: Sequence[ArmFiles], named: str | None = None) -> list[Pace]:
    """Every other arm against the reference arm; [] where there is nothing to compare.

    Args:
        named: label or placement of the reference; None: see `reference_of`.
    """
    reference = reference_of([arm for arm in arms if is_whole(arm)], named)
    found = [_pace(arm, reference) for arm in arms if arm is not reference] if reference else []
    found = [pace for pace in found if pace.steps]
    corrected = side_by_side([pace.found for pace in found])
    return [replace(pace, found=one) for pace, one in zip(found, corrected, strict=True)]


def is_whole(arm: ArmFiles) -> bool:
    """Whether every seed finished, with validations: only then its last loss is where it ends."""
    return set(arm.outcomes) == {"finished"} and all(points(run, "step") for run in arm.runs)


def points(run: RunFiles, x: str) -> list[tuple[float, float]]:
    """Step or seconds, and the loss of each validation."""
    known = (row for row in run.validation if row.get(x) is not None and row.get("loss") is not None)
    return [(row[x], row["loss"]) for row in known]


def _pace(arm: ArmFiles, reference: ArmFiles) -> Pace:
    pairs = paired(arm, reference)
    steps = dict(_ratios(pairs, "step"))
    return Pace(
        arm=arm.label,
        reference=reference.label,
        targets={seed: points(theirs, "step")[-1][1] for seed, (_, theirs) in pairs.items()},
        steps=steps,
        seconds=dict(_ratios(pairs, "seconds")),
        found=compare_ratios(steps),
    )


def _ratios(pairs: Mapping[int, tuple[RunFiles, RunFiles]], x: str) -> Iterator[tuple[int, float]]:
    """Both by one rule: the reference, too, is timed to where it first was at the loss at which it ends."""
    for seed, (mine, theirs) in pairs.items():
        target = points(theirs, "step")[-1][1]
        took = reached(points(theirs, x), target)
        if took and points(mine, x):
            mine_took = reached(points(mine, x), target)
            yield seed, math.inf if mine_took is None else mine_took / took


def said(pace: Pace) -> str:
    """What was found, in a sentence."""
    seeds = len(pace.steps)
    there = sum(map(math.isfinite, pace.steps.values()))
    mean = statistics.fmean(pace.targets.values())
    target = f"{pace.reference}'s final validation loss ({'mean ' if seeds > 1 else ''}{mean:.3f})"
    if not there:
        return f"{pace.arm} does not reach {target}{f' with any of {seeds} seeds' if seeds > 1 else ''}."
    if math.isinf(statistics.median(pace.steps.values())):
        fast = {seed: ratio for seed, ratio in pace.steps.items() if math.isfinite(ratio)}
        return f"{pace.arm} reaches {target} with {there} of {seeds} seeds only, there in {spread(fast)} of the steps."
    how_many = f"median of {seeds} seeds" if seeds > 1 else "one seed"
    how_many += f"; {seeds - there} of them did not reach it" if there < seeds else ""
    time = f" and {spread(pace.seconds)} of the time" if pace.seconds else ""
    found = f"{pace.arm} reaches {target} in {spread(pace.steps)} of the steps{time} ({how_many})."
    return found if seeds == 1 else f"{found} In steps {pace_verdict(pace)} ({pace.found.p_said()})."


def pace_verdict(pace: Pace) -> str:
    """ "sooner", "later", or why neither is said."""
    return {"lower": "sooner", "higher": "later"}.get(pace.found.verdict, pace.found.verdict)


def spread(ratios: Mapping[int, float]) -> str:
    """ "0.76 [0.71 to 0.79]": the median over seeds, and the lowest to the highest.

    >>> spread({0: 0.8, 1: 0.7, 2: math.inf}), spread({0: 0.5})
    ('0.80 [0.70 to not reached]', '0.50')
    """
    values = [*ratios.values()]
    middle = _shown(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{_shown(min(values))} to {_shown(max(values))}]"


def _shown(ratio: float) -> str:
    return f"{ratio:.2f}" if math.isfinite(ratio) else "not reached"

"""A study's tables as rows of text, for the page and the terminal."""

import math
import statistics
from collections.abc import Iterable, Sequence

from isograd.report.study_arms import RATE, Design, StudyArm, Tuned
from isograd.report.study_compared import Compared
from isograd.report.study_files import COUNTED
from isograd.report.study_words import axis_name, condition_said, loss_said, shown_value
from isograd.statistics import Interval

Table = list[tuple[str, ...]]  # a header and its lines
STEPS = "training.steps"


def arms_table(arms: Sequence[StudyArm], design: Design, what: str) -> Table:
    """A line per arm: where it stands on each axis, its loss, and how many of its seeds did not finish.

    Its updates, too, where they differ, as under a budget in seconds.
    """
    keys = [*design.others, *([RATE] if design.rates else [])]
    different = STEPS not in keys and len({steps for arm in arms for steps in _steps(arm)}) > 1
    updates = ["updates"] if different else []
    ends = _shown_ends(arms)
    header = (_who(design), *map(axis_name, keys), *updates, what, "seeds", *ends, "gradient first/last")
    return [header, *(_arm_line(arm, keys, different, ends) for arm in arms)]


def _shown_ends(arms: Sequence[StudyArm]) -> list[str]:
    """What did not finish; "undecided" only where there is any."""
    return [how for how in COUNTED[1:] if how != "undecided" or any(arm.count(how) for arm in arms)]


def _who(design: Design) -> str:
    return axis_name(design.who_key or "model.placement")


def _steps(arm: StudyArm) -> set[float]:
    """Of the cells that came to their end."""
    return {steps for cell in arm.cells if cell.how != "diverged" and (steps := cell.number("steps")) is not None}


def _arm_line(arm: StudyArm, keys: Sequence[str], with_updates: bool, ends: Sequence[str]) -> tuple[str, ...]:
    return (
        arm.who,
        *(shown_value(arm.values[key]) for key in keys),
        *([" to ".join(f"{steps:,.0f}" for steps in _first_and_last(_steps(arm))) or "–"] if with_updates else []),
        with_interval(arm),
        str(arm.n),
        *(share(arm, how) for how in ends),
        f"{_ratio(arm, 'gradient_ratio_start')} → {_ratio(arm, 'gradient_ratio_end')}",
    )


def _first_and_last(numbers: Iterable[float]) -> list[float]:
    found = sorted(numbers)
    return list(dict.fromkeys([*found[:1], *found[-1:]]))


def with_interval(arm: StudyArm) -> str:
    """ "2.013 (2.001 to 2.020)": the median, and its interval."""
    return loss_said(arm.median) + (f" ({_ends(arm.interval)})" if arm.interval else "")


def _ends(interval: Interval) -> str:
    return f"{loss_said(interval.low)} to {loss_said(interval.high)}"


def share(arm: StudyArm, how: str) -> str:
    """ "2/3 (21 to 94 %)": of how many seeds, and the Wilson interval of the rate."""
    interval = arm.rate(how)
    return f"{arm.count(how)}/{arm.n} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def _ratio(arm: StudyArm, name: str) -> str:
    found = [value for cell in arm.cells if (value := cell.number(name)) is not None]
    return f"{statistics.geometric_mean(found):.2g}" if found and min(found) > 0 else "–"


def rates_table(chosen: Sequence[Tuned], design: Design) -> Table:
    """A line per condition and placement: its best rate, the loss there, and what a wrong rate costs."""
    header = (_who(design), *(["under"] if design.others else []))
    lines: Table = [
        (*header, "best learning rate", "median loss there (nats)", "LR sensitivity (nats)", "cells that finished")
    ]
    for one in chosen:
        cells = [cell for arm in one.arms for cell in arm.cells]
        entropies = [value for cell in cells if (value := cell.number("unigram_entropy")) is not None]
        score = one.sensitivity(max(entropies, default=None))
        lines.append(
            (
                one.who,
                *([condition_said(one.condition)] if design.others else []),
                "none trained" if one.best is None else f"{one.best.values[RATE]:g}{_edge(one)}",
                "–" if one.best is None else with_interval(one.best),
                "–" if score is None else f"{score:.3f}",
                f"{sum(cell.how == 'finished' for cell in cells)}/{len(cells)}",
            )
        )
    return lines


def _edge(one: Tuned) -> str:
    return "" if one.edge is None else f", the {one.edge} {'one' if one.edge == 'only' else 'of the sweep'}"


def compared_table(compared: Sequence[Compared], design: Design) -> Table:
    """A line per comparison, mine less theirs, seed by seed."""
    under = ["under"] if design.others else []
    lines: Table = [
        (_who(design), *under, "against", "median difference (nats)", "lower in", "p", "corrected", "verdict")
    ]
    for one in compared:
        found = one.found
        where = "best of all" if one.condition is None else condition_said(one.condition)
        middle = "–" if found.median is None else f"{_signed(found.median)}{_signed_ends(found.interval)}"
        lines.append(
            (
                _told(one.mine),
                *([where] if under else []),
                _told(one.theirs),
                middle,
                f"{found.lower} of {found.n}",
                f"{found.p:.2g}",
                f"{found.corrected:.2g}",
                found.verdict,
            )
        )
    return lines


def _told(arm: StudyArm) -> str:
    return f"{arm.who}, LR {arm.values[RATE]:g}" if RATE in arm.values else arm.who


def _signed_ends(interval: Interval | None) -> str:
    return "" if interval is None else f" ({_signed(interval.low)} to {_signed(interval.high)})"


def _signed(value: float) -> str:
    if math.isfinite(value):
        return f"{value:+.3f}"
    return "diverged" if value > 0 else "reference diverged"

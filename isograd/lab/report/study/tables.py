"""Tables of a study, for people and for programs: arms, best rates, cells."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from isograd.lab.report.page import Table
from isograd.lab.report.runs import Row
from isograd.lab.report.study.arms import (
    LOSSES,
    RATE,
    STEPS,
    ArmsCompared,
    Design,
    StudyArm,
    StudyFindings,
    Tuned,
)
from isograd.lab.report.study.files import COUNTED, CellFiles, axis_name, condition_said, shown_value
from isograd.lab.statistics import Interval


def arms_table(found: StudyFindings) -> Table:
    """A line per arm: where it stands on each axis, its loss, and how many of its seeds did not finish.

    Its updates, too, where they differ, as under a budget in seconds; "undecided" only where there is any.
    """
    arms, design = found.arms, found.design
    keys = [*design.others, *([RATE] if design.rates else [])]
    different = STEPS not in keys and len({steps for arm in arms for steps in _steps(arm)}) > 1
    ends = [how for how in COUNTED[1:] if how != "undecided" or any(arm.count(how) for arm in arms)]
    columns: dict[str, Callable[[StudyArm], str]] = {
        who(design): lambda arm: arm.who,
        **{axis_name(key): partial(_value, key) for key in keys},
        **({"updates": _updates} if different else {}),
        f"median {found.what}": with_interval,
        "seeds": lambda arm: str(arm.n),
        **{how: partial(_share, how) for how in ends},
        "first/last gradient ratio": lambda arm: f"{_ratio(arm, 'start')} → {_ratio(arm, 'end')}",
    }
    return Table.of(arms, columns, looks=[arm.look for arm in arms])


def _value(key: str, arm: StudyArm) -> str:
    return shown_value(arm.values[key])


def _updates(arm: StudyArm) -> str:
    found = sorted(_steps(arm))
    return " to ".join(dict.fromkeys(f"{steps:,.0f}" for steps in [*found[:1], *found[-1:]])) or "–"


def who(design: Design) -> str:
    return axis_name(design.who_key or "model.placement")


def _steps(arm: StudyArm) -> set[float]:
    """Of the cells that came to their end."""
    return {steps for cell in arm.cells if cell.how != "diverged" and (steps := cell.number("steps")) is not None}


def with_interval(arm: StudyArm) -> str:
    """ "2.013 (2.001 to 2.020)": the median, and its interval."""
    ends = arm.interval
    return loss_said(arm.median) + (f" ({loss_said(ends.low)} to {loss_said(ends.high)})" if ends else "")


def loss_said(value: float) -> str:
    return "diverged" if value == math.inf else f"{value:.3f}"


def _share(how: str, arm: StudyArm) -> str:
    """ "2/3 (21 to 94 %)": of how many seeds, and the Wilson interval of the rate."""
    interval = arm.rate(how)
    return f"{arm.count(how)}/{arm.n} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def _ratio(arm: StudyArm, name: str) -> str:
    found = arm.ratio(f"gradient_ratio_{name}")
    return "–" if found is None else f"{found:.2g}"


def rates_table(found: StudyFindings) -> Table:
    """A line per condition and placement: its best rate, the loss there, what a wrong rate costs, how cells ended."""
    design = found.design
    columns: dict[str, Callable[[Tuned], str]] = {
        who(design): lambda one: one.who,
        **({"under": lambda one: condition_said(one.condition)} if design.others else {}),
        **({"best learning rate": _best_rate} if design.rates else {}),
        f"median {LOSSES[found.measure]} (nats)": lambda one: "–" if one.best is None else with_interval(one.best),
        **({"LR sensitivity (nats)": _sensitivity} if design.rates else {}),
        "cells": _ends,
    }
    return Table.of(found.chosen, columns, looks=[one.shown.look for one in found.chosen], left=1 + bool(design.others))


def _best_rate(one: Tuned) -> str:
    edge = "" if one.edge is None else f", the {one.edge} {'one' if one.edge == 'only' else 'of the sweep'}"
    return "none trained" if one.best is None else shown_value(one.best.values.get(RATE)) + edge


def _sensitivity(one: Tuned) -> str:
    entropies = [value for arm in one.arms for cell in arm.cells if (value := cell.number("unigram_entropy"))]
    score = one.sensitivity(max(entropies, default=None))
    return "–" if score is None else f"{score:.3f}"


def _ends(one: Tuned) -> str:
    counts = {how: sum(arm.count(how) for arm in one.arms) for how in COUNTED}
    return ", ".join(f"{n} {how}" for how, n in counts.items() if n)


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


def comparison_row(one: ArmsCompared) -> Row:
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
    }


def cell_row(cell: CellFiles) -> Row:
    """A row of results.csv: where the cell stands on the axes, and how it ended."""
    hidden = ("provenance", "cell", "seed", "outcome", "values")
    numbers = {name: value for name, value in cell.outcome.items() if name not in hidden}
    return {"cell": cell.name, **cell.values, "seed": cell.seed, "outcome": cell.how, **numbers}

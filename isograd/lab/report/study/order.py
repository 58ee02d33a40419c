"""A study of many placements: the rates that each stands at each depth, its loss at the best of them, its cost."""

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

from matplotlib import colormaps
from matplotlib.colors import to_hex

from isograd.lab.report.page import Section, Table
from isograd.lab.report.study import figures as study_figures
from isograd.lab.report.study.arms import RATE, Design, StudyArm, Tuned
from isograd.lab.report.study.figures import Square, squares
from isograd.lab.report.study.files import CellFiles, condition_said, shown_value
from isograd.lab.report.study.tables import with_interval
from isograd.lab.report.style import Drawing, drawing

MANY = 12  # placements; lines of more cannot be told apart in one panel
_COLOURS = colormaps["viridis_r"]


def is_order(design: Design) -> bool:
    """Whether so many placements are compared that lines of them in one panel could not be distinguished."""
    return len(design.who) > MANY and design.who_key == "model.placement" and bool(design.rates)


def in_order(chosen: Sequence[Tuned], design: Design) -> list[str]:
    """Placements, the ones that stand the highest rate under the first condition before others, then by loss."""
    first = {one.who: one for one in chosen if one.condition == design.conditions[0]}

    def place(who: str) -> tuple[bool, float, float]:
        one = first.get(who)
        if one is None:
            return True, 0.0, math.inf
        return False, -(one.stable_rate or 0.0), one.best.median if one.best else math.inf

    return sorted(design.who, key=place)


# ------------------------------------------------------------------------------------------------------------ sections


def sections(chosen: Sequence[Tuned], design: Design, reference: str, what: str) -> Iterator[Section]:
    """The map, losses at the best rate under each condition, and what a step costs.

    Args:
        what: the name of the loss.
    """
    order = in_order(chosen, design)
    yield Section(
        name="stable-rates",
        title="Highest learning rate at which every seed finished",
        sentence=_STABLE,
        figure=partial(stable_map, chosen, order, design),
        table=stable_table(chosen, order, design),
    )
    for i, condition in enumerate(design.conditions):
        best = [one.best for one in chosen if one.condition == condition and one.best is not None]
        best.sort(key=lambda arm: arm.median)
        if best:
            where = f": {condition_said(condition)}" if condition else ""
            draw = partial(study_figures.seed_strips, best, what)
            name = f"order-{i + 1}" if i else "order"
            yield Section(name=name, title=f"Loss at the best rate{where}", sentence=_ORDER, figure=draw)
    costs = cost_table(chosen, order, design, reference)
    yield Section(name="cost", title=f"Cost of a step over that of {reference}", sentence=_COST, table=costs)


_STABLE = (
    "Of the rates that were tried; ≥: the highest of them, beyond which there was none. None: at each rate a seed did"
    " not finish. Undecided: likewise, but no seed collapsed or diverged; the runs were too short. Placements by that"
    " rate under the first condition, then by their loss."
)
_ORDER = (
    "Each placement at the rate of its lowest median; what trained at no rate is left out. A dot per seed that"
    " finished; the bar is the median of all. Differences are tested below."
)
_COST = (
    "Seconds: processor time of one step on one thread, median over the cells, and from the lowest to the highest."
    " `isograd train --dry-run` forecasts memory."
)


def stable_table(chosen: Sequence[Tuned], order: Sequence[str], design: Design) -> Table:
    """A line per placement, a column per condition, and the loss at the best rate in each."""
    by, conditions = _by_place(chosen, design)
    header = ["placement"]
    for condition in conditions:
        beside = f", {condition}" if condition else ""
        header += [f"highest stable rate{beside}", f"best rate{beside}", f"median loss there (nats){beside}", "seeds"]
    lines = [[who, *(cell for at in conditions for cell in _cells(by.get((who, at))))] for who in order]
    looks = dict(zip(design.who, design.looks, strict=True))
    return Table(header=header, lines=lines, looks=[looks[who] for who in order])


def _by_place(chosen: Sequence[Tuned], design: Design) -> tuple[dict[tuple[str, str], Tuned], list[str]]:
    by = {(one.who, condition_said(one.condition)): one for one in chosen}
    return by, [condition_said(condition) for condition in design.conditions]


def _cells(one: Tuned | None) -> list[str]:
    if one is None:
        return ["not run", "–", "–", "–"]
    best = ["–", "–"] if one.best is None else [shown_value(one.best.values[RATE]), with_interval(one.best)]
    return [one.stable_said(), *best, str(min(arm.n for arm in one.arms))]


def stable_map(chosen: Sequence[Tuned], order: Sequence[str], design: Design) -> Drawing:
    """A row per placement, a column per condition: the highest stable rate, the darker the higher."""
    drawn = drawing(1, height=0.9 + 0.19 * len(order), rows=True)
    (axes,) = drawn.panels
    by, columns = _by_place(chosen, design)
    places = {(x, y): by.get((who, at)) for y, who in enumerate(order) for x, at in enumerate(columns)}
    squares(axes, columns, order, {at: _square(one, design.rates) for at, one in places.items() if one})
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    return drawn


def _square(one: Tuned, rates: Sequence[float]) -> Square:
    if one.stable_rate is None:
        return Square(lines=[one.stable_said()], face="#c3c7cc", hatch="////")
    colour = _COLOURS((rates.index(one.stable_rate) + 1) / (len(rates) + 1))
    return Square(lines=[one.stable_said()], face=to_hex(colour))


# ---------------------------------------------------------------------------------------------------------------- cost


def cost_table(chosen: Sequence[Tuned], order: Sequence[str], design: Design, reference: str) -> Table:
    """A line per placement and condition, of those where a step was measured."""
    lines = []
    for condition in design.conditions:
        here = {one.who: [cell for arm in one.arms for cell in arm.cells] for one in chosen
                if one.condition == condition}  # fmt: skip
        theirs = _seconds(here.get(reference, []))
        if any(map(_seconds, here.values())):
            lines += [_cost(who, condition_said(condition), here[who], theirs) for who in order if who in here]
    return Table(header=["placement", "under", "seconds per step", "over", "parameters"], lines=lines, left=2)


def _cost(who: str, where: str, mine: Sequence[CellFiles], theirs: Sequence[float]) -> list[str]:
    seconds = _seconds(mine)
    count = next((n for cell in mine if (n := cell.number("parameters"))), None)
    return [
        who,
        where or "all",
        f"{statistics.median(seconds):.4f} ({min(seconds):.4f} to {max(seconds):.4f})" if seconds else "–",
        f"{statistics.median(seconds) / statistics.median(theirs):.2f}" if seconds and theirs else "–",
        "–" if count is None else f"{count:,.0f}",
    ]


def _seconds(cells: Sequence[CellFiles]) -> list[float]:
    return [value for cell in cells if (value := cell.number("cpu_seconds_per_step"))]


# ------------------------------------------------------------------------------------------------------------ headline


def headline(chosen: Sequence[Tuned], design: Design, best: StudyArm, size: str, loss: str) -> str:
    """How many stand the highest rate, and who is lowest, with the size of the models first."""
    first = [one for one in chosen if one.condition == design.conditions[0]]
    highest = max(rate for one in first for rate in one.tried)
    there = [one for one in first if highest in one.tried]
    many = sum(one.stable_rate == highest for one in there)
    where = f" at {condition_said(design.conditions[0])}" if design.conditions[0] else ""
    return (
        f"in models of {size}, {many} of {len(there)} placements finish with every seed at the highest rate tried,"
        f" {shown_value(highest)}{where}; lowest median {loss}: {best.label}, {best.median:.3f} nats"
        f" (n = {best.n})"
    )

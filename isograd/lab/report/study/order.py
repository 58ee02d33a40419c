"""A study of many placements: the rates that each stands at each depth, its loss at the best of them, its cost."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from isograd.errors import IsogradError
from isograd.lab.report.page import Section, Table
from isograd.lab.report.study import figures as study_figures
from isograd.lab.report.study.arms import RATE, Design, StudyArm, Tuned
from isograd.lab.report.study.files import CellFiles, condition_said, shown_value
from isograd.lab.report.style import INK, Drawing, drawing, ink_on, label, plain

MANY = 12  # placements; lines of more cannot be told apart in one panel
_COLOURS = colormaps["viridis_r"]
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Stable:
    """The highest rate at which every seed finished.

    Attributes:
        rate: None where there is none.
        tried: the rates of which a cell has ended, ascending.
        seeds: how many there are at each of them, at least.
    """

    of: Tuned
    rate: float | None
    tried: tuple[float, ...]
    seeds: int

    @property
    def at_end(self) -> bool:
        """Whether that is the highest one tried: a higher one may do as well."""
        return self.rate is not None and self.rate == self.tried[-1]

    def said(self) -> str:
        """ "0.008"; "≥ 0.032" at the end of the sweep; "none"; "undecided" where no seed collapsed or diverged."""
        if self.rate is None:
            broke = any(arm.count("collapsed") + arm.count("diverged") for arm in self.of.arms)
            return "none" if broke else "undecided"
        return f"{'≥ ' if self.at_end else ''}{shown_value(self.rate)}"


def is_order(design: Design) -> bool:
    """Whether so many placements are compared that lines of them in one panel could not be distinguished."""
    return len(design.who) > MANY and design.who_key == "model.placement" and bool(design.rates)


def stable(one: Tuned) -> Stable:
    """Of a placement under a condition."""
    whole = [arm.values[RATE] for arm in one.arms if arm.count("finished") == arm.n]
    return Stable(
        of=one,
        rate=max(whole, default=None),
        tried=tuple(arm.values[RATE] for arm in one.arms),
        seeds=min(arm.n for arm in one.arms),
    )


def in_order(chosen: Sequence[Tuned], design: Design) -> list[str]:
    """Placements, the ones that stand the highest rate under the first condition before others, then by loss."""
    first = {one.who: one for one in chosen if one.condition == design.conditions[0]}

    def place(who: str) -> tuple[bool, float, float]:
        one = first.get(who)
        if one is None:
            return True, 0.0, math.inf
        return False, -(stable(one).rate or 0.0), one.best.median if one.best else math.inf

    return sorted(design.who, key=place)


# ------------------------------------------------------------------------------------------------------------ sections


def sections(chosen: Sequence[Tuned], design: Design, reference: str, what: str) -> Iterator[Section]:
    """The map, losses at the best rate under each condition, and what a step costs.

    Args:
        what: the name of the loss.
    """
    found = [stable(one) for one in chosen]
    order = in_order(chosen, design)
    yield Section(
        name="stable-rates",
        title="Highest learning rate at which every seed finished",
        sentence=_STABLE,
        figure=partial(stable_map, found, order, design),
        table=stable_table(found, order, design),
    )
    for i, condition in enumerate(design.conditions):
        best = [one.best for one in chosen if one.condition == condition and one.best is not None]
        best.sort(key=lambda arm: arm.median)
        if best:
            where = f": {condition_said(condition)}" if condition else ""
            draw = partial(study_figures.strips, best, what)
            name = f"order-{i + 1}" if i else "order"
            yield Section(name=name, title=f"Loss at the best rate{where}", sentence=_ORDER, figure=draw)
    costs = cost_table(chosen, order, design, reference)
    if costs is not None:
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
    " Memory: the forecast for one GPU with this batch (parameters, gradients, optimizer state, activations; a"
    " lower bound for designs of several streams)."
)


def stable_table(found: Sequence[Stable], order: Sequence[str], design: Design) -> Table:
    """A line per placement, a column per condition, and the loss at the best rate in each."""
    by = {(one.of.who, condition_said(one.of.condition)): one for one in found}
    conditions = [condition_said(condition) for condition in design.conditions]
    header = ["placement"]
    for condition in conditions:
        beside = f", {condition}" if condition else ""
        header += [f"highest stable rate{beside}", f"best rate{beside}", f"median loss there (nats){beside}", "seeds"]
    lines = [[who, *(cell for at in conditions for cell in _cells(by.get((who, at))))] for who in order]
    looks = dict(zip(design.who, design.looks, strict=True))
    return Table(header=header, lines=lines, looks=[looks[who] for who in order])


def _cells(one: Stable | None) -> list[str]:
    if one is None:
        return ["not run", "–", "–", "–"]
    best = one.of.best
    if best is None:
        return [one.said(), "–", "–", str(one.seeds)]
    ends = f" ({best.interval.low:.3f} to {best.interval.high:.3f})" if best.interval else ""
    return [one.said(), shown_value(best.values[RATE]), f"{best.median:.3f}{ends}", str(one.seeds)]


def stable_map(found: Sequence[Stable], order: Sequence[str], design: Design) -> Drawing:
    """A row per placement, a column per condition: the highest stable rate, the darker the higher."""
    drawn = drawing(1, height=0.9 + 0.19 * len(order), rows=True)
    (axes,) = drawn.panels
    columns = [condition_said(condition) for condition in design.conditions]
    by = {(one.of.who, condition_said(one.of.condition)): one for one in found}
    for y, who in enumerate(order):
        for x, condition in enumerate(columns):
            _square(axes, x, -y, by.get((who, condition)), design.rates)
    axes.set_yticks([-y for y in range(len(order))], [plain(who) for who in order])
    axes.set_xticks(range(len(columns)), [plain(name) for name in columns])
    axes.xaxis.tick_top()
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(0.5 - len(order), 0.5)
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    label(axes, "", "")
    return drawn


def _square(axes: Axes, x: int, y: int, one: Stable | None, rates: Sequence[float]) -> None:
    corner: tuple[float, float] = (x - 0.49, y - 0.46)
    if one is None:
        axes.text(x, y, "not run", ha="center", va="center", fontsize="x-small", color=INK, alpha=0.6)
        return
    if one.rate is None:
        face, ink = "#c3c7cc", "#000000"
    else:
        colour = _COLOURS((rates.index(one.rate) + 1) / (len(rates) + 1))
        face, ink = to_hex(colour), ink_on(colour)
    hatch = None if one.rate is not None else "////"
    axes.add_patch(Rectangle(corner, 0.98, 0.92, facecolor=face, edgecolor="#8d939a", hatch=hatch, linewidth=0))
    box: dict[str, Any] = {} if one.rate is not None else {"bbox": {"facecolor": face, "edgecolor": "none", "pad": 0.8}}
    axes.text(x, y, one.said(), ha="center", va="center", fontsize="x-small", color=ink, **box)


# ---------------------------------------------------------------------------------------------------------------- cost


def cost_table(chosen: Sequence[Tuned], order: Sequence[str], design: Design, reference: str) -> Table | None:
    """A line per placement and condition; None where nobody has measured a step."""
    lines = []
    for condition in design.conditions:
        here = {one.who: [cell for arm in one.arms for cell in arm.cells] for one in chosen
                if one.condition == condition}  # fmt: skip
        if any(_seconds(cells) for cells in here.values()):
            theirs = here.get(reference, [])
            lines += [_cost(who, condition_said(condition), here[who], theirs) for who in order if who in here]
    under = any(line[1] for line in lines)
    header = ["placement", "under", "seconds per step", "over", "memory (MiB)", "over", "parameters"]
    if not under:
        header, lines = [header[0], *header[2:]], [[line[0], *line[2:]] for line in lines]
    return Table(header=header, lines=lines, left=1 + under) if lines else None


def _cost(who: str, where: str, mine: Sequence[CellFiles], theirs: Sequence[CellFiles]) -> list[str]:
    seconds, memory = _seconds(mine), _memory(mine)
    count = next((n for cell in mine if (n := cell.number("parameters"))), None)
    spread = f"{statistics.median(seconds):.4f} ({min(seconds):.4f} to {max(seconds):.4f})" if seconds else "–"
    return [
        who,
        where,
        spread,
        _over(statistics.median(seconds) if seconds else None, _seconds(theirs), statistics.median),
        "–" if memory is None else f"{memory / MIB:.1f}",
        _over(memory, [known] if (known := _memory(theirs)) else [], statistics.median),
        "–" if count is None else f"{count:,.0f}",
    ]


def _over(mine: float | None, theirs: Sequence[float], of: Callable[[Sequence[float]], float]) -> str:
    return "–" if mine is None or not theirs else f"{mine / of(theirs):.2f}"


def _seconds(cells: Sequence[CellFiles]) -> list[float]:
    return [value for cell in cells if (value := cell.number("cpu_seconds_per_step"))]


def _memory(cells: Sequence[CellFiles]) -> float | None:
    """Bytes by the forecast of the first cell whose files are here; None where its placement is not known here."""
    from isograd.lab.train.forecast.forecast import forecast  # with torch, which no other page needs
    from isograd.lab.train.recipe import run_from_dict

    for cell in cells:
        if cell.files is not None:
            try:
                return forecast(run_from_dict(cell.files.run)).memory.total
            except (IsogradError, KeyError):
                return None
    return None


# ------------------------------------------------------------------------------------------------------------ headline


def headline(chosen: Sequence[Tuned], design: Design, best: StudyArm, size: str, loss: str) -> str:
    """How many stand the highest rate, and who is lowest, with the size of the models first."""
    first = [stable(one) for one in chosen if one.condition == design.conditions[0]]
    highest = max(rate for one in first for rate in one.tried)
    there = [one for one in first if highest in one.tried]
    many = sum(one.rate == highest for one in there)
    where = f" at {condition_said(design.conditions[0])}" if design.conditions[0] else ""
    return (
        f"in models of {size}, {many} of {len(there)} placements finish with every seed at the highest rate tried,"
        f" {shown_value(highest)}{where}; lowest median {loss}: {best.label}, {best.median:.3f} nats"
        f" (n = {best.n})"
    )

"""The headroom map: warm-up against learning rate, the region that trains, a panel per placement."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from isograd.report.headroom_words import Place, margin_said, own, places
from isograd.report.style import COLOURS, INK, Drawing, drawing, heading, label, log

Row = Mapping[str, Any]
TRAINS, BREAKS = COLOURS[0], COLOURS[1]
_MARKS: dict[str, dict[str, Any]] = {  # differ in form, too
    "trained": {"marker": "o", "color": TRAINS, "markersize": 3.4, "label": "trained"},
    "broke": {"marker": "x", "color": BREAKS, "markersize": 4.2, "label": "broke"},
    "stuck": {
        "marker": "_",
        "color": BREAKS,
        "markersize": 5.5,
        "markeredgewidth": 1.6,
        "label": "stuck: learnt nothing",
    },
    "undecided": {"marker": "s", "color": INK, "markersize": 3.6, "markerfacecolor": "none", "label": "undecided"},
    "slow": {"marker": "v", "color": INK, "markersize": 3.6, "markerfacecolor": "none", "label": "too slow to tell"},
}
_BESIDE = 3


def headroom_map(content: Row) -> Drawing:
    """Every training as a mark, the boundary over seeds as a line in its band, the user's own setting as a star."""
    by_name: dict[str, list[Place]] = {}
    for place in places(content):
        by_name.setdefault(place.placement, []).append(place)
    beside = min(_BESIDE, len(by_name))
    drawn = drawing(len(by_name), height=3.4, sharey=True, beside=beside)
    low, high = _limits(content)
    for axes, (name, mine) in zip(drawn.panels, by_name.items(), strict=True):
        heading(axes, name)
        _panel(axes, mine, content, low, high)
    return drawn


def _panel(axes: Axes, mine: Sequence[Place], content: Row, low: float, high: float) -> None:
    known = [(place.warmup, place) for place in mine if place.level is not None]
    warmups = sorted(content["warmups"])
    reach = (warmups[-1] - warmups[0]) or max(warmups[-1], 10)
    _region(axes, known, reach, low, high)
    for place in mine:
        _marks(axes, place, reach / 60)
    _star(axes, mine, content, reach)
    label(axes, "warm-up (steps)", "peak learning rate" if _is_first(axes) else "")
    log(axes)
    axes.set_ylim(low, high)
    axes.set_xlim(warmups[0] - 0.08 * reach, warmups[-1] + 0.08 * reach)
    axes.set_xticks(warmups)


def _region(axes: Axes, known: Sequence[tuple[int, Place]], reach: float, low: float, high: float) -> None:
    """What trains, up to the boundary; of a single warm-up a step as wide as the panel."""
    if not known:
        return
    points = [(at, place) for warmup, place in known for at in _wide(warmup, known, reach)]
    x = [at for at, _ in points]
    levels = [place.level for _, place in points if place.level is not None]
    middle, below, above = ([_inside(getattr(one, name), low, high) for one in levels] for name in _ENDS)
    floor = [_inside(_too_slow(place), low, high) for _, place in points]
    axes.fill_between(
        x,
        floor,
        [max(pair) for pair in zip(floor, middle, strict=True)],
        color=TRAINS,
        alpha=0.13,
        linewidth=0,
        label="trains",
    )
    axes.fill_between(x, below, above, color=TRAINS, alpha=0.22, linewidth=0, label="interval of the boundary")
    axes.plot(x, middle, color=TRAINS, linewidth=1.8, label="boundary, median over seeds", zorder=3)
    for warmup, place in known:
        if place.level is not None and place.level.middle in (0, math.inf):
            up = place.level.middle > 0
            style: dict[str, Any] = {"color": TRAINS, "markersize": 7, "linestyle": "none", "zorder": 5}
            axes.plot([warmup], [high / 1.12 if up else low * 1.12], marker="^" if up else "v", **style)


_ENDS = ("middle", "low", "high")


def _wide(warmup: int, known: Sequence[tuple[int, Place]], reach: float) -> Iterator[float]:
    if len(known) == 1:
        yield from (warmup - 0.08 * reach, warmup + 0.08 * reach)
    else:
        yield warmup


def _too_slow(place: Place) -> float:
    """The largest rate that was too slow below the boundary; what lies under it was not seen to train."""
    top = place.level.low if place.level else 0
    slow = (one["lr"] for chain in place.chains for one in chain["tried"] if one["verdict"] == "slow")
    return max((rate for rate in slow if rate < top), default=0)


def _marks(axes: Axes, place: Place, apart: float) -> None:
    """Seeds a little apart from each other."""
    for i, chain in enumerate(place.chains):
        x = place.warmup + apart * (i - (len(place.chains) - 1) / 2)
        for one in chain["tried"]:
            look = _MARKS.get(one["verdict"])
            if look is not None:
                axes.plot([x], [one["lr"]], linestyle="none", zorder=4, **look)


def _star(axes: Axes, mine: Sequence[Place], content: Row, reach: float) -> None:
    """The user's own setting, with its margin where that warm-up was tried."""
    _, rate, warmup = own(content)
    look: dict[str, Any] = {"marker": "*", "markersize": 12, "color": COLOURS[4], "markeredgecolor": INK}
    axes.plot([warmup], [rate], linestyle="none", zorder=6, markeredgewidth=0.8, label="your setting", **look)
    level = next((place.level for place in mine if place.warmup == warmup), None)
    if level is not None:
        right = warmup <= sum(axes.get_xlim()) / 2
        text = re.sub(r" \(.*?\)", "", margin_said(level, rate)).replace(" times", "×")
        axes.annotate(
            text,
            (warmup, rate),
            (8 if right else -8, -12),
            textcoords="offset points",
            ha="left" if right else "right",
            fontsize=8,
            color=INK,
            zorder=7,
        )


def _limits(content: Row) -> tuple[float, float]:
    """Of the learning rates that were tried, and the user's own."""
    rates = [one["lr"] for chain in content["chains"] for one in chain["tried"]] + [own(content)[1]]
    return min(rates) / 1.7, max(rates) * 1.7


def _inside(rate: float, low: float, high: float) -> float:
    return min(max(rate, low), high)


def _is_first(axes: Axes) -> bool:
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()

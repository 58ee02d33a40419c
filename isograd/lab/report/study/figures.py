"""Figures of a study's arms: a loss against what was swept, dots per arm, and the curves of chosen arms."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex, to_rgba
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from isograd.lab.report.figures import over_seeds
from isograd.lab.report.runs import ArmFiles, Row
from isograd.lab.report.study.arms import RATE, WARMUP, Design, StudyArm
from isograd.lab.report.study.files import axis_name, condition_said, shown_value
from isograd.lab.report.style import (
    INK,
    LEVEL_LINE,
    Drawing,
    Look,
    Strip,
    drawing,
    entropy_line,
    heading,
    ink_on,
    is_first,
    label,
    log,
    near,
    plain,
    strips,
)

Panel = tuple[str, list[StudyArm]]  # a panel's heading, and its arms
_MARKS = {"collapsed": "○", "diverged": "×", "undecided": "□"}
ROW = 11.0  # points
_FAR = 1e3  # stands for an infinite end of an interval, out of sight
_THIN: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.6}


def against(groups: Sequence[Panel], key: str, what: str, entropy: float | None = None) -> Drawing:
    """Median loss over a swept number, a line and intervals per placement; above it who did not finish, and how many.

    An arm of which half of the seeds or fewer finished has no median here, only its marks above.
    """
    beside = 3 if len(groups) == 3 else 2
    drawn = drawing(len(groups), height=3.7, sharey=True, beside=beside)
    broken = list(dict.fromkeys(arm.who for _, arms in groups for arm in arms if arm.trouble))
    for axes, (title, arms) in zip(drawn.panels, groups, strict=True):
        numbers = sorted({arm.values[key] for arm in arms})
        logarithmic = _is_wide(numbers)
        lines = _by_who(arms, key)
        for i, mine in enumerate(lines):
            step = 0.008 * (i - (len(lines) - 1) / 2)
            _line(axes, [(_aside(numbers, arm.values[key], step), arm) for arm in mine])
        label(axes, axis_name(key), what if is_first(axes) else "")
        _ticks(axes, numbers, logarithmic)
        _above(axes, arms, broken, key)
        heading(axes, title, above=ROW * len(broken))
    _limit(drawn.panels[0], [arm for _, arms in groups for arm in arms])
    for axes in drawn.panels:
        if entropy is not None and axes.get_ylim()[0] < entropy < axes.get_ylim()[1]:
            entropy_line(axes, entropy)
    return drawn


def _by_who(arms: Sequence[StudyArm], key: str) -> list[list[StudyArm]]:
    """The arms of each line, along the axis."""
    found: dict[str, list[StudyArm]] = {}
    for arm in sorted(arms, key=lambda arm: arm.values[key]):
        found.setdefault(arm.who, []).append(arm)
    return [found[who] for who in dict.fromkeys(arm.who for arm in arms)]


def _limit(axes: Axes, arms: Sequence[StudyArm]) -> None:
    """As high as the medians and the intervals of arms of which every seed finished; others may reach out of sight."""
    whole = [arm.interval for arm in arms if arm.interval is not None and not arm.trouble]
    ends = [arm.median for arm in arms if arm.trains] + [end for one in whole for end in (one.low, one.high)]
    near(axes, list(filter(math.isfinite, ends)))  # a file may lack the loss of what finished


def _is_wide(numbers: Sequence[float]) -> bool:
    return len(numbers) > 1 and numbers[0] > 0 and numbers[-1] / numbers[0] >= 3


def _aside(numbers: Sequence[float], x: float, step: float) -> float:
    """A small step from x, so that intervals of several lines do not lie on each other."""
    return x * (numbers[-1] / numbers[0]) ** step if _is_wide(numbers) else x + step * (numbers[-1] - numbers[0] or 1.0)


def _line(axes: Axes, points: Sequence[tuple[float, StudyArm]]) -> None:
    shown = [(x, arm.median if arm.trains else math.nan) for x, arm in points]
    axes.plot(*zip(*shown, strict=True), label=points[0][1].who, marker="o", markersize=4, **points[0][1].look)
    for x, arm in points:
        if arm.trains and arm.interval is not None:
            high = min(arm.interval.high, _FAR)
            axes.vlines(x, arm.interval.low, high, color=arm.look["color"], linewidth=1.1, alpha=0.75)


def _ticks(axes: Axes, numbers: Sequence[float], logarithmic: bool) -> None:
    """The swept values and no others."""
    if logarithmic:
        axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(numbers, [f"{number:g}" for number in numbers])
    low, high = numbers[0], numbers[-1]  # and a little beyond, also where there is nothing but marks above the panel
    beyond = (high / low) ** 0.08 if logarithmic else 0.08 * (high - low) or 1.0
    axes.set_xlim(*((low / beyond, high * beyond) if logarithmic else (low - beyond, high + beyond)))


def _above(axes: Axes, arms: Sequence[StudyArm], broken: Sequence[str], key: str) -> None:
    """Above the panel, a row for each of `broken` (who did not finish everywhere): marks and counts."""
    for arm in (one for one in arms if one.trouble):
        said = " ".join(f"{mark}{arm.count(how)}/{arm.n}" for how, mark in _MARKS.items() if arm.count(how))
        place: Look = {"xytext": (0, 6 + ROW * broken[::-1].index(arm.who)), "textcoords": "offset points"}
        above: Look = {"xycoords": axes.get_xaxis_transform(), "ha": "center", "annotation_clip": False}
        axes.annotate(said, (arm.values[key], 1), fontsize="small", color=arm.look["color"], **place, **above)


def gradient_ratios(groups: Sequence[Panel], key: str) -> Drawing | None:
    """First over last layer's mean |gradient| of W_2 against a swept number: thin at step 1, bold at the end."""
    drawn = drawing(len(groups), height=3.4, sharey=True)
    for axes, (title, arms) in zip(drawn.panels, groups, strict=True):
        for mine in _by_who(arms, key):
            for name, thin in (("gradient_ratio_start", True), ("gradient_ratio_end", False)):
                line = [(arm.values[key], ratio) for arm in mine if (ratio := arm.ratio(name)) is not None]
                how = _THIN if thin else {"label": mine[0].who, "marker": "o", "markersize": 3}
                if line:
                    axes.plot(*zip(*line, strict=True), **(mine[0].look | how))
        axes.axhline(1.0, **LEVEL_LINE)
        heading(axes, title)
        label(axes, axis_name(key), "gradient, first / last layer" if is_first(axes) else "")
        numbers = sorted({arm.values[key] for arm in arms})
        log(axes)
        _ticks(axes, numbers, _is_wide(numbers))
    return drawn if any(len(axes.lines) > 1 for axes in drawn.panels) else None


def seed_strips(arms: Sequence[StudyArm], what: str) -> Drawing:
    """A dot per seed that finished, a bar at the median; what did not is counted beside its arm."""
    drawn = drawing(1, height=0.9 + 0.24 * len(arms), rows=True)
    (axes,) = drawn.panels
    strips(axes, [_strip(arm) for arm in arms])
    label(axes, what, "")
    return drawn


def _strip(arm: StudyArm) -> Strip:
    ended = [cell.seed for cell in arm.cells if cell.how == "finished" and math.isfinite(arm.losses[cell.seed])]
    values, middle = [arm.losses[seed] for seed in ended], arm.median if arm.trains else None
    beside = ", ".join(arm.trouble)
    return Strip(name=arm.label, colour=arm.look["color"], values=values, middle=middle, beside=beside)


def loss_panels(panels: Sequence[tuple[str, Mapping[str, ArmFiles]]], entropy: float | None) -> Drawing | None:
    """Training loss over steps, a running mean of ten: the mean over the seeds, and a band from lowest to highest.

    Args:
        panels: a heading, and the arms there by who they are.
    """
    found = [(title, {who: arm for who, arm in arms.items() if _has_steps(arm)}) for title, arms in panels]
    known = [(title, arms) for title, arms in found if arms]
    if not known:
        return None
    drawn = drawing(len(known), height=3.6, sharey=True)
    for axes, (title, arms) in zip(drawn.panels, known, strict=True):
        for who, arm in arms.items():
            _curves(axes, arm, arm.label if len(known) == 1 else who)  # how seeds ended differs from panel to panel
        heading(axes, title)
        label(axes, "step", "training loss (nats)" if is_first(axes) else "")
        if entropy is not None:
            entropy_line(axes, entropy)
    near(drawn.panels[0], [y for _, arms in known for arm in arms.values() for y in arm.curve()[1][5:]], peak=0.97)
    return drawn


def _curves(axes: Axes, arm: ArmFiles, named: str) -> None:
    """Mean and band; of seeds that ended differently a line each, since nothing is like their mean."""
    if len(set(arm.outcomes)) == 1:
        over_seeds(axes, arm, arm.curve(), named)
        return
    for run in arm.runs:
        x, loss, _, _ = replace(arm, runs=[run]).curve()
        axes.plot(x, loss, label=named, **(arm.look | {"linewidth": 1.1}))


def _has_steps(arm: ArmFiles) -> bool:
    return any(run.metrics for run in arm.runs)


# ------------------------------------------------------------------------------------------------------------- maps

PANELS = 12  # of one figure at most; the tables have the rest
# even to the eye, for colour-blind readers too: the darker, the higher the loss
_EVEN = colormaps["viridis_r"].resampled(64)
_EDGE = "#6c737a"
_BROKEN = {"collapsed": ("#c3c7cc", "////"), "diverged": ("#8d939a", "xxxx"), "undecided": ("#eef0f2", "...")}


@dataclass(frozen=True, kw_only=True)
class Square:
    """What stands in a square of a map: lines of text on a colour, hatched where nothing trained."""

    lines: Sequence[str]
    face: str
    hatch: str | None = None


def squares(axes: Axes, xs: Sequence[str], ys: Sequence[str], cells: Mapping[tuple[int, int], Square]) -> None:
    """A square for each x and y, by their places; one that is not among `cells` was not run."""
    for x, y in product(range(len(xs)), range(len(ys))):
        one = cells.get((x, y))
        face: Look = {"facecolor": one.face, "hatch": one.hatch} if one else {"fill": False, "alpha": 0.3}
        axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, edgecolor=_EDGE, linewidth=0, **face))
        ink = ink_on(to_rgba(one.face)) if one else INK
        box: Look = {"bbox": {"facecolor": one.face, "edgecolor": "none", "pad": 1.2}} if one and one.hatch else {}
        text = "\n".join(one.lines) if one else "not run"
        size = "x-small" if "\n" in text else "small"
        axes.text(x, y, text, ha="center", va="center", fontsize=size, color=ink, zorder=3, **box)
    axes.set_xticks(range(len(xs)), [plain(name) for name in xs])
    axes.set_yticks(range(len(ys)), [plain(name) for name in ys])
    axes.set_xlim(-0.55, len(xs) - 0.45)
    axes.set_ylim(-0.55, len(ys) - 0.45)
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def outcome_map(arms: Sequence[StudyArm], design: Design, what: str) -> Drawing | None:
    """Median loss over learning rate and warm-up; what did not train is grey, hatched and named.

    Args:
        what: the name of the loss, for the scale.
    """
    places = panels_of(arms, design, WARMUP)
    if not places:
        return None
    beside = 3 if len(design.rates) <= 4 else 2 if len(design.rates) <= 8 else 1
    rates, warmups = [f"{rate:g}" for rate in design.rates], design.others[WARMUP]
    drawn = drawing(len(places), height=0.8 + 0.5 * len(warmups), beside=beside, rows=True)
    scale = _scale([arm for *_, mine in places for arm in mine])
    for i, (axes, (who, condition, mine)) in enumerate(zip(drawn.panels, places, strict=True)):
        heading(axes, ", ".join([who, *([condition_said(condition)] if condition else [])]))
        at = {(design.rates.index(arm.values[RATE]), warmups.index(arm.values[WARMUP])): arm for arm in mine}
        cells = {place: _square(arm, scale) for place, arm in at.items()}
        squares(axes, rates, [shown_value(value) for value in warmups], cells)
        trained = [place for place, arm in at.items() if arm.trains]
        if trained:
            x, y = min(trained, key=lambda place: at[place].median)
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=2.2, zorder=4))
        last = i + beside >= len(places)  # no panel below
        label(axes, "learning rate" if last else "", "warm-up (steps)" if i % beside == 0 else "")
    if scale is not None:
        beyond = any(arm.trains and arm.median > (scale.vmax or 0.0) for *_, mine in places for arm in mine)
        _bar(drawn, scale, beyond, what)
    return drawn


def _square(arm: StudyArm, scale: Normalize | None) -> Square:
    """Coloured by its median where more than half of the seeds finished, else hatched under its commonest end."""
    if arm.trains and scale is not None:
        return Square(lines=[f"{arm.median:.3f}", *arm.trouble], face=to_hex(_EVEN(scale(arm.median))))
    face, hatch = _BROKEN[max(_BROKEN, key=arm.count)]
    lines = [arm.trouble[0].replace(" ", "\n")] if len(arm.trouble) == 1 else arm.trouble
    return Square(lines=lines, face=face, hatch=hatch)


MapPanel = tuple[str, Row, list[StudyArm]]


def panels_of(arms: Sequence[StudyArm], design: Design, *along: str) -> list[MapPanel]:
    """Each of what is compared under each condition of the axes that are not `along` the panel, with its arms."""
    conditions: dict[str, Row] = {}
    for condition in design.conditions:
        rest = {key: value for key, value in condition.items() if key not in along}
        conditions.setdefault(repr(rest), rest)
    found = []
    for rest in conditions.values():
        for who in design.who:
            mine = [arm for arm in arms if arm.who == who and all(arm.values[key] == rest[key] for key in rest)]
            found += [(who, rest, mine)] if mine else []
    return found[:PANELS]


def _scale(arms: Sequence[StudyArm]) -> Normalize | None:
    """One for all panels, from the lowest median of what trained to the highest, or to where few of them lie above."""
    medians = [arm.median for arm in arms if arm.trains]
    if not medians:
        return None
    low, middle = min(medians), statistics.median(medians)
    return Normalize(low, min(max(medians), low + 3 * (middle - low)) if middle > low else max(medians), clip=True)


def _bar(drawn: Drawing, scale: Normalize, beyond: bool, what: str) -> None:
    """The scale of all panels; `beyond`: whether a median lies above it."""
    shape: dict[str, Any] = {"shrink": 0.8, "aspect": 30, "pad": 0.02, "extend": "max" if beyond else "neither"}
    bar = drawn.figure.colorbar(ScalarMappable(norm=scale, cmap=_EVEN), ax=drawn.figure.axes, **shape)
    bar.set_label(f"median {what}")
    if bar.solids is not None:
        bar.solids.set(rasterized=False, edgecolor="face")  # shapes, no picture within the SVG
    bar.outline.set_visible(False)

"""Figures of a study's arms: a loss against what was swept, dots per arm, and the curves of chosen arms."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator
from matplotlib.transforms import offset_copy

from isograd.lab.report.figures import over_seeds
from isograd.lab.report.runs import ArmFiles, Row
from isograd.lab.report.study.arms import RATE, WARMUP, Design, StudyArm
from isograd.lab.report.study.files import axis_name, condition_said, shown_value
from isograd.lab.report.style import (
    INK,
    LEVEL_LINE,
    Drawing,
    drawing,
    entropy_line,
    heading,
    ink_on,
    is_first,
    label,
    log,
    near,
    plain,
)

Panel = tuple[str, list[StudyArm]]  # a panel's heading, and its arms
_MARKS = {"collapsed": "o", "diverged": "x", "undecided": "s"}
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
        for shift, mine in zip(_shifts(numbers, len(lines), logarithmic), lines, strict=True):
            _line(axes, [(shift(arm.values[key]), arm) for arm in mine])
        label(axes, axis_name(key), what if is_first(axes) else "")
        _ticks(axes, numbers, logarithmic)
        strip = _strip(axes, arms, broken, key)
        heading(axes, title, over=strip)
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
    ends = list(filter(math.isfinite, ends))  # a file may lack the loss of what finished
    if ends and max(ends) > min(ends):
        axes.set_ylim(min(ends) - 0.06 * (max(ends) - min(ends)), max(ends) + 0.06 * (max(ends) - min(ends)))


def _is_wide(numbers: Sequence[float]) -> bool:
    return len(numbers) > 1 and numbers[0] > 0 and numbers[-1] / numbers[0] >= 3


def _shifts(numbers: Sequence[float], many: int, logarithmic: bool) -> list[Callable[[float], float]]:
    """For each line a small step aside, so that intervals do not lie on each other."""
    steps = [0.008 * (i - (many - 1) / 2) for i in range(many)]
    if logarithmic:
        width = math.log(numbers[-1] / numbers[0])
        return [lambda x, step=step: x * math.exp(step * width) for step in steps]  # type: ignore[misc]
    width = (numbers[-1] - numbers[0]) or 1.0
    return [lambda x, step=step: x + step * width for step in steps]  # type: ignore[misc]


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
    axes.set_xlim(*_ends(numbers, logarithmic))


def _ends(numbers: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """A little beyond the swept values, also those at which there is nothing but marks above the panel."""
    low, high = numbers[0], numbers[-1]
    if logarithmic:
        beyond = (high / low) ** 0.08
        return low / beyond, high * beyond
    beyond = 0.08 * (high - low) or 1.0
    return low - beyond, high + beyond


def _strip(axes: Axes, arms: Sequence[StudyArm], broken: Sequence[str], key: str) -> Axes | None:
    """Above the panel, a row for each of `broken` (who did not finish everywhere): marks and counts."""
    if not broken:
        return None
    strip = axes.inset_axes((0, 1.02, 1, 0.085 * len(broken)), sharex=axes)
    strip.grid(False)
    for arm in (one for one in arms if one.trouble):
        found = [how for how in _MARKS if arm.count(how)]
        for place, how in enumerate(found):
            aside = 23 * (place - (len(found) - 1) / 2)  # points
            _count(strip, (arm.values[key], -broken.index(arm.who)), aside, arm, how)
    strip.set_ylim(-len(broken) + 0.4, 0.6)
    strip.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False, which="both")
    for side, spine in strip.spines.items():
        spine.set_visible(side == "bottom")
        spine.set(color=INK, alpha=0.4, linewidth=0.6)
    return strip


def _count(strip: Axes, at: tuple[float, float], aside: float, arm: StudyArm, how: str) -> None:
    there = offset_copy(strip.transData, strip.get_figure(root=True), x=aside - 4, units="points")
    line: dict[str, Any] = {"color": arm.look["color"], "markersize": 5, "markeredgewidth": 1.5}
    strip.plot(*([value] for value in at), _MARKS[how], markerfacecolor="none", transform=there, **line)
    beside: dict[str, Any] = {"xytext": (aside + 1, 0), "textcoords": "offset points", "va": "center"}
    strip.annotate(f"{arm.count(how)}/{arm.n}", at, fontsize="x-small", color=INK, **beside)


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


def strips(arms: Sequence[StudyArm], what: str) -> Drawing:
    """A dot per seed that finished, a bar at the median; what did not is counted beside its arm."""
    drawn = drawing(1, height=0.9 + 0.24 * len(arms), rows=True)
    (axes,) = drawn.panels
    for row, arm in enumerate(arms):
        colour = arm.look["color"]
        for cell in arm.cells:
            if cell.how == "finished" and math.isfinite(arm.losses[cell.seed]):
                axes.plot([arm.losses[cell.seed]], [-row], "o", color=colour, markersize=5, alpha=0.8)
        if arm.trains:
            axes.plot([arm.median] * 2, [-row - 0.3, -row + 0.3], color=INK, linewidth=1.4)
        if arm.trouble:
            beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.01, -row, ", ".join(arm.trouble), fontsize="small", color=INK, **beside)
    label(axes, what, "")
    axes.set_yticks([-row for row in range(len(arms))], [plain(arm.label) for arm in arms])
    axes.set_ylim(0.6 - len(arms), 0.6)
    return drawn


def loss_panels(panels: Sequence[tuple[str, Sequence[ArmFiles]]], entropy: float | None) -> Drawing | None:
    """Training loss over steps, a running mean of ten: the mean over the seeds, and a band from lowest to highest.

    Args:
        panels: a heading, and of each that is compared its arm there, which may be without files.
    """
    known = [(title, arms) for title, arms in panels if any(_has_steps(arm) for arm in arms)]
    if not known:
        return None
    drawn = drawing(len(known), height=3.6, sharey=True)
    for axes, (title, arms) in zip(drawn.panels, known, strict=True):
        for arm in arms:
            # how its seeds ended differs from panel to panel
            named = arm.label if len(known) == 1 else arm.label.partition(" (")[0]
            if _has_steps(arm):
                _curves(axes, arm, named)
        heading(axes, title)
        label(axes, "step", "training loss (nats)" if is_first(axes) else "")
        if entropy is not None:
            entropy_line(axes, entropy)
    later = [y for _, arms in known for arm in arms if _has_steps(arm) for y in arm.curve()[1][5:]]
    near(drawn.panels[0], later, peak=0.97)
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
_BROKEN = {"collapsed": ("#c3c7cc", "////"), "diverged": ("#8d939a", "xxxx"), "undecided": ("#eef0f2", "...")}


def outcome_map(arms: Sequence[StudyArm], design: Design, what: str) -> Drawing | None:
    """Median loss over learning rate and warm-up; what did not train is grey, hatched and named.

    Args:
        what: the name of the loss, for the scale.
    """
    places = panels_of(arms, design, WARMUP)
    if not places:
        return None
    beside = 3 if len(design.rates) <= 4 else 2 if len(design.rates) <= 8 else 1
    warmups = design.others[WARMUP]
    drawn = drawing(len(places), height=0.8 + 0.5 * len(warmups), beside=beside, rows=True)
    scale = _scale([arm for *_, mine in places for arm in mine])
    for i, (axes, (who, condition, mine)) in enumerate(zip(drawn.panels, places, strict=True)):
        heading(axes, ", ".join([who, *([condition_said(condition)] if condition else [])]))
        _squares(axes, mine, design.rates, warmups, scale)
        last = i + beside >= len(places)  # no panel below
        label(axes, "learning rate" if last else "", "warm-up (steps)" if i % beside == 0 else "")
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    said = {i: _said(mine, design.rates, warmups, what) for i, (*_, mine) in enumerate(places)}
    if scale is not None:
        beyond = any(arm.trains and arm.median > (scale.vmax or 0.0) for *_, mine in places for arm in mine)
        _bar(drawn, scale, beyond, what)
    return replace(drawn, squares=said)


def _said(arms: Sequence[StudyArm], rates: Sequence[float], warmups: Sequence[object], what: str) -> list[list[str]]:
    """Of each square its setting, the median with its interval, and how its seeds ended."""
    by_place = {(arm.values[WARMUP], arm.values[RATE]): arm for arm in arms}
    return [[_arm_said(by_place.get((warmup, rate)), what) for rate in rates] for warmup in warmups]


def _arm_said(arm: StudyArm | None, what: str) -> str:
    if arm is None:
        return ""
    setting = f"learning rate {arm.values[RATE]:g}, warm-up {shown_value(arm.values[WARMUP])}"
    ends = f" ({arm.interval.low:.3f} to {arm.interval.high:.3f})" if arm.interval else ""
    loss = f"\nmedian {what}: {arm.median:.3f}{ends}" if arm.trains else ""
    counts = ", ".join(f"{arm.count(how)} {how}" for how in ("finished", *_BROKEN) if arm.count(how))
    return f"{setting}{loss}\n{counts} (n = {arm.n})"


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


def _squares(
    axes: Axes, arms: Sequence[StudyArm], rates: Sequence[float], warmups: Sequence[object], scale: Normalize | None
) -> None:
    for x, rate in enumerate(rates):
        for y, warmup in enumerate(warmups):
            here = [arm for arm in arms if arm.values[RATE] == rate and arm.values[WARMUP] == warmup]
            _square(axes, x, y, here[0] if here else None, scale)
    trained = [arm for arm in arms if arm.trains]
    best = min(trained, key=lambda arm: arm.median, default=None)
    if best is not None:
        x, y = rates.index(best.values[RATE]), list(warmups).index(best.values[WARMUP])
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=2.2, zorder=4))
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(warmups)), [shown_value(value) for value in warmups])
    axes.set_xlim(-0.55, len(rates) - 0.45)
    axes.set_ylim(-0.55, len(warmups) - 0.45)


def _square(axes: Axes, x: int, y: int, arm: StudyArm | None, scale: Normalize | None) -> None:
    """Coloured by its median where more than half of the seeds finished, else hatched under its commonest end."""
    corner = (x - 0.46, y - 0.46)
    if arm is None:
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=INK, alpha=0.3, linestyle=":"))
        axes.text(x, y, "not run", ha="center", va="center", fontsize="x-small", color=INK)
        return
    if arm.trains and scale is not None:
        colour = _EVEN(scale(arm.median))
        axes.add_patch(Rectangle(corner, 0.92, 0.92, facecolor=colour, linewidth=0))
        _write(axes, x, y, [f"{arm.median:.3f}", *arm.trouble], ink_on(colour))
        return
    commonest = max(_BROKEN, key=arm.count)
    ground, hatch = _BROKEN[commonest]
    axes.add_patch(Rectangle(corner, 0.92, 0.92, facecolor=ground, edgecolor="#6c737a", hatch=hatch, linewidth=0))
    _write(axes, x, y, arm.trouble, "#000000", ground)


def _write(axes: Axes, x: int, y: int, lines: Sequence[str], ink: str, ground: str | None = None) -> None:
    box = None if ground is None else {"facecolor": ground, "edgecolor": "none", "pad": 1.2}
    for i, line in enumerate(lines):
        number = line[0].isdigit() and "/" not in line
        text = line if number else line.replace(" ", "\n", 1) if len(lines) == 1 else line
        at = y + (0.5 * (len(lines) - 1) - i) * 0.34
        axes.text(
            x,
            at,
            text,
            ha="center",
            va="center",
            color=ink,
            fontsize="medium" if number else "x-small",
            bbox=box,
            zorder=3,
        )


def _bar(drawn: Drawing, scale: Normalize, beyond: bool, what: str) -> None:
    """The scale of all panels; `beyond`: whether a median lies above it."""
    shape: dict[str, Any] = {"shrink": 0.8, "aspect": 30, "pad": 0.02, "extend": "max" if beyond else "neither"}
    bar = drawn.figure.colorbar(ScalarMappable(norm=scale, cmap=_EVEN), ax=drawn.figure.axes, **shape)
    bar.set_label(f"median {what}")
    if bar.solids is not None:
        bar.solids.set(rasterized=False, edgecolor="face")  # shapes, no picture within the SVG
    bar.outline.set_visible(False)

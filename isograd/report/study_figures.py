"""Figures of a study's arms: a loss against what was swept, dots per arm, and the curves of chosen arms."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from matplotlib.transforms import offset_copy

from isograd.report.figures import LEVEL, over_seeds
from isograd.report.runs import ArmFiles
from isograd.report.study_arms import Design, StudyArm
from isograd.report.study_words import axis_name
from isograd.report.style import INK, Drawing, drawing, heading, label, log
from isograd.report.style import look as style

Group = tuple[str, list[tuple[int, StudyArm]]]  # a panel's heading; arms, each with the number of its look
_MARKS = {"collapsed": "o", "diverged": "x", "undecided": "s"}
_FAR = 1e3  # stands for an infinite end of an interval, out of sight
_THIN: dict[str, Any] = {"linewidth": 0.9, "alpha": 0.6}


def against(groups: Sequence[Group], key: str, what: str, entropy: float | None = None) -> Drawing:
    """Median loss over a swept number, a line and intervals per placement; above it who did not finish, and how many.

    An arm of which half of the seeds or fewer finished has no median here, only its marks above.
    """
    beside = 3 if len(groups) == 3 else 2
    drawn = drawing(len(groups), height=3.7, sharey=True, beside=beside)
    broken = list(dict.fromkeys(look for _, arms in groups for look, arm in arms if arm.trouble))
    for axes, (title, arms) in zip(drawn.panels, groups, strict=True):
        numbers = sorted({arm.values[key] for _, arm in arms})
        logarithmic = _is_wide(numbers)
        looks = list(dict.fromkeys(look for look, _ in arms))
        for place, look in enumerate(looks):
            mine = sorted((arm for other, arm in arms if other == look), key=lambda arm: arm.values[key])
            shift = _shifts(numbers, len(looks), logarithmic)[place]
            _line(axes, look, [(shift(arm.values[key]), arm) for arm in mine])
        label(axes, axis_name(key), what if _is_first(axes) else "")
        _ticks(axes, numbers, logarithmic)
        strip = _strip(axes, arms, broken, key)
        heading(axes, title, over=strip)
    _limit(drawn.panels[0], [arm for _, arms in groups for _, arm in arms])
    if entropy is not None:
        _mark_entropy(drawn.panels, entropy)
    return drawn


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


def _line(axes: Axes, look: int, points: Sequence[tuple[float, StudyArm]]) -> None:
    shown = [(x, arm.median if arm.trains else math.nan) for x, arm in points]
    axes.plot(*zip(*shown, strict=True), label=points[0][1].who, marker="o", markersize=4, **style(look))
    for x, arm in points:
        if arm.trains and arm.interval is not None:
            high = min(arm.interval.high, _FAR)
            axes.vlines(x, arm.interval.low, high, color=style(look)["color"], linewidth=1.1, alpha=0.75)


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


def _strip(axes: Axes, arms: Sequence[tuple[int, StudyArm]], broken: Sequence[int], key: str) -> Axes | None:
    """Above the panel, a row for each of `broken` (the looks of what did not finish everywhere): marks and counts."""
    if not broken:
        return None
    strip = axes.inset_axes((0, 1.02, 1, 0.085 * len(broken)), sharex=axes)
    strip.patch.set_alpha(0)
    for look, arm in (one for one in arms if one[1].trouble):
        found = [how for how in _MARKS if arm.count(how)]
        for place, how in enumerate(found):
            aside = 23 * (place - (len(found) - 1) / 2)  # points
            _count(strip, (arm.values[key], -broken.index(look)), aside, look, how, f"{arm.count(how)}/{arm.n}")
    strip.set_ylim(-len(broken) + 0.4, 0.6)
    strip.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False, which="both")
    for side, spine in strip.spines.items():
        spine.set_visible(side == "bottom")
        spine.set(color=INK, alpha=0.4, linewidth=0.6)
    return strip


def _count(strip: Axes, at: tuple[float, float], aside: float, look: int, how: str, said: str) -> None:
    there = offset_copy(strip.transData, strip.get_figure(root=True), x=aside - 4, units="points")
    line: dict[str, Any] = {"color": style(look)["color"], "markersize": 5, "markeredgewidth": 1.5}
    strip.plot(*([value] for value in at), _MARKS[how], markerfacecolor="none", transform=there, **line)
    strip.annotate(said, at, xytext=(aside + 1, 0), textcoords="offset points", fontsize=6.5, va="center", color=INK)


def _mark_entropy(panels: Sequence[Axes], entropy: float) -> None:
    """Where knowing only how often tokens occur ends, if that is in sight."""
    for axes in panels:
        if axes.get_ylim()[0] < entropy < axes.get_ylim()[1]:
            axes.axhline(entropy, **LEVEL, label=f"unigram entropy {entropy:.3f}")


def _is_first(axes: Axes) -> bool:
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def gradient_ratios(groups: Sequence[Group], key: str) -> Drawing | None:
    """First over last layer's mean |gradient| of W_2 against a swept number: thin at the start, bold at the end."""
    drawn = drawing(len(groups), height=3.4, sharey=True)
    for axes, (title, arms) in zip(drawn.panels, groups, strict=True):
        for look in dict.fromkeys(look for look, _ in arms):
            mine = sorted((arm for other, arm in arms if other == look), key=lambda arm: arm.values[key])
            for name, thin in (("gradient_ratio_start", True), ("gradient_ratio_end", False)):
                line = [(arm.values[key], ratio) for arm in mine if (ratio := _ratio(arm, name)) is not None]
                how = _THIN if thin else {"label": mine[0].who, "marker": "o", "markersize": 3}
                if line:
                    axes.plot(*zip(*line, strict=True), **(style(look) | how))
        axes.axhline(1.0, **LEVEL)
        heading(axes, title)
        label(axes, axis_name(key), "gradient, first / last layer" if _is_first(axes) else "")
        numbers = sorted({arm.values[key] for _, arm in arms})
        log(axes)
        _ticks(axes, numbers, _is_wide(numbers))
    return drawn if any(len(axes.lines) > 1 for axes in drawn.panels) else None


def _ratio(arm: StudyArm, name: str) -> float | None:
    found = [value for cell in arm.cells if (value := cell.number(name))]
    return statistics.geometric_mean(found) if found and min(found) > 0 else None


def strips(arms: Sequence[StudyArm], design: Design, what: str) -> Drawing:
    """A dot per seed that finished, a bar at the median; what did not is counted beside its arm."""
    drawn = drawing(1, height=0.9 + 0.24 * len(arms))
    (axes,) = drawn.panels
    for row, arm in enumerate(arms):
        colour = style(design.who.index(arm.who))["color"]
        for cell in arm.cells:
            if cell.how == "finished" and math.isfinite(arm.losses[cell.seed]):
                axes.plot([arm.losses[cell.seed]], [-row], "o", color=colour, markersize=5, alpha=0.8)
        if arm.trains:
            axes.plot([arm.median] * 2, [-row - 0.3, -row + 0.3], color=INK, linewidth=1.4)
        if arm.trouble:
            beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.01, -row, ", ".join(arm.trouble), fontsize=7, color=INK, **beside)
    label(axes, what, "")
    axes.set_yticks([-row for row in range(len(arms))], [arm.label.replace("$", r"\$") for arm in arms])
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
        for look, arm in enumerate(arms):
            named = (
                arm.label if len(known) == 1 else arm.label.partition(" (")[0]
            )  # its end differs from panel to panel
            if _has_steps(arm):
                _curves(axes, look, arm, named)
        heading(axes, title)
        label(axes, "step", "training loss (nats)" if _is_first(axes) else "")
        if entropy is not None:
            axes.axhline(entropy, **LEVEL, label=f"unigram entropy {entropy:.3f}")
    _near(drawn.panels[0], [y for _, arms in known for arm in arms if _has_steps(arm) for y in arm.curve()[1][5:]])
    return drawn


def _curves(axes: Axes, look: int, arm: ArmFiles, named: str) -> None:
    """Mean and band; of seeds that ended differently a line each, since nothing is like their mean."""
    if len(set(arm.outcomes)) == 1:
        over_seeds(axes, look, arm, arm.curve(), named)
        return
    for run in arm.runs:
        x, loss, _, _ = replace(arm, runs=[run]).curve()
        axes.plot(x, loss, label=named, **(style(look) | {"linewidth": 1.1}))


def _has_steps(arm: ArmFiles) -> bool:
    return any(run.metrics for run in arm.runs)


def _near(axes: Axes, later: Sequence[float]) -> None:
    """Cut the first steps' peak off."""
    if later and max(later) > min(later):
        low, high = min(later), sorted(later)[int(0.97 * (len(later) - 1))]
        axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))

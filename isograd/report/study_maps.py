"""The outcome map: warm-up against learning rate, a square per arm, a panel per placement."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm
from isograd.report.study_words import condition_said, shown_value
from isograd.report.style import INK, Drawing, drawing, heading, label

WARMUP = "training.warmup"
PANELS = 12  # of one figure at most; the tables have the rest
_EVEN = colormaps["viridis_r"].resampled(
    64
)  # even to the eye, for colour-blind readers too: the darker, the higher the loss
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
    drawn = drawing(len(places), height=0.8 + 0.5 * len(warmups), beside=beside)
    scale = _scale([arm for *_, mine in places for arm in mine])
    for i, (axes, (who, condition, mine)) in enumerate(zip(drawn.panels, places, strict=True)):
        heading(axes, ", ".join([who, *([condition_said(condition)] if condition else [])]))
        _squares(axes, mine, design.rates, warmups, scale)
        last = i + beside >= len(places)  # no panel below
        label(axes, "learning rate" if last else "", "warm-up (steps)" if i % beside == 0 else "")
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    if scale is not None:
        beyond = any(arm.trains and arm.median > (scale.vmax or 0.0) for *_, mine in places for arm in mine)
        _bar(drawn, scale, beyond, what)
    return drawn


Place = tuple[str, Row, list[StudyArm]]


def panels_of(arms: Sequence[StudyArm], design: Design, *along: str) -> list[Place]:
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
        axes.text(x, y, "not run", ha="center", va="center", fontsize=6, color=INK)
        return
    if arm.trains and scale is not None:
        red, green, blue, _ = colour = _EVEN(scale(arm.median))
        ink = "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"
        axes.add_patch(Rectangle(corner, 0.92, 0.92, facecolor=colour, linewidth=0))
        _write(axes, x, y, [f"{arm.median:.3f}", *arm.trouble], ink)
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
        axes.text(x, at, text, ha="center", va="center", color=ink, fontsize=8 if number else 6, bbox=box, zorder=3)


def _bar(drawn: Drawing, scale: Normalize, beyond: bool, what: str) -> None:
    """The scale of all panels; `beyond`: whether a median lies above it."""
    shape: dict[str, Any] = {"shrink": 0.8, "aspect": 30, "pad": 0.02, "extend": "max" if beyond else "neither"}
    bar = drawn.figure.colorbar(ScalarMappable(norm=scale, cmap=_EVEN), ax=drawn.figure.axes, **shape)
    bar.set_label(f"median {what}", fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    if bar.solids is not None:
        bar.solids.set(rasterized=False, edgecolor="face")  # shapes, no picture within the SVG
    bar.outline.set_visible(False)

"""A figure as it was asked for: one of its panels, told apart without colour, its height; and its points as rows."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D

from isograd.errors import UserError
from isograd.lab.report.style import DASHES, INK, Drawing, Output, named

_NOTES: WeakKeyDictionary[Line2D, dict[str, Any]] = WeakKeyDictionary()
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_GRAYS = ("#000000", "#6e6e6e")
_UNLISTED = "#9a9a9a"  # of lines that the legend does not name


def note(line: Line2D, **facts: Any) -> None:
    """What a line's points are, beside x and mean: `arm`, `panel`, `layer`; `low` and `high`, a value for each."""
    _NOTES[line] = facts


def chosen(output: Output, name: str) -> list[str]:
    """Which panels of the figure `name` are written: "" for all of them; none where the figure is not asked for."""
    asked = [one.partition(":") for one in output.figures]
    return [panel for figure, _, panel in asked if figure == name] if asked else [""]


def must_be_figures(output: Output, names: list[str]) -> None:
    """Refuse a figure that the page does not have.

    Raises:
        UserError: with the names that there are.
    """
    for asked in output.figures:
        if asked.partition(":")[0] not in names:
            raise UserError(f"no figure {asked.partition(':')[0]!r}; these runs have {', '.join(names) or 'none'}")


def must_be_installed(font: str) -> None:
    """Refuse a font that matplotlib would replace by another.

    Raises:
        UserError: it is not installed.
    """
    try:
        font_manager.findfont(font_manager.FontProperties(family=[font]), fallback_to_default=False)
    except ValueError:
        generic = "serif, sans-serif and monospace always are"
        raise UserError(f"the font {font!r} is not installed; {generic}") from None


def shaped(drawn: Drawing, output: Output, panel: str = "") -> Drawing:
    """One panel of it, gray, as `output` says. Its height comes last: see `style.save`."""
    found = alone(drawn, panel) if panel else drawn
    if output.style == "gray":
        _in_gray(found)
    return found


def alone(drawn: Drawing, panel: str) -> Drawing:
    """One panel in the place of all.

    Args:
        panel: its number from 1, or words of its heading.

    Raises:
        UserError: there is no such panel.
    """
    if len(drawn.panels) == 1 and panel == "1":
        return drawn
    titles = [" ".join(axes.get_title().split()) or axes.get_ylabel() for axes in drawn.panels]
    numbers = [i for i in range(len(titles)) if str(i + 1) == panel]
    found = numbers or [i for i, title in enumerate(titles) if panel.lower() in title.lower()]
    if not found:
        there = "; ".join(f"{i}: {title}" for i, title in enumerate(titles, start=1))
        raise UserError(f"no panel {panel!r}; there are {there}")
    shown, first = drawn.panels[found[0]], drawn.panels[0]
    shown.set(xlabel=shown.get_xlabel() or _x_name(drawn), ylabel=shown.get_ylabel() or first.get_ylabel())
    shown.tick_params(labelleft=True, labelbottom=True)
    others = [axes for axes in drawn.figure.axes if axes is not shown]
    for axes in others:
        axes.remove()
    shown.set_subplotspec(GridSpec(1, 1, figure=drawn.figure)[0])
    width = drawn.figure.get_figwidth()
    drawn.figure.set_figheight(min(mpl.rcParams["figure.figsize"][1], 0.8 * width))
    return Drawing(figure=drawn.figure, panels=[shown])


def _in_gray(drawn: Drawing) -> None:
    """A dash and a marker for each colour and dash; of lines without a name, one gray."""
    seen: dict[tuple[str, str], int] = {}
    for axes in drawn.panels:
        grays = {}
        for line in axes.lines:
            own = to_hex(line.get_color()) if line.get_color() != "none" else "none"
            if own in ("none", to_hex(INK)):
                continue
            if str(line.get_label()).startswith("_") and line not in _NOTES:
                line.set_color(_UNLISTED)
                continue
            place = seen.setdefault((own, str(line.get_linestyle())), len(seen))
            grays[own] = _GRAYS[place % len(_GRAYS)]
            _mark(line, place)
        for band in axes.collections:
            for colour in np.asarray(band.get_facecolor())[:1]:
                band.set_color(grays.get(to_hex(colour), _UNLISTED))


def _mark(line: Line2D, place: int) -> None:
    points = len(line.get_xdata())  # type: ignore[arg-type]
    line.set(color=_GRAYS[place % len(_GRAYS)], linestyle=DASHES[place % len(DASHES)])
    line.set(marker=_MARKERS[place % len(_MARKERS)], markersize=3.2, markerfacecolor="white" if place % 2 else None)
    line.set_markevery(max(1, points // 8))


def _x_name(drawn: Drawing) -> str:
    """What the panels' x is; "x" where it differs."""
    said = dict.fromkeys(axes.get_xlabel() for axes in drawn.panels if axes.get_xlabel())
    return next(iter(said)) if len(said) == 1 else "x"


def points(drawn: Drawing) -> list[dict[str, Any]]:
    """A row per point of every line that has a name: arm, panel, x under its own name, mean, low, high."""
    x = _x_name(drawn)
    return [row for axes in drawn.panels for line in axes.lines for row in _points(axes, line, x)]


def _points(axes: Axes, line: Line2D, x: str) -> Iterator[dict[str, Any]]:
    facts = _NOTES.get(line, {})
    arm = facts.get("arm") or named(str(line.get_label())).replace(r"\$", "$")
    of_data = all(line.get_transform().contains_branch_seperately(axes.transData))
    if not arm or not of_data or line.get_color() == "none":  # a level across the panel, an entry of the legend
        return
    first = {"arm": arm, "panel": " ".join(axes.get_title().split()) or axes.get_ylabel()}
    first |= {key: value for key, value in facts.items() if key not in ("arm", "low", "high")}
    data = np.asarray(line.get_xydata()).tolist()
    lows, highs = (facts.get(end) or [None] * len(data) for end in ("low", "high"))
    for (at, mean), low, high in zip(data, lows, highs, strict=True):
        yield first | {x: at, "mean": mean, "low": low, "high": high}

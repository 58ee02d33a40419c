"""The figure of each claim: what was measured over depth, the theory's lines, and the foils if measured."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, StrMethodFormatter

from isograd.report.canvas import INK, Drawing, drawing, label, log, style

Row = Mapping[str, Any]
# one colour and dash per placement in all figures
ORDER = ("post-ln", "pre-ln", "normformer", "deepnorm", "admin", "admin-closed", "gpt2", "", "qk-norm")
_THEORY: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (2, 2)), "zorder": 4}
_FOIL: dict[str, Any] = {"color": INK, "linewidth": 0.9, "alpha": 0.5, "zorder": 1}
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
_MARKED = 12  # points up to which each is marked


def claim_figure(claim: Row, verdicts: Sequence[Row], foils: Sequence[Row] = ()) -> Drawing:
    """One claim: a line per placement, the mean over seeds, and a band from the lowest to the highest."""
    drawn = drawing(1, height=3.9)
    (axes,) = drawn.panels
    shown = {row["subject"] for row in verdicts}
    for row in verdicts:
        _measured(axes, row)
    for row, marker in zip(_once(foils, shown), cycle("x+1|"), strict=False):
        _foil(axes, row, marker)
    for row in verdicts:
        for line in row["lines"]:
            axes.plot(line["x"], line["y"], label=line["label"], **_THEORY)
    about = claim["axes"]
    label(axes, about["x"], about["y"])
    if about["log_y"]:
        log(axes)
    else:
        _near(axes, verdicts)
    if about["log_x"]:
        _log_x(axes)
    return drawn


def _measured(axes: Axes, row: Row) -> None:
    curve = row["curve"]
    placement = row["placement"]
    look = style(ORDER.index(placement) if placement in ORDER else 0)
    mark: dict[str, Any] = {"marker": "o", "markersize": 3.8} if len(curve["x"]) <= _MARKED else {}
    named = row["subject"] if placement == "any" else placement
    axes.plot(curve["x"], curve["y"], label=named, zorder=3, **look, **mark)
    if curve["low"] and row["seeds"] > 1:
        axes.fill_between(curve["x"], curve["low"], curve["high"], color=look["color"], alpha=0.14, linewidth=0)


def _foil(axes: Axes, row: Row, marker: str) -> None:
    curve = row["curve"]
    mark: dict[str, Any] = {"marker": marker, "markersize": 4.5} if len(curve["x"]) <= _MARKED else {}
    axes.plot(curve["x"], curve["y"], label=f"foil: {row['subject']}", **_FOIL, **mark)


def _near(axes: Axes, verdicts: Sequence[Row]) -> None:
    """Show what was measured and its tolerance; a foil may leave the panel."""
    shown = [y for row in verdicts for name in ("y", "low", "high") for y in row["curve"][name]]
    for row in verdicts:
        low, high = row["tolerance"]
        axes.axhspan(low, high, color=INK, alpha=0.06, linewidth=0, label="tolerance of the mean")
        shown += [low, high]
    axes.set_ylim(min(shown) - 0.1, max(shown) + 0.1)


def _once(foils: Sequence[Row], shown: set[str]) -> Iterator[Row]:
    """Each foil that is no line of its own yet."""
    seen = set(shown)
    for row in foils:
        if row["subject"] not in seen:
            seen.add(row["subject"])
            yield row


def _log_x(axes: Axes) -> None:
    """A logarithmic axis with plain numbers at the depths that are looked at."""
    low, high = axes.dataLim.intervalx
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if low <= tick <= high]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())

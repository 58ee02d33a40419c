"""How every figure looks, and what becomes of it: SVG text for the page, or files for a paper or a README.

On the page ink is `currentColor` and the ground is clear, so that a figure takes the page's colours. One colour and
dash per arm throughout, safe for colour-blind readers (Okabe and Ito's set, yellow left out).
"""

import io
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation

from isograd.files import write_bytes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
# by depth, from first to last: blue to orange, through a grey that is as far from a white page as from a dark one
DEPTH = LinearSegmentedColormap.from_list("depth", ("#1673c4", "#8b9097", "#e08300"))
INK = "#0a0b0c"  # stands for currentColor in the SVG


def style(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th arm; 28 differ, since 7 colours and 4 dashes have no divisor in common."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "linewidth": 1.8,
    }


def shade(part: float) -> str:
    """The colour of a layer at this part of the depth, from 0 to 1."""
    return to_hex(DEPTH(float(part)))  # an int would be taken for a place in a table


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure and the panels whose lines its legend names."""

    figure: Figure
    panels: list[Axes]


def log(axes: Axes) -> None:
    """A logarithmic axis where there is anything to show on it."""
    if any(y > 0 for line in axes.lines for y in np.asarray(line.get_ydata())):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_Plain())
        axes.yaxis.set_minor_formatter(_Plain(minor_thresholds=(1.5, 0.5)))


class _Plain(LogFormatterSciNotation):
    """0.1, 1 and 20 as they are; powers of ten where the axis goes far away from 1."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        written = super().__call__(x, pos)
        low, high = self.axis.get_view_interval()  # type: ignore[union-attr]  # it is an axis' formatter
        return f"{x:g}" if written and low > 9e-4 and high < 1e4 else written


def widen(axes: Axes, least: float) -> None:
    """Show at least this span, so that noise around 1 does not look like a finding."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def drawing(panels: int, height: float, sharey: bool = False, beside: int = 2) -> Drawing:
    """Empty panels, at most `beside` of them beside each other, each row `height` inches high."""
    columns = min(panels, beside)
    rows = -(-panels // columns)
    figure = Figure(figsize=(8.4, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey).flatten()
    for axes in grid[panels:]:
        axes.set_axis_off()
    return Drawing(figure=figure, panels=list(grid[:panels]))


def heading(axes: Axes, title: str, columns: int = 2) -> None:
    """A panel's title, in as many lines as it takes beside the others of `columns`. A name is no formula."""
    lines = textwrap.wrap(title, 108 // columns) or [""]
    axes.set_title("\n".join(lines).replace("$", r"\$"), fontsize=9, color=INK)


def label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.patch.set_alpha(0)
    axes.tick_params(labelsize=8, colors=INK, which="both")
    axes.grid(True, color=INK, alpha=0.12, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def svg(drawn: Drawing, salt: str) -> str:
    """For the page: clear ground, the page's ink and font.

    Args:
        salt: sets the ids of this figure apart from those of the others on the page.
    """
    _legend(drawn)
    drawn.figure.patch.set_alpha(0)
    text = _saved(drawn.figure, salt, fonts="none").decode()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]+', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # 0.01 pt
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{salt}-", text)  # ids are one per page, not one per figure
    return re.sub(r"\s*\n\s*", " ", text).replace(INK, "currentColor")


def save(drawn: Drawing, path: Path) -> None:
    """Dark ink on white, letters as outlines: `path` with .svg and .png, the same anywhere."""
    _legend(drawn)
    drawn.figure.patch.set(alpha=1, facecolor="white")
    write_bytes(path.with_suffix(".svg"), _saved(drawn.figure, path.stem, fonts="path"))
    image = io.BytesIO()
    drawn.figure.savefig(image, format="png", dpi=160, metadata={"Software": None})
    write_bytes(path.with_suffix(".png"), image.getvalue())


def _saved(figure: Figure, salt: str, fonts: str) -> bytes:
    image = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": fonts, "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure.savefig(image, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return image.getvalue()


def _legend(drawn: Drawing) -> None:
    """One legend below all panels, as many columns as the longest label leaves room for."""
    if drawn.figure.legends:  # drawn before, for the page or for a file
        return
    entries: dict[str, Any] = {}
    for axes in drawn.panels:
        entries |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if not entries:
        return
    beside = max(1, min(3, len(entries), 130 // (max(map(len, entries)) + 9)))
    lines = -(-len(entries) // beside)
    drawn.figure.set_figheight(drawn.figure.get_figheight() + 0.17 * max(0, lines - 2))  # panels keep their height
    drawn.figure.legend(
        entries.values(),
        [entry.replace("$", r"\$") for entry in entries],  # a name is no formula
        loc="outside lower center",
        ncols=beside,
        fontsize=8.5,
        frameon=False,
        labelcolor=INK,
        handlelength=3.2,
    )

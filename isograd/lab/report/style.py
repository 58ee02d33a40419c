"""How every figure looks: one colour and dash per placement, one set of matplotlib settings, on a page and in a paper.

On a page ink is `currentColor` and the ground is clear, so that a figure takes the page's colours. Files are dark on
white. Text stays text in SVG and PDF. The colours are safe for colour-blind readers (Okabe and Ito, without yellow).
"""

import io
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator

from isograd.files import write_bytes
from isograd.placement import CATALOGUE

Look = dict[str, Any]  # colour and dash of a line, as matplotlib takes them

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MANY = len(COLOURS) * len(DASHES)  # looks that differ: 7 and 4 have no divisor in common
_FIRST = ("post-ln", "pre-ln", "normformer", "admin", "deepnorm", "gpt2", "qk-norm")  # a colour of its own each
_ORDER = (*_FIRST, *(name for name in CATALOGUE if name not in _FIRST))
# by depth, from first to last: violet to olive, which no arm has, through a grey as far from white as from a dark page
DEPTH_COLOURS = LinearSegmentedColormap.from_list("depth", ("#8a55d0", "#8b9097", "#857800"))
INK = "#0a0b0c"  # stands for currentColor in the SVG of a page
GROUND = "#ffffff"  # of a file; a page's is clear
LEVEL_LINE: Look = {"color": INK, "linewidth": 0.8, "linestyle": (0, (2, 2))}  # of a line across a panel

SCREEN: dict[str, Any] = {
    "figure.figsize": (8.4, 3.6),
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
}
_SMALLER = {"font.size": 7.5, "axes.titlesize": 8.0, "axes.labelsize": 8.0, "xtick.labelsize": 7.0}
_SMALLER |= {"ytick.labelsize": 7.0, "legend.fontsize": 7.0, "lines.linewidth": 1.2}
WIDTHS = {"screen": 8.4, "paper": 3.25, "gray": 3.25}  # inches; 3.25: a column of most proceedings
NARROW = 5.0  # inches; what is narrower is a column of a paper
_SCALE = 0.4  # inches that the numbers of an axis take beside a narrow panel
_EXPONENT = 8.6  # points of a power of ten, whose exponent is set in 0.7 of that: 6 points


@dataclass(frozen=True, kw_only=True)
class Output:
    """How figures are written as files.

    Attributes:
        formats: among "svg", "png" and "pdf".
        style: "screen"; "paper": smaller letters, thinner lines; "gray": as "paper", and arms differ by dash and
            marker, not by colour.
        width: inches; None: of the style, 8.4 or 3.25. A narrow figure has its panels below each other.
        height: inches, of the whole figure; None: as its panels need.
        font: a family that is installed; None: matplotlib's own.
        figures: those that are written, by name; none: all, with the page. "gradients:2" is the second panel alone,
            "gradients:last" the first panel whose heading has this word.
    """

    formats: Sequence[str] = ("svg", "png")
    style: str = "screen"
    width: float | None = None
    height: float | None = None
    font: str | None = None
    figures: Sequence[str] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of matplotlib."""
        size = (self.width or WIDTHS[self.style], SCREEN["figure.figsize"][1])
        own = _SMALLER if self.style != "screen" else {}
        return SCREEN | own | (_font(self.font) if self.font else {}) | {"figure.figsize": size}


def _font(family: str) -> dict[str, Any]:
    """Of words and of formulas."""
    return {
        "font.family": family,
        "mathtext.fontset": "custom",
        "mathtext.rm": family,
        "mathtext.it": f"{family}:italic",
        "mathtext.bf": f"{family}:bold",
    }


@contextmanager
def settings(output: Output | None = None) -> Iterator[None]:
    """Figures made here look so; None: as on a page."""
    with mpl.rc_context(SCREEN if output is None else output.settings):  # type: ignore[arg-type]
        yield


def look(index: int) -> Look:
    """The index-th colour and dash; `MANY` differ."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def look_of(placement: str) -> Look:
    """The look of a placement, in every figure of every page; one that is in no catalogue has that of its name."""
    return look(_index(placement))


def looks(placements: Iterable[str]) -> list[Look]:
    """Of arms, by their placements: a placement of one's own has a colour that none beside it has, as long as there are
    any; another arm of a placement has its colour in another dash, where one is free.
    """
    names = [*placements]
    chosen: dict[int, int] = {}
    own: dict[str, int] = {}
    for i in sorted(range(len(names)), key=lambda i: (names[i] in names[:i], names[i] not in _ORDER, names[i])):
        taken, first = set(chosen.values()), own.get(names[i], _index(names[i]))
        same = {one for one in range(MANY) if one % len(COLOURS) == first % len(COLOURS)}
        seen = {one for one in range(MANY) if any((one - other) % len(COLOURS) == 0 for other in taken)}
        best = same if names[i] in own or names[i] in _ORDER else set(range(MANY)) - seen
        every = sorted(((first + step) % MANY for step in range(MANY)), key=lambda one: one not in best)
        chosen[i] = next((one for one in every if one not in taken), first)
        own.setdefault(names[i], chosen[i])
    return [look(chosen[i]) for i in range(len(names))]


def _index(placement: str) -> int:
    return _ORDER.index(placement) if placement in _ORDER else crc32(placement.encode("utf-8", "replace")) % MANY


def shade(part: float) -> str:
    """The colour of a layer at this part of the depth, from 0 to 1."""
    return to_hex(DEPTH_COLOURS(float(part)))  # an int would be taken for a place in a table


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure and the panels whose lines its legend names."""

    figure: Figure
    panels: list[Axes]


def drawing(
    panels: int,
    height: float,
    sharey: bool = False,
    sharex: bool = False,
    beside: int = 2,
    rows: bool = False,
    least: float = 2.6,
) -> Drawing:
    """Empty panels, at most `beside` of them beside each other, each row `height` inches high.

    Args:
        rows: the height is that of rows of text, and no narrow figure makes it lower.
        least: inches that a panel is wide where others stand beside it.
    """
    width = mpl.rcParams["figure.figsize"][0]
    columns = max(1, min(panels, beside, int(width / least)))
    if not rows and width < WIDTHS["screen"]:
        height = min(height, max(0.8 * width / columns, 2.1 if columns > 1 else 0))
    lines = -(-panels // columns)
    figure = Figure(figsize=(width, height * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=sharey, sharex=sharex).flatten()
    for axes in grid[panels:]:
        axes.set_axis_off()
    return Drawing(figure=figure, panels=list(grid[:panels]))


def is_narrow() -> bool:
    """Whether figures are drawn for a column of a paper."""
    return bool(mpl.rcParams["figure.figsize"][0] < NARROW)


def ink_on(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever can be read on this colour."""
    red, green, blue, _ = colour
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"


def is_first(axes: Axes) -> bool:
    """Whether a panel stands at the left."""
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def heading(axes: Axes, title: str, above: float = 0.0) -> None:
    """A panel's title, in as many lines as it takes, so many points above the panel. A name is no formula."""
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    width = axes.get_figure(root=True).get_figwidth() / columns  # type: ignore[union-attr]
    width -= _SCALE if columns > 1 and is_narrow() else 0.0
    lines = textwrap.wrap(title, int(115 * width / mpl.rcParams["font.size"])) or [""]
    axes.set_title(plain("\n".join(lines)), pad=mpl.rcParams["axes.titlepad"] + above)


def label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def plain(name: str) -> str:
    """A name is no formula."""
    return name.replace("$", r"\$")


def log(axes: Axes) -> None:
    """A logarithmic axis where there is anything to show on it."""
    if any(y > 0 for line in axes.lines for y in np.asarray(line.get_ydata())):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_Plain())
        axes.yaxis.set_minor_formatter(_Plain(minor_thresholds=(99, 99)))
        low, high = axes.get_ylim()
        if not _is_plain(low, high):
            axes.tick_params(axis="y", which="both", labelsize=_EXPONENT)


def _is_plain(low: float, high: float) -> bool:
    """Whether numbers of this axis are read without powers of ten."""
    return low > 9e-4 and high < 1e4


class _Plain(LogFormatterSciNotation):
    """0.1, 1 and 20 as they are; powers of ten where the axis goes far away from 1.

    Decades alone where there are two in sight; else 2 and 5 times one, too.
    """

    def __call__(self, x: float, pos: int | None = None) -> str:
        written = super().__call__(x, pos)
        low, high = self.axis.get_view_interval()  # type: ignore[union-attr]  # it is an axis' formatter
        if not written or x <= 0 or low <= 0:
            return written
        first = round(x / 10 ** math.floor(math.log10(x) + 1e-9), 3)
        decades = math.floor(math.log10(high) + 1e-9) - math.ceil(math.log10(low) - 1e-9) + 1
        if first not in ((1,) if decades >= 2 else (1, 2, 5)):
            return ""
        return f"{x:g}" if _is_plain(low, high) else written


def steps(axes: Axes) -> None:
    """Whole numbers along x: there is no step 2.5."""
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))


def widen(axes: Axes, least: float) -> None:
    """Show at least this span, so that noise around 1 does not look like a finding."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def near(axes: Axes, values: Sequence[float], peak: float = 1.0) -> None:
    """Cut off what lies beyond these values, so that the part where arms differ fills the panel.

    Args:
        peak: the share of the values, from below, that must be in sight.
    """
    if values:
        low, high = min(values), sorted(values)[int(peak * (len(values) - 1))]
        if high > low:
            axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A row of a figure: a dot per value, a cross for those at the places of `failed`, a bar at `middle`.

    Attributes:
        beside: what is said at the right.
    """

    name: str
    colour: str
    values: Sequence[float]
    middle: float | None
    failed: Sequence[int] = ()
    beside: str = ""


def strips(axes: Axes, rows: Sequence[Strip]) -> None:
    """Rows from above; dots of one row lie a little apart, so that none hides another."""
    for y, row in enumerate(rows):
        last = len(row.values) - 1
        for place, value in enumerate(row.values):
            at = y + _APART * (place - last / 2) * min(1.0, 4 / max(1, last))
            mark = "X" if place in row.failed else "o"
            axes.plot([value], [at], mark, color=row.colour, markeredgecolor=INK, markeredgewidth=0.6, markersize=5)
        if row.middle is not None:
            axes.vlines(row.middle, y - 0.36, y + 0.36, color=INK, linewidth=1.4, zorder=3)
        beside: Look = {"transform": axes.get_yaxis_transform(), "va": "center", "color": INK}
        axes.text(1.01, y, row.beside, fontsize="small", **beside)
    letters = int(5 * mpl.rcParams["figure.figsize"][0])
    axes.set_yticks(range(len(rows)), ["\n".join(textwrap.wrap(plain(row.name), letters)) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(False, axis="y")


_APART = 0.15  # of a row, between two dots


def known(axes: Axes, rows: Iterable[Mapping[str, Any]], x: str, y: str, **how: Any) -> None:
    """A line through the rows that have a y."""
    points = [(row[x], row[y]) for row in rows if row.get(y) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), **how)


def entropy_line(axes: Axes, entropy: float) -> None:
    """What a model reaches that knows only how often each token occurs."""
    axes.axhline(entropy, **LEVEL_LINE, label=f"unigram entropy {entropy:.3f}")


def svg(drawn: Drawing, salt: str) -> tuple[str, bytes]:
    """For a page: clear ground, the page's ink and font; and what its script reads of it. And as a file, drawn once.

    Args:
        salt: sets the ids of this figure apart from those of the others on the page.
    """
    _legend(drawn)
    drawn.figure.patch.set(alpha=1, facecolor=GROUND)
    panels = [_lines(salt, i, axes) for i, axes in enumerate(drawn.panels)]
    for i, (_, text, handle) in enumerate(_entries(drawn, _labels(panels))):
        text.set_gid(f"entry-{i}")
        handle.set_gid(f"entry-{i}-line")
    file = _saved(drawn.figure, "svg", salt)
    text = file.decode().replace(f'style="fill: {GROUND}"', 'style="fill: none"', 1)
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]+', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # 0.01 pt
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{salt}-", text)  # ids are one per page, not one per figure
    return re.sub(r"\s*\n\s*", " ", text).replace(INK, "currentColor") + _script(drawn, panels, salt), file


def _lines(salt: str, place: int, axes: Axes) -> list[dict[str, Any]]:
    """The curves of a panel, named so that a script finds them, each with the bands of its colour.

    A level across the panel is no curve.
    """
    lines = [line for line in axes.lines if len(np.asarray(line.get_xdata())) > 2]
    for i, one in enumerate([*lines, *axes.collections]):
        one.set_gid(f"chart-{place}-{i}")
    bands = [(one.get_gid(), np.asarray(one.get_facecolor())[:1]) for one in axes.collections]
    return [
        {
            "id": f"{salt}-{line.get_gid()}",
            "label": named(str(line.get_label())),
            "also": [f"{salt}-{gid}" for gid, own in bands if [*map(to_hex, own)] == [to_hex(line.get_color())]],
        }
        for line in lines
    ]


def _entries(drawn: Drawing, known: set[str]) -> Iterator[tuple[str, Any, Any]]:
    """Name, text and handle of the entries of the legend that are curves."""
    for legend in drawn.figure.legends:
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
            if (name := text.get_text().replace(r"\$", "$")) in known:
                yield name, text, handle


def _script(drawn: Drawing, panels: Sequence[Sequence[dict[str, Any]]], salt: str) -> str:
    """Data of the chart, "" where there is nothing to show; boxes in the units of the SVG, points from above."""
    if not any(panels):
        return ""
    width, height = drawn.figure.get_size_inches() * 72
    found = []
    for axes, lines in zip(drawn.panels, panels, strict=True):
        place = axes.get_position()
        box = (place.x0 * width, (1 - place.y1) * height, place.x1 * width, (1 - place.y0) * height)
        scales = {"x": [*map(float, axes.get_xlim()), axes.get_xscale() == "log"]}
        scales["y"] = [*map(float, axes.get_ylim()), axes.get_yscale() == "log"]
        found.append({"box": [round(x, 2) for x in box], **scales, "xlabel": axes.get_xlabel(), "lines": lines})
    legend = [
        {"label": name, "ids": [f"{salt}-{one.get_gid()}" for one in parts]}
        for name, *parts in _entries(drawn, _labels(panels))
    ]
    content = json.dumps({"panels": found, "legend": legend}).replace("<", "\\u003c")
    return f'<script type="application/json" class="chart">{content}</script>'


def _labels(panels: Sequence[Sequence[dict[str, Any]]]) -> set[str]:
    return {line["label"] for lines in panels for line in lines}


UNLISTED = "_: "  # before the name of a line that the legend does not list; it is shown under the pointer


def named(given: str) -> str:
    """
    >>> named("pre-ln"), named("_child3"), named("_: layers.3")
    ('pre-ln', '', 'layers.3')
    """
    return given.removeprefix(UNLISTED) if given.startswith(UNLISTED) or not given.startswith("_") else ""


def save(
    drawn: Drawing, path: Path, formats: Sequence[str], height: float | None = None, file: bytes | None = None
) -> None:
    """Dark ink on white: `path` with each format as its ending; `file`: as SVG, where it has been drawn."""
    finish(drawn, height)
    drawn.figure.patch.set(alpha=1, facecolor=GROUND)
    for form in formats:
        content = file if file and form == "svg" else _saved(drawn.figure, form, path.name)
        write_bytes(path.with_name(f"{path.name}.{form}"), content)


def finish(drawn: Drawing, height: float | None = None) -> Figure:
    """With its legend, this many inches high; None: as high as its panels need."""
    _legend(drawn)
    if height is not None:
        drawn.figure.set_figheight(height)
    return drawn.figure


def _saved(figure: Figure, form: str, salt: str) -> bytes:
    image, nothing = io.BytesIO(), {"svg": ("Creator", "Date", "Format", "Type"), "png": ("Software",)}
    facts: dict[str, Any] = dict.fromkeys(nothing.get(form, ("Creator", "Producer", "CreationDate")))
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "pdf.fonttype": 42}):
        _lay_out(figure)
        figure.savefig(image, format=form, dpi=160 if form == "png" else "figure", metadata=facts)
    return image.getvalue()


def _lay_out(figure: Figure) -> None:
    """Once for all files: each save would do it again and draw everything for it, more than half of all time."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def _legend(drawn: Drawing) -> None:
    """One legend below all panels, as many columns as the longest label leaves room for."""
    if drawn.figure.legends:  # drawn before, for the page or for a file
        return
    entries: dict[str, Any] = {}
    for axes in drawn.panels:
        entries |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if not entries:
        return
    size = mpl.rcParams["font.size"]
    room = int(drawn.figure.get_figwidth() * 140 / size) // (max(map(len, entries)) + 9)
    beside = max(1, min(3, len(entries), room))
    lines = -(-len(entries) // beside)
    drawn.figure.set_figheight(drawn.figure.get_figheight() + 0.02 * size * max(0, lines - 2))  # panels keep theirs
    names = [plain(entry) for entry in entries]
    drawn.figure.legend(entries.values(), names, loc="outside lower center", ncols=beside, handlelength=3.2)

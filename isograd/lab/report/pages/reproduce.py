"""The page of a reproduced item: the claim, the paper's numbers beside ours, the verdict and its rule, the figures.

From result.json, rows.csv and the folders of the item's runs alone.
"""

import csv
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from isograd.errors import DataError
from isograd.files import read_json
from isograd.lab.report.figures import DEPTH_CHARTS, Subject
from isograd.lab.report.page import Page, Section, Table, prose, settings_table, write_page
from isograd.lab.report.pages.runs import CHARTS
from isograd.lab.report.runs import arms_of, presented, read_run
from isograd.lab.report.style import Drawing, Look, Strip, drawing, heading, label, log, look, look_of, looks, strips
from isograd.lab.study.labels import rate
from isograd.lab.study.plan import CELLS

Row = Mapping[str, Any]
Rows = Sequence[Row]
RUN_COLUMNS = ("arm", "seed", "outcome", "validation_loss", "final_loss", "bleu", "score", "lr_reached")


def write_item(folder: Path, out: Path) -> Path:
    """Write item.html and its figures beside result.json in `folder`; `out` has the runs."""
    return write_page(page_of(folder, out), folder / "item.html", main_figure_only=True)


def page_of(folder: Path, out: Path) -> Page:
    """The page of the item in `folder`."""
    result = read_result(folder)
    rows = _rows_of(result, folder)
    runs = [out / CELLS / name for name in result["cells"]]
    return Page(
        title=f"{result['item']}: {greek(result['shows'])}",
        headline=headline(result),
        warnings=[f"Not the item's own settings: {', '.join(result['changed'])}."] if result["changed"] else [],
        subtitle=prose(f"Claim: {result['claim']} {result['paper']}."),
        sections=[
            Section(
                name="evidence",
                title="Why this verdict",
                sentence=_of_which_text(result),
                verdicts=sentences(result["reason"]),
            ),
            _numbers(result),
            *_charts(result, rows),
            *_run_charts(result["run charts"], runs),
            *_runs(rows),
            _settings(result, rows),
        ],
        made="Made by `isograd reproduce` from `result.json`, `rows.csv` and the files of"
        f" {len(result['cells'])} runs.",
    )


NEEDED = {"item", "paper", "shows", "claim", "command", "size here", "size in the paper", "verdict", "reason", "rule"}
NEEDED |= {"published", "ours", "differs", "details", "read", "with data", "changed", "charts", "run charts", "cells"}
NEEDED |= {"rows", "core minutes", "provenance"}


def _of_which_text(result: Row) -> str:
    read = ", ".join(result["read"])
    return f"This verdict is of one text, {read}; on another one the same command may find another." if read else ""


VERDICTS = {
    "same direction": "Same direction as in the paper",
    "not seen": "Not seen: neither what the paper says nor its opposite",
    "opposite": "The opposite of what the paper says",
}


def headline(result: Row) -> str:
    """The verdict as a sentence, and where it was found."""
    if result["verdict"] not in VERDICTS:
        return f"Not run: {result['reason']}"
    changed = f"; changed: {', '.join(result['changed'])}" if result["changed"] else ""
    return f"{VERDICTS[result['verdict']]}. Here: {result['size here']}{changed}."


def sentences(reason: str) -> list[str]:
    """
    >>> sentences("Loss: a is lower than b by 0.1 nats (n = 3). Ratio: 1.2 (n = 3); the rule asks for less than 1.")
    ['Loss: a is lower than b by 0.1 nats (n = 3).', 'Ratio: 1.2 (n = 3); the rule asks for less than 1.']
    """
    return re.split(r"(?<=\.) (?=[A-Z])", reason)


def read_result(folder: Path) -> Row:
    """The content of result.json.

    Raises:
        DataError: it is not what `isograd reproduce` writes.
    """
    path = folder / "result.json"
    try:
        result = read_json(path)
    except ValueError:
        raise _damaged(path) from None
    if not isinstance(result, dict) or not result.keys() >= NEEDED:
        raise _damaged(path)
    return result


def _rows_of(result: Row, folder: Path) -> Rows:
    path = folder / "rows.csv"
    try:
        rows = read_rows(path)
    except (ValueError, TypeError, csv.Error):  # a line cut off has None in its last columns
        raise _damaged(path) from None
    if len(rows) != result["rows"]:
        raise _damaged(path)
    return rows


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is damaged, or of another version; 'isograd reproduce' of its item writes it again")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """rows.csv, numbers as such; what a row lacks is left out."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items() if text != ""} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def number(value: Any) -> str:
    """Four digits; words as they are."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def greek(text: str) -> str:
    """
    >>> greek("mean beta_ii^2")
    'mean β_ii²'
    """
    return re.sub(r"\bbeta(?=_)", "β", text).replace("^2", "²")


def ours(one: Row) -> str:
    """A number and its interval."""
    if one["value"] is None:
        return "none"
    ends = one.get("low") is not None and one.get("high") is not None
    of = f" of {one['n']}" if one["unit"] == "runs" else f" {one['unit']}" if one["unit"] else ""
    return f"{number(one['value'])}{of}" + (f" ({number(one['low'])} to {number(one['high'])})" if ends else "")


def _numbers(result: Row) -> Section:
    paper = [
        ["paper", greek(one["label"]), f"{number(one['value'])} {one['unit']}".strip(), one["tag"]]
        for one in result["published"]
    ]
    own = [["ours", greek(one["label"]), ours(one), f"n = {one['n']}"] for one in result["ours"]]
    table = Table(header=["", "number", "value", "known from"], lines=[*paper, *own], left=2)
    said = "Ours: the median over seeds with its interval; of counts the runs, and the interval of their rate."
    return Section(name="numbers", title="The paper's numbers and ours", sentence=said, table=table)


def _charts(result: Row, rows: Rows) -> Iterator[Section]:
    for chart in result["charts"]:
        drawn = [row for row in rows if all(row.get(key) == value for key, value in chart["where"].items())]
        if own := [row for row in drawn if chart["y"] in row]:
            own += _published_points(chart, result["published"])
            yield (
                map_section(chart, own) if chart["kind"] == "map" else _chart({**chart, "rates": _rates_of(rows)}, own)
            )


def _published_points(chart: Row, published: Rows) -> Rows:
    """The paper's numbers that have a place on the axis."""
    points = [one for one in published if one.get("at") is not None and chart["kind"] == "lines"]
    return [{chart["line"]: "in the paper", chart["x"]: one["at"], chart["y"]: one["value"]} for one in points]


def _chart(chart: Row, rows: Rows) -> Section:
    draw = {"lines": _lines, "bars": _bars}[chart["kind"]]
    title, sentence = prose(chart["title"]), prose(chart["sentence"])
    return Section(name=chart["name"], title=title, sentence=sentence, figure=partial(draw, chart, rows))


def _panels(chart: Row, rows: Rows) -> dict[str, Rows]:
    names = list(dict.fromkeys(str(row.get(chart["panel"], "")) for row in rows))
    return {name: [row for row in rows if str(row.get(chart["panel"], "")) == name] for name in names}


def _lines(chart: Row, rows: Rows) -> Drawing:
    """A line per value of a column: the mean at each x, with a band."""
    panels = _panels(chart, rows)
    drawn = drawing(len(panels), height=3.6, sharey=True)
    shown, rates = _looks(chart, rows), chart["rates"] if chart["line"] == "arm" else {}
    for axes, (name, own) in zip(drawn.panels, panels.items(), strict=True):
        for line in dict.fromkeys(str(row[chart["line"]]) for row in own):
            of_line = [row for row in own if str(row[chart["line"]]) == line]
            _line(axes, chart, of_line, line + rates.get(line, ""), shown[line])
        if name:
            heading(axes, name)
        label(axes, chart["x_label"] or chart["x"], chart["y_label"] or chart["y"])
        if chart.get("zero"):
            axes.axhline(0, color="grey", linewidth=0.8)
        if chart["log_x"]:
            axes.set_xscale("log")
        if chart["log_y"]:
            log(axes)
    return drawn


def _rates_of(rows: Rows) -> dict[str, str]:
    """What the legend adds to arms: the rate of each, where they differ in it and their names do not say it."""
    found = _rates(rows)
    if any(len(rates) > 1 for rates in found.values()) or len({*map(tuple, found.values())}) < 2:
        return {}
    return {arm: f", lr {rates[0]}" for arm, rates in found.items() if " lr " not in arm}


def _rates(rows: Rows) -> dict[str, list[str]]:
    """Of each arm, as papers write them."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if "outcome" in row and {"arm", "lr"} <= row.keys():
            found.setdefault(str(row["arm"]), {})[rate(row["lr"])] = None
    return {arm: [*rates] for arm, rates in found.items()}


def _line(axes: Axes, chart: Row, rows: Rows, name: str, line_look: Look) -> None:
    points: dict[float, list[Row]] = {}
    for row in sorted(rows, key=lambda row: float(row[chart["x"]])):
        points.setdefault(float(row[chart["x"]]), []).append(row)
    low, high = (chart[end] or chart["y"] for end in ("low", "high"))
    mean = [statistics.fmean(row[chart["y"]] for row in own) for own in points.values()]
    axes.plot(list(points), mean, label=name, marker="o", markersize=2.8, **line_look)
    lows = [min(row.get(low, row[chart["y"]]) for row in own) for own in points.values()]
    highs = [max(row.get(high, row[chart["y"]]) for row in own) for own in points.values()]
    if lows != highs:
        axes.fill_between(list(points), lows, highs, color=line_look["color"], alpha=0.16, linewidth=0)


def _bars(chart: Row, rows: Rows) -> Drawing:
    """A row per value of a column: a dot per row of it, and a bar at the median."""
    panels = _panels(chart, rows)
    most = max(len({str(row[chart["x"]]) for row in own}) for own in panels.values())
    drawn = drawing(len(panels), height=0.7 + 0.32 * most, rows=True, beside=1)
    for axes, (title, own) in zip(drawn.panels, panels.items(), strict=True):
        names = list(dict.fromkeys(str(row[chart["x"]]) for row in own))
        shown = {name: [row for row in own if str(row[chart["x"]]) == name] for name in names}
        strips(axes, [_strip(chart, name, of_name) for name, of_name in shown.items()])
        if title:
            heading(axes, title)
        if chart["log_y"]:
            axes.set_xscale("log")
        label(axes, chart["y_label"] or chart["y"], "")
    return drawn


def _strip(chart: Row, name: str, rows: Rows) -> Strip:
    colour, values = look_of(str(rows[-1].get("placement", name)))["color"], [row[chart["y"]] for row in rows]
    return Strip(name=name, colour=colour, values=values, middle=statistics.median(values))


def map_section(chart: Row, rows: Rows) -> Section:
    """A figure with a square per pair of places, and its numbers: for print, and for who does not see colours."""
    columns = f"The table has a column per {chart['x_label'] or chart['x']}."
    return Section(
        name=chart["name"],
        title=prose(chart["title"]),
        sentence=prose(f"{chart['sentence']} {columns}".strip()),
        figure=partial(_map, chart, rows),
        table=_map_table(chart, rows),
        folded=True,
    )


def _map(chart: Row, rows: Rows) -> Drawing:
    """A square per pair of places, as bright as its value; one scale for all panels."""
    panels = {title: Grid.of(chart, own) for title, own in _panels(chart, rows).items()}
    known = [value for grid in panels.values() for row in grid.values for value in row if value is not None]
    drawn = drawing(len(panels), height=3.4, beside=3)
    for axes, (title, grid) in zip(drawn.panels, panels.items(), strict=True):
        values = [[math.nan if value is None else value for value in row] for row in grid.values]
        image = axes.imshow(values, cmap="cividis", aspect="auto", vmin=min(known), vmax=max(known))
        axes.grid(visible=False)
        step = math.ceil(len(grid.xs) / 8), math.ceil(len(grid.ys) / 12)
        axes.set_xticks(range(0, len(grid.xs), step[0]), [number(x) for x in grid.xs[:: step[0]]])
        axes.set_yticks(range(0, len(grid.ys), step[1]), [number(y) for y in grid.ys[:: step[1]]])
        if title:
            heading(axes, title)
        label(axes, chart["x_label"] or chart["x"], chart["y_label"] or chart["y"])
    bar = drawn.figure.colorbar(image, ax=drawn.panels, shrink=0.8, aspect=30, pad=0.02)
    bar.set_label(_value_label(chart))
    return drawn


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values of a map, a row per y; None where there is none."""

    xs: Sequence[Any]
    ys: Sequence[Any]
    values: Sequence[Sequence[float | None]]

    @classmethod
    def of(cls, chart: Row, rows: Rows) -> "Grid":
        """Means over the rows of each square."""
        xs, ys = (list(dict.fromkeys(row[chart[side]] for row in rows)) for side in ("x", "y"))
        found: dict[Any, list[float]] = {}
        for row in rows:
            found.setdefault((row[chart["y"]], row[chart["x"]]), []).append(row[chart["value"]])
        means = {place: statistics.fmean(values) for place, values in found.items()}
        return cls(xs=xs, ys=ys, values=[[means.get((y, x)) for x in xs] for y in ys])


def _value_label(chart: Row) -> str:
    return str(chart.get("value_label") or chart["value"])  # a result.json of before has no label


def _map_table(chart: Row, rows: Rows) -> Table:
    panels = {title: Grid.of(chart, own) for title, own in _panels(chart, rows).items()}
    xs = list(dict.fromkeys(x for grid in panels.values() for x in grid.xs))
    lines = []
    for title, grid in panels.items():
        for y, row in zip(grid.ys, grid.values, strict=True):
            value = dict(zip(grid.xs, row, strict=True))
            first = [title, number(y)] if chart["panel"] else [number(y)]
            lines.append([*first, *("" if value.get(x) is None else f"{value[x]:.2g}" for x in xs)])
    names = [chart["panel"] and "panel", chart["y_label"] or chart["y"]]
    header = [*filter(None, names), *map(number, xs)]
    return Table(header=header, lines=lines, left=len(header) - len(xs))


def _looks(chart: Row, rows: Rows) -> dict[str, Look]:
    """Of each line the look of its placement, where it has one."""
    placements = {str(row[chart["line"]]): str(row.get("placement", "")) for row in rows}
    if all(placements.values()):
        return dict(zip(placements, looks(placements.values()), strict=True))
    return {name: look(i) for i, name in enumerate(placements)}


def _run_charts(names: Sequence[str], folders: Sequence[Path]) -> Iterator[Section]:
    """Charts of a page of runs; of the first task, where there are several."""
    there = [folder for folder in folders if (folder / "run.json").exists()]
    if not names or not there:
        return
    task = read_run(there[0]).run.get("task")
    arms = presented([arm for arm in arms_of(there) if arm.first.run.get("task") == task])
    for name in names:
        section = {**CHARTS, **DEPTH_CHARTS}[name](Subject(arms=arms))
        if section:
            yield section


def _runs(rows: Rows) -> Iterator[Section]:
    own = [row for row in rows if "outcome" in row]
    if not own:
        return
    columns = {name.replace("_", " "): partial(_cell, name) for name in RUN_COLUMNS if any(name in row for row in own)}
    yield Section(name="runs", title="Runs", table=Table.of(own, columns, verdict="outcome"), folded=True)


def _cell(name: str, row: Row) -> str:
    return number(row.get(name))


def _settings(result: Row, rows: Rows) -> Section:
    facts, rates = result["provenance"], {arm: " / ".join(own) for arm, own in _rates(rows).items()}
    alike = len(set(rates.values())) < 2  # `isograd compare` takes one rate for all arms
    lines = [
        ["rule, written before the runs", result["rule"]],
        ["size in the paper", result["size in the paper"]],
        ["size here", result["size here"]],
        ["what differs", result["differs"]],
        ["read", ", ".join(result["read"]) or "nothing: no corpus"],
        ["learning rate", next(iter(rates.values()), "") if alike else "; ".join(map(": ".join, rates.items()))],
        ["command", f"`{result['command']}{' --data FOLDER' if result['with data'] else ''}`"],
        ["the same runs", f"`{result['compare']}`" if result.get("compare") else ""],
        ["time", f"{result['core minutes']:g} minutes of one core, shared runs included"],
        ["measured with", ", ".join(f"{name} {value}" for name, value in facts.items())],
    ]
    table = settings_table((line for line in lines if line[1]), ["", ""])
    return Section(name="settings", title="Setting", sentence=result["details"], table=table)

"""Does a learning rate stay where it is over depth and width, with a rule and without? docs/results/transfer.md.

    isograd study studies/transfer
    python benchmarks/transfer.py runs/transfer

The study's best rates and their drift, and a coordinate check of the same models (some two minutes of one core), as a
page and a figure beside it; --quantities FILE keeps the coordinate check, so that a page can be made again without it.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from isograd.files import read_json, write_json, write_text
from isograd.lab.report.style import Drawing, drawing, heading, label, log, look, save
from isograd.lab.study.transfer.coordinates import FLAT, SEEDS, UPDATES, Coordinate, coordinate_check
from isograd.lab.study.transfer.drift import LIMIT, Drift, read_drifts
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Run, with_steps
from isograd.machine import processor

PAGE = Path(__file__).parents[1] / "docs/results/transfer.md"
CHECKED = (("pre-ln", "depth"), ("deepnorm", "depth"), ("hyper-connections", "depth"), ("pre-ln", "width"))
SIZES = {"depth": (4, 8, 16), "width": (64, 128, 256)}
QUANTITY = "middle stream"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--quantities", type=Path, help="JSON of the coordinate check; made where it is missing")
    parser.add_argument("--page", type=Path, default=PAGE)
    words = parser.parse_args()
    found = read_drifts(words.study)
    base = read_json(words.study / "study.json")
    rows = _quantities(words.quantities, run_from_dict(base["base"]))
    write_text(words.page, page(found, rows, base))
    save(figure(found, rows), words.page.with_suffix(""), ["png"])


def _quantities(kept: Path | None, run: Run) -> list[dict[str, Any]]:
    if kept is not None and kept.exists():
        rows: list[dict[str, Any]] = json.loads(kept.read_text())
        return rows
    rows = []
    for placement, axis in CHECKED:
        source = with_steps(_placed(run, placement), 100)
        for ruled in (True, False):
            for one in _checked(source, axis, ruled):
                values = {str(size): of for size, of in one.values.items()}
                said = {"power": one.power, "interval": one.interval, "verdict": one.verdict}
                rows.append({"placement": placement, "axis": axis, "ruled": ruled, "quantity": one.quantity} | said)
                rows[-1]["values"] = values
        if kept is not None:
            write_json(kept, rows)
    return rows


def _placed(run: Run, placement: str) -> Run:
    content = run.as_dict()
    content["model"] |= {"placement": placement, "layers": SIZES["depth"][0], "width": SIZES["width"][0]}
    content["training"] |= {"lr": 3e-3, "warmup": 0}
    return run_from_dict(content)


def _checked(run: Run, axis: Any, ruled: bool) -> list[Coordinate]:
    rule = None if ruled or axis == "width" else "kept"
    return coordinate_check(run, SIZES[axis], axis=axis, rule=rule, without=not ruled)


def page(found: list[Drift], rows: list[dict[str, Any]], study: dict[str, Any]) -> str:
    """The page as Markdown."""
    steps = study["budget"]["steps"]
    unit = f"{steps:g} updates each, {processor()}, one thread"
    drifts = [f"| {' | '.join(one.cells())} |" for one in found]
    head = HEAD.format(unit=unit, limit=f"{LIMIT:g}")
    check = CHECK.format(
        updates=UPDATES, seeds=len(SEEDS), flat=f"{FLAT:g}", depths=_list(SIZES["depth"]), widths=_list(SIZES["width"])
    )
    said = [one.cells() for one in found if one.seeds > 2]
    answer = [f"- {arm} over {axis}: {verdict} ({x}x, {interval})." for arm, axis, _, x, interval, _, verdict in said]
    head = head.replace("ANSWER", "\n".join(answer))
    return "\n".join([head, *drifts, "", *_notes(found, study), check, *_lines(rows), "", LOGITS])


HEAD = """\
# Best learning rate over depth and width

Written by `python benchmarks/transfer.py STUDY` from `isograd study studies/transfer`; what it is for:
[settings over depth and width](../transfer.md). A character model on text that every Python carries, width 64 where the
width is not the axis, {unit}. Rates 1e-3, 3e-3, 9e-3, 2.7e-2.

ANSWER

![Best rate over size, and how far the stream moves](transfer.png)

## The best rate

Best rate: the vertex of a parabola through the best of the rates and its neighbours, validation loss over log rate; the
table has the median over seeds. Drift: the largest ratio of the best rate to that of the smallest size, whichever way;
median over seeds with its bootstrap interval (of three seeds the extremes, which hold the median 75 % of the time). A
rule *transfers* where the whole interval is below {limit} and no best rate is the lowest or highest of the rates. What
has no @ is the control, but for DeepNorm: its control is `deepnorm@fixed`, the constants of 4 layers.

| placement | over | best rate | drift | interval | seeds | verdict |
|---|---|---|---|---|---|---|"""
CHECK = """\
## What moves in a few updates

A coordinate check: the power p of size with which a quantity grows, after {updates} updates at 3e-3 without a warm-up,
mean and 95 % interval (Student) over {seeds} seeds. Flat: the interval lies within +-{flat}; not flat: outside. Depths
{depths}, widths {widths}.

| placement | over | rule | logits | last stream | middle stream |
|---|---|---|---|---|---|"""
LOGITS = """\
The logits are a poor witness over depth: within a few updates they learn how frequent each character is, at any depth.
"""


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _notes(found: list[Drift], study: dict[str, Any]) -> list[str]:
    """What was run of the recipe, by the cells that there are."""
    seeds = {one.arm: one.seeds for one in found}
    few = sorted({arm for arm, n in seeds.items() if n < len(study["seeds"])})
    lines = [
        "The recipe of the package is larger (300 updates, also depth 32 and width 256); what was run is this table."
    ]
    if few:
        lines.append(f"Without three seeds: {', '.join(few)}.")
    return [*lines, ""]


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    """A row per placement, axis and rule; a cell per quantity."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        interval = "–" if row["interval"] is None else f"{row['interval'][0]:+.2f} to {row['interval'][1]:+.2f}"
        rule = _rule(row["placement"], row["axis"]) if row["ruled"] else "none"
        cells = found.setdefault((row["placement"], row["axis"], rule), [])
        cells.append(f"{row['power']:+.2f} ({interval}) {row['verdict']}")
    return [f"| {' | '.join([*key, *cells])} |" for key, cells in found.items()]


def _rule(placement: str, axis: str) -> str:
    return "muP" if axis == "width" else "its own law" if placement == "deepnorm" else "completep"


def figure(found: list[Drift], rows: list[dict[str, Any]]) -> Drawing:
    """Best rates over depth and over width above, from the lowest to the highest seed; what moves below."""
    drawn = drawing(4, 2.6)
    for axes, axis in zip(drawn.panels[:2], ("depth", "width"), strict=True):
        _best(axes, [one for one in found if one.axis == axis], axis)
    for axes, axis in zip(drawn.panels[2:], ("depth", "width"), strict=True):
        own = [row for row in rows if row["axis"] == axis and row["quantity"] == QUANTITY]
        _moved(axes, own, axis)
    return drawn


def _best(axes: Axes, arms: list[Drift], axis: str) -> None:
    for one in arms:
        sizes = list(one.best)
        control = "@fixed" in one.arm or one.arm in ("pre-ln", "hyper-connections")
        style = _style(one.arm.replace("@fixed", ""), control, one.arm)
        axes.plot(sizes, [one.middle(size) for size in sizes], marker="o", markersize=3, **style)
        seeds = [[best.rate for best in one.best[size].values()] for size in sizes]
        axes.fill_between(sizes, [min(of) for of in seeds], [max(of) for of in seeds], color=style["color"], alpha=0.12)
    _frame(axes, f"best rate over {axis}", axis, "learning rate")


def _moved(axes: Axes, rows: list[dict[str, Any]], axis: str) -> None:
    for row in rows:
        sizes = [int(size) for size in row["values"]]
        means = [math.fsum(of) / len(of) for of in row["values"].values()]
        rule = {"its own law": "", "muP": "@mup"}.get(_rule(row["placement"], axis), "@completep")
        own, plain = f"{row['placement']}{rule}", row["placement"]
        control = plain if plain != "deepnorm" else "deepnorm@fixed"
        style = _style(own if row["ruled"] else plain, not row["ruled"], own if row["ruled"] else control)
        axes.plot(sizes, means, marker="o", markersize=3, **style)
    _frame(axes, f"{QUANTITY} over {axis}", axis, "change in 4 updates")


def _style(arm: str, control: bool, name: str) -> dict[str, Any]:
    """A colour for each arm; a control in that of what it is the control of, dashed."""
    arms = ("pre-ln", "deepnorm", "hyper-connections", "pre-ln@depth-mup")
    plain = arm if arm in arms else arm.partition("@")[0]
    named = look(arms.index(plain))["color"] if plain in arms else look(len(arms))["color"]
    return {"color": named, "label": name, "linestyle": "--" if control else "-" if "mup" not in arm else "-."}


def _frame(axes: Axes, title: str, axis: str, y: str) -> None:
    axes.set_xscale("log", base=2)
    log(axes)
    heading(axes, title)
    label(axes, axis, y)


if __name__ == "__main__":
    main()

"""The page of the theory's verdicts: the table of all, and a figure per claim."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, StrMethodFormatter

from isograd.files import finite, write_text
from isograd.lab.report.page import Page, Section, Table, prose, write_page
from isograd.lab.report.style import INK, Drawing, drawing, label, log, look_of

Row = Mapping[str, Any]
Rows = Sequence[Row]
_THEORY: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (2, 2)), "zorder": 4}
_CONTROL: dict[str, Any] = {"color": INK, "linewidth": 0.9, "alpha": 0.5, "zorder": 1}
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
_MARKED = 12  # points up to which each is marked


def write_theory(out: Path, claims: Rows, verdicts: Rows, controls: Rows, facts: Mapping[str, str]) -> Path:
    """Write theory.html, theory.json, and of each claim its figure into `out`.

    Args:
        claims: what is claimed, as `isograd.papers.theory` prints it.
        verdicts: a row per case, with its curve and the lines of the theory.
        controls: rows of the same kind, where negative controls were measured.
        facts: name -> value, about the machine and the versions.

    Returns:
        the path of the page.
    """
    page = Page(
        title="Theory, measured",
        headline=summary(verdicts, controls),
        subtitle="These are statements about the initialization; none says that a run will train.",
        sections=[
            Section(name="verdicts", title="Verdicts", sentence=_VERDICTS, table=verdict_table(verdicts, controls)),
            *(_claim(claim, verdicts, controls) for claim in claims),
        ],
        made=f"Made by `isograd reproduce theory`: {', '.join(f'{name} {value}' for name, value in facts.items())}."
        " The numbers are in `theory.json`.",
    )
    written = write_page(page, out / "theory.html")
    content = {"verdicts": verdicts, "negative_controls": controls, "claims": claims, "facts": facts}
    write_text(out / "theory.json", json.dumps(finite(content), indent=1, ensure_ascii=False) + "\n")
    return written


_VERDICTS = (
    "A verdict holds when the measured number, with its interval where it has one, lies in its tolerance. Predicted: by"
    " the paper, or measured before where the paper gives no number. A negative control is another network, measured in"
    " the same way, which the claim must refuse. False: this claim is known not to hold of this case, and the reason"
    " stands with its figure."
)


def summary(verdicts: Rows, controls: Rows) -> str:
    """How many hold."""
    said = f"{sum(row['holds'] for row in verdicts)} of {len(verdicts)} verdicts hold"
    if false := sum(_verdict(row) == "false" for row in verdicts):
        said += f", {false} {'is' if false == 1 else 'are'} false as recorded"
    if controls:
        said += f", and {sum(not row['holds'] for row in controls)} of {len(controls)} negative controls are refused"
    return f"{said}."


def verdict_table(verdicts: Rows, controls: Rows) -> Table:
    """A line per case, with what its negative control measures where these are known."""
    columns: dict[str, Any] = {
        "claim": "claim",
        "placement": lambda row: _named(row, "any"),
        "predicted": _predicted,
        "measured": _measured_number,
        "tolerance": lambda row: interval(*row["tolerance"]),
        **({"negative control": partial(_beside, controls)} if controls else {}),
        "verdict": _verdict,
    }
    return Table.of(verdicts, columns, verdict="verdict", left=2)


def _predicted(row: Row) -> str:
    said = row["predicted"]
    return " to ".join(map(number, said if isinstance(said, list | tuple) else [said]))


def _measured_number(row: Row) -> str:
    return number(row["measured"]) + (f" ({interval(*row['interval'])})" if row.get("interval") else "")


def _beside(controls: Rows, row: Row) -> str:
    own = [one for one in controls if (one["claim"], one["case"]) == (row["claim"], row["case"])]
    return "".join(f"{one['subject']}: {number(one['measured'])}{' (passes)' if one['holds'] else ''}" for one in own)


def _named(row: Row, part: str) -> str:
    """The placement with the case's changes to it; `part` where the claim speaks of a part that all placements have."""
    return part if row["placement"] == "any" else row["case"]


def _verdict(row: Row) -> str:
    """ "false" where the claim is known not to hold of this case, and does not."""
    if row.get("refuted"):
        return "holds, recorded as false" if row["holds"] else "false"
    return "holds" if row["holds"] else "fails"


def interval(low: float | None, high: float | None) -> str:
    """What must hold of the number."""
    if low is None or high is None:
        return f"≤ {number(high)}" if low is None else f"≥ {number(low)}"
    return f"± {number(high)}" if low == -high else f"{number(low)} to {number(high)}"


def number(value: float | None) -> str:
    """Three digits after the point, or a power of ten where these would be zeros or the number is above 1e5."""
    if value is None:
        return ""
    return f"{value:.2g}" if 0 < abs(value) < 5e-4 or abs(value) > 1e5 else f"{value:.3f}".rstrip("0").rstrip(".")


def _claim(claim: Row, verdicts: Rows, controls: Rows) -> Section:
    own, refused = ([row for row in rows if row["claim"] == claim["name"]] for rows in (verdicts, controls))
    false = [f"False of {row['subject']}: {row['refuted']}." for row in own if row.get("refuted")]
    said = " ".join([f"{claim['statement']} Measured: {claim['number']}. Setting: {claim['how']}.", *false])
    said += f" {claim['source']}."
    title = f"{claim['title'][0].upper()}{claim['title'][1:]}"
    draw = partial(claim_figure, claim, own, refused)
    return Section(name=claim["name"], title=title, sentence=prose(said), figure=draw)


def claim_figure(claim: Row, verdicts: Rows, controls: Rows = ()) -> Drawing:
    """One claim: a line per placement, the mean over seeds, and a band from the lowest to the highest."""
    drawn = drawing(1, height=3.9)
    (axes,) = drawn.panels
    for row in verdicts:
        _measured(axes, row)
    own = {row["subject"] for row in verdicts}
    once = {row["subject"]: row for row in reversed(controls) if row["subject"] not in own}
    for row, marker in zip(reversed(once.values()), cycle("x+1|"), strict=False):
        curve = row["curve"]
        axes.plot(curve["x"], curve["y"], label=f"control: {row['subject']}", **_CONTROL, **_mark(curve, marker))
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
    curve, placement = row["curve"], row["placement"]
    look = look_of(row["subject"] if placement == "any" else placement)
    axes.plot(curve["x"], curve["y"], label=_named(row, row["subject"]), zorder=3, **look, **_mark(curve, "o"))
    if curve["low"] and row["seeds"] > 1:
        axes.fill_between(curve["x"], curve["low"], curve["high"], color=look["color"], alpha=0.14, linewidth=0)


def _mark(curve: Row, marker: str) -> dict[str, Any]:
    few = len(curve["x"]) <= _MARKED
    return {"marker": marker, "markersize": 2.2 * mpl.rcParams["lines.linewidth"]} if few else {}


def _near(axes: Axes, verdicts: Rows) -> None:
    """Show what was measured and its tolerance; a negative control may leave the panel."""
    shown = [y for row in verdicts for name in ("y", "low", "high") for y in row["curve"][name]]
    bounds = [row["tolerance"] for row in verdicts]
    shown += [bound for tolerance in bounds for bound in tolerance if bound is not None]
    bottom, top = min(shown) - 0.1, max(shown) + 0.1
    for low, high in bounds:
        low, high = bottom if low is None else low, top if high is None else high
        axes.axhspan(low, high, color=INK, alpha=0.06, linewidth=0, label="tolerance of the mean")
    axes.set_ylim(bottom, top)


def _log_x(axes: Axes) -> None:
    """A logarithmic axis with plain numbers at the depths that are looked at."""
    low, high = axes.dataLim.intervalx
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if low <= tick <= high]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())

"""The page of a spike that `isograd watch --spikes` has explained, and an issue text to send on."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from isograd import __version__
from isograd.files import read_json, write_text
from isograd.lab.report.page import Page, Section, Table, write_page
from isograd.lab.report.pages.profile import number
from isograd.lab.report.style import INK, Drawing, drawing, label, plain, shade

Row = Mapping[str, Any]
_HOW = (
    "Each line is the script from the same snapshot on, with one thing changed. Black: as it was; colours: changes that"
    " make the spike go away; grey: those that do not. A line ends where the loss is not finite, or leaves the picture."
)


def explained(folder: Path) -> list[dict[str, Any]]:
    """The spikes of a watched folder; none where none was explained."""
    return [read_json(path) for path in sorted(folder.glob("spike*.json"), key=lambda path: (len(path.name), path))]


def write_spikes(folder: Path, out: Path) -> Path:
    """explain.html of a watched folder with figures and tables, and issue.md for the first spike."""
    spikes = explained(folder)
    page = Page(
        title=f"Spikes: {folder.name}",
        headline=" ".join(one["sentence"] for one in spikes),
        sections=[section for i, one in enumerate(spikes) for section in _sections(one, i)],
        made="Made by `isograd explain` from the files of `isograd watch --spikes`. The first as an issue: `issue.md`.",
    )
    written = write_page(page, out / "explain.html")
    write_text(out / "issue.md", issue(spikes[0], folder))
    return written


def _sections(spike: Row, place: int) -> Iterator[Section]:
    name = "spike" if not place else f"spike-{place + 1}"
    yield Section(
        name=name, title=f"Step {spike['step']:,}", sentence=_todo(spike) + _HOW, figure=partial(_curves, spike)
    )
    yield Section(name=f"{name}-tried", title="What was tried", sentence=_TRIED, table=tried(spike))
    around = [row for row in spike["rows"] if abs(row["step"] - spike["step"]) <= 12]
    columns = {"step": "step", "loss": "loss", "learning rate": "rate", "gradient norm": "norm"}
    table = Table.of(around, {head: partial(_cell, key) for head, key in columns.items()})
    yield Section(name=f"{name}-rows", title="Steps around it", table=table, folded=True)
    yield Section(name=f"{name}-again", title="Run it again, in this folder", code=spike["again"])


_TRIED = (
    "A change explains the spike where it goes away in all seeds and comes back where the cause is put elsewhere."
    " Seed 0 is the run itself; in the others all weights are moved by a thousandth of their size at the snapshot."
)


def _todo(spike: Row) -> str:
    """What to do, where a cause is known."""
    return f"What to do: {spike['remedy']}. " if spike.get("remedy") else ""


def _cell(key: str, row: Row) -> str:
    return f"{row[key]}" if key == "step" else "not finite" if row[key] is None else number(row[key])


def tried(spike: Row) -> Table:
    """A line per hypothesis."""
    columns: dict[str, Any] = {
        "with": "name",
        "the spike": lambda one: "goes away" if one["gone"] else "stays",
        "seeds": lambda one: f"{sum(one['seeds'])} of {len(one['seeds'])}" if "seeds" in one else "",
        "put elsewhere": lambda one: ", ".join(
            f"step {back['step']:,}: {'comes back' if back['came'] else 'does not come back'}"
            for back in one.get("back", ())
        ),
    }
    return Table.of(spike["hypotheses"], columns, left=4)


def _curves(spike: Row) -> Drawing:
    drawn = drawing(1, height=3.6)
    (axes,) = drawn.panels
    rows = sorted(spike["hypotheses"], key=lambda one: one["gone"])
    cures = [one for one in rows if one["gone"]]
    for one in rows:
        steps, losses = range(spike["from"], spike["from"] + len(one["losses"])), _finite(one["losses"])
        if one["kind"] == "control":
            axes.plot(steps, losses, color=INK, label="as it was", zorder=3)
        elif one["gone"]:
            place = cures.index(one) / max(1, len(cures) - 1)
            axes.plot(steps, losses, color=shade(place), label=plain(one["name"]), zorder=2)
        else:
            axes.plot(steps, losses, color="0.6", linewidth=0.7, zorder=1)
    known = [loss for loss in _finite(rows[0]["losses"]) if math.isfinite(loss)]
    height = (
        spike["height"]
        if spike["height"] is not None
        else max(10 * spike["bound"], max(known, default=0.0) - spike["level"])
    )
    axes.set_ylim(top=spike["level"] + 1.3 * min(height, 20 * spike["bound"]))
    axes.axvline(spike["step"], color="0.6", linewidth=0.6, linestyle=":")
    label(axes, "step", "loss")
    return drawn


def _finite(losses: Sequence[float | None]) -> list[float]:
    return [math.nan if loss is None else loss for loss in losses]


def issue(spike: Row, folder: Path) -> str:
    """An issue that a maintainer can act on: what happens, what was tried, versions, the script and how to run it."""
    table = tried(spike)
    lines = [f"| {' | '.join(row)} |" for row in (table.header, ["---"] * len(table.header), *table.lines)]
    script = folder / "spike-script.py"
    text = script.read_text(encoding="utf-8") if script.exists() else ""
    fence = "````"
    parts = [
        f"# Loss spike at step {spike['step']:,} of {spike['script']}",
        spike["sentence"],
        "![the loss, as it was and with one thing changed](spike.svg)",
        _TRIED,
        "\n".join(lines),
        "## To reproduce",
        f"{fence}\npip install isograd\n{spike['again']}\n{fence}",
        f"Batches of the steps before and of the spike, for `torch.load`: {', '.join(spike['batch_files']) or 'none'}.",
        f"<details><summary>spike-script.py</summary>\n\n{fence}python\n{text}\n{fence}\n\n</details>" if text else "",
        "## Versions",
        "\n".join(f"- {name} {version}" for name, version in {"isograd": __version__, **spike["versions"]}.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"

"""The page of a watched loop: what `isograd.watch` wrote into its folder, the warnings first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isograd.errors import many
from isograd.files import read_object, read_rows
from isograd.lab.report.page import Page, Section, Table, warnings_table, write_page
from isograd.lab.report.style import (
    UNLISTED,
    Drawing,
    Look,
    Output,
    drawing,
    entropy_line,
    heading,
    known,
    label,
    log,
    look,
    shade,
    steps,
)

Row = dict[str, Any]


def write_watch(folder: Path, out: Path | None = None, title: str | None = None, output: Output | None = None) -> Path:
    """Write report.html of a folder with metrics.jsonl, quantities.jsonl and warnings.jsonl; returns its path."""
    metrics, layers = read_rows(folder / "metrics.jsonl"), read_rows(folder / "quantities.jsonl")
    warned = read_rows(folder / "warnings.jsonl")
    page = Page(
        title=title or f"Watched: {folder.name}",
        headline=headline(metrics, warned),
        sections=[
            Section(name="warnings", title="Warnings", table=warnings_table([without_step(row) for row in warned])),
            Section(name="replayed", title="Replayed", sentence=_REPLAYED, table=replayed(folder)),
            Section(
                name="loss",
                title="Loss and gradient norm",
                sentence=_ENTROPY if any(row.get("unigram_entropy") for row in warned) else "",
                figure=lambda: curves({"": metrics}, [look(0)], warned),
            ),
            Section(
                name="layers",
                title="Gradients of each layer",
                sentence="A line per layer, from the first (violet) to the last (olive). Flat, close lines are better.",
                figure=lambda: _layers(layers),
            ),
        ],
        made=f"Made by isograd from the files of `isograd.watch` in {folder.name}.",
    )
    return write_page(page, (out or folder / "report") / "report.html", output)


def without_step(row: Row) -> Row:
    """The message begins with its step, which has a column of its own."""
    return row | {"message": str(row["message"]).removeprefix(f"step {row['step']}: ")}


_ENTROPY = (
    "The unigram entropy is the loss of a model that knows only token frequencies; a loss that stays there is a"
    " collapse."
)
_REPLAYED = (
    "From before the break, first as it was, the negative control: where that finishes, nothing can be said of a"
    " change. Then once per change: the mean of the last ten losses, and what follows."
)


def replayed(folder: Path) -> Table:
    """What `Watch.replay` found, if it was asked."""
    columns: dict[str, Any] = {
        "change": "change",
        "from step": "from",
        "steps": "steps",
        "loss": lambda row: "not finite" if row["loss"] is None else f"{row['loss']:.3f}",
        "verdict": "verdict",
    }
    return Table.of(read_object(folder / "replayed.json").get("changes", []), columns)


def headline(metrics: Sequence[Row], warned: Sequence[Row]) -> str:
    """The first warning, or that there was none."""
    steps = metrics[-1]["step"] if metrics else 0
    if not warned:
        return f"{many(steps, 'step')}, and nothing was reported."
    more = f" ({len(warned) - 1} more below)" if len(warned) > 1 else ""
    message = str(warned[0]["message"])
    return f"{message[:1].upper()}{message[1:]}{more}."


def curves(metrics: Mapping[str, Sequence[Row]], looks: Sequence[Look], warned: Sequence[Row] = ()) -> Drawing | None:
    """Loss and gradient norm by step, a line per loop; None where there are none."""
    if not any(metrics.values()):
        return None
    drawn = drawing(2, height=3.2)
    for axes, name in zip(drawn.panels, ("loss", "grad_norm"), strict=True):
        for (loop, rows), own in zip(metrics.items(), looks, strict=True):
            known(axes, rows, "step", name, label=loop, **(own | {"linewidth": 1.0}))
        for i, row in enumerate(warned):
            axes.axvline(row["step"], color="#D55E00", linewidth=0.8, label=None if i else "warning")
        label(axes, "step", "loss" if name == "loss" else "norm of all gradients")
        steps(axes)
    if entropies := [row["unigram_entropy"] for row in warned if row.get("unigram_entropy") is not None]:
        entropy_line(drawn.panels[0], entropies[-1])
    log(drawn.panels[1])
    return drawn


def _layers(rows: Sequence[Row]) -> Drawing | None:
    measured = [row for row in rows if row.get("gradient_norm") is not None]
    if not measured:
        return None
    stacks = list(dict.fromkeys(row.get("stack") for row in measured))
    drawn = drawing(len(stacks), height=3.2)
    for axes, stack in zip(drawn.panels, stacks, strict=True):
        own = [row for row in measured if row.get("stack") == stack]
        addresses = list(dict.fromkeys(row["address"] for row in own))
        for i, address in enumerate(addresses):
            look = {"color": shade(i / max(1, len(addresses) - 1)), "linewidth": 0.9, "label": UNLISTED + address}
            known(axes, [row for row in own if row["address"] == address], "step", "gradient_norm", **look)
        if len(stacks) > 1:
            heading(axes, str(stack))
        label(axes, "step", "gradient norm of the layer")
        steps(axes)
        log(axes)
    return drawn

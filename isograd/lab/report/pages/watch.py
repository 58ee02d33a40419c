"""The page of a watched loop: what `isograd.watch` wrote into its folder, the warnings first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from isograd.errors import many
from isograd.files import read_json, read_rows
from isograd.lab.report.page import Page, Section, Table, write_page
from isograd.lab.report.style import (
    UNLISTED,
    Drawing,
    Look,
    Output,
    drawing,
    entropy_line,
    heading,
    label,
    log,
    look,
    shade,
    steps,
)

Row = dict[str, Any]
HEADER = ("step", "what", "cause", "remedy")


def write_watch(folder: Path, out: Path | None = None, title: str | None = None, output: Output | None = None) -> Path:
    """Write report.html of a folder with metrics.jsonl, quantities.jsonl and warnings.jsonl; returns its path."""
    metrics, layers = read_rows(folder / "metrics.jsonl"), read_rows(folder / "quantities.jsonl")
    warned = read_rows(folder / "warnings.jsonl")
    page = Page(
        title=title or f"Watched: {folder.name}",
        headline=headline(metrics, warned),
        sections=[
            Section(name="warnings", title="Warnings", table=warnings_table(warned)),
            Section(name="replayed", title="Replayed", sentence=_REPLAYED, table=replayed(folder)),
            Section(
                name="loss",
                title="Loss and gradient norm",
                sentence=_ENTROPY if any(row.get("unigram_entropy") for row in warned) else "",
                figure=lambda: _curves(metrics, warned),
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


def write_side_by_side(
    folders: Sequence[Path], out: Path, title: str | None = None, output: Output | None = None
) -> tuple[Path, Table]:
    """Write report.html of several watched loops, and of runs among them: path and table of what they say alike."""
    names = _names(folders)
    metrics = {name: read_rows(folder / "metrics.jsonl") for name, folder in zip(names, folders, strict=True)}
    warned = {name: read_rows(folder / "warnings.jsonl") for name, folder in zip(names, folders, strict=True)}
    lines = [(name, *_in_numbers(metrics[name]), _first_warning(warned[name])) for name in names]
    looks = [look(i) for i in range(len(names))]
    table = Table(header=("loop", "steps", "lowest loss", "last loss", "first warning"), lines=lines, looks=looks)
    reported = sum(map(bool, warned.values()))
    page = Page(
        title=title or f"{len(names)} loops side by side",
        headline=f"{reported} of {len(names)} have a warning." if reported else "Nothing was reported of any.",
        sections=[
            Section(name="loops", title="Loops", sentence=_LAST, table=table),
            Section(name="loss", title="Loss", figure=lambda: _together(metrics, looks)),
        ],
        made="Made by isograd from the files of `isograd.watch` and of runs; each alone has a page that says more.",
    )
    return write_page(page, out / "report.html", output), table


_LAST = "The last loss is the mean of the last 20 steps, the lowest that of any 20 steps in a row."


def _names(folders: Sequence[Path]) -> list[str]:
    short = [folder.name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _in_numbers(metrics: Sequence[Row]) -> tuple[str, str, str]:
    losses = [row["loss"] for row in metrics]
    known = [loss for loss in losses if loss is not None]
    if not known:
        return f"{metrics[-1]['step'] if metrics else 0:,}", "none", "none"
    span = min(20, len(known))
    means = [fmean(known[i : i + span]) for i in range(len(known) - span + 1)]
    last = "not finite" if losses[-1] is None else f"{means[-1]:.3f}"
    return f"{metrics[-1]['step']:,}", f"{min(means):.3f}", last


def _first_warning(warned: Sequence[Row]) -> str:
    if not warned:
        return "none"
    said = str(warned[0]["message"]).removeprefix(f"step {warned[0]['step']}: ")
    return f"step {warned[0]['step']:,}: {said}"


def _together(metrics: Mapping[str, Sequence[Row]], looks: Sequence[Look]) -> Drawing | None:
    if not any(metrics.values()):
        return None
    drawn = drawing(1, height=3.2)
    for (name, rows), own in zip(metrics.items(), looks, strict=True):
        known = [(row["step"], row["loss"]) for row in rows if row.get("loss") is not None]
        xs, ys = [x for x, _ in known], [y for _, y in known]
        drawn.panels[0].plot(xs, ys, **own, linewidth=1.0, label=name)
    label(drawn.panels[0], "step", "loss")
    steps(drawn.panels[0])
    return drawn


_ENTROPY = (
    "The unigram entropy is the loss of a model that knows only token frequencies; a loss that stays there is a"
    " collapse."
)
_REPLAYED = (
    "From before the break, first as it was, the negative control: where that finishes, nothing can be said of a"
    " change. Then once per change: the mean of the last ten losses, and what follows."
)


def replayed(folder: Path) -> Table | None:
    """What `Watch.replay` found, if it was asked."""
    path = folder / "replayed.json"
    if not path.exists():
        return None
    lines = []
    for row in read_json(path)["changes"]:
        loss = "not finite" if row["loss"] is None else f"{row['loss']:.3f}"
        lines.append((row["change"], f"{row['from']:,}", f"{row['steps']:,}", loss, row["verdict"]))
    return Table(header=("change", "from step", "steps", "loss", "verdict"), lines=lines)


def headline(metrics: Sequence[Row], warned: Sequence[Row]) -> str:
    """The first warning, or that there was none."""
    steps = metrics[-1]["step"] if metrics else 0
    if not warned:
        return f"{many(steps, 'step')}, and nothing was reported."
    more = f" ({len(warned) - 1} more below)" if len(warned) > 1 else ""
    return f"{_capital(str(warned[0]['message']))}{more}."


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def warnings_table(warned: Sequence[Row]) -> Table | None:
    """A line per warning."""
    lines = [
        (
            f"{row['step']:,}",
            _capital(str(row["message"]).removeprefix(f"step {row['step']}: ")),
            str(row.get("cause") or ""),
            str(row.get("remedy") or ""),
        )
        for row in warned
    ]
    return Table(header=HEADER, lines=lines, left=4) if lines else None


def _curves(metrics: Sequence[Row], warned: Sequence[Row]) -> Drawing | None:
    if not metrics:
        return None
    drawn = drawing(2, height=3.2)
    for axes, name in zip(drawn.panels, ("loss", "grad_norm"), strict=True):
        known = [(row["step"], row[name]) for row in metrics if row.get(name) is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], linewidth=1.0)
        for i, row in enumerate(warned):
            axes.axvline(row["step"], color="#D55E00", linewidth=0.8, label=None if i else "warning")
        label(axes, "step", "loss" if name == "loss" else "norm of all gradients")
        steps(axes)
    if entropies := [row["unigram_entropy"] for row in warned if row.get("unigram_entropy") is not None]:
        entropy_line(drawn.panels[0], entropies[-1])
    log(drawn.panels[1])
    return drawn


def _layers(rows: Sequence[Row]) -> Drawing | None:
    known = [row for row in rows if row.get("gradient_norm") is not None]
    if not known:
        return None
    stacks = list(dict.fromkeys(row.get("stack") for row in known))
    drawn = drawing(len(stacks), height=3.2)
    for axes, stack in zip(drawn.panels, stacks, strict=True):
        own = [row for row in known if row.get("stack") == stack]
        addresses = list(dict.fromkeys(row["address"] for row in own))
        for i, address in enumerate(addresses):
            line = [(row["step"], row["gradient_norm"]) for row in own if row["address"] == address]
            colour = shade(i / max(1, len(addresses) - 1))
            axes.plot([x for x, _ in line], [y for _, y in line], color=colour, linewidth=0.9, label=UNLISTED + address)
        if len(stacks) > 1:
            heading(axes, str(stack))
        label(axes, "step", "gradient norm of the layer")
        steps(axes)
        log(axes)
    return drawn

"""The table of a depth profile and its sentences, from the plain data of `diagnose.json`."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Numbers = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A quantity: its header, how a number is written, and what stands for several layers."""

    key: str
    name: str
    of_several: Callable[[Numbers], float] = statistics.median
    form: str = "{:.3g}"


COLUMNS = (
    Column(key="gradient_norm", name="|grad|"),
    Column(key="gradient_mean_abs", name="mean|g| W₂,W_O"),
    Column(key="residual_rms", name="stream RMS"),
    Column(key="branch_skip_ratio", name="Var b/s"),
    Column(key="dependency", name="β²"),
    Column(key="dependency_sum", name="Σβ²", of_several=lambda numbers: numbers[-1], form="{:.2f}"),
    Column(key="amplification", name="amplif."),
    Column(key="attention_share", name="entropy", form="{:.0%}"),
    Column(key="largest_logit", name="max logit", of_several=max),
    Column(key="largest_over_median", name="max/median", of_several=max),
)
MOST = 36  # lines of a tower in a terminal
DISPENSABLE = ("|grad|", "Var b/s", "max/median", "placement", "Σβ²", "max logit", "amplif.")  # the first goes first


def header() -> tuple[str, ...]:
    return ("layer", "kind", "placement", *(column.name for column in COLUMNS))


def lines(profile: Row, most: int | None = None) -> Iterator[tuple[str, ...]]:
    """Cells of every sublayer, or of runs of layers, so that a tower has `most` lines at most.

    The first and the last layer stay alone. Of several layers: the median; of what sums up the last; of what is
    largest the largest.
    """
    for tower in profile["towers"]:
        rows = [row for row in profile["rows"] if row["tower"] == tower["name"]]
        named = f"{tower['name']} " if len(profile["towers"]) > 1 else ""
        for layers in _runs(tower["layers"], len(rows), most):
            inside = [row for row in rows if row["layer"] in layers]
            for kind in dict.fromkeys((row["kind"], row["placement"]) for row in inside):
                own = [row for row in inside if (row["kind"], row["placement"]) == kind]
                span = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
                yield (f"{named}{span}", *kind, *(_cell(own, column) for column in COLUMNS))


def fitting(cells: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """The columns, by number, that lines have room for; the page has them all."""
    names = header()
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    shown = list(range(len(names)))
    for name in DISPENSABLE:
        if sum(widths[i] + 2 for i in shown) - 2 > width:
            shown.remove(names.index(name))
    return shown


def whole(profile: Row) -> Iterator[tuple[str, ...]]:
    """Every sublayer with its address, all columns."""
    for row in profile["rows"]:
        place = f"channel {row['largest_channel']}, position {row['largest_position']}"
        yield (row["address"], row["kind"], row["placement"], *(_cell([row], column) for column in COLUMNS), place)


def summary(profile: Row) -> str:
    """What the model is."""
    towers = "; ".join(
        f"{tower['name']}: {_count(tower['layers'], 'layer')} of {_placements(tower['placements'])}"
        + (f", {_count(tower['final_norms'], 'final norm')}" if tower["final_norms"] else "")
        for tower in profile["towers"]
    )
    return f"{profile['model']}, {_millions(profile['parameters'])} parameters. {_capital(towers)}."


def sentences(profile: Row) -> Iterator[str]:
    """The loss, gradients over depth, the largest activation, what is missing."""
    if profile["loss"] is not None:
        beside = "" if profile["ln_classes"] is None else f"; ln {_classes(profile)} = {profile['ln_classes']:.3f}"
        yield f"Loss {number(profile['loss'])} ({_OBJECTIVES[profile['objective']]}){beside}."
    for group, ratio in profile["ratios"].items():
        tower, kind = group.rsplit(" ", 1)
        if kind == "ffn":
            yield (
                f"Gradient of W₂ in the {tower}: first/last layer {number(ratio['first_last'])},"
                f" largest/smallest {number(ratio['max_min'])}."
            )
    top = max(profile["rows"], key=lambda row: _or_less(row["largest_over_median"]))
    yield (
        f"Largest entry of a stream: {number(top['largest'])}, {number(top['largest_over_median'])} times the median,"
        f" behind {top['address']}, channel {top['largest_channel']}, position {top['largest_position']}."
    )
    for name, reason in profile["missing"].items():
        yield f"Missing: {name}: {reason}"


def number(value: float | None, form: str = "{:.3g}") -> str:
    """Three digits, thousands in full; "n/a" for what is no number."""
    if value is None or math.isnan(value):
        return "n/a"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else form.format(value)


_OBJECTIVES = {
    "next token": "of the next token",
    "given labels": "of the labels given",
    "random labels": "of random labels",
    "random targets": "there are no logits: mean square against random targets",
}


def _runs(layers: int, rows: int, most: int | None) -> Iterator[range]:
    """The layers in runs of one length, first and last alone."""
    if most is None or rows <= most or layers < 4:
        yield from (range(i, i + 1) for i in range(1, layers + 1))
        return
    kinds = -(-rows // layers)
    length = -(-(layers - 2) // max(1, most // kinds - 2))
    yield range(1, 2)
    yield from (range(i, min(i + length, layers)) for i in range(2, layers, length))
    yield range(layers, layers + 1)


def _cell(rows: Sequence[Row], column: Column) -> str:
    known = [row[column.key] for row in rows if row[column.key] is not None]
    return number(column.of_several(known), column.form) if known else ""


def _placements(counts: Mapping[str, int]) -> str:
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{name} ({n})" for name, n in counts.items())


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _millions(n: int) -> str:
    return f"{n / 1e6:,.1f} M" if n >= 1e6 else f"{n:,}"


def _classes(profile: Row) -> str:
    return f"{round(math.exp(profile['ln_classes'])):,}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _or_less(value: float | None) -> float:
    return -1.0 if value is None or math.isnan(value) else value

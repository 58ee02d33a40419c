"""Rows as files, and counted as tables."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.faults.catalogue import FAMILIES, FAMILY
from benchmarks.faults.checking import Row
from benchmarks.faults.training import Remedy
from benchmarks.faults.watching import Watched
from isograd.lab.statistics import wilson

Kind = TypeVar("Kind")


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    every = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(".part")  # whoever is killed, or reads now, finds whole rows
    with begun.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(every[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(every)
    begun.replace(path)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_as(kind: type[Kind], path: Path) -> list[Kind]:
    """Rows as dataclasses, by the types of its fields' defaults."""
    made = []
    for cells in read(path):
        typed = {f.name: _value(f.type, cells[f.name]) for f in fields(kind)}  # type: ignore[arg-type]
        made.append(kind(**typed))
    return made


def _value(type_: Any, text: str) -> Any:
    if type_ is bool:
        return text == "True"
    return float(text) if type_ is float else text


def share(found: int, n: int) -> str:
    """40 of 50, 80 % (67 .. 89): the interval is Wilson's at 95 %."""
    if n == 0:
        return "none"
    low, high = (100 * x for x in ends(found, n))
    return f"{found} of {n}, {100 * found / n:.0f} % ({low:.0f} .. {high:.0f})"


def ends(found: int, n: int) -> tuple[float, float]:
    interval = wilson(found, n)
    return interval.low, interval.high


@dataclass(frozen=True, kw_only=True)
class Line:
    title: str
    right: int
    first: int
    silent: int
    n: int


def lines(rows: Sequence[Row]) -> list[Line]:
    """Recall by family, and of all."""
    parts = [(family, [row for row in rows if FAMILY[row.fault] == family]) for family in FAMILIES]
    return [
        Line(
            title=title,
            right=sum(row.right for row in part),
            first=sum(row.first for row in part),
            silent=sum(row.silent for row in part),
            n=len(part),
        )
        for title, part in [*parts, ("all", list(rows))]
        if part
    ]


def text(rows: Sequence[Row]) -> str:
    """As it is printed while rules are developed."""
    out = [f"{'family':18} {'cause named':34} {'cause named first':34} silent"]
    out += [f"{x.title:18} {share(x.right, x.n):34} {share(x.first, x.n):34} {x.silent}" for x in lines(rows)]
    return "\n".join(out)


def remedy_text(rows: Sequence[Remedy]) -> str:
    acted = [row for row in rows if row.acted]
    return (
        f"the remedy named the change and the model trains again: {share(sum(row.trains for row in rows), len(rows))}\n"
        f"where it named the change: {share(sum(row.trains for row in acted), len(acted))}"
    )


def watch_text(rows: Sequence[Watched]) -> str:
    broken, healthy = [row for row in rows if row.cause], [row for row in rows if not row.cause]
    parts = {
        "detected": share(sum(row.detected for row in broken), len(broken)),
        "cause named": share(sum(row.right for row in broken), len(broken)),
        "cause named first": share(sum(row.first for row in broken), len(broken)),
        "healthy without an alarm": share(sum(not row.detected for row in healthy), len(healthy)),
    }
    return "\n".join(f"{title:26} {text}" for title, text in parts.items())

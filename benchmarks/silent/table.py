"""The table: what was named, of how many; with Wilson's intervals at 95 %."""

from collections.abc import Callable, Iterable
from math import sqrt
from pathlib import Path
from statistics import median

from .cases import CLASSES, SHOWS, Case
from .rows import RESULTS, Row, alone, key, read

BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def wilson(hits: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    """Bounds of a share (Wilson 1927).

    >>> [round(bound, 3) for bound in wilson(5, 10)]
    [0.237, 0.763]
    """
    middle, half = hits / of + z * z / (2 * of), z * sqrt(hits / of * (1 - hits / of) / of + (z / (2 * of)) ** 2)
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def share(hits: int, of: int) -> str:
    """
    >>> share(5, 10), share(0, 0)
    ('5 of 10, 50 % (24 .. 76)', '-')
    """
    if not of:
        return "-"
    low, high = wilson(hits, of)
    return f"{hits} of {of}, {100 * hits / of:.0f} % ({100 * low:.0f} .. {100 * high:.0f})"


class Result:
    """What a tool's rows say of a set of cases."""

    def __init__(self, name: str, cases: Iterable[Case], folder: Path = RESULTS) -> None:
        self.name = name
        self.rows = {(row["case"], row["twin"]): row for row in read(folder / f"{name}.csv")}
        self.judged = {
            (row["case"], row["hash"]): row["named"] for row in read(folder / "judged.csv") if row["tool"] == name
        }
        self.cases = [case for case in cases if all((case.name, twin) in self.rows for twin in case.twins)]
        self.stale = sum(self.rows[case.name, case.twins[0]]["digest"] != case.digest for case in self.cases)

    def of(self, twin: str, wanted: Callable[[Case], bool] = lambda _: True) -> list[tuple[Case, Row]]:
        return [(case, self.rows[case.name, twin]) for case in self.cases if twin in case.twins and wanted(case)]

    def verdict(self, case: Case) -> str:
        """yes or no; empty where it has not been judged."""
        messages = alone(self.rows[case.name, "faulty"], self.rows[case.name, "healthy"])
        return self.judged.get((case.name, key(messages)), "") if messages else "no"

    def named(self, wanted: Callable[[Case], bool] = lambda _: True) -> str:
        faults = self.of("faulty", wanted)
        return share(sum(self.verdict(case) == "yes" for case, _ in faults), len(faults))

    def alarms(self, twin: str) -> str:
        rows = self.of(twin)
        return share(sum(bool(row["alarm"]) for _, row in rows), len(rows))

    @property
    def version(self) -> str:
        return ", ".join(sorted({row["version"] for row in self.rows.values()}))

    @property
    def seconds(self) -> str:
        taken = [float(row["seconds"]) for row in self.rows.values() if row["seconds"]]
        return f"{median(taken):.1f}, {max(taken):.0f}" if taken else "-"

    @property
    def crashes(self) -> int:
        return sum(bool(row["crash"]) for row in self.rows.values())

    @property
    def unread(self) -> int:
        return sum(not self.verdict(case) for case, _ in self.of("faulty"))


def _lines(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def summary(results: list[Result]) -> list[str]:
    head = ("tool", "cause named", "held-out third", "of what it can look at", "alarm", "healthy twin: alarm", "oddity: alarm")
    return _lines(
        head,
        (
            (
                result.name,
                result.named(),
                result.named(lambda case: case.held_out),
                result.named(lambda case, rows=result.rows: rows[case.name, "faulty"]["seen"] == "yes"),  # type: ignore[misc]
                result.alarms("faulty"),
                result.alarms("healthy"),
                result.alarms("oddity"),
            )
            for result in results
        ),
    )


def _by(results: list[Result], key: str, values: Iterable[str], cases: list[Case]) -> list[str]:
    """Named, of the faults of each class or place."""
    counted = {value: sum(case.about[key] == value and not case.oddity for case in cases) for value in values}
    rows = []
    for value in (value for value, count in counted.items() if count):
        wanted = lambda case, value=value: case.about[key] == value  # noqa: E731
        hits = [sum(result.verdict(case) == "yes" for case, _ in result.of("faulty", wanted)) for result in results]
        rows.append((f"{value} ({counted[value]})", *map(str, hits)))
    return _lines((f"{key} (faults)", *(result.name for result in results)), rows)


def page(cases: list[Case], names: Iterable[str], folder: Path = RESULTS) -> tuple[str, str]:
    """The page of all tables, and the first of them alone."""
    results = [result for name in names if (result := Result(name, cases, folder)).cases]
    if not results:
        return "", ""
    order = sorted(results, key=lambda r: (-sum(r.verdict(case) == "yes" for case, _ in r.of("faulty")), r.name))
    faults = [case for case in cases if not case.oddity]
    held_out = sum(case.held_out for case in faults)
    more = _lines(
        ("tool", "version", "cases seen of all", "seconds of a look: median, most", "crashes", "not judged", "cases changed since"),
        (
            (
                r.name,
                r.version,
                f"{sum(row['seen'] == 'yes' for row in r.rows.values())} of {len(r.rows)}",
                r.seconds,
                str(r.crashes),
                str(r.unread),
                str(r.stale),
            )
            for r in order
        ),
    )
    text = [
        "# Silent faults: results",
        "",
        f"{len(faults)} faults, each with a healthy twin ({held_out} held out), and {len(cases) - len(faults)} oddities; "
        "[how they were made and judged](../silent.md). Written by `python -m benchmarks.silent table`. A share has "
        "Wilson's interval at 95 % in brackets.",
        "",
        *summary(order),
        "",
        "*Cause named*: a reader found the cause in what the tool reports of the faulty twin and not of the healthy one; what a "
        "tool cannot look at counts as not named. *Alarm*: it reports anything.",
        "",
        "## By class: causes named",
        "",
        *_by(order, "class", CLASSES, cases),
        "",
        "## By where the fault shows: causes named",
        "",
        *_by(order, "shows", SHOWS, cases),
        "",
        "## Versions and time",
        "",
        *more,
        "",
    ]
    return "\n".join(text), "\n".join(summary(order))


def into(text: str, table: str) -> str:
    """A page with the table between its marks replaced."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table or 'No tool has been run yet.'}\n\n{END}{rest.partition(END)[2]}"

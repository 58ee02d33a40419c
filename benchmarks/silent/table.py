"""The tables: causes named, alarms, false alarms; with Wilson's intervals at 95 %."""

from collections.abc import Callable, Iterable
from math import sqrt
from pathlib import Path
from statistics import median

from .cases import CLASSES, SHOWS, Case
from .rows import RESULTS, alone, by_case, key, read

BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def share(hits: int, of: int, z: float = 1.959964) -> str:
    """A share with Wilson's interval (1927).

    >>> share(5, 10), share(0, 0)
    ('5 of 10, 50 % (24 .. 76)', '-')
    """
    if not of:
        return "-"
    p, more = hits / of, z * z / of
    middle, half = p + more / 2, z * sqrt(p * (1 - p) / of + more / (4 * of))
    low, high = (100 * abs(middle + sign * half) / (1 + more) for sign in (-1, 1))
    return f"{hits} of {of}, {100 * p:.0f} % ({low:.0f} .. {high:.0f})"


class Result:
    """What a tool's rows say."""

    def __init__(self, name: str, cases: list[Case], folder: Path) -> None:
        self.name = name
        self.rows, self.cases = by_case(name, cases, folder)
        judged = {
            (row["case"], row["hash"]): row["named"] for row in read(folder / "judged.csv") if row["tool"] == name
        }
        self.verdicts = {  # yes or no; empty where it has not been judged
            case: judged.get((case.name, key(messages)), "") if (messages := alone(self.rows, case)) else "no"
            for case in self.cases
            if not case.oddity
        }

    def sees(self, case: Case) -> bool:
        return self.rows[case.name, "faulty"]["seen"] == "yes"

    def hits(self, wanted: Callable[[Case], bool]) -> tuple[int, int]:
        verdicts = [verdict for case, verdict in self.verdicts.items() if wanted(case)]
        return verdicts.count("yes"), len(verdicts)

    def alarms(self, twin: str) -> str:
        alarms = [self.rows[case.name, twin]["alarm"] for case in self.cases if twin in case.twins]
        return share(alarms.count("yes"), len(alarms))

    def line(self) -> tuple[str, ...]:
        kinds = (lambda _: True, lambda case: case.held_out, self.sees)
        return (self.name, *(share(*self.hits(k)) for k in kinds), *map(self.alarms, ("faulty", "healthy", "oddity")))

    def facts(self) -> tuple[str, ...]:
        rows = [self.rows[case.name, twin] for case in self.cases for twin in case.twins]
        seconds = [float(row["seconds"]) for row in rows if row["seconds"]] or [0.0]
        changed = sum(self.rows[case.name, case.twins[0]]["digest"] != case.digest for case in self.cases)
        counts = (sum(bool(row["crash"]) for row in rows), list(self.verdicts.values()).count(""), changed)
        versions = ", ".join(sorted({row["version"] for row in rows}))
        return (self.name, versions, f"{median(seconds):.1f}, {max(seconds):.0f}", *map(str, counts))


def _lines(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _by(results: list[Result], what: str, values: Iterable[str], cases: list[Case]) -> str:
    rows = []
    for value in values:

        def wanted(case: Case, value: str = value) -> bool:
            return bool(case.about[what] == value)

        if count := sum(wanted(case) and not case.oddity for case in cases):
            rows.append((f"{value} ({count})", *(str(result.hits(wanted)[0]) for result in results)))
    return _lines((f"{what} (faults)", *(result.name for result in results)), rows)


def page(cases: list[Case], folder: Path = RESULTS) -> tuple[str, str]:
    """The page of all tables, and the first table alone; empty where there are no rows."""
    names = sorted(path.stem for path in folder.glob("*.csv") if path.stem != "judged")
    results = [result for name in names if (result := Result(name, cases, folder)).cases]
    if not results:
        return "", ""
    results.sort(key=lambda result: -result.hits(lambda _: True)[0])
    head = ("tool", "cause named", "held-out third", "of what it can look at")
    first = _lines((*head, "alarm", "healthy twin: alarm", "oddity: alarm"), (result.line() for result in results))
    facts = ("tool", "version", "CPU seconds of a look: median, most", "crashes", "not judged", "cases changed since")
    faults = [case for case in cases if not case.oddity]
    parts = (
        "# Silent faults: results",
        f"{len(faults)} faults, each with a healthy twin ({sum(case.held_out for case in faults)} held out), and "
        f"{len(cases) - len(faults)} oddities: [how they were made and judged](../silent.md). Written by "
        "`python -m benchmarks.silent table`. A share has Wilson's interval at 95 % in brackets.",
        first,
        "*Cause named*: a reader found the cause in what the tool reports of the faulty twin and not of the healthy "
        "one; what a tool cannot look at counts as not named. *Alarm*: it reports anything.",
        "## By class: causes named",
        _by(results, "class", CLASSES, cases),
        "## By where the fault shows: causes named",
        _by(results, "shows", SHOWS, cases),
        "## Versions and time",
        _lines(facts, (result.facts() for result in results)),
    )
    return "\n\n".join(parts) + "\n", first


def into(text: str, table: str) -> str:
    """A page with the table between its marks replaced."""
    before, _, rest = text.partition(BEGIN)
    more = "By class, by where a fault shows, versions and time: [all tables](results/silent.md)."
    said = f"{table}\n\n{more}" if table else "No tool has been run yet."
    return f"{before}{BEGIN}\n\n{said}\n\n{END}{rest.partition(END)[2]}"

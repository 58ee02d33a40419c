"""Each look in a process of its own; what was said as rows; what a reader judged."""

import contextlib
import csv
import hashlib
import multiprocessing
import os
import queue
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .cases import Case
from .loops import CannotLookError
from .tools import TOOLS

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "silent"
FIELDS = ("case", "twin", "seen", "alarm", "said", "seconds", "crash", "digest", "version")
JUDGED = ("tool", "case", "hash", "named")
FORM = ("hash", "case", "cause", "said", "named")
LIMIT = 180  # seconds of one look
BETWEEN = " | "
MOST = 8000  # characters of what was said

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def write(path: Path, fields: tuple[str, ...], rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _looked(name: str, case: Case, twin: str, answer: Any, log: int) -> None:
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        said = [" ".join(str(message).split()) for message in TOOLS[name].look(case, twin == "faulty")]
        found = {"seen": "yes", "alarm": "yes" if said else "", "said": BETWEEN.join(said)[:MOST]}
    except CannotLookError as reason:
        found = {"said": f"({reason})"}
    except BaseException as error:
        found = {"seen": "yes", "crash": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    answer.put(found | {"seconds": f"{sum(os.times()[:4]):.1f}"})


def look(name: str, case: Case, twin: str, limit: float = LIMIT) -> Row:
    """One look by a tool, in a process that is killed after `limit` seconds with all that it started. `seconds` are of
    CPU time; the tool's own import and what it runs are included."""
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    with tempfile.TemporaryFile() as log:
        child = context.Process(target=_looked, args=(name, case, twin, answer, log.fileno()))
        child.start()
        found: Row = {}
        until, alive = time.monotonic() + limit, True
        while not found and alive and time.monotonic() < until:
            alive = child.is_alive()
            with contextlib.suppress(queue.Empty):
                found = answer.get(timeout=0.2)
        if not found:
            found = {"seen": "yes", "crash": f"no answer in {limit:g} s" if alive else f"exit code {child.exitcode}"}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.kill()
        child.join()
    return dict.fromkeys(FIELDS, "") | found


def run(name: str, cases: list[Case], folder: Path = RESULTS, limit: float = LIMIT) -> Iterator[Row]:
    """The rows of a tool, each written as soon as it is there. One of the same case and version is not made again."""
    tool, path = TOOLS[name], folder / f"{name}.csv"
    rows = {(row["case"], row["twin"]): row for row in read(path)}
    for case in cases:
        for twin in case.twins:
            what = {"case": case.name, "twin": twin, "digest": case.digest, "version": tool.version()}
            if what.items() <= rows.get((case.name, twin), {}).items():
                continue
            seen = case.about["shows"] in tool.looks_at
            row = (look(name, case, twin, limit) if seen else dict.fromkeys(FIELDS, "")) | what
            rows[case.name, twin] = row
            write(path, FIELDS, [rows[key] for key in sorted(rows)])
            yield row


def plain(message: str) -> str:
    """A message without its numbers, so that a rounding is no other message.

    >>> plain("the loss is 4.66e-05 after 20 steps")
    'the loss is # after # steps'
    """
    return re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", message)


def key(messages: list[str]) -> str:
    return hashlib.sha256(plain(BETWEEN.join(messages)).encode()).hexdigest()[:12]


def alone(rows: dict[tuple[str, str], Row], case: Case) -> list[str]:
    """What is said of the faulty twin and not of the healthy one."""
    faulty, healthy = rows[case.name, "faulty"], rows[case.name, "healthy"]
    other = {plain(message) for message in healthy["said"].split(BETWEEN)}
    return [m for m in faulty["said"].split(BETWEEN) if faulty["alarm"] and plain(m) not in other]


def by_case(name: str, cases: list[Case], folder: Path) -> tuple[dict[tuple[str, str], Row], list[Case]]:
    """A tool's rows, and the cases of which it has all."""
    rows = {(row["case"], row["twin"]): row for row in read(folder / f"{name}.csv")}
    return rows, [case for case in cases if all((case.name, twin) in rows for twin in case.twins)]


def said(names: list[str], cases: list[Case], folder: Path) -> Iterator[tuple[str, Case, list[str]]]:
    for name in names:
        rows, there = by_case(name, cases, folder)
        for case in there:
            if not case.oddity and (messages := alone(rows, case)):
                yield name, case, messages


def to_judge(names: list[str], cases: list[Case], folder: Path = RESULTS) -> list[Row]:
    """A form of what no reader has judged, in the order of hashes, with the tools' names taken out."""
    known = {(row["tool"], row["case"], row["hash"]) for row in read(folder / "judged.csv")}
    found: dict[tuple[str, str], Row] = {}
    for name, case, messages in said(names, cases, folder):
        if (name, case.name, key(messages)) not in known:
            text = re.sub(f"{name}|{name.replace('-', '_')}", "TOOL", BETWEEN.join(messages), flags=re.IGNORECASE)
            values = (key(messages), case.name, case.about["cause"], text, "")
            found[case.name, key(messages)] = dict(zip(FORM, values, strict=True))
    return sorted(found.values(), key=lambda row: row["hash"])


def take(form: list[Row], names: list[str], cases: list[Case], folder: Path = RESULTS) -> int:
    """Takes a filled form into judged.csv, for every tool that says this of the case; how many verdicts are new."""
    given = {(row["case"], row["hash"]): row["named"].strip().lower() for row in form}
    if wrong := set(given.values()) - {"yes", "no", ""}:
        raise SystemExit(f"named is yes or no, not {', '.join(sorted(wrong))}")
    rows = {(row["tool"], row["case"], row["hash"]): row for row in read(folder / "judged.csv")}
    before = len(rows)
    for name, case, messages in said(names, cases, folder):
        if named := given.get((case.name, key(messages))):
            values = (name, case.name, key(messages), named)
            rows[values[:3]] = dict(zip(JUDGED, values, strict=True))
    write(folder / "judged.csv", JUDGED, [rows[entry] for entry in sorted(rows)])
    return len(rows) - before

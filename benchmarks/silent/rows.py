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

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "silent"
FIELDS = ("case", "twin", "seen", "alarm", "said", "seconds", "crash", "digest", "version")
JUDGED = ("tool", "case", "hash", "named")
LIMIT = 180  # seconds of one look
BETWEEN = " | "
MOST = 4000  # characters of what was said

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    return list(csv.DictReader(path.open(encoding="utf-8", newline=""))) if path.exists() else []


def write(path: Path, fields: tuple[str, ...], rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _looked(name: str, case: Case, twin: str, answer: Any, log: str) -> None:
    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import torch

    from .tools import TOOLS, CannotLook

    torch.set_num_threads(1)
    begun = time.perf_counter()
    try:
        said = [re.sub(r"\s+", " ", str(message)).strip() for message in TOOLS[name]().look(case, twin)]
        found = {"seen": "yes", "alarm": "yes" if said else "", "said": BETWEEN.join(said)[:MOST]}
    except CannotLook as reason:
        found = {"said": f"({reason})"}
    except BaseException as error:
        found = {"seen": "yes", "crash": f"{type(error).__name__}: {error}"[:300]}
    answer.put(found | {"seconds": f"{time.perf_counter() - begun:.1f}"})


def look(name: str, case: Case, twin: str, limit: float = LIMIT) -> Row:
    """One look by a tool, in a process of its own that is killed after `limit` seconds, with all that it started."""
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    with tempfile.NamedTemporaryFile() as log:
        child = context.Process(target=_looked, args=(name, case, twin, answer, log.name))
        child.start()
        found: Row | None = None
        until = time.monotonic() + limit
        while found is None and time.monotonic() < until:
            alive = child.is_alive()
            with contextlib.suppress(queue.Empty):
                found = answer.get(timeout=0.2)
            if not alive and found is None:
                break
        if found is None:
            crash = f"no answer in {limit:g} s" if child.is_alive() else f"exit code {child.exitcode}"
            found = {"seen": "yes", "crash": crash}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
    return dict.fromkeys(FIELDS, "") | {"case": case.name, "twin": twin, "digest": case.digest} | found


def run(name: str, cases: list[Case], folder: Path = RESULTS, limit: float = LIMIT) -> Iterator[Row]:
    """Rows of a tool. A row is written as soon as it is there; one of the same case and version is not made again."""
    from .tools import TOOLS

    made, path = TOOLS[name](), folder / f"{name}.csv"
    version = made.version()
    rows = {(row["case"], row["twin"]): row for row in read(path)}
    for case in cases:
        for twin in case.twins:
            row = rows.get((case.name, twin))
            if row and (row["digest"], row["version"]) == (case.digest, version):
                continue
            if case.about["shows"] in made.looks_at:
                row = look(name, case, twin, limit)
            else:
                row = dict.fromkeys(FIELDS, "") | {"case": case.name, "twin": twin, "digest": case.digest}
            rows[case.name, twin] = row | {"version": version}
            write(path, FIELDS, [rows[key] for key in sorted(rows)])
            yield rows[case.name, twin]


def plain(message: str) -> str:
    """A message without its numbers, so that another machine's rounding is no other message."""
    return re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "#", message)


def alone(faulty: Row, healthy: Row) -> list[str]:
    """What is said of the faulty twin and not of the healthy one."""
    other = {plain(message) for message in healthy["said"].split(BETWEEN)}
    return [m for m in faulty["said"].split(BETWEEN) if m and faulty["alarm"] and plain(m) not in other]


def key(messages: list[str]) -> str:
    return hashlib.sha256(plain(BETWEEN.join(messages)).encode()).hexdigest()[:12]


def to_judge(names: list[str], cases: list[Case], folder: Path = RESULTS) -> list[Row]:
    """What no reader has judged: case, cause and message, in the order of hashes, with the tool's name taken out."""
    known = {(row["tool"], row["case"], row["hash"]) for row in read(folder / "judged.csv")}
    found: dict[tuple[str, str], Row] = {}
    for name, case, messages in said(names, cases, folder):
        digest = key(messages)
        if (name, case.name, digest) not in known:
            text = re.sub("|".join(map(re.escape, {name, name.replace("-", "_")})), "TOOL", BETWEEN.join(messages))
            found[case.name, digest] = {
                "hash": digest,
                "case": case.name,
                "cause": case.about["cause"],
                "said": text,
                "named": "",
            }
    return sorted(found.values(), key=lambda row: row["hash"])


def said(names: list[str], cases: list[Case], folder: Path = RESULTS) -> Iterator[tuple[str, Case, list[str]]]:
    """(tool, case, what it says of the faulty twin alone), where that is not nothing."""
    for name in names:
        rows = {(row["case"], row["twin"]): row for row in read(folder / f"{name}.csv")}
        for case in cases:
            if not case.oddity and (case.name, "faulty") in rows and (case.name, "healthy") in rows:
                messages = alone(rows[case.name, "faulty"], rows[case.name, "healthy"])
                if messages:
                    yield name, case, messages


def take(form: list[Row], names: list[str], cases: list[Case], folder: Path = RESULTS) -> int:
    """Takes a filled form into judged.csv, for every tool that says the same of the case."""
    given = {(row["case"], row["hash"]): row["named"].strip().lower() for row in form}
    if wrong := {named for named in given.values()} - {"yes", "no", ""}:
        raise SystemExit(f"named is yes or no, not {', '.join(sorted(wrong))}")
    rows = {(row["tool"], row["case"], row["hash"]): row for row in read(folder / "judged.csv")}
    before = len(rows)
    for name, case, messages in said(names, cases, folder):
        if named := given.get((case.name, key(messages))):
            entry = (name, case.name, key(messages))
            rows[entry] = dict(zip(JUDGED, (*entry, named), strict=True))
    write(folder / "judged.csv", JUDGED, [rows[entry] for entry in sorted(rows)])
    return len(rows) - before

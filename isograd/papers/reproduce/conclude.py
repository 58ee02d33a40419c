"""What has been trained, measured and judged: result.json and rows.csv of an item."""

import csv
import hashlib
import inspect
import io
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

from isograd.files import finite, locked, write_json, write_text
from isograd.lab.study.plan import ARM, CELLS
from isograd.machine import commit
from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.item import Item, Judgement, Row, Rows
from isograd.papers.reproduce.plan import Asked, Planned, folder_of

RESULT, ROWS = "result.json", "rows.csv"
_NOTHING: dict[str, tuple[float, bool]] = {}


def conclude(planned: Planned, asked: Asked, note: Callable[[str], None]) -> Row:
    """Measure and judge what has been trained; writes rows.csv and result.json, and gives the latter's content.

    Raises:
        FolderBusyError: another process is at work at this item.
    """
    item, folder = planned.item, folder_of(planned.item, asked.out)
    with locked(folder):
        began, spent = time.process_time(), _NOTHING
        if planned.lacking:
            rows: Rows = []
            verdict = Judgement(verdict="not run", reason=planned.lacking)
        else:
            context = _context(planned, asked, folder, note)
            rows = item.measure(context) if item.measure else context.rows()
            assert item.judge is not None
            verdict = item.judge(rows)
            spent = context.spent
        before = sum(seconds for seconds, now in spent.values() if not now)
        seconds = before + time.process_time() - began + _trained(planned, asked, folder)
        content = _result(planned, asked, verdict, rows, seconds)
        if planned.lacking and _has_run(folder / RESULT):
            note(f"{item.id}: the earlier result in {folder} is kept")
            return content
        write_text(folder / ROWS, _csv(rows))
        write_json(folder / RESULT, content)  # last: it says that the item is whole
    return content


def _has_run(result: Path) -> bool:
    """Whether there is a verdict that runs have given."""
    try:
        return bool(json.loads(result.read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError):
        return False


def _context(planned: Planned, asked: Asked, folder: Path, note: Callable[[str], None]) -> Context:
    item = planned.item
    trained = [
        Trained(
            group=member.group,
            arm=member.arm,
            run=member.cell.run,
            values={key: value for key, value in member.cell.values.items() if key != ARM},
            folder=asked.out / CELLS / member.cell.name,
        )
        for member in planned.members
    ]
    given = asked.data is not None and asked.data.is_dir() and item.corpus is not None
    return Context(
        trained=tuple(trained),
        settings=planned.settings,
        corpus=(asked.data / item.corpus.folder).resolve() if given and asked.data and item.corpus else None,
        folder=folder,
        seeds=asked.seeds,
        jobs=asked.jobs,
        version=_version(item),
        note=note,
    )


def _version(item: Item) -> str:
    """Of the file that the measure stands in."""
    source = inspect.getsourcefile(item.measure) if item.measure else None
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()[:12] if source else ""


def _trained(planned: Planned, asked: Asked, folder: Path) -> float:
    """Processor seconds of the item's runs, and of those that its measure has made."""
    own = (asked.out / CELLS / cell.name / "outcome.json" for cell in planned.cells)
    outcomes = [json.loads(path.read_text(encoding="utf-8")) for path in [*own, *folder.rglob("outcome.json")]]
    return sum(outcome.get("cpu_seconds") or outcome.get("seconds") or 0.0 for outcome in outcomes)


def _result(planned: Planned, asked: Asked, verdict: Judgement, rows: Rows, seconds: float) -> Row:
    from isograd.lab.train.provenance import provenance

    item = planned.item
    return {
        **item.about(),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "rule": item.rule,
        "ours": finite([asdict(one) for one in verdict.ours]),
        "differs": item.differs,
        "read": planned.reading,
        "with data": asked.data is not None and bool(item.corpora),
        "changed": [
            *([f"data={asked.data.name}"] if asked.data and asked.data.is_file() else []),
            *asked.overrides,
            *([f"seeds={list(asked.seeds)}"] if asked.seeds else []),
        ],
        "compare": planned.compare,
        "charts": [{**asdict(chart), "where": dict(chart.where)} for chart in item.charts],
        "run charts": list(item.run_charts),
        "cells": [cell.name for cell in planned.cells],
        "rows": len(rows),
        "core minutes": round(seconds / 60, 2),
        "date": date.today().isoformat(),
        "commit": commit(),
        "provenance": provenance(),
    }


def _csv(rows: Rows) -> str:
    """A column for each key of any row, in the order in which they come."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([names, *([finite(row.get(name)) for name in names] for row in rows)] if names else [])
    return text.getvalue().encode("utf-8", "replace").decode()

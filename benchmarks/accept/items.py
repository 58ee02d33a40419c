"""Jobs and rows of reproduced items: of each whose verdict stands in docs/results and takes ten minutes at most.

Driven by the table of items and the stored verdicts: an item that gets a verdict there has its row by that.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.accept import sentences
from benchmarks.accept.row import Folders, Job, Measured, Row
from benchmarks.accept.state import ROOT
from isograd.papers.reproduce.item import Item
from isograd.papers.reproduce.registry import ITEMS

PAGE = "docs/results/reproduce/README.md"
MINUTES = 10  # of one core
STORED = ROOT / PAGE.replace("README.md", "results.json")


def repeated() -> dict[str, dict[str, Any]]:
    """The stored results that a CPU repeats in ten minutes, by item."""
    if not STORED.exists():
        return {}
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    return {name: found for name, found in stored.items() if name in ITEMS and _short(found)}


def _short(found: dict[str, Any]) -> bool:
    return found["verdict"] != "not run" and found["core minutes"] <= MINUTES and not found["changed"]


def jobs() -> Iterator[Job]:
    """A command per item, in a folder of its own: what it shares with others is trained again."""
    for name, found in repeated().items():
        data = " --data {data}" if found["with data"] else ""
        command = f"isograd reproduce {name}{data} --jobs 1 --out {{out}}"
        needs = _needs(ITEMS[name]) if data else ""
        yield Job(name=job_name(name), command=command, minutes=found["core minutes"], needs=needs)


def job_name(name: str) -> str:
    return f"reproduce-{name.replace('/', '-')}"


def _needs(item: Item) -> str:
    corpus = next(iter(item.corpora.values()), None)
    return f"{corpus.folder}/{corpus.files[0]}" if corpus else "*"


def rows() -> Iterator[Row]:
    """A row per item: the stored verdict comes out again."""
    if not repeated():
        return
    said = sentences.sentences((ROOT / PAGE).read_text(encoding="utf-8"))
    for name, found in repeated().items():
        yield Row(
            name=job_name(name),
            page=PAGE,
            sentence=next(one for one in said if one.startswith(f"| {name} |")),
            rule=f"the verdict is {found['verdict']!r} again. {ITEMS[name].rule}",
            n=f"n = {max((one['n'] for one in found['ours']), default=0)}",
            measure=partial(_same_verdict, name, found["verdict"]),
            jobs=(job_name(name),),
            tier="full",
        )


def _same_verdict(name: str, verdict: str, folders: Folders) -> Measured:
    path = folders[job_name(name)] / "items" / name / "result.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return Measured(said=f"{found['verdict']}: {found['reason']}", holds=found["verdict"] == verdict)

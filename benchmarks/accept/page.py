"""The page: claimed, measured, holds. One self-contained HTML file, and the same as JSON."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from benchmarks.accept.row import Job
from isograd.files import finite, write_text

Result = dict[str, Any]
_CODE = re.compile(r"`([^`]*)`")
VERDICTS = ("does not hold", "failed", "holds", "skipped", "not measured")
WORSE = ("failed", "does not hold", "not measured", "skipped", "holds")  # of a sentence with several rows the first


def write_page(folder: Path, results: Sequence[Result], jobs: dict[str, Job], about: Result, tiers: str) -> Path:
    """Write accept.html and accept.json into `folder`; rows in the order of the table."""
    loader = ChoiceLoader([FileSystemLoader(Path(__file__).parent), PackageLoader("isograd.lab.report", ".")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters["code"] = lambda text: Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))
    text = environment.get_template("page.html.j2").render(
        headline=headline(results),
        wrong=[one for one in results if one["verdict"] in ("does not hold", "failed")],
        tiers=tiers,
        pages=[(page, _sentences([one for one in results if one["page"] == page], jobs)) for page in _pages(results)],
        about=about,
    )
    write_text(folder / "accept.html", text)
    write_text(folder / "accept.json", json.dumps(finite({"about": about, "rows": list(results)}), indent=1) + "\n")
    return folder / "accept.html"


def headline(results: Sequence[Result]) -> str:
    """What came out, in one sentence.

    >>> rows = [{"page": "p", "sentence": "a", "verdict": v} for v in ("holds", "holds", "does not hold", "skipped")]
    >>> headline(rows), headline(rows[:2])
    ('2 of 3 measured rows hold, 1 does not hold; 1 skipped.', '2 of 2 measured rows hold.')
    """
    counts = {verdict: sum(one["verdict"] == verdict for one in results) for verdict in VERDICTS}
    known = counts["holds"] + counts["does not hold"] + counts["failed"]
    said = [f"{counts['holds']} of {known} measured rows hold"]
    said += [f"{counts['does not hold']} does not hold"] if counts["does not hold"] == 1 else []
    said += [f"{counts['does not hold']} do not hold"] if counts["does not hold"] > 1 else []
    said += [f"{counts['failed']} failed"] if counts["failed"] else []
    rest = [f"{counts[verdict]} {verdict}" for verdict in ("skipped", "not measured") if counts[verdict]]
    return "; ".join([", ".join(said), *rest]) + "."


def _pages(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one["page"] for one in results))


def _sentences(results: Sequence[Result], jobs: dict[str, Job]) -> list[dict[str, Any]]:
    """A sentence, the worst verdict among its rows, and these."""
    found = []
    for sentence in dict.fromkeys(one["sentence"] for one in results):
        rows = [one for one in results if one["sentence"] == sentence]
        verdict = min((one["verdict"] for one in rows), key=WORSE.index)
        found.append({"sentence": sentence, "verdict": verdict, "rows": [_line(one, jobs) for one in rows]})
    return found


def _line(result: Result, jobs: dict[str, Job]) -> dict[str, Any]:
    about, cpu = result.get("about"), result.get("cpu_seconds")
    return {
        **{name: result[name] for name in ("name", "measured", "verdict", "rule", "n", "stored", "tier")},
        "commands": [command(jobs[name]) for name in result["jobs"]],
        "when": f"{about['date']}, commit {about['commit']}" if about else "",
        "minutes": f"{cpu / 60:.1f} min of one core" if cpu else "",
    }


def command(job: Job) -> str:
    """As one would type it.

    >>> command(Job(name="a", command="isograd study r.yaml --out {out}", minutes=1))
    'isograd study r.yaml --out FOLDER/a'
    """
    return job.command.replace("{out}", f"FOLDER/{job.name}").replace("{data}", "DATA")

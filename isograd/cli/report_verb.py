"""`isograd report FOLDER...`: tables and figures from the files of runs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from isograd.cli import UserError

_EPILOG = """\
examples:
  isograd report runs/compare
  isograd report runs/pre-ln-12l runs/normformer-12l --out paper --title "12 layers"

Reads files only: a folder copied from another machine will do."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="the folder of a run, or a folder of such folders"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: report/ in the first FOLDER)")
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--json", action="store_true", help="the results as one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from isograd.report.folders import find_runs, readable

    for folder in options.folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is {'not a folder' if folder.exists() else 'not there'}")
    found = find_runs(options.folders)
    runs, faults = readable(found)
    for line in faults:
        print(f"left out: {line}", file=sys.stderr)
    if not runs:
        among = f"none of {len(found)} can be read" if found else "no folder with a run.json in it or below it"
        raise UserError(f"nothing to report on in {', '.join(map(str, options.folders))}: {among}")
    written = _write(runs, options.out or options.folders[0] / "report", options.title)
    _tell(written, faults, options.json)
    return 0


def _write(runs: list[Path], out: Path, title: str | None) -> dict[Path, list[Path]]:
    """A page per task, in folders of their own where there are several; each page with its runs."""
    from isograd.report.page import TITLE, write_report

    tasks: dict[str, list[Path]] = {}
    for folder in runs:
        tasks.setdefault(_task(folder), []).append(folder)
    written = {}
    for task, folders in tasks.items():
        into = out if len(tasks) == 1 else out / task
        into.mkdir(parents=True, exist_ok=True)
        page = write_report(folders, into, title or TITLE, all_figures=True)
        written[page] = folders
    return written


def _tell(written: dict[Path, list[Path]], faults: list[str], as_json: bool) -> None:
    from isograd.cli.compare_table import print_table

    if as_json:
        print(json.dumps({"reports": [_content(page) for page in written], "left_out": faults}, indent=2))
        return
    for page, folders in written.items():
        print_table(folders, page)


def _task(folder: Path) -> str:
    content: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return str(content.get("task", "language"))


def _content(page: Path) -> dict[str, Any]:
    return {"report": str(page), "runs": json.loads(page.with_name("results.json").read_text(encoding="utf-8"))}

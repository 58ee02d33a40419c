"""`isograd report FOLDER...`: tables and figures from the files of runs, or of a study."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.errors import UserError

if TYPE_CHECKING:
    from isograd.report.style import Output

_EPILOG = """\
examples:
  isograd report runs/compare
  isograd report runs/pre-ln-12l runs/normformer-12l --out paper --title "12 layers"
  isograd report runs/compare --style paper --width 3.25 --format pdf
  isograd report runs/warmup --reference normformer      of a study: one that holds a study.json

Reads files only: a folder copied from another machine will do."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="the folder of a run or a study, or a folder of runs"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: report/ in the first FOLDER)")
    parser.add_argument("--title", help="of the page")
    parser.add_argument(
        "--reference",
        metavar="ARM",
        help="placement or label of the arm that the others are measured against (default: pre-ln, or the first)",
    )
    parser.add_argument(
        "--style", choices=["screen", "paper"], default="screen", help="of the figures' files: letters and lines"
    )
    parser.add_argument(
        "--width", type=float, metavar="INCHES", help="of the figures' files (default: 8.4, of a paper 3.25)"
    )
    parser.add_argument(
        "--format",
        nargs="+",
        choices=["svg", "png", "pdf"],
        default=["svg", "png"],
        help="of the figures' files (default: svg png)",
    )
    parser.add_argument("--json", action="store_true", help="the results as one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from isograd.report.runs import find_runs, readable

    for folder in options.folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is {'not a folder' if folder.exists() else 'not there'}")
    if len(options.folders) == 1 and (options.folders[0] / "study.json").exists():
        return _report_study(options)
    if len(options.folders) == 1 and (options.folders[0] / "headroom.json").exists():
        return _report_headroom(options)
    found = find_runs(options.folders)
    runs, faults = readable(found)
    for line in faults:
        print(f"left out: {line}", file=sys.stderr)
    if not runs:
        among = f"none of {len(found)} can be read" if found else "no folder with a run.json in it or below it"
        raise UserError(f"nothing to report on in {', '.join(map(str, options.folders))}: {among}")
    _tell(_write(runs, options), faults, options)
    return 0


def _output(options: argparse.Namespace) -> "Output":
    from isograd.report.style import Output

    if options.width is not None and not 1 <= options.width <= 40:
        raise UserError(f"--width {options.width:g}: expected 1 to 40 inches")
    return Output(formats=options.format, style=options.style, width=options.width)


def _report_study(options: argparse.Namespace) -> int:
    """The page of the study in a folder, and what a terminal or a program reads of it."""
    from isograd.cli.study_table import print_study
    from isograd.report.study_page import write_study_report

    try:
        report = write_study_report(options.folders[0], options.out, options.title, options.reference, _output(options))
    except ValueError as error:
        raise UserError(str(error)) from error
    if options.json:
        print(json.dumps({"report": str(report.page), **report.results}, indent=2))
    else:
        print_study(report)
    return 0


def _report_headroom(options: argparse.Namespace) -> int:
    """The page of a search for the largest rate that trains."""
    from isograd.cli.headroom_verb import tell

    tell(options.folders[0], options.json, options.out, options.title, _output(options))
    return 0


def _write(runs: list[Path], options: argparse.Namespace) -> list[tuple[list[Path], Path, str | None]]:
    """A page for each kind of run, in folders of their own where there are several: its runs, the page, its reference.

    Of several kinds the named reference may be in some only.
    """
    from isograd.report.runs import arms_of, by_kind, reference_of
    from isograd.report.runs_page import write_report

    kinds, name = by_kind(runs), options.reference
    having = [kind for kind, folders in kinds.items() if name and reference_of(arms_of(folders), name)]
    if name and not having:
        labels = [arm.label for folders in kinds.values() for arm in arms_of(folders)]
        raise UserError(f"--reference {name}: no arm is called so; there are {'; '.join(labels)}")
    out = options.out or options.folders[0] / "report"
    written = []
    for kind, folders in kinds.items():
        into, reference = out if len(kinds) == 1 else out / kind, name if kind in having else None
        into.mkdir(parents=True, exist_ok=True)
        page = write_report(folders, into, options.title, True, reference, _output(options))
        written.append((folders, page, reference))
    return written


def _tell(written: list[tuple[list[Path], Path, str | None]], faults: list[str], options: argparse.Namespace) -> None:
    from isograd.cli.compare_table import print_table

    if options.json:
        print(json.dumps({"reports": [_content(*one) for one in written], "left_out": faults}, indent=2))
        return
    for folders, page, reference in written:
        print_table(folders, page, reference)


def _content(folders: list[Path], page: Path, reference: str | None) -> dict[str, Any]:
    """What a program reads of a page."""
    from isograd.report.runs import arms_of
    from isograd.report.runs_page import findings

    said = list(findings(arms_of(folders), reference))
    results = json.loads(page.with_name("results.json").read_text(encoding="utf-8"))
    return {"report": str(page), "findings": said, "runs": results}

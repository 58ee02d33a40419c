"""`isograd report FOLDER...`: tables and figures from the files of runs, a study or a search."""

import json as json_
import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from isograd.cli.console import print_json
from isograd.cli.parser import Folder
from isograd.errors import UserError, refusing
from isograd.hub import is_watched

if TYPE_CHECKING:
    from isograd.report.style import Output


def report(
    *folders: Folder,
    out: Folder | None = None,
    title: Annotated[str, "TEXT"] | None = None,
    reference: Annotated[str, "ARM"] | None = None,
    style: Literal["screen", "paper"] = "screen",
    width: Annotated[float, "INCHES"] | None = None,
    format: list[Literal["svg", "png", "pdf"]] | None = None,  # noqa: A002  (it is --format)
    json: bool = False,
) -> int:
    """Make tables and figures of runs from their folders.

    examples:
      isograd report runs/compare
      isograd report runs/pre-ln-12l runs/normformer-12l --out paper --title "12 layers"
      isograd report runs/compare --style paper --width 3.25 --format pdf
      isograd report runs/warmup --reference normformer      of a study: one that holds a study.json

    Reads files only: a folder copied from another machine will do.

    Args:
        folders: the folder of a run, a study, a search, a replay or a watched loop, or a folder of runs
        out: where to write (default: report/ in the first FOLDER)
        title: title of the page
        reference: placement or label of the arm that the others are measured against (default: pre-ln, or the first)
        style: font size and line width of the figure files
        width: of the figure files (default: 8.4; with --style paper 3.25)
        format: of the figure files (default: svg png)
        json: the results as one JSON object on stdout
    """
    if not folders:
        raise UserError("name the FOLDER of a run or a study, or a folder of runs")
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is {'not a folder' if folder.exists() else 'not there'}")
    from isograd.report.style import Output

    if width is not None and not 1 <= width <= 40:
        raise UserError(f"--width {width:g}: expected 1 to 40 inches")
    figures = Output(formats=format or ["svg", "png"], style=style, width=width)
    if len(folders) == 1 and (folders[0] / "study.json").exists():
        return _report_study(folders[0], out, title, reference, figures, json)
    if len(folders) == 1 and (folders[0] / "headroom.json").exists():
        from isograd.cli.studies.headroom import report_headroom

        report_headroom(folders[0], json, out, title, figures)
        return 0
    if len(folders) == 1 and (folders[0] / "replay.json").exists():
        from isograd.cli.studies.replay import report_replay

        report_replay(folders[0], out, title, figures, json)
        return 0
    if len(folders) == 1 and is_watched(folders[0]):
        return _report_watched(folders[0], out, title, figures, json)
    from isograd.cli.studies.compare import print_arms
    from isograd.report.runs import find_runs, readable

    found = find_runs(list(folders))
    runs, faults = readable(found)
    if faults and len(found) == 1:
        raise UserError(faults[0])
    for line in faults:
        print(f"left out: {line}", file=sys.stderr)
    if not runs:
        among = f"none of {len(found)} can be read" if found else "no folder with a run.json in it or below it"
        raise UserError(f"nothing to report on in {', '.join(map(str, folders))}: {among}")
    written = _write(runs, out or folders[0] / "report", title, reference, figures)
    if json:
        print_json({"reports": [_content(*one) for one in written], "left_out": faults})
    else:
        for arms, page, name in written:
            print_arms(arms, page, name)
    return 0


def open_page(folder: Folder, *, json: bool = False) -> int:
    """Show the page of a run, a study or a search in the browser.

    examples:
      isograd open runs/my-run
      isograd open runs/compare

    It is made where it is not there yet, or older than its run. Without a display its path is printed.

    Args:
        folder: as 'isograd report' takes it, or an HTML file
        json: the path as one JSON object on stdout
    """
    page = folder if folder.suffix == ".html" and folder.is_file() else _page_of(folder)
    shown = False
    if not json and _has_display():
        import webbrowser

        shown = webbrowser.open(page.resolve().as_uri())
    if json:
        print_json({"page": str(page)})
    else:
        print(f"opened {page}" if shown else page)
    return 0


def _page_of(folder: Path) -> Path:
    """The newest page that lies in a folder; where there is none, or runs have ended since, it is made."""
    runs = [path.stat().st_mtime_ns for path in (*folder.glob("outcome.json"), *folder.glob("*/outcome.json"))]
    found = _newest(folder)
    if found is None or found.stat().st_mtime_ns < max(runs, default=0):
        with redirect_stdout(StringIO()):
            report(folder)
        found = _newest(folder)
    assert found is not None  # what report has just written
    return found


def _newest(folder: Path) -> Path | None:
    """Of reports; where there are none, of other pages, such as explain.html."""
    places = ("report.html", "report/report.html", "report/*/report.html")
    pages = [page for place in places for page in folder.glob(place)] or list(folder.glob("*.html"))
    return max(pages, key=lambda page: page.stat().st_mtime_ns, default=None)


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _report_watched(folder: Path, out: Path | None, title: str | None, figures: "Output", json: bool) -> int:
    from isograd.cli.console import print_lines, print_path
    from isograd.files import read_rows
    from isograd.report.pages.watch import headline, write_watch

    with refusing(ValueError, KeyError, TypeError):
        page = write_watch(folder, out, title, figures)
    warned = read_rows(folder / "warnings.jsonl")
    if json:
        print_json({"report": str(page), "warnings": warned})
    else:
        print_lines(headline(read_rows(folder / "metrics.jsonl"), warned))
        print_lines(*(f"-> {row['cause']}; {row['remedy']}" for row in warned[:1] if row.get("remedy")))
        print_path(f"\nreport: {page}")
    return 0


def _report_study(
    folder: Path, out: Path | None, title: str | None, reference: str | None, figures: "Output", json: bool
) -> int:
    from isograd.cli.studies.study import print_study
    from isograd.report.study.page import write_study_report

    with refusing(ValueError):
        found = write_study_report(folder, out, title, reference, figures)
    if json:
        print_json({"report": str(found.page), **found.results})
    else:
        print_study(found)
    return 0


def _write(
    runs: list[Path], out: Path, title: str | None, name: str | None, figures: "Output"
) -> list[tuple[list[Path], Path, str | None]]:
    """A page for each kind of run, in folders of their own where there are several: its runs, the page, its reference.

    Of several kinds the named reference may be in some only.
    """
    from isograd.report.pages.runs import write_report
    from isograd.report.runs import arms_of, by_kind, reference_of

    kinds = by_kind(runs)
    having = [kind for kind, folders in kinds.items() if name and reference_of(arms_of(folders), name)]
    if name and not having:
        labels = [arm.label for folders in kinds.values() for arm in arms_of(folders)]
        raise UserError(f"--reference {name}: no arm has this name; there are {'; '.join(labels)}")
    written = []
    for kind, folders in kinds.items():
        into, reference = out if len(kinds) == 1 else out / kind, name if kind in having else None
        into.mkdir(parents=True, exist_ok=True)
        page = write_report(folders, into, title, True, reference, figures)
        written.append((folders, page, reference))
    return written


def _content(folders: list[Path], page: Path, reference: str | None) -> dict[str, Any]:
    """What a program reads of a page."""
    from isograd.report.pages.runs import findings
    from isograd.report.runs import arms_of

    said = list(findings(arms_of(folders), reference))
    results = json_.loads(page.with_name("results.json").read_text(encoding="utf-8"))
    return {"report": str(page), "findings": said, "runs": results}

"""`isograd report FOLDER...`: tables and figures from the files of runs, a study or a search; of models beside them."""

import argparse
import json as json_
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from isograd.cli.console import Result, announce, loading, print_lines, print_path, warn, working
from isograd.cli.parser import EACH, Folder
from isograd.errors import UserError, command, one_line, refusing
from isograd.hub import is_watched

if TYPE_CHECKING:
    from isograd.lab.report.pages.sides import Side
    from isograd.lab.report.runs import ArmFiles
    from isograd.lab.report.style import Output

FORMATS = ("svg", "png", "pdf")
_UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}


def inches(text: str) -> float:
    """A length: 3.3, 3.3in, 84mm, 8.4cm.

    >>> inches("3.3"), inches("3.3in"), round(inches("84mm"), 3)
    (3.3, 3.3, 3.307)
    """
    number, unit = (text[:-2].strip(), text[-2:]) if text[-2:] in _UNITS else (text, "in")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected inches such as 3.3, or 3.3in, 84mm, 8.4cm; got {text!r}") from None
    if not 1 <= found <= 40:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to 40 inches")
    return found


def formats(text: str) -> str:
    """One of `FORMATS`, or several of them with commas between."""
    for name in text.split(","):
        if name not in FORMATS:
            raise argparse.ArgumentTypeError(f"expected {', '.join(FORMATS)} or several, as in pdf,svg; got {name!r}")
    return text


Length = Annotated[float, inches, "LENGTH"]


class RunsFound(TypedDict):
    """A page of runs: what was found, in sentences, and results.json."""

    report: str
    findings: list[str]
    runs: Any


class RunsReport(TypedDict):
    """A page for each kind of run, and folders that cannot be read."""

    reports: list[RunsFound]
    left_out: list[str]


class Figures(TypedDict):
    """The figures that were written, and folders that cannot be read."""

    figures: list[str]
    left_out: list[str]


class Page(TypedDict):
    """A page that was opened."""

    page: str


class Watched(TypedDict):
    """The page of a watched loop, and its warnings."""

    report: str
    warnings: list[dict[str, Any]]


class Sides(TypedDict):
    """The page of what was put side by side: a row for each, and what `check` found in each model, None without one."""

    report: str
    sides: list[dict[str, str]]
    findings: dict[str, list[dict[str, Any]] | None]


# What verbs of their own print, too, of their folders.
_ELSEWHERE = tuple(f"isograd.lab.cli.{name}" for name in ("study:StudyFound", "headroom:Headroom", "replay:Replayed"))


def report(
    *folders: Folder,
    out: Folder | None = None,
    title: Annotated[str, "TEXT"] | None = None,
    reference: Annotated[str, "ARM"] | None = None,
    figure: list[Annotated[str, "NAME"]] | None = None,
    arms: list[Annotated[str, "ARM"]] | None = None,
    label: Annotated[list[Annotated[str, "ARM=TEXT"]], EACH] | None = None,
    style: Literal["screen", "paper", "gray"] = "screen",
    width: Length | None = None,
    height: Length | None = None,
    font: Annotated[str, "FAMILY"] | None = None,
    format: list[Annotated[str, formats, "FORMAT"]] | None = None,  # noqa: A002  (it is --format)
    open: bool = False,  # noqa: A002  (it is --open)
) -> Annotated[Result, RunsReport, Figures, Page, Watched, Sides, *_ELSEWHERE]:
    """Make tables and figures of runs from their folders.

    examples:
      isograd report runs/compare
      isograd report runs/pre-ln-12l runs/normformer-12l --out paper --title "12 layers"
      isograd report runs/compare --open
      isograd report runs/compare --style paper --width 3.25 --format pdf
      isograd report runs/compare --figure gradients:last --arms pre-ln normformer --style gray --format pdf
      isograd report runs/warmup --reference normformer      of a study: one that holds a study.json
      isograd report runs/watch/before tuned/checkpoint-500 --label runs/watch/before=before

    Reads files only, but for models: a folder copied from another machine will do. With watched loops, models or
    folders of transformers' Trainer among several FOLDERs there is one page of all: what differs, losses, gradients,
    placements, findings.

    Args:
        folders: the folder of a run, a study, a search, a replay or a watched loop, or a folder of runs; beside others
            that of a model or of transformers' Trainer
        out: where to write (default: report/ in the first FOLDER)
        title: title of the page
        reference: placement or label of the arm that the others are measured against (default: pre-ln, or the first)
        figure: these figures alone, and no page; NAME:2 or NAME:WORDS is the one panel of that number or heading
        arms: these arms alone, in this order, by placement or label
        label: what page and figures call an arm, such as "pre-ln=Pre-LN (ours)"; once for each arm
        style: font size and line width of the figure files; gray: as paper, arms differ by dash and marker alone
        width: of the figure files in inches, or as 84mm (default: 8.4; with --style paper or gray 3.25)
        height: of the figure files (default: as their panels need)
        font: family of the figure files, such as serif or "DejaVu Serif" (default: sans-serif)
        format: of the figure files, among svg, png and pdf (default: svg png)
        open: show the page in the browser; it is made where it is not there yet, or older than its run
    """
    if open:
        if len(folders) != 1 or out or figure:
            raise UserError("--open shows the page of one FOLDER, without --out and --figure")
        return _open(folders[0])
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is not a folder")
    if not folders:
        raise UserError("name the FOLDER of a run or a study, or a folder of runs")
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is {'not a folder' if folder.exists() else 'not there'}")
    from isograd.lab.report.style import Output

    forms = [form for text in format or ["svg,png"] for form in text.split(",")]
    figures = Output(formats=forms, style=style, width=width, height=height, font=font, figures=figure or ())
    if font is not None:
        from isograd.lab.report.shape import must_be_installed

        must_be_installed(font)
    of_runs = not (len(folders) == 1 and _is_no_folder_of_runs(folders[0]))
    if not of_runs and (arms or label):
        raise UserError(f"--{'arms' if arms else 'label'} is for runs; name their folders, such as {folders[0]}/cells")
    if not of_runs and figure:
        raise UserError(f"--figure is for runs; the figures of {folders[0]} are written with its page")
    if len(folders) == 1 and (folders[0] / "study.json").exists():
        return _report_study(folders[0], out, title, reference, figures)
    if len(folders) == 1 and (folders[0] / "headroom.json").exists():
        from isograd.lab.cli.headroom import report_headroom

        return replace(report_headroom(folders[0], out, title, figures), code=0)
    if len(folders) == 1 and (folders[0] / "replay.json").exists():
        from isograd.lab.cli.replay import report_replay

        return report_replay(folders[0], out, title, figures)
    if len(folders) == 1 and is_watched(folders[0]):
        return _report_watched(folders[0], out, title, figures)
    from isograd.lab.cli.compare import print_arms
    from isograd.lab.report.pages.sides import is_side, logged_of
    from isograd.lab.report.runs import find_runs, readable

    found = find_runs(list(folders), is_side)
    if any(map(is_side, found)):
        if len(found) == 1 and is_watched(found[0]):
            return _report_watched(found[0], out, title, figures)
        if len(found) == 1 and not logged_of(found[0]):
            raise UserError(
                f"{found[0]} is a model; its page: {command('explain', found[0])}; or name another beside it"
            )
        if arms or reference:
            raise UserError("--arms and --reference are for runs alone; leave models and watched loops out")
        return _report_sides(found, folders, out or folders[0] / "report", title, figures, _called(label))
    runs, faults = readable(found)
    if faults and len(found) == 1:
        raise UserError(faults[0])
    if not runs:
        for line in faults:
            warn("report", f"left out: {line}")
        among = f"none of {len(found)} can be read" if found else "no folder with a run.json in it or below it"
        raise UserError(f"nothing to report on in {', '.join(map(str, folders))}: {among}")
    with working(f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {'drawing' if figure else 'making the page'}"):
        written = _write(runs, out or folders[0] / "report", title, reference, figures, arms or (), _called(label))
    left_out = [f"left out: {line}" for line in faults]
    if figure:
        files = _files(written, figures)
        shown = partial(print_path, "\n".join(f"figure: {path}" for path in files))
        return Result({"figures": files, "left_out": faults}, shown, left_out)

    def show() -> None:
        for found_arms, page, name in written:
            print_arms(found_arms, page, name)

    return Result({"reports": [_content(*one) for one in written], "left_out": faults}, show, left_out)


def _is_no_folder_of_runs(folder: Path) -> bool:
    return any((folder / f"{kind}.json").exists() for kind in ("study", "headroom", "replay")) or is_watched(folder)


def _called(labels: Sequence[str] | None) -> dict[str, str]:
    """What `--label` says: arm -> name."""
    pairs = [text.partition("=") for text in labels or ()]
    for (arm, sign, name), text in zip(pairs, labels or (), strict=True):
        if not (arm and sign and name):
            raise UserError(f'--label {text}: expected ARM=TEXT, such as "pre-ln=Pre-LN (ours)"')
    return {arm: name for arm, _, name in pairs}


def _files(written: Sequence[tuple[Any, Path, Any]], figures: "Output") -> list[str]:
    """What `--figure` wrote."""
    from isograd.lab.report.page import file_of

    names = [file_of(*asked.partition(":")[::2]) for asked in figures.figures]
    places = [page.with_name(f"{name}.{form}") for _, page, _ in written for name in names for form in figures.formats]
    return [str(path) for path in places if path.exists()]


def _open(folder: Path) -> Result:
    """Without a display the path of the page is printed."""
    if not folder.exists():
        raise UserError(f"{folder} is not there")
    page = folder if folder.suffix == ".html" and folder.is_file() else _page_of(folder)

    def show() -> None:
        import webbrowser

        shown = _has_display() and webbrowser.open(page.resolve().as_uri())
        print(f"opened {page}" if shown else page)

    return Result({"page": str(page)}, show)


def _page_of(folder: Path) -> Path:
    """The newest page that lies in a folder; where there is none, or runs have ended since, it is made."""
    runs = [path.stat().st_mtime_ns for path in (*folder.glob("outcome.json"), *folder.glob("*/outcome.json"))]
    found = _newest(folder)
    if found is None or found.stat().st_mtime_ns < max(runs, default=0):
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


def _report_watched(folder: Path, out: Path | None, title: str | None, figures: "Output") -> Result:
    from isograd.files import read_rows
    from isograd.lab.report.pages.watch import headline, write_watch

    with refusing(ValueError, KeyError, TypeError):
        page = write_watch(folder, out, title, figures)
    warned = read_rows(folder / "warnings.jsonl")
    lines = [headline(read_rows(folder / "metrics.jsonl"), warned)]
    lines += [f"-> {row['cause']}; {row['remedy']}" for row in warned[:1] if row.get("remedy")]
    return Result({"report": str(page), "warnings": warned}, partial(_print_page, lines, page))


def _print_page(lines: Sequence[str], page: Path) -> None:
    print_lines(*lines)
    print_path(f"\nreport: {page}")


def _report_sides(
    found: Sequence[Path],
    named: Sequence[Path],
    out: Path,
    title: str | None,
    figures: "Output",
    called: Mapping[str, str],
) -> Result:
    """Models are looked at where their folder, or that of their run, is named itself."""
    from isograd.lab.report.pages.sides import model_of, sides_of, write_sides

    models = {folder: _looked(folder, place) for folder in found if folder in named and (place := model_of(folder))}
    with refusing(ValueError, KeyError, TypeError):
        sides = sides_of(found, models, called)
        page, table = write_sides(sides, out, title, figures)
    names = [name.replace(" ", "_") for name in table.header]
    rows = [dict(zip(names, line, strict=True)) for line in table.lines]
    findings = {side.name: side.model.get("findings") for side in sides}
    content = {"report": str(page), "sides": rows, "findings": findings}
    lines = [_line(side, table.header, line) for side, line in zip(sides, table.lines, strict=True)]
    return Result(content, partial(_print_page, lines, page))


def _line(side: "Side", header: Sequence[str], line: Sequence[str]) -> str:
    """What is known of a side."""
    from isograd.lab.report.pages.sides import MISSING

    said = [f"{name} {text}" for name, text in zip(header, line, strict=True) if text != MISSING]
    return f"{side.name} ({line[1]}): {'; '.join(said[2:]) or 'nothing is recorded'}"


def _looked(folder: Path, place: Path) -> dict[str, Any]:
    """What `isograd check` says of a model, without trials, and the RMS of its matrices; or why there is nothing."""
    import warnings

    announce(f"loading torch and {place} ...")
    with loading() as status, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the model, run on inputs that were guessed
        from isograd.lint import check
        from isograd.trace.anatomy import find_anatomy
        from isograd.trace.inputs import guess_inputs
        from isograd.trace.load import load_part
        from isograd.trace.record import LARGE

        try:
            model, left_out = load_part(str(place), 10 * LARGE)
            status(f"checking {folder}")
            found = check(model, prove=False, name=str(folder)).as_dict()
            sublayers = find_anatomy(model, guess_inputs(model)).sublayers
        except Exception as error:  # a model's own code raises what it likes
            return {"error": one_line(error)}
        every = dict(model.named_parameters())
        places = [(name, one.stack, one.layer, role) for one in sublayers for name, role in one.roles.items()]
        weights = [
            {
                "stack": stack,
                "layer": layer,
                "role": role,
                "rms": every[name].detach().float().square().mean().sqrt().item(),
            }
            for name, stack, layer, role in places
        ]
    missed = [*filter(None, [left_out]), *found["missed"]]
    return {
        **found,
        "missed": missed,
        "weights": weights,
        "shape": {"parameters": sum(p.numel() for p in every.values())},
    }


def _report_study(
    folder: Path, out: Path | None, title: str | None, reference: str | None, figures: "Output"
) -> Result:
    from isograd.lab.cli.study import of_folder
    from isograd.lab.report.study.page import write_study_report

    with refusing(ValueError):
        return of_folder(write_study_report(folder, out, title, reference, figures))


def _write(
    runs: list[Path],
    out: Path,
    title: str | None,
    name: str | None,
    figures: "Output",
    chosen: Sequence[str],
    called: Mapping[str, str],
) -> list[tuple[list["ArmFiles"], Path, str | None]]:
    """A page for each kind of run, in folders of their own where there are several: its arms, the page, its reference.

    Of several kinds the named reference may be in some only. The folders are read once.
    """
    from isograd.lab.report.pages.runs import write_arms
    from isograd.lab.report.runs import arm_of, arms_of, by_kind, must_be_arm, reference_of

    kinds = {kind: arms_of(folders) for kind, folders in by_kind(runs).items()}
    every = [arm for arms in kinds.values() for arm in arms]
    having = [kind for kind, arms in kinds.items() if name and reference_of(arms, name)]
    if name and not having:
        labels = [arm.label for arm in every]
        raise UserError(f"--reference {name}: no arm has this name; there are {'; '.join(labels)}")
    for one in chosen:
        must_be_arm(every, one)
    for one in called:
        must_be_arm(every, one)
    written = []
    for kind, arms in kinds.items():
        named = {one: text for one, text in called.items() if arm_of(arms, one)}
        mine = [arm for one in chosen if (arm := arm_of(arms, one))] if chosen else arms
        if not mine:
            continue
        into, reference = out if len(kinds) == 1 else out / kind, name if kind in having else None
        page = write_arms(mine, into, title, True, reference, figures, named)
        written.append((mine, page, reference))
    return written


def _content(arms: list["ArmFiles"], page: Path, reference: str | None) -> dict[str, Any]:
    """What a program reads of a page."""
    from isograd.lab.report.pages.runs import findings

    said = list(findings(arms, reference))
    results = json_.loads(page.with_name("results.json").read_text(encoding="utf-8"))
    return {"report": str(page), "findings": said, "runs": results}

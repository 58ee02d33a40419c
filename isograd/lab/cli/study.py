"""`isograd study RECIPE`: a sweep over settings and seeds, and what its statistics say."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from rich.markup import escape

from isograd.cli.console import Bar, Result, in_words, loading, output, print_lines, print_path, print_table
from isograd.cli.parser import Count, File, Folder, Words
from isograd.errors import UserError
from isograd.lab.cli.progress import Ended, prepare_cells, train_cells

if TYPE_CHECKING:
    from isograd.lab.report.study.page import StudyReport
    from isograd.lab.study.engine.jobs import Engine
    from isograd.lab.study.plan import Cell


def _shard(text: str) -> tuple[int, int]:
    """I/N: every N-th cell from the I-th, from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, such as 0/8, got {text!r}")
    return int(match[1]), int(match[2])


class Cells(TypedDict):
    """The cells of a study, those left, and the seconds that all and those left will take."""

    cells: list[dict[str, Any]]
    left: int
    seconds: float
    seconds_left: float


class StudyRows(TypedDict):
    """The row of each cell that has ended; the page, null of a shard."""

    rows: list[Ended]
    cells: int
    report: str | None


class StudyFound(TypedDict):
    """What the statistics of a study say, in sentences and as rows; folders that cannot be read."""

    report: str
    summary: list[str]
    arms: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    cells: list[dict[str, Any]]
    left_out: list[str]


def study(
    recipe: File,
    *overrides: Words,
    out: Folder | None = None,
    dry_run: bool = False,
    engine: Literal["local", "ray"] = "local",
    address: Annotated[str, "ADDRESS"] | None = None,
    jobs: Count | None = None,
    threads: Count = 1,
    retry: bool = False,
    shard: Annotated[tuple[int, int], _shard, "I/N"] | None = None,
) -> Annotated[Result, Cells, StudyRows]:
    """Sweep over settings and seeds: placements x depths x rates x warm-ups, and their statistics.

    examples:
      isograd study warmup
      isograd study warmup --dry-run
      isograd study RECIPE.yaml training.lr=[1e-3,3e-3] model.placement=[post-ln,pre-ln] seeds=[1,2] budget.steps=100
      isograd study RECIPE.yaml --engine ray --address ray://host:10001
      isograd study RECIPE.yaml --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"

    A recipe of `isograd train` plus axes: {KEY: [VALUES]}, seeds: [NUMBERS], and for each cell budget: {steps: N},
    {tokens: N} or {seconds: N}. Killed at any time, the same command goes on; what has ended is not trained again.

    Args:
        recipe: a YAML recipe with axes
        overrides: such as training.batch=32; for the key of an axis, its values
        out: default runs/NAME, NAME from the recipe
        dry_run: list the cells and the time they will take, measured here, and stop
        engine: where cells are trained (default: here)
        address: of the Ray cluster: ray://HOST:PORT, or auto (default: start one on this machine)
        jobs: runs at once (default: one per GPU, or per core)
        threads: CPU threads of each run (default 1, the fastest in total for small models)
        retry: train failed cells once more, and cells with damaged files from the beginning
        shard: train only every N-th cell, from the I-th on (counted from 0): one task of a job array
    """
    if address is not None and engine != "ray":
        raise UserError("--address is of a Ray cluster; add --engine ray")
    if jobs is not None and engine == "ray":
        raise UserError("--jobs is for the local engine; a Ray cluster has its own size")
    from isograd.lab.study.plan import load_study

    planned = load_study(recipe, overrides)
    folder = out or Path("runs") / planned.name
    if not dry_run:
        prepare_cells(planned.cells, folder, 1 if engine == "ray" else jobs)
    with loading():
        from isograd.lab.study.engine.jobs import check_jobs
        from isograd.lab.study.engine.ledger import write_study
        from isograd.lab.study.engine.runner import jobs_of
        from isograd.lab.study.speeds import measured, with_seconds

        check_jobs(jobs_of(planned.cells, folder))
    trainer = _engine(engine, address, jobs, threads)
    if planned.budget and planned.budget.unit == "seconds":
        with Bar("timing a few steps of each shape", transient=True) as bar:
            planned = with_seconds(planned, measured(planned.cells, folder, trainer, _counted(bar), ended=False))
    first, every = shard or (0, 1)
    cells = planned.cells[first::every]
    if dry_run:
        return _dry(cells, folder, trainer, jobs, threads, retry)
    write_study(planned, folder, threads)
    kept = planned.keep_models
    rows = train_cells(cells, folder, trainer, list(planned.axes), retry=retry, keep_models=kept)
    return _report(rows, len(cells), folder, shard is None)


def _engine(engine: str, address: str | None, jobs: int | None, threads: int) -> "Engine":
    if engine == "ray":
        from isograd.lab.study.engine.on_ray import on_ray

        return on_ray(address, threads=threads)
    from isograd.lab.study.engine.workers import local

    return local(jobs, threads=threads)


def _counted(bar: Bar) -> Callable[[int, int], None]:
    return lambda done, total: bar.update(completed=done, total=total)


def _dry(cells: list["Cell"], folder: Path, engine: "Engine", jobs: int | None, threads: int, retry: bool) -> Result:
    """The cells, each with the seconds that it will take, and all together. Nothing but speeds.json is written."""
    from isograd.lab.study.engine.runner import survey
    from isograd.lab.study.engine.workers import at_once
    from isograd.lab.study.speeds import measured, seconds_of, shape_of

    with Bar("timing a few steps of each shape", transient=True) as bar:
        speeds = measured(cells, folder, engine, _counted(bar))
    left = [cells[i] for i in survey(cells, folder, retry).todo]
    together = at_once(jobs, threads)
    whole, rest = (seconds_of(some, speeds, together) for some in (cells, left))
    each = {cell.name: speeds[shape_of(cell.run)].of(cell.run.training.steps) for cell in cells}
    listed = [{"cell": c.name, "values": c.values, "seed": c.run.seed, "seconds": each[c.name]} for c in cells]
    waiting = {cell.name for cell in left}
    rows = [
        [
            escape(cell.name),
            f"{cell.run.training.steps:,}",
            in_words(each[cell.name]),
            "" if cell.name in waiting else "ended",
        ]
        for cell in cells
    ]
    steps = sorted({cell.run.training.steps for cell in cells})
    said = f"{len(cells)} cells of {' to '.join(f'{n:,}' for n in dict.fromkeys((steps[0], steps[-1])))} updates"
    ended = f"; {len(left)} left, about {in_words(rest)}" if len(left) < len(cells) else ""

    def show() -> None:
        print_table(["cell", "updates", "about", ""], rows)
        print(f"{said}, {together} at once: about {in_words(whole)}{ended}; folder {folder}")

    return Result({"cells": listed, "left": len(left), "seconds": whole, "seconds_left": rest}, show)


def _report(rows: list[dict[str, Any]], cells: int, folder: Path, whole: bool) -> Result:
    from isograd.lab.report.study.page import write_study_report

    report = write_study_report(folder) if whole else None

    def show() -> None:
        if report:
            print_study(report)
        else:
            print(f"{len(rows)} of {cells} cells of this shard have ended; folder {folder}")

    faults = _left_out(report) if report else []
    faults += [f"{row['cell']} failed: {row['error']}" for row in rows if row["outcome"] == "failed"]
    broken = any(row["outcome"] == "failed" for row in rows) or len(rows) < cells
    if broken:
        faults.append("--retry trains failed and broken cells once more")
    content = {"rows": rows, "cells": cells, "report": str(report.page) if report else None}
    return Result(content, show, faults, code=int(broken))


def of_folder(report: "StudyReport") -> Result:
    """`isograd report` of a study's folder."""
    return Result({"report": str(report.page), **report.results}, lambda: print_study(report), faults=_left_out(report))


def _left_out(report: "StudyReport") -> list[str]:
    return [f"left out: {line}" for line in report.left_out]


_RATIO, _RATES = "first/last gradient ratio", ("diverged", "collapsed", "undecided")  # what a narrow terminal is spared


def print_study(report: "StudyReport") -> None:
    """A line per arm, the summary, and the page."""
    width = output().width
    header, lines = report.table.header, report.table.lines
    shown = [i for i, name in enumerate(header) if name != _RATIO or width >= 130]
    if lines:
        heads = [header[i].replace("median ", "median\n") for i in shown]
        print_table(heads, [[_shown(header[i], cells[i], width) for i in shown] for cells in lines])
        print()
    print_lines(*report.summary)
    print_path(f"\nreport: {report.page}")


def _shown(name: str, text: str, width: int) -> str:
    """Red where seeds did not finish; the rates' intervals only where there is room."""
    short = escape(text if width >= 110 or name not in (_RATIO, *_RATES) else text.partition(" (")[0])
    return f"[red]{short}[/]" if name in _RATES and not text.startswith("0/") else short

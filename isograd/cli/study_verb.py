"""`isograd study RECIPE`: a grid of trainings with seeds, and what its statistics say."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from isograd.errors import UserError, one_line

_EPILOG = """\
examples:
  isograd study recipes/studies/warmup.yaml
  isograd study recipes/studies/warmup.yaml --dry-run
  isograd study RECIPE.yaml training.lr=[1e-3,3e-3] model.placement=[post-ln,pre-ln] seeds=[1,2] budget.steps=100
  isograd study RECIPE.yaml --engine ray --address ray://host:10001
  isograd study RECIPE.yaml --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"

A recipe is one of `train`, with axes: {KEY: [VALUES]}, seeds: [NUMBERS], and budget: {steps: N}, {tokens: N} or
{seconds: N} for each cell. Killed at any time, the same command goes on; what has ended is not trained again."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("recipe", type=Path, help="a YAML recipe with axes")
    add("overrides", nargs="*", metavar="key=value", help="such as training.batch=32; of an axis' key its values")
    add("--out", type=Path, metavar="FOLDER", help="default runs/NAME, NAME from the recipe")
    add("--dry-run", action="store_true", help="list the cells and the time they will take, measured here, and stop")
    add("--engine", choices=("local", "ray"), default="local", help="where cells are trained (default: here)")
    add(
        "--address",
        metavar="ADDRESS",
        help="of a Ray cluster: ray://HOST:PORT, or auto (default: one that is started here)",
    )
    add("--workers", type=int, metavar="N", help="trainings at once (default: one per GPU, or per core)")
    add(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="of each training on a CPU (default 1: fastest in all for small models)",
    )
    add(
        "--retry", action="store_true", help="train failed cells once more, and cells with damaged files from the start"
    )
    add(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="train every N-th cell only, from the I-th (from 0): a job array's part",
    )
    add("--json", action="store_true", help="the ledger's rows as one JSON object on stdout, nothing else")
    parser.set_defaults(run=run, words="overrides")


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    _refuse(options)
    with console.status("loading torch"):
        from isograd.cli.quiet import quiet
        from isograd.errors import DataError, FolderBusyError, RecipeError, UnknownPlacement

        quiet()
    try:
        return _dry(options, console) if options.dry_run else _study(options, console)
    except (DataError, RecipeError, UnknownPlacement, FolderBusyError, FileExistsError) as error:
        raise UserError(one_line(error)) from error


def _refuse(options: argparse.Namespace) -> None:
    for name in ("workers", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: expected a whole number of at least 1")
    if options.address is not None and options.engine != "ray":
        raise UserError("--address is of a Ray cluster; add --engine ray")
    if options.workers is not None and options.engine == "ray":
        raise UserError("--workers is for the local engine; a Ray cluster has its own size")


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, such as 0/8, and got {text!r}")
    return int(match[1]), int(match[2])


def _engine(options: argparse.Namespace) -> Any:
    if options.engine == "ray":
        from isograd.study.on_ray import on_ray

        return on_ray(options.address, threads=options.threads)
    from isograd.study.workers import local

    return local(options.workers, threads=options.threads)


def _at_once(options: argparse.Namespace) -> int:
    from isograd.study.workers import at_once

    return at_once(options.workers, options.threads)


def _mine(cells: list[Any], options: argparse.Namespace) -> list[Any]:
    """Of a shard every N-th cell."""
    first, step = options.shard or (0, 1)
    return cells[first::step]


def _planned(options: argparse.Namespace, console: Console) -> tuple[Any, Path]:
    """The study, a budget in seconds turned into updates, and its folder; refused before anything is written."""
    from isograd.cli.study_grid import showing_count
    from isograd.study.plan import load_study
    from isograd.study.runner import jobs_of
    from isograd.study.speeds import measured, with_seconds
    from isograd.study.tasks import check_jobs

    with console.status("planning"):
        study = load_study(options.recipe, options.overrides)
        folder = options.out or Path("runs") / study.name
        check_jobs(jobs_of(study.cells, folder))
    if study.budget and study.budget.unit == "seconds":
        with showing_count("timing a few steps of each shape", console) as told:
            study = with_seconds(study, measured(study.cells, folder, _engine(options), told, ended=False))
    return study, folder


def _dry(options: argparse.Namespace, console: Console) -> int:
    """The cells, each with the seconds that it will take, and all together. Nothing but speeds.json is written."""
    from isograd.cli.study_grid import duration, print_cells, showing_count
    from isograd.study.runner import survey
    from isograd.study.speeds import measured, seconds_of, shape_of

    study, folder = _planned(options, console)
    cells = _mine(study.cells, options)
    with showing_count("timing a few steps of each shape", console) as told:
        speeds = measured(cells, folder, _engine(options), told)
    left = [cells[i] for i in survey(cells, folder, options.retry).todo]
    whole, rest = (seconds_of(some, speeds) / _at_once(options) for some in (cells, left))
    each = {cell.name: speeds[shape_of(cell.run)].of(cell.run.training.steps) for cell in cells}
    if options.json:
        listed = [{"cell": c.name, "values": c.values, "seed": c.run.seed, "seconds": each[c.name]} for c in cells]
        print(json.dumps({"cells": listed, "left": len(left), "seconds": whole, "seconds_left": rest}, indent=2))
        return 0
    print_cells(cells, each, {cell.name for cell in left})
    steps = sorted({cell.run.training.steps for cell in cells})
    said = f"{len(cells)} cells of {' to '.join(f'{n:,}' for n in dict.fromkeys((steps[0], steps[-1])))} updates"
    ended = f"; {len(left)} left, about {duration(rest)}" if len(left) < len(cells) else ""
    print(f"{said}, {_at_once(options)} at once: about {duration(whole)}{ended}; folder {folder}")
    return 0


def _study(options: argparse.Namespace, console: Console) -> int:
    from isograd.cli.study_grid import showing_cells
    from isograd.study.ledger import write_study
    from isograd.study.runner import run_cells

    study, folder = _planned(options, console)
    cells = _mine(study.cells, options)
    write_study(study, folder, options.threads)
    with showing_cells(cells, list(study.axes), console) as progress:
        rows = run_cells(
            cells,
            folder,
            _engine(options),
            progress.step,
            progress.row,
            retry=options.retry,
            keep_models=study.keep_models,
            on_note=progress.note,
        )
    return _tell(rows, len(cells), study, folder, options)


def _tell(rows: list[dict[str, Any]], cells: int, study: Any, folder: Path, options: argparse.Namespace) -> int:
    from isograd.cli.study_table import print_study
    from isograd.report.study_page import write_study_report

    report = None
    if options.shard is None:
        report = write_study_report(folder)
    if options.json:
        print(json.dumps({"rows": rows, "cells": cells, "report": str(report.page) if report else None}, indent=2))
    elif report:
        print_study(report)
    else:
        print(f"{len(rows)} of {cells} cells of this shard have ended; folder {folder}")
    failed = [row for row in rows if row["outcome"] == "failed"]
    for row in failed:
        print(f"{row['cell']} failed: {row['error']}", file=sys.stderr)
    if failed or len(rows) < cells:
        print("--retry trains failed and broken cells once more", file=sys.stderr)
        return 1
    return 0

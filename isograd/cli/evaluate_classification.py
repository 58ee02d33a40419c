"""`isograd evaluate classification`: fine-tune a model on a task of GLUE, over seeds and settings."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isograd.cli.console import output
from isograd.cli.progress import showing
from isograd.errors import UserError, one_line

_EPILOG = """\
examples:
  isograd evaluate classification runs/mlm --task mrpc --data glue --with-scratch
  isograd evaluate classification runs/mlm --task rte --data glue --lr 3e-5 1e-4 3e-4 --epochs 5 --seeds 0 1 2
  isograd evaluate classification runs/mlm --task mrpc --data glue --grid paper
  isograd evaluate classification runs/mlm --task cola --data glue glue.dropout=0 training.weight_decay=0.1

Killed or interrupted, the same command goes on where it was. A run has failed where its score on the dev part is not
above that of a constant answer (the majority-class baseline), or where it diverged."""

_TASKS = ("mrpc", "rte", "cola", "sst-2", "sts-b")
_DATA = "a folder of GLUE's .tsv files (plain, .gz, .xz), or a data set on the hub; default nyu-mll/glue"
_GRID = """paper: batch 16 and 32, rates 1e-5 2e-5 5e-5 1e-4, epochs 3 5 8, seeds 0 to 5:
the ranges of Xiong et al. 2020 (144 trainings)"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", help="the folder of a run or of its model, or a model's name on the hub; masked or causal")
    add("overrides", nargs="*", metavar="key=value", help="other settings of all trainings, such as glue.length=64")
    add("--task", required=True, choices=_TASKS)
    add("--data", metavar="FOLDER", help=_DATA)
    add("--seeds", type=int, nargs="+", help="default 0 to 5: fewer tell no difference")
    add("--lr", type=float, nargs="+", help="learning rates, default 1e-4 (large models want 1e-5 to 5e-5)")
    add("--batch", type=int, nargs="+", help="rows in a batch, default 32")
    add("--epochs", type=int, nargs="+", help="default 3")
    add("--grid", choices=("paper",), help=_GRID)
    add("--with-scratch", action="store_true", help="the same from fresh weights: what pre-training is worth")
    add("--out", type=Path, metavar="FOLDER", help="default runs/TASK-MODEL")
    add("--jobs", type=int, help="trainings at once (default: one per core, or one in all with a GPU)")
    add("--fresh", action="store_true", help="train again what has ended already")
    add("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run, words="overrides")


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    with console.status("loading torch"):
        from isograd.cli.quiet import quiet
        from isograd.errors import DataError, FolderBusyError, RecipeError, UnknownPlacement
        from isograd.study.compare import compare
        from isograd.train.memory import keep_freed_memory

        quiet()
        keep_freed_memory()
    try:
        arms = _plan(options)
        labels = [f"{arm.label}, seed {arm.run.seed}" for arm in arms]
        with showing(labels, arms[0].run.training.steps, console) as progress:
            on_step = progress.in_steps_of([arm.folder for arm in arms])
            results = compare(arms, on_step, progress.end, jobs=options.jobs, fresh=options.fresh)
    except FileExistsError as error:
        raise UserError(f"{error} (--fresh does)") from error
    except (DataError, RecipeError, UnknownPlacement, FolderBusyError) as error:
        raise UserError(one_line(error)) from error
    return _tell(arms, results, options.json)


def _plan(options: argparse.Namespace) -> list[Any]:
    from isograd.study.finetuning import PAPER, PAPER_SEEDS, Grid, base_run, plan_grid
    from isograd.train.recipe import with_overrides
    from isograd.train.tasks.classification import ClassificationRun

    given = {"rates": options.lr, "batches": options.batch, "epochs": options.epochs}
    given = {name: values for name, values in given.items() if values is not None}
    paper = options.grid == "paper"
    if paper and given:
        flag = {"rates": "lr", "batches": "batch"}.get(next(iter(given)), "epochs")
        raise UserError(f"--grid paper says what --{flag} says; leave one of them out")
    for override in options.overrides:
        key = override.partition("=")[0]
        if key in _FLAGS:
            raise UserError(f"{override!r}: write {_FLAGS[key]} here")
    grid = Grid(**{**(vars(PAPER) if paper else given), "scratch": options.with_scratch})
    seeds = options.seeds or list(PAPER_SEEDS)
    model, data = _absolute(options.model), _absolute(options.data or "nyu-mll/glue")
    base = with_overrides(base_run(model, options.task, data, grid), options.overrides)
    assert isinstance(base, ClassificationRun)
    folder = options.out or Path("runs") / f"{options.task}-{_short(options.model)}"
    return plan_grid(folder, base, grid, seeds)


_FLAGS = {
    "seed": "--seeds",
    "training.lr": "--lr",
    "training.batch": "--batch",
    "training.epochs": "--epochs",
    "glue.task": "--task",
    "glue.source": "--data",
    "glue.scratch": "--with-scratch",
}


def _absolute(name: str) -> str:
    """Files by their absolute path, so that the same training is the same run from any folder."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def _short(model: str) -> str:
    path = Path(model).resolve()
    return path.parent.name if path.name == "model" else path.name


def _tell(arms: Sequence[Any], results: list[dict[str, Any]], as_json: bool) -> int:
    from isograd.report import finetuning
    from isograd.report.runs import arms_of
    from isograd.report.runs_page import write_report

    folders = [arm.folder for arm in arms]
    report = write_report(folders, folders[0].parent, title=f"Fine-tuning on {arms[0].run.glue.task}")
    found = arms_of(folders)
    if as_json:
        content = {"arms": [finetuning.as_dict(arm) for arm in found], "runs": results, "report": str(report)}
        print(json.dumps(content | {"findings": list(finetuning.findings(found))}, indent=2))
    else:
        _print(found, report)
    broken = [result for result in results if result["outcome"] == "failed"]
    for result in broken:
        print(f"{result['arm']}, seed {result['seed']} failed: {result['error']}", file=sys.stderr)
    return 1 if broken else 0


def _print(arms: Sequence[Any], report: Path) -> None:
    from isograd.report import finetuning

    console = output()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (finetuning.title(arms[0]), "median", "lowest to highest", "mean [95 %]", "failed", "test"):
        table.add_column(name, justify="right" if table.columns else "left", no_wrap=bool(table.columns))
    for arm in arms:
        cells = (
            finetuning.median_score,
            finetuning.score_range,
            finetuning.mean_score,
            finetuning.failures,
            finetuning.test_score,
        )
        table.add_row(escape(arm.label), *(cell(arm) for cell in cells))
    table.add_row(
        "[dim]majority-class baseline[/dim]",
        finetuning.baseline(arms[0]),
        "",
        "",
        "",
        finetuning.baseline(arms[0], "test"),
    )
    console.print(table)
    console.print("[dim]median of the seeds; failed: not above the majority-class baseline, or diverged[/dim]\n")
    for said in finetuning.findings(arms):
        console.print(said, markup=False)
    console.print(f"report: {report}", markup=False, soft_wrap=True)

"""`isograd compare`: the main job."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from isograd.cli import UserError, one_line
from isograd.cli.console import output
from isograd.cli.progress import COLOURS, showing

_EPILOG = """\
examples:
  isograd compare
  isograd compare --data FILE.txt.gz --seeds 0 1 2
  isograd compare --placements post-ln admin pre-ln --layers 36 --warmup 100 --steps 200

Killed or interrupted, the same command goes on where it was."""

_FLAG = re.compile(r"\b(?:model|data|training)\.(layers|width|heads|lr|warmup|steps|batch|length)\b")  # -> --layers
_DEFAULT = "post-ln without and with warm-up, pre-ln, normformer, admin, deepnorm"
_TEXT = """prose and code of the Python standard library;
else text (.txt .jsonl .parquet, also .gz and .xz) or the name of a data set on the hub"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--placements", nargs="+", metavar="NAME", help=f"default: {_DEFAULT}")
    add("--layers", type=int, default=12, help="default 12")
    add("--width", type=int, default=64, help="default 64")
    add("--heads", type=int, default=4, help="default 4")
    add("--lr", type=float, default=1e-3, help="peak learning rate of Adam, default 1e-3")
    add("--warmup", type=int, help="warm-up steps of all arms (default: none, and half the steps for a second post-ln)")
    add("--steps", type=int, default=300, help="default 300")
    add("--batch", type=int, default=16, help="sequences in a batch, default 16")
    add("--length", type=int, default=32, help="tokens in a sequence, default 32")
    add("--seeds", type=int, nargs="+", default=[0], help="default 0")
    add("--data", default="embedded", metavar="FILE", help=f"default: {_TEXT}")
    add("--field", default="text", help="key of the text in JSON lines, Parquet and data sets, default text")
    add(
        "--level", choices=("char", "bpe"), default="char", help="tokens are characters or byte-level BPE, default char"
    )
    add("--out", type=Path, default=Path("runs/compare"), metavar="FOLDER", help="default runs/compare")
    add("--jobs", type=int, help="trainings at once (default: one per core, or one in all with a GPU)")
    add("--fresh", action="store_true", help="train again what has ended already")
    add("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    with console.status("loading torch"):
        from isograd.cli.quiet import quiet
        from isograd.data import DataError
        from isograd.placement import UnknownPlacement
        from isograd.study.compare import compare
        from isograd.study.lock import FolderBusyError
        from isograd.train.allocator import keep_freed_memory
        from isograd.train.run import RecipeError

        quiet()
        keep_freed_memory()
    try:
        arms = _plan(options)
        labels = [a.label + (f", seed {a.run.seed}" if len(options.seeds) > 1 else "") for a in arms]
        with showing(labels, options.steps, console) as progress:
            results = compare(arms, progress.step, progress.end, jobs=options.jobs, fresh=options.fresh)
    except FileExistsError as error:
        raise UserError(f"{error} (--fresh does)") from error
    except (DataError, RecipeError, UnknownPlacement, FolderBusyError) as error:
        raise UserError(_FLAG.sub(r"--\1", one_line(error))) from error
    return _tell(options, arms, results)


def _plan(options: argparse.Namespace) -> list[Any]:
    from isograd.study.compare import plan
    from isograd.train.run import Data, Model, Training

    return plan(
        options.out,
        placements=options.placements,
        warmup=options.warmup,
        seeds=list(dict.fromkeys(options.seeds)),
        model=Model(layers=options.layers, width=options.width, heads=options.heads),
        data=Data(source=_source(options.data), level=options.level, field=options.field, length=options.length),
        training=Training(lr=options.lr, steps=options.steps, batch=options.batch),
    )


def _source(name: str) -> str:
    """Files by their absolute path, so that the same file is the same run from any folder."""
    return str(Path(name).resolve()) if name != "embedded" and Path(name).exists() else name


def _tell(options: argparse.Namespace, arms: list[Any], results: list[dict[str, Any]]) -> int:
    from isograd.report.page import write_report

    failed = [r for r in results if r["outcome"] == "failed"]
    report = write_report([a.folder for a in arms], options.out)
    if options.json:
        content = {"unigram_entropy": _entropy(arms), "arms": results, "report": str(report)}
        print(json.dumps(content, indent=2))
    else:
        _print_table([a.folder for a in arms], report)
    for result in failed:
        trace = Path(result["folder"]) / "error.txt"
        see = f" (see {trace})" if trace.exists() else ""
        print(f"{result['placement']} failed: {result['error']}{see}", file=sys.stderr)
    return 1 if failed else 0


def _entropy(arms: list[Any]) -> float | None:
    from isograd.report.runs import read_run

    known = [read_run(a.folder).resolved for a in arms]
    return next((r["data"]["unigram_entropy"] for r in known if r), None)


def _print_table(folders: list[Path], report: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    from isograd.report import tables
    from isograd.report.runs import arms_of

    arms = arms_of(folders)
    console = output()
    lines = tables.rows(arms)
    shown = _fitting([tables.SHORT, *lines], console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown:
        table.add_column(tables.SHORT[i], justify="left" if i < 2 else "right", no_wrap=i > 0, min_width=0 if i else 12)
    for arm, cells in zip(arms, lines, strict=True):
        colour = COLOURS[next((o for o in arm.outcomes if o != "finished"), "finished")]
        texts = [f"[{colour}]{cells[i]}[/]" if i == 1 else escape(cells[i]) for i in shown]
        table.add_row(*texts)
    console.print(table)
    console.print(
        "[dim]losses in nats; g1/gL: mean |gradient| of W_2, first layer over last, at step 1 → at the end[/dim]"
    )
    console.print(f"\n{tables.summary(arms)}", markup=False)
    console.print(f"\nreport: {report}", markup=False, soft_wrap=True)


def _fitting(lines: list[tuple[str, ...]], width: int) -> list[int]:
    """Columns that a terminal has room for beside a label of 16; the files and the page have them all."""
    shown = list(range(len(lines[0])))
    for dispensable in ("params", "valid", "tok/s"):
        if 16 + sum(2 + max(len(cells[i]) for cells in lines) for i in shown[1:]) > width:
            shown.remove(lines[0].index(dispensable))
    return shown

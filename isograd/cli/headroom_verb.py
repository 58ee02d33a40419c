"""`isograd headroom`: the largest peak learning rate that still trains."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from isograd.cli.console import output
from isograd.cli.searching import count
from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.report.style import Output
    from isograd.study.headroom import Chain, Trial, Watch
    from isograd.study.headroom_plan import Plan

_EPILOG = """\
examples:
  isograd headroom recipes/studies/headroom.yaml
  isograd headroom RECIPE.yaml --placements post-ln pre-ln --warmups 0 50 150 --seeds 1 2 3
  isograd headroom RECIPE.yaml model.layers=6 training.steps=200 --precision 1.1
  isograd headroom model.layers=6 training.steps=100

Each rate is a training of its own, from scratch. Killed or interrupted, the same command goes on where it was;
a finer --precision or more --seeds go on from what is there. Exit code 1 where a run failed."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("recipe", nargs="?", help="a YAML recipe, also a study's: its placements, warm-ups and seeds are taken")
    add("overrides", nargs="*", metavar="key=value", help="such as model.layers=6 training.steps=200")
    add("--placements", nargs="+", metavar="NAME", default=[], help="default: the recipe's")
    add("--warmups", nargs="+", type=int, metavar="N", default=[], help="steps; default: none, and the recipe's")
    add("--seeds", nargs="+", type=int, metavar="N", default=[], help="default: the recipe's, else 1 2 3")
    add("--low", type=float, default=1e-5, help="no rate below is tried, default 1e-5")
    add("--high", type=float, default=1.0, help="no rate above is tried, default 1")
    add("--precision", type=float, default=1.25, help="largest trained and smallest failed rate are at most\n"
        "this factor apart, default 1.25")  # fmt: skip
    add("--out", type=Path, metavar="FOLDER", help="default runs/headroom-NAME")
    add("--jobs", type=count, metavar="N", help="trainings at once, each on one thread (default: one per core or GPU)")
    add("--retry", action="store_true", help="train failed runs once more")
    add("--json", action="store_true", help="boundaries and chains as one JSON object on stdout, nothing else")
    parser.set_defaults(run=run, words="overrides")


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True)
    with console.status("loading torch"):
        from isograd.cli.quiet import quiet
        from isograd.errors import DataError, FolderBusyError, RecipeError, UnknownPlacement
        from isograd.study.headroom import headroom
        from isograd.study.headroom_plan import load_plan
        from isograd.study.workers import local

        quiet()
    words = [word for word in [options.recipe, *options.overrides] if word]
    recipe = Path(words.pop(0)) if words and "=" not in words[0] else None
    for name in options.placements:
        if "=" in name:
            raise UserError(f"{name!r} is no placement; write it right behind the recipe")
    try:
        plan = load_plan(
            recipe,
            words,
            placements=options.placements,
            warmups=options.warmups,
            seeds=options.seeds,
            low=options.low,
            high=options.high,
            precision=options.precision,
        )
        folder = options.out or Path("runs") / f"headroom-{plan.name}"
        with _showing(console, plan) as watch:
            headroom(plan, folder, local(options.jobs), watch, retry=options.retry)
    except (DataError, RecipeError, UnknownPlacement, FolderBusyError, FileExistsError) as error:
        raise UserError(one_line(error)) from error
    return tell(folder, options.json)


@contextmanager
def _showing(console: Console, plan: "Plan") -> Iterator["Watch"]:
    """A live line in a terminal: chains decided, runs, their cost, the training at work. Elsewhere a line per chain."""
    from isograd.study.boundary import Boundary
    from isograd.study.headroom import Watch

    bars = Progress(
        TextColumn("chains"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[spent]}"),
        TextColumn("[dim]{task.description}[/dim]", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console,
        disable=not console.is_terminal,
        expand=True,
    )
    chains = len(plan.placements) * len(plan.warmups) * len(plan.seeds)
    task = bars.add_task("", total=chains, spent="")
    spent = {"runs": 0, "updates": 0, "seconds": 0.0}

    def step(chain: "Chain", rate: float, step: int, loss: float) -> None:
        bars.update(task, description=escape(f"{chain}: {rate:.3g}, step {step}, loss {loss:.3f}"))

    def trial(chain: "Chain", one: "Trial") -> None:
        for name, more in (("runs", 1), ("updates", one.steps), ("seconds", one.seconds)):
            spent[name] += more
        said = f"{spent['runs']:.0f} runs, {spent['updates']:,.0f} updates, {spent['seconds'] / 60:.1f} min of training"
        end = chain.next(plan.search)
        decided = isinstance(end, Boundary)
        bars.update(task, advance=decided, spent=said, description=escape(f"{chain}: {one.lr:.3g} {one.verdict}"))
        if decided:
            note(f"{chain}: {_said(end)} ({len(chain.tried)} runs)")

    def note(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with bars:
        yield Watch(step=step, trial=trial, note=note)


def _said(end: Any) -> str:
    from dataclasses import asdict

    from isograd.report.headroom_page import chain_said

    return chain_said(asdict(end))


def tell(
    folder: Path, as_json: bool, out: Path | None = None, title: str | None = None, output: "Output | None" = None
) -> int:
    """Write the page of a search from its files, and say what was found; 1 where a run failed."""
    from isograd.report.headroom_page import findings, oddities, read_headroom, write_headroom

    try:
        page, content = write_headroom(folder, out, title, output), read_headroom(folder)
    except ValueError as error:
        raise UserError(str(error)) from error
    if as_json:
        names = ("placements", "warmups", "seeds", "search", "levels", "chains", "cost")
        found = {name: content[name] for name in names}
        print(json.dumps(found | {"findings": findings(content), "report": str(page)}, indent=2))
    else:
        _print(content, page)
    failed = [line for line in oddities(content) if " stopped: " in line]
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def _print(content: dict[str, Any], page: Path) -> None:
    from isograd.report.headroom_page import boundaries, cost, findings

    console = output()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(boundaries(content).header):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for line in boundaries(content).lines:
        table.add_row(*map(escape, line))
    console.print(table)
    console.print()
    for said in findings(content):
        console.print(said, markup=False)
    console.print(f"\ncost: {cost(content)}\nreport: {page}", markup=False, soft_wrap=True)

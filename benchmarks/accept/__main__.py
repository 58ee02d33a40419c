"""`python -m benchmarks.accept`: every sentence with a number, measured again; a page says which hold.

    python -m benchmarks.accept                     the rows that two cores measure within an hour
    python -m benchmarks.accept --tier full         all rows, hours; those whose files --data has
    python -m benchmarks.accept --only warmup-12    some rows
    python -m benchmarks.accept --list              the table, and nothing is run

Killed at any moment, the same command goes on. Exit code 0 if every row that was measured holds, 1 if one does not, 2
on wrong use.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.accept.page import headline, write_page
from benchmarks.accept.row import Row
from benchmarks.accept.runner import Desk, run
from benchmarks.accept.table import JOBS, ROWS
from isograd.errors import FolderBusyError
from isograd.files import locked

TIERS = {"slice": ("slice",), "accept": ("slice", "accept"), "full": ("slice", "accept", "full")}
SAID = {
    "slice": "The rows that take seconds",
    "accept": "The rows that two cores measure within an hour",
    "full": "All rows",
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    rows = [row for row in ROWS if (row.name in options.only if options.only else row.tier in TIERS[options.tier])]
    if options.list:
        _list(rows)
        return 0
    console = Console(stderr=True)
    try:
        with locked(options.out):
            return _run(rows, options, console)
    except FolderBusyError as error:
        print(f"accept: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accept", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    data = os.environ.get("ISOGRAD_DATA")
    add("--tier", choices=TIERS, default="accept")
    add("--only", nargs="+", metavar="ROW", default=[], help="these rows, of whatever tier")
    add("--data", type=Path, default=Path(data) if data else None, help="files that are not in the repository")
    add("--out", type=Path, default=Path("runs/accept"), help="default runs/accept")
    add("--jobs", type=int, default=_cores(), help="commands at once (default: one per core)")
    add("--fresh", action="store_true", help="run again what has ended already")
    add("--list", action="store_true", help="print the table, and stop")
    options = parser.parse_args(arguments)
    unknown = set(options.only) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no row is named {', '.join(sorted(unknown))}; --tier full --list shows all")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} must be at least 1")
    return options


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(rows: Sequence[Row], options: argparse.Namespace, console: Console) -> int:
    data = options.data.resolve() if options.data else None
    desk = Desk(folder=options.out.resolve(), jobs=JOBS, data=data, say=_saying(console))
    if options.fresh:
        desk.forget(rows)
    found = {row.name: _not_yet(row) for row in rows}
    tiers = "Some rows" if options.only else SAID[options.tier]

    def on_row(result: dict[str, Any]) -> None:
        found[result["name"]] = result
        _say(console, result)
        write_page(desk.folder, list(found.values()), JOBS, desk.about, tiers)

    minutes = sum(JOBS[name].minutes for name in {name for row in rows for name in row.jobs})
    with _showing(console, minutes) as desk.show:
        run(rows, desk, options.jobs, on_row)
    print(f"{headline(list(found.values()))} {desk.folder / 'accept.html'}")
    return int(any(one["verdict"] in ("does not hold", "failed") for one in found.values()))


def _not_yet(row: Row) -> dict[str, Any]:
    names = ("name", "page", "sentence", "rule", "n", "tier", "stored")
    return {n: getattr(row, n) for n in names} | {"jobs": list(row.jobs), "verdict": "not measured", "measured": ""}


_COLOURS = {"holds": "green", "skipped": "yellow"}


def _say(console: Console, result: dict[str, Any]) -> None:
    verdict = f"[{_COLOURS.get(result['verdict'], 'red')}]{result['verdict']}[/]"
    console.print(f"{verdict}  {result['name']}: ", end="", soft_wrap=True)
    console.print(result["measured"], markup=False, highlight=False, soft_wrap=True)


def _saying(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(f"[dim]{line}[/]", highlight=False, soft_wrap=True)


@contextmanager
def _showing(console: Console, minutes: float) -> Iterator[Callable[[Sequence[str], float], None]]:
    """A bar of the minutes that are done, and the commands under way; nothing where there is no terminal."""
    bar = Progress(
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f} of {task.total:.0f} min of one core"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}[/]"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=minutes)
    with bar:
        yield lambda names, done: bar.update(task, completed=done, description=", ".join(names))


def _list(rows: Sequence[Row]) -> None:
    for row in rows:
        print(f"{row.tier:6}  {row.name}: {row.page}\n        {row.sentence}\n        holds if {row.rule}; {row.n}")
    minutes = sum(JOBS[name].minutes for name in {name for row in rows for name in row.jobs})
    print(f"{len(rows)} rows, {minutes:.0f} minutes of one core")


if __name__ == "__main__":
    sys.exit(main())

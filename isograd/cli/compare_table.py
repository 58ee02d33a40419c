"""The table that ends a comparison in a terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from isograd.cli.console import output
from isograd.cli.progress import COLOURS
from isograd.report import runs_page
from isograd.report.runs import arms_of


def print_table(folders: Sequence[Path], report: Path, reference: str | None = None) -> None:
    """A line per arm, what happened in sentences, and where the page is."""
    arms = arms_of(folders)
    console, columns = output(), runs_page.columns(arms)
    names, lines = tuple(column.short for column in columns), runs_page.results_table(arms).lines
    dispensable = [column.short for column in sorted(columns, key=lambda column: column.spare) if column.spare]
    shown = _fitting([names, *lines], console.width, dispensable)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown:
        least = max(_widest(cells[i]) for cells in lines) if i == 1 else 0 if i else 12
        table.add_column(names[i], justify="left" if i < 2 else "right", no_wrap=i > 1, min_width=least)
    for arm, cells in zip(arms, lines, strict=True):
        worst = next((o for o in arm.outcomes if o != "finished"), "finished")
        colour = "default" if runs_page.kind_name(arms) == runs_page.RANGE_TEST else COLOURS[worst]
        texts = [f"[{colour}]{cells[i]}[/]" if i == 1 else escape(cells[i]) for i in shown]
        table.add_row(*texts)
    console.print(table)
    console.print(f"[dim]{runs_page.legend(arms)}[/dim]")
    console.print()
    for line in (runs_page.headline(arms), *runs_page.warnings(arms), *runs_page.findings(arms, reference)):
        console.print(line, markup=False)
    console.print(f"\nreport: {report}", markup=False, soft_wrap=True)


def _fitting(lines: Sequence[Sequence[str]], width: int, dispensable: Sequence[str]) -> list[int]:
    """Columns that a terminal has room for beside a label of 16; the files and the page have them all."""
    shown = list(range(len(lines[0])))
    for name in dispensable:
        if _width(lines, shown) > width:
            shown.remove(lines[0].index(name))
    return shown


def _width(lines: Sequence[Sequence[str]], shown: list[int]) -> int:
    widths = (max(_widest(cells[i]) if i == 1 else len(cells[i]) for cells in lines) for i in shown[1:])
    return 16 + sum(2 + width for width in widths)


def _widest(outcome: str) -> int:
    """Of an outcome in several lines: "2 finished," and "1 collapsed"."""
    return max(map(len, outcome.replace(", ", ",\n").splitlines()))

"""What a terminal shows of a study: its arms, what was found in sentences, and where the page is."""

import sys

from rich.markup import escape
from rich.table import Table

from isograd.cli.console import output
from isograd.report.study_page import StudyReport

_DISPENSABLE = (
    "first/last gradient ratio",
    "diverged",
    "collapsed",
    "undecided",
)  # what a narrow terminal is spared the intervals of


def print_study(report: StudyReport) -> None:
    """A line per arm, the summary, and the page; what was left out on stderr."""
    for line in report.left_out:
        print(f"left out: {line}", file=sys.stderr)
    console = output()
    header, lines = report.table.header, report.table.lines
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [i for i, name in enumerate(header) if name != _DISPENSABLE[0] or console.width >= 130]
    for i in shown:
        table.add_column(header[i].replace("median ", "median\n"), justify="right" if i else "left", no_wrap=True)
    for cells in lines:
        table.add_row(*(_cell(header[i], cells[i], console.width) for i in shown))
    if lines:
        console.print(table)
        console.print()
    for sentence in report.summary:
        console.print(sentence, markup=False)
    console.print(f"\nreport: {report.page}", markup=False, soft_wrap=True)


def _cell(name: str, text: str, width: int) -> str:
    """Red where seeds did not finish; the rates' intervals only where there is room."""
    short = escape(text if width >= 110 or name not in _DISPENSABLE else text.partition(" (")[0])
    return f"[red]{short}[/]" if name in _DISPENSABLE[1:] and not text.startswith("0/") else short

"""What a terminal shows: results on stdout, progress on stderr; live in a terminal, plain lines elsewhere."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from isograd.errors import UserError

COLOURS = {
    "finished": "green",
    "undecided": "cyan",
    "collapsed": "red",
    "diverged": "red",
    "failed": "yellow",
    "interrupted": "yellow",
    "running": "cyan",
}
_quiet = False


def silence(quiet: bool) -> None:
    """With `quiet`, no progress from now on."""
    global _quiet
    _quiet = quiet


class _Output(Console):
    def on_broken_pipe(self) -> NoReturn:
        """The reader has gone: `main` knows what to do (the default exits with 1)."""
        raise BrokenPipeError


def output(*, soft_wrap: bool = False) -> Console:
    """The console of results: as wide as the terminal, and as wide as it takes in a file or a pipe.

    `soft_wrap` leaves long lines to the terminal.
    """
    width = 200 if is_endless() else None
    return _Output(highlight=False, soft_wrap=soft_wrap, width=width, force_terminal=_terminal(sys.stdout))


def is_endless() -> bool:
    """Whether stdout has no width, as a file or a pipe: sentences are not broken there."""
    return not sys.stdout.isatty() and "COLUMNS" not in os.environ


def progress() -> Console:
    """The console of progress; it keeps the stderr of now, which the harness exchanges while it works."""
    return Console(file=sys.stderr, quiet=_quiet, highlight=False, force_terminal=_terminal(sys.stderr))


def _terminal(stream: TextIO) -> bool | None:
    """With NO_COLOR only a terminal is one, whatever FORCE_COLOR says, which Jupyter sets; else rich decides."""
    return stream.isatty() if os.environ.get("NO_COLOR") else None


@dataclass(frozen=True)
class Result:
    """What a verb has found. `main` alone writes it: --json belongs to every verb that returns one.

    Args:
        content: what a program reads; None: nothing.
        show: prints it for people.
        faults: lines on stderr, in both forms.
        code: exit code.
    """

    content: Any = None
    show: Callable[[], None] = lambda: None
    faults: Sequence[str] = ()
    code: int = 0

    def write(self, verb: str, json: bool) -> int:
        if not json:
            self.show()
        elif self.content is not None:
            print_json(self.content)
        for line in self.faults:
            warn(verb, line)
        return self.code


def print_json(content: Any) -> None:
    """One JSON object on stdout; NaN and infinities become null. Where code of a checkpoint was trusted, that too."""
    from isograd.files import finite

    door = sys.modules.get("isograd.hub")
    trusted = {"trust_remote_code": True} if door is not None and door.remote_code_is_trusted() else {}
    print(json.dumps(finite({**content, **trusted} if trusted else content), indent=2))


def warn(verb: str, line: str) -> None:
    """A line on stderr, whatever else is silent."""
    print(f"isograd {verb}: {line}", file=sys.stderr)


def must_be_writable(out: Path | None, option: str = "--out") -> None:
    """Refuse a FILE that cannot be written, before anything is loaded."""
    if out and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"{option} {out}: not a file in a folder that exists")


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, widths: Sequence[int] = ()
) -> None:
    """Rows of markup under a header, which is left out if empty.

    Args:
        left: so many first columns are words, which may be wrapped; the others are numbers.
        widths: the least of the first columns.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(header))
    least = [*widths, *[None] * len(header)]
    for i, name in enumerate(header):
        table.add_column(
            name, justify="left" if i < left else "right", no_wrap=i >= left, overflow="fold", min_width=least[i]
        )
    for row in rows:
        table.add_row(*row)
    output().print(table)


def print_lines(*lines: str) -> None:
    """Sentences, wrapped at the terminal's width."""
    for line in lines:
        output().print(line, markup=False, soft_wrap=is_endless())


def print_path(line: str) -> None:
    """A line that must not be wrapped, such as `report: PATH`."""
    output().print(line, markup=False, soft_wrap=True)


def announce(line: str) -> None:
    """A line of progress on stderr that stays, in a terminal and elsewhere: what the next seconds are for."""
    progress().print(line, markup=False, soft_wrap=True)


@contextmanager
def loading(what: str = "loading torch", threads: int | None = None) -> Iterator[Callable[[str], None]]:
    """Import torch and whatever the block imports, the libraries below silent; gives what sets the line shown."""
    from isograd.machine import few_collections

    with progress().status(what) as status, few_collections():
        import torch

        from isograd.machine import keep_freed_memory

        quiet()
        keep_freed_memory()
        if threads:
            torch.set_num_threads(threads)
        yield status.update


@contextmanager
def working(what: str) -> Iterator[None]:
    """A line at once: in a terminal gone when the block ends, elsewhere one that stays."""
    console = progress()
    if not console.is_terminal:
        console.print(what, markup=False, soft_wrap=True)
    with console.status(what):
        yield


def quiet() -> None:
    """Progress bars and notices of transformers and torch off; their errors stay."""
    import logging
    import warnings

    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


class Bar:
    """One counter of things done: a bar in a terminal, elsewhere a line for each thing that is worth one.

    Args:
        what: what is counted.
        transient: gone at the end.
    """

    def __init__(self, what: str, total: int | None = None, *, transient: bool = False) -> None:
        self.console = progress()
        self.bars = Progress(
            TextColumn("{task.fields[what]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("[dim]{task.description}[/dim]"),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=transient,
        )
        self.task = self.bars.add_task("", total=total, what=what)

    def __enter__(self) -> "Bar":
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def update(self, said: str = "", *, advance: int = 0, **options: Any) -> None:
        """`said` beside the bar; `completed`, `total` and `what` set what they name."""
        self.bars.update(self.task, advance=advance, description=escape(said), **options)

    def line(self, said: str) -> None:
        """A line of its own above the bar."""
        self.console.print(said, markup=False, soft_wrap=True)

    def end(self, said: str) -> None:
        """One more is done: beside the bar, or a line where there is none."""
        self.update(said, advance=1)
        if not self.console.is_terminal:
            self.line(said)


def in_words(seconds: float) -> str:
    """
    >>> in_words(41.3), in_words(200), in_words(9000)
    ('41 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def bytes_in_words(count: float) -> str:
    """Bytes as GiB or MiB.

    >>> bytes_in_words(80 * 2**30), bytes_in_words(3 * 2**20)
    ('80.0 GiB', '3.0 MiB')
    """
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"

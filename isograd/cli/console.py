"""What a terminal shows: results on stdout, progress on stderr; live in a terminal, plain lines elsewhere."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
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
EVERY = 100  # steps between lines of progress, and at most 20 lines a run
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
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _Output(
        highlight=False, soft_wrap=soft_wrap, width=200 if wide else None, force_terminal=_terminal(sys.stdout)
    )


def progress() -> Console:
    """The console of progress; it keeps the stderr of now, which the harness exchanges while it works."""
    return Console(file=sys.stderr, quiet=_quiet, highlight=False, force_terminal=_terminal(sys.stderr))


def _terminal(stream: TextIO) -> bool | None:
    """With NO_COLOR only a terminal is one, whatever FORCE_COLOR says, which Jupyter sets; else rich decides."""
    return stream.isatty() if os.environ.get("NO_COLOR") else None


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
        output().print(line, markup=False)


def print_path(line: str) -> None:
    """A line that must not be wrapped, such as `report: PATH`."""
    output().print(line, markup=False, soft_wrap=True)


def announce(line: str) -> None:
    """A line of progress on stderr that stays, in a terminal and elsewhere: what the next seconds are for."""
    progress().print(line, markup=False, soft_wrap=True)


def announce_runs(folders: Sequence[Path], where: Path) -> None:
    """What is about to be trained, before torch is loaded: how many runs, where, how many have ended before."""
    ended = sum((folder / "outcome.json").exists() for folder in folders)
    several = f"{len(folders)} runs" if len(folders) > 1 else "1 run"
    before = f", {ended} ended before" if ended else ""
    announce(f"{several} in {where}{before}; loading torch and transformers ...")


def announce_resumed(labels: Sequence[str], folders: Sequence[Path]) -> None:
    """A line for each run that was interrupted or killed after a checkpoint."""
    for label, folder in zip(labels, folders, strict=True):
        if (folder / "checkpoints").is_dir() and (step := _left_at(folder)):
            announce(f"{label}: goes on from step {step:,}")


@contextmanager
def loading(what: str = "loading torch", threads: int | None = None) -> Iterator[Callable[[str], None]]:
    """Import torch and whatever the block imports, the libraries below silent; gives what sets the line shown."""
    from isograd.study.engine.server import few_collections

    with progress().status(what) as status, few_collections():
        import torch

        from isograd.train.forecast.memory import keep_freed_memory

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


def choose_products(verb: str, threads: int | None = None, like: Path | None = None) -> None:
    """The library of matrix products for this process and its workers, as `isograd doctor` shows it.

    Args:
        threads: of each run; None: torch's.
        like: resolved.json or study.json, whose choice is taken where it is there.
    """
    from isograd.transformer.products import choose, recorded, use

    known = recorded(like) if like else None
    if known is None:
        choice = choose(threads)
        known = choice.products
        if choice.note:
            warn(verb, choice.note)
    use(known)


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
            TimeElapsedColumn(),
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


def _in_words(seconds: float) -> str:
    """
    >>> _in_words(41.3), _in_words(200), _in_words(9000)
    ('41 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _left_at(folder: Path) -> int | None:
    """The step of the checkpoint that a run goes on from; None of one that has ended or has none."""
    from isograd.files import read_json

    try:
        if read_json(folder / "outcome.json").get("outcome") != "interrupted":
            return None
    except (OSError, ValueError):
        pass
    from isograd.train.checkpoints import last_checkpoint, step_of  # which takes seconds to import

    found = last_checkpoint(folder / "checkpoints")
    return None if found is None else step_of(found)


class RunProgress:
    """A bar per run, fed with steps and ends; where there is no terminal, lines.

    Args:
        folders: of the runs, in which warnings are read as they are written, and how long a run will be.
    """

    def __init__(self, labels: list[str], steps: int, folders: Sequence[Path]) -> None:
        self.console = progress()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        width = max(map(len, labels))
        self.tasks = [self.bars.add_task(escape(one.ljust(width)), total=steps, start=False, loss="") for one in labels]
        self.labels, self.folders = labels, folders
        self.begun: set[int] = set()
        self.seen: dict[int, tuple[float, int]] = {}  # when a run was first heard of, and at which step
        self.warned: Counter[int] = Counter()

    def __enter__(self) -> "RunProgress":
        if not self.console.quiet:
            announce_resumed(self.labels, self.folders)
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def ready(self, left: int, at_once: int) -> None:
        """Data are read, and runs begin: a line where no bars are seen."""
        if not self.console.is_terminal:
            self.line(f"{left} run{'s' if left != 1 else ''}, {min(left, at_once)} at once")

    def step(self, index: int, step: int, loss: float) -> None:
        """Run `index` has taken `step` steps."""
        from isograd.files import read_object, read_rows

        task = self.tasks[index]
        if index not in self.begun:  # how many steps an epoch has is known late
            self.begun.add(index)
            self.bars.start_task(task)
            self.bars.update(task, total=read_object(self.folders[index] / "resolved.json").get("steps"))
        self.bars.update(task, completed=step, loss=f"loss {loss:.3f}")
        total = int(self.bars.tasks[index].total or 0)
        first = index not in self.seen and len(self.labels) == 1  # of many runs the first lines would be many
        began, since = self.seen.setdefault(index, (time.perf_counter(), step))
        if not self.console.is_terminal and (first or step % max(EVERY, total // 20) == 0) and step != total:
            each = (time.perf_counter() - began) / max(1, step - since)
            left = "" if step == since else f", {_in_words((total - step) * each)} left"
            self.line(f"{self.labels[index]}: step {step:,} of {total:,}, loss {loss:.3f}{left}")
        for row in read_rows(self.folders[index] / "warnings.jsonl")[self.warned[index] :]:
            self.warned[index] += 1
            label = f"{self.labels[index]}: " if len(self.labels) > 1 else ""
            self.line(f"warning: {label}{row['message']}", style="red")

    def validated(self, row: dict[str, Any]) -> None:
        """A validation has been made: its row as a line."""
        said = f"step {row['step']}"
        said += f" (epoch {row['epoch']:.1f})" if row.get("epoch") is not None else ""
        numbers = {"validation loss": ("loss", ".3f"), "perplexity": ("perplexity", ".2f"), "BLEU": ("bleu", ".1f")}
        numbers |= {name: (name, ".3f") for name in ("accuracy", "f1", "matthews", "pearson", "spearman")}
        found = [f"{name} {row[key]:{form}}" for name, (key, form) in numbers.items() if row.get(key) is not None]
        self.line(f"{said}: {', '.join(found)}")

    def end(self, index: int, result: dict[str, Any]) -> None:
        """Run `index` has ended (or had ended before)."""
        outcome = result["outcome"]  # of a translation the loss in training is smoothed, and says little
        final = result.get("final_loss" if result.get("perplexity") is None else "validation_loss")
        text = outcome if final is None else f"{outcome} {final:.3f}"
        if result.get("perplexity") is not None and result.get("kept_weights") in ("best", "average"):
            text += f" ({result['kept_weights']})"
        if result.get("score") is not None:
            text = f"{result['metric']} {result['score']:.3f}{' (failed run)' if result['failed'] else ''}"
        task = self.bars.tasks[index]
        self.bars.update(task.id, loss=f"[{COLOURS[outcome]}]{text}[/]", completed=task.total)
        if not self.console.is_terminal:
            self.line(f"{self.labels[index]}: {text}")

    def line(self, said: str, **options: Any) -> None:
        self.console.print(said, markup=False, soft_wrap=True, **options)

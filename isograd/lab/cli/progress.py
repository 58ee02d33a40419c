"""A study's progress: in a terminal a live table with a mark per cell, elsewhere a line per ended cell."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from isograd.cli.console import COLOURS, announce, in_words, progress
from isograd.lab.study.labels import said, shown
from isograd.lab.study.plan import Cell

MARKS = {
    "waiting": "·",
    "running": "▶",
    "finished": "●",
    "undecided": "◐",
    "collapsed": "○",
    "diverged": "✗",
    "failed": "!",
    "broken": "?",
}
_LOOKS = {"waiting": "dim", "running": "cyan", "broken": "yellow", **COLOURS}
EVERY = 100  # steps between lines of progress, and at most 20 lines a run
ROWS = 6  # of a terminal's lines that are left to the bar, the heads, the legend and two empty ones
WIDE = 0.7  # of a terminal's width that marks may take with a gap between them


class StudyProgress:
    """Given steps and rows, shows all cells as marks, those that are trained now with step and loss, and the time.

    Args:
        cells: in the order in which they are trained.
        axes: dotted keys; those with one value are not shown.
    """

    def __init__(self, cells: Sequence[Cell], axes: Sequence[str], console: Console | None = None) -> None:
        self.cells = cells
        self.axes = [key for key in axes if len({str(cell.values.get(key)) for cell in cells}) > 1]
        self.console = console or progress()
        self.states = ["waiting"] * len(cells)
        self.now: dict[int, tuple[int, float]] = {}
        self.before = 0
        self.began = time.monotonic()
        self.bar = Progress(
            TextColumn("cells"), BarColumn(bar_width=40), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
        )
        self.task = self.bar.add_task("", total=len(cells), left="")
        self.live = self.console.is_terminal  # drawn four times a second, not at every step
        self.drawing = Live(get_renderable=self.table, console=self.console, refresh_per_second=4)

    def __enter__(self) -> "StudyProgress":
        if self.live:
            self.drawing.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.drawing.stop()

    def ready(self, left: int) -> None:
        """So many cells begin: a line where no table is seen."""
        if not self.live:
            self.console.print(f"{left} cell{'s' if left != 1 else ''} to train", markup=False)

    def step(self, place: int, step: int, loss: float) -> None:
        self.states[place] = "running"
        self.now[place] = (step, loss)
        self._show()

    def row(self, place: int, row: dict[str, Any]) -> None:
        """A cell has ended, now or before."""
        ran = self.now.pop(place, None) is not None
        self.states[place] = row["outcome"]
        self.before += not ran
        self._show()
        if (ran or row["outcome"] == "failed") and not self.live:
            done = sum(state not in ("waiting", "running") for state in self.states)
            self.console.print(f"[{done}/{len(self.cells)}] {_ended(row)}{self._left()}", markup=False, soft_wrap=True)

    def note(self, line: str) -> None:
        self.console.print(f"note: {line}", markup=False, soft_wrap=True)

    def _left(self) -> str:
        """The time that is left, at the pace of the cells that were trained now; those being trained count half."""
        done = sum(state not in ("waiting", "running") for state in self.states)
        trained = done - self.before
        left = len(self.cells) - done - len(self.now) / 2
        if trained < 1 or left <= 0:
            return ""
        return f", about {duration((time.monotonic() - self.began) / (trained + len(self.now) / 2) * left)} left"

    def _show(self) -> None:
        if self.live:
            done = sum(state not in ("waiting", "running") for state in self.states)
            self.bar.update(self.task, completed=done, left=self._left().removeprefix(", "))

    def table(self) -> RenderableType:
        """All of it, in no more lines than the terminal has."""
        now = sorted(self.now.copy().items())  # while it is drawn, another thread hears of the next step
        most = max(1, (self.console.height - ROWS) // 2)
        running = [self._running(self.cells[place], *news) for place, news in now[:most]]
        if len(now) > most:
            running.append(Text(f"  ▶ and {len(now) - most} others", "cyan"))
        present = dict.fromkeys(self.states)
        legend = Text("  ").join(
            [Text(f"{MARKS[state]} {state}", _LOOKS[state]) for state in MARKS if state in present]
        )
        legend.no_wrap = True
        return Group(self.bar, *running, self._grid(self.console.height - ROWS - len(running)), legend)

    def _running(self, cell: Cell, step: int, loss: float) -> Text:
        name = ", ".join(
            [*(said(key, cell.values[key]) for key in self.axes if key in cell.values), f"seed {cell.run.seed}"]
        )
        return Text(f"  ▶ {name}: step {step}/{cell.run.training.steps}, loss {loss:.3f}", "cyan", no_wrap=True)

    def _grid(self, room: int) -> RenderableType:
        """Marks of the seeds; a column per value of the last axis, a row per combination of the others.

        Where a terminal has too few lines, rows in which nothing happens any more are left out, then the last ones.
        """
        rows, columns = self.axes[:-1], self.axes[-1:]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for key in rows:
            table.add_column(key.rpartition(".")[2], no_wrap=True)
        heads = list(dict.fromkeys(_said(cell, columns) for cell in self.cells))
        for i, head in enumerate(heads):
            name = f"{columns[0].rpartition('.')[2]} {head}" if columns and not i else head
            table.add_column(name, no_wrap=True)
        lines: dict[tuple[str, ...], dict[str, list[int]]] = {}
        for place, cell in enumerate(self.cells):
            line = lines.setdefault(tuple(_said(cell, [key]) for key in rows), {})
            line.setdefault(_said(cell, columns), []).append(place)
        gap = " " if 2 * len(self.cells) < len(lines) * self.console.width * WIDE else ""
        if len(lines) > room:
            lines = {k: v for k, v in lines.items() if not self._over(v)} or lines
        for names, of in list(lines.items())[: max(1, room)]:
            table.add_row(*names, *(self._marks(of.get(head, []), gap) for head in heads))
        return table

    def _over(self, line: dict[str, list[int]]) -> bool:
        return all(self.states[i] not in ("waiting", "running") for places in line.values() for i in places)

    def _marks(self, places: Sequence[int], gap: str) -> Text:
        return Text(gap).join([Text(MARKS[self.states[i]], _LOOKS[self.states[i]]) for i in places])


def duration(seconds: float) -> str:
    """ "40 s", "12 min", "3 h 20 min".

    >>> duration(40), duration(700), duration(12000)
    ('40 s', '12 min', '3 h 20 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _said(cell: Cell, keys: Sequence[str]) -> str:
    return ", ".join(shown(cell.values[key]) for key in keys if key in cell.values)


def _ended(row: dict[str, Any]) -> str:
    losses = [row.get(name) for name in ("validation_loss", "final_loss") if row.get(name) is not None]
    why = f": {row['error']}" if row.get("error") else ""
    return f"{row['cell']}: {row['outcome']}" + (f", loss {losses[0]:.3f}" if losses else "") + why


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


def _left_at(folder: Path) -> int | None:
    """The step of the checkpoint that a run goes on from; None of one that has ended or has none."""
    from isograd.files import read_json

    try:
        if read_json(folder / "outcome.json").get("outcome") != "interrupted":
            return None
    except (OSError, ValueError):
        pass
    from isograd.lab.train.checkpoints import last_checkpoint, step_of  # which takes seconds to import

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
            left = "" if step == since else f", {in_words((total - step) * each)} left"
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

"""Progress of runs: of many in a terminal a live table with a mark per cell, elsewhere a line per ended cell."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from isograd.cli.console import COLOURS, Bar, announce, in_words, progress
from isograd.cli.schema import Open
from isograd.lab.study.labels import said, shown
from isograd.lab.study.plan import Cell

if TYPE_CHECKING:
    from isograd.lab.study.engine.jobs import Engine
    from isograd.lab.study.engine.ledger import Row

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


class Ended(Open):
    """How a run ended: its outcome.json, and where it lies."""

    outcome: Annotated[str, "isograd.outcome:OutcomeName"]
    folder: NotRequired[str]
    error: NotRequired[str]


class StudyProgress:
    """Given steps and rows, shows all cells as marks, those that are trained now with step and loss, and the time.

    Args:
        cells: in the order in which they are trained.
        axes: dotted keys; those with one value are not shown.
    """

    def __init__(self, cells: Sequence[Cell], axes: Sequence[str], console: Console | None = None) -> None:
        self.cells = cells
        self.axes = [key for key in axes if len({str(cell.values.get(key)) for cell in cells}) > 1]
        self.seeds = len({cell.run.seed for cell in cells}) > 1
        self.console = console or progress()
        self.states = ["waiting"] * len(cells)
        self.now: dict[int, tuple[int, float]] = {}
        self.before = 0
        self.began = time.monotonic()
        self.bar = Progress(
            TextColumn("runs"), BarColumn(bar_width=40), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
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
            self._line(f"{left} run{'s' if left != 1 else ''} to train")

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
        name = self._name(self.cells[place])
        if (ran or row["outcome"] == "failed") and not self.live:
            self._line(f"[{self._done()}/{len(self.cells)}] {name}: {in_short(row)}{self._left()}")
        if ran and row.get("warning"):
            self._line(f"warning: {name}: {row['warning']['message']}", style="red")

    def note(self, line: str) -> None:
        self._line(f"note: {line}")

    def _line(self, line: str, **options: Any) -> None:
        self.console.print(line, markup=False, soft_wrap=True, **options)

    def _done(self) -> int:
        return sum(state not in ("waiting", "running") for state in self.states)

    def _left(self) -> str:
        """The time that is left, at the pace of the cells that were trained now; those being trained count half."""
        trained = self._done() - self.before
        left = len(self.cells) - self._done() - len(self.now) / 2
        if trained < 1 or left <= 0:
            return ""
        return f", about {in_words((time.monotonic() - self.began) / (trained + len(self.now) / 2) * left)} left"

    def _show(self) -> None:
        if self.live:
            self.bar.update(self.task, completed=self._done(), left=self._left().removeprefix(", "))

    def table(self) -> RenderableType:
        """All of it; what a terminal has too few lines for is left out at its end."""
        now = sorted(self.now.copy().items())  # while it is drawn, another thread hears of the next step
        running = [self._running(self.cells[place], *news) for place, news in now]
        present = dict.fromkeys(self.states)
        legend = Text("  ").join(
            [Text(f"{MARKS[state]} {state}", _LOOKS[state]) for state in MARKS if state in present]
        )
        legend.no_wrap = True
        return Group(self.bar, *running, legend, self._grid())

    def _name(self, cell: Cell) -> str:
        named = [said(key, cell.values[key]) for key in self.axes if key in cell.values] or [cell.label]
        return ", ".join([*named, *[f"seed {cell.run.seed}"] * self.seeds])

    def _running(self, cell: Cell, step: int, loss: float) -> Text:
        said = f"  ▶ {self._name(cell)}: step {step}/{cell.run.training.steps}, loss {loss:.3f}"
        return Text(said, "cyan", no_wrap=True)

    def _grid(self) -> RenderableType:
        """Marks of the seeds; a column per value of the last of several axes, a row per combination of the others."""
        columns = self.axes[1:][-1:]
        rows = [key for key in self.axes if key not in columns]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for key in rows:
            table.add_column(key.rpartition(".")[2], no_wrap=True)
        heads = list(dict.fromkeys(_said(cell, columns) for cell in self.cells))
        for i, head in enumerate(heads):
            name = f"{columns[0].rpartition('.')[2]} {head}" if columns and not i else head
            table.add_column(name, no_wrap=True)
        lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for state, cell in zip(self.states, self.cells, strict=True):
            line = lines.setdefault(tuple(_said(cell, [key]) for key in rows), {})
            line.setdefault(_said(cell, columns), []).append(state)
        for names, of in lines.items():
            marks = ([Text(MARKS[state], _LOOKS[state]) for state in of.get(head, [])] for head in heads)
            table.add_row(*names, *(Text("").join(one) for one in marks))
        return table


def _said(cell: Cell, keys: Sequence[str]) -> str:
    return ", ".join(shown(cell.values[key]) for key in keys if key in cell.values)


def in_short(result: dict[str, Any]) -> str:
    """How a run has ended: the outcome and its loss, a score, or an error."""
    losses = [result[name] for name in ("validation_loss", "final_loss") if result.get(name) is not None]
    text = result["outcome"] + (f", loss {losses[0]:.3f}" if losses else "")
    if result.get("perplexity") is not None and result.get("kept_weights") in ("best", "average"):
        text += f" ({result['kept_weights']})"
    if result.get("score") is not None:
        text = f"{result['metric']} {result['score']:.3f}{' (failed run)' if result.get('failed') else ''}"
    return text + (f": {result['error']}" if result.get("error") else "")


def prepare_cells(cells: Sequence[Cell], folder: Path, jobs: int | None) -> None:
    """Before torch is loaded: refuse data that are not there, say what is about to be trained, start the server.

    Args:
        jobs: processes on this machine; one needs no server.
    """
    from isograd.lab.study.engine.server import begin

    folders = [cell.place(folder) for cell in cells]
    new = [cell.run for cell, own in zip(cells, folders, strict=True) if not (own / "run.json").exists()]
    for run in {run.corpus_key: run for run in new}.values():
        run.must_find_its_data()
    announce_runs(folders, folder)
    if not all((own / "outcome.json").exists() for own in folders):
        begin(jobs if len(cells) > 1 else 1)


def train_cells(
    cells: Sequence[Cell], folder: Path, engine: "Engine", axes: Sequence[str], *, retry: bool, keep_models: bool
) -> list["Row"]:
    """The rows of the ledger, as `run_cells` gives them; progress on stderr."""
    from isograd.lab.study.engine.runner import run_cells

    announce_resumed([cell.name for cell in cells], [cell.place(folder) for cell in cells])
    with StudyProgress(cells, axes) as shown:
        return run_cells(
            cells,
            folder,
            engine,
            shown.step,
            shown.row,
            retry=retry,
            keep_models=keep_models,
            on_note=shown.note,
            on_ready=shown.ready,
        )


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


class RunProgress(Bar):
    """The bar of one run, fed with its steps; where there is no terminal, lines.

    Args:
        folder: of the run, in which warnings are read as they are written, and how long it will be.
    """

    def __init__(self, label: str, steps: int, folder: Path) -> None:
        super().__init__(label, steps)
        self.label, self.folder, self.total = label, folder, steps
        self.began: tuple[float, int] | None = None  # when the run was first heard of, and at which step
        self.warned = 0

    def __enter__(self) -> "RunProgress":
        if not self.console.quiet:
            announce_resumed([self.label], [self.folder])
        super().__enter__()
        return self

    def step(self, step: int, loss: float) -> None:
        """The run has taken `step` steps."""
        from isograd.files import read_object, read_rows

        first = self.began is None
        if self.began is None:  # how many steps an epoch has is known late
            self.total = read_object(self.folder / "resolved.json").get("steps") or self.total
            self.began = (time.perf_counter(), step)
        self.update(f"loss {loss:.3f}", completed=step, total=self.total)
        if not self.console.is_terminal and (first or step % max(EVERY, self.total // 20) == 0) and step != self.total:
            each = (time.perf_counter() - self.began[0]) / max(1, step - self.began[1])
            left = "" if first else f", {in_words((self.total - step) * each)} left"
            self.line(f"{self.label}: step {step:,} of {self.total:,}, loss {loss:.3f}{left}")
        for row in read_rows(self.folder / "warnings.jsonl")[self.warned :]:
            self.warned += 1
            self.console.print(f"warning: {row['message']}", markup=False, soft_wrap=True, style="red")

    def validated(self, row: dict[str, Any]) -> None:
        """A validation has been made: its row as a line."""
        said = f"step {row['step']}"
        said += f" (epoch {row['epoch']:.1f})" if row.get("epoch") is not None else ""
        numbers = {"validation loss": ("loss", ".3f"), "perplexity": ("perplexity", ".2f"), "BLEU": ("bleu", ".1f")}
        numbers |= {name: (name, ".3f") for name in ("accuracy", "f1", "matthews", "pearson", "spearman")}
        found = [f"{name} {row[key]:{form}}" for name, (key, form) in numbers.items() if row.get(key) is not None]
        self.line(f"{said}: {', '.join(found)}")

    def ended(self, result: dict[str, Any]) -> None:
        """The run has ended, or had ended before."""
        self.update(in_short(result), completed=self.total)
        if not self.console.is_terminal:
            self.line(f"{self.label}: {in_short(result)}")

"""Progress on stderr: live bars in a terminal, a line per finished run elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

COLOURS = {
    "finished": "green",
    "undecided": "cyan",
    "collapsed": "red",
    "diverged": "red",
    "failed": "yellow",
    "interrupted": "yellow",
}


class RunProgress:
    """A bar per run, told of steps and ends."""

    def __init__(self, labels: list[str], steps: int, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        width = max(map(len, labels))
        self.tasks: list[TaskID] = [
            self.bars.add_task(escape(label.ljust(width)), total=steps, start=False, loss="") for label in labels
        ]
        self.labels = labels

    def step(self, index: int, step: int, loss: float) -> None:
        """Run `index` has taken `step` steps."""
        self.bars.start_task(self.tasks[index])
        self.bars.update(self.tasks[index], completed=step, loss=f"loss {loss:.3f}")

    def in_steps_of(self, folders: Sequence[Path]) -> Callable[[int, int, float], None]:
        """`step`, and warnings as they are written; each bar as long as the run in its folder will be.

        How long that is, of a training told in epochs is known late.
        """
        from isograd.report.runs import read_rows, read_run

        begun: set[int] = set()
        warned: Counter[int] = Counter()

        def on_step(index: int, step: int, loss: float) -> None:
            if index not in begun:
                begun.add(index)
                built = read_run(folders[index]).resolved
                self.bars.update(self.tasks[index], total=built.get("steps"))
            self.step(index, step, loss)
            for row in read_rows(folders[index] / "warnings.jsonl")[warned[index] :]:
                warned[index] += 1
                self.warn(index, row["message"])

        return on_step

    def warn(self, index: int, message: str) -> None:
        """Something about run `index` that should not wait for its end."""
        label = f"{self.labels[index]}: " if len(self.labels) > 1 else ""
        self.console.print(f"warning: {label}{message}", style="red", highlight=False, markup=False, soft_wrap=True)

    def validated(self, row: dict[str, Any]) -> None:
        """A validation has been made: its row as a line."""
        said = f"step {row['step']}"
        said += f" (epoch {row['epoch']:.1f})" if row.get("epoch") is not None else ""
        numbers = {"validation loss": ("loss", ".3f"), "perplexity": ("perplexity", ".2f"), "BLEU": ("bleu", ".1f")}
        numbers |= {name: (name, ".3f") for name in ("accuracy", "f1", "matthews", "pearson", "spearman")}
        found = [f"{name} {row[key]:{form}}" for name, (key, form) in numbers.items() if row.get(key) is not None]
        self.console.print(f"{said}: {', '.join(found)}", highlight=False, markup=False, soft_wrap=True)

    def end(self, index: int, result: dict[str, Any]) -> None:
        """Run `index` has ended (or had ended before)."""
        outcome = result["outcome"]  # of a translation the loss in training is smoothed, and says little
        final = result.get("final_loss" if result.get("perplexity") is None else "validation_loss")
        text = outcome if final is None else f"{outcome} {final:.3f}"
        if result.get("perplexity") is not None and result.get("kept_weights") in ("best", "average"):
            text += f" ({result['kept_weights']})"
        if result.get("score") is not None:
            text = f"{result['metric']} {result['score']:.3f}{' (failed run)' if result['failed'] else ''}"
        self.bars.update(
            self.tasks[index], loss=f"[{COLOURS[outcome]}]{text}[/]", completed=self.bars.tasks[index].total
        )
        if not self.console.is_terminal:
            self.console.print(f"{self.labels[index]}: {text}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def showing(labels: list[str], steps: int, console: Console) -> Iterator[RunProgress]:
    """The bars, for as long as the block runs."""
    progress = RunProgress(labels, steps, console)
    with progress.bars:
        yield progress

"""`isograd evaluate zero-shot`: accuracies of a causal language model on tasks that it was not trained for."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from isograd.cli.console import output
from isograd.cli.searching import count
from isograd.errors import UserError, one_line

if TYPE_CHECKING:
    from isograd.evaluate.zero_shot import Score, ZeroShot

_EPILOG = """\
tasks: hellaswag piqa winogrande openbookqa arc_easy arc_challenge lambada_openai blimp, and any other name that
lm-evaluation-harness knows. Their text comes from the Hugging Face hub, or with --data from files that lie in one
folder, such as piqa-valid.jsonl.gz, blimp.jsonl or storycloze_2016.csv (docs/zero-shot.md has all names and forms).

examples:
  isograd evaluate zero-shot runs/gpt --data zeroshot
  isograd evaluate zero-shot runs/gpt --data zeroshot --tasks blimp --details
  isograd evaluate zero-shot openai-community/gpt2 --tasks piqa lambada_openai --limit 200

Prompts and scoring are lm-evaluation-harness' own. "above chance": by more than two standard errors."""

_COLOURS = {"above chance": "green", "at chance": "dim", "below chance": "red"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("model", help="the folder of a run or of a model, or a model's name on the hub; a causal language model")
    add("--tasks", nargs="+", metavar="TASK", help="default: all that --data has, or the eight named below")
    add("--data", type=Path, metavar="FOLDER", help="files of the tasks; nothing is asked of the hub")
    add("--limit", type=count, metavar="N", help="the first N documents of a task, of BLiMP N pairs per paradigm")
    add("--seed", type=int, metavar="S", help="with --limit: N documents drawn by this seed, in place of the first N")
    add("--batch-size", type=count, metavar="N", help="texts at a time (default: as many as make a good batch)")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of weights and activations, default fp32")
    add("--threads", type=count, help="threads of the CPU (default: torch's)")
    add("--details", action="store_true", help="also the members of a group: BLiMP's phenomena and 67 paradigms")
    add("--out", type=Path, metavar="FILE", help="write all results there as JSON too")
    add("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.seed is not None and options.limit is None:
        raise UserError("--seed draws the documents of --limit N, and there is no --limit")
    if options.out and (options.out.is_dir() or not options.out.parent.is_dir()):
        raise UserError(f"--out {options.out}: not a file in a folder that exists")
    console = Console(file=sys.stderr)  # this stderr: the harness' own printing is caught by exchanging sys.stderr
    try:
        with console.status("loading lm-evaluation-harness"):
            import isograd.evaluate.zero_shot  # noqa: F401  (what is missing is said before anything is loaded)
        found = _evaluate(options, console)
    except ImportError as error:
        raise UserError(one_line(error)) from error
    except ValueError as error:  # of the data, and of the model
        raise UserError(one_line(error)) from error
    from isograd.files import finite

    text = json.dumps(finite(_facts(options, found)), indent=2, ensure_ascii=False)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
    else:
        _tell(found, options.details)
    for task, why in found.failures.items():
        print(f"isograd evaluate: {task}: {why}", file=sys.stderr)
    return 1 if found.failures else 0


def _evaluate(options: argparse.Namespace, console: Console) -> "ZeroShot":
    import torch

    from isograd.cli.quiet import quiet
    from isograd.evaluate.harness_tasks import load_tasks
    from isograd.evaluate.loading import load_causal_model
    from isograd.evaluate.zero_shot import zero_shot
    from isograd.train.memory import keep_freed_memory

    quiet()
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    with console.status("loading the model"):
        model, tokenizer = load_causal_model(options.model, dtype)
        model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    with console.status("reading the tasks"):
        tasks = load_tasks(options.tasks, options.data)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        rows = {name: bars.add_task(name, total=None) for name in tasks}
        return zero_shot(
            model,
            tokenizer,
            tasks,
            limit=options.limit,
            seed=options.seed,
            batch=options.batch_size,
            progress=lambda name, done, total: bars.update(rows[name], completed=done, total=total),
        )


def _facts(options: argparse.Namespace, found: "ZeroShot") -> dict[str, Any]:
    from isograd.train.provenance import provenance

    return {
        "model": options.model,
        "data": str(options.data) if options.data else "hub",
        "limit": options.limit,
        "seed": options.seed,
        "batch_size": options.batch_size,
        "precision": options.precision,
        "scores": _rows(found.scores),
        "details": {
            name: {kind: _rows(scores) for kind, scores in kinds.items()} for name, kinds in found.details.items()
        },
        "failures": found.failures,
        "empty_context": found.prefix,
        "texts": found.texts,
        "truncated": found.truncated,
        "pieced": found.pieced,
        "seconds": found.seconds,
        "texts_per_second": found.texts / found.seconds,
        "task_versions": found.versions,
        "provenance": provenance() | {"lm_eval": version("lm_eval"), "datasets": version("datasets")},
    }


def _rows(scores: Sequence["Score"]) -> list[dict[str, Any]]:
    return [asdict(score) | {"verdict": score.verdict} for score in scores]


def _tell(found: "ZeroShot", details: bool) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("task", "metric"):
        table.add_column(name)
    for name in ("%", "s.e.", "chance", "n"):
        table.add_column(name, justify="right")
    table.add_column("")
    last = None
    for score in found.scores:
        _add(table, score, "" if score.task == last else score.task)
        last = score.task
        kinds = found.details.get(score.task, {})
        for kind in kinds if details else kinds.keys() & {"field"}:
            for one in kinds[kind]:
                _add(table, one, f"  {one.task.removeprefix(f'{score.task}_')}")
    console = output()
    console.print(table)
    said = f"{found.texts:,} texts in {found.seconds:.1f} s: {found.texts / found.seconds:.0f} texts/s"
    if found.truncated:
        said += f"; {found.truncated:,} longer than the model reads"
    console.print(f"[dim]{said}[/dim]")


def _add(table: Table, score: "Score", name: str) -> None:
    """Accuracies in percent, anything else as it is."""
    numbers = [score.value, score.stderr, score.chance]
    shown = ["" if number is None else _number(number, score.chance is not None) for number in numbers]
    verdict = score.verdict
    said = f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict else ""
    table.add_row(name, score.metric, *shown, f"{score.n:,}", said)


def _number(number: float, percent: bool) -> str:
    return f"{100 * number:.1f}" if percent else f"{number:.4g}"

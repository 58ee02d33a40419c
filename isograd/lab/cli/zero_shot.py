"""`isograd evaluate` of a causal model: accuracies of a causal language model on tasks that it was not trained for."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from isograd.cli.console import Bar, Result, loading, must_be_writable, output, print_table
from isograd.cli.parser import Count, File, Folder
from isograd.errors import UserError, refusing
from isograd.hub import must_be_a_model

if TYPE_CHECKING:
    from isograd.lab.evaluate.zero_shot import Score, ZeroShot

_COLOURS = {"above chance": "green", "at chance": "dim", "below chance": "red"}


Scores = list[Annotated[Any, "isograd.lab.evaluate.zero_shot:Score"]]


class ZeroShotScores(TypedDict):
    """Accuracies by task; of a group also those of its members, by kind; tasks that failed, and why."""

    model: str
    data: str
    limit: int | None
    seed: int | None
    batch: int | None
    precision: str
    scores: Scores
    details: dict[str, dict[str, Scores]]
    failures: dict[str, str]
    empty_context: str | None
    texts: int
    truncated: int
    pieced: int
    seconds: float
    texts_per_second: float
    task_versions: dict[str, Any]
    provenance: dict[str, Any]


def zero_shot(
    model: str,
    *,
    tasks: list[Annotated[str, "TASK"]] | None = None,
    data: Folder | None = None,
    limit: Count | None = None,
    seed: int | None = None,
    batch: Count | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    threads: Count | None = None,
    details: bool = False,
    out: File | None = None,
) -> Annotated[Result, ZeroShotScores]:
    """Evaluate a causal language model on HellaSwag, PIQA, BLiMP and others.

    tasks: hellaswag piqa winogrande openbookqa arc_easy arc_challenge lambada_openai blimp, and any other name that
    lm-evaluation-harness knows. Their text comes from the Hugging Face hub, or with --data from files that lie in one
    folder, such as piqa-valid.jsonl.gz, blimp.jsonl or storycloze_2016.csv (docs/zero-shot.md has all names and forms).

    examples:
      isograd evaluate runs/gpt --data zeroshot
      isograd evaluate runs/gpt --data zeroshot --tasks blimp --details
      isograd evaluate openai-community/gpt2 --tasks piqa lambada_openai --limit 200

    Prompts and scoring are lm-evaluation-harness' own. "above chance": by more than two standard errors.

    Args:
        model: the folder of a run or of a model, or a model's name on the hub; a causal language model
        tasks: default: all that --data has, else the eight named below
        data: files of the tasks; the hub is not used
        limit: the first N documents of a task, of BLiMP N pairs per paradigm
        seed: with --limit: N documents drawn by this seed, in place of the first N
        batch: texts at a time (default: as many as make a good batch)
        precision: of weights and activations, default fp32
        threads: threads of the CPU (default: torch's)
        details: also the members of a group: BLiMP's phenomena and 67 paradigms
        out: write all results there as JSON too
    """
    if seed is not None and limit is None:
        raise UserError("--seed draws the documents of --limit N, and there is no --limit")
    must_be_a_model(model)
    must_be_writable(out)
    with refusing(ImportError, ValueError):  # of the data, and of the model
        found = _evaluated(model, tasks, data, precision, threads, limit=limit, seed=seed, batch=batch)
    facts = {
        "model": model,
        "data": str(data) if data else "hub",
        "limit": limit,
        "seed": seed,
        "batch": batch,
        "precision": precision,
    }
    content = facts | _results(found)
    if out:
        from isograd.files import write_json

        write_json(out, content)
    failed = [f"{task}: {why}" for task, why in found.failures.items()]
    return Result(content, partial(_print, found, details), failed, code=1 if failed else 0)


def _evaluated(
    model: str, tasks: list[str] | None, data: Path | None, precision: str, threads: int | None, **options: Any
) -> "ZeroShot":
    with loading("loading lm-evaluation-harness", threads):
        import torch

        from isograd.lab.evaluate.harness_tasks import load_tasks
        from isograd.lab.evaluate.loading import load_causal_model
        from isograd.lab.evaluate.zero_shot import zero_shot as evaluate  # says what is missing before anything loads

        network, tokenizer = load_causal_model(model, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
        network = network.to("cuda" if torch.cuda.is_available() else "cpu")
        loaded = load_tasks(tasks, data)
    with Bar("", transient=True) as bar:

        def shown(name: str, done: int, total: int) -> None:
            bar.update(what=name, completed=done, total=total)

        return evaluate(network, tokenizer, loaded, progress=shown, **options)


def _results(found: "ZeroShot") -> dict[str, Any]:
    from isograd.lab.train.provenance import provenance

    details = {name: {kind: _rows(scores) for kind, scores in kinds.items()} for name, kinds in found.details.items()}
    return {
        "scores": _rows(found.scores),
        "details": details,
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


def _print(found: "ZeroShot", details: bool) -> None:
    rows, last = [], None
    for score in found.scores:
        rows.append(_row(score, "" if score.task == last else score.task))
        last = score.task
        kinds = found.details.get(score.task, {})
        for kind in kinds if details else kinds.keys() & {"field"}:
            rows += [_row(one, f"  {one.task.removeprefix(f'{score.task}_')}") for one in kinds[kind]]
    print_table(["task", "metric", "%", "s.e.", "chance", "n", ""], rows, left=2)
    said = f"{found.texts:,} texts in {found.seconds:.1f} s: {found.texts / found.seconds:.0f} texts/s"
    if found.truncated:
        said += f"; {found.truncated:,} longer than the model reads"
    output().print(f"[dim]{said}[/dim]")


def _row(score: "Score", name: str) -> list[str]:
    """Accuracies in percent, anything else as it is."""
    numbers = [score.value, score.stderr, score.chance]
    percent = score.chance is not None
    shown = ["" if one is None else f"{100 * one:.1f}" if percent else f"{one:.4g}" for one in numbers]
    verdict = score.verdict
    return [name, score.metric, *shown, f"{score.n:,}", f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict else ""]

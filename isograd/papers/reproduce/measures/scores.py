"""Scores of trained models: zero-shot accuracy beside perplexity, and the mean over tasks of GLUE."""

import math
from functools import partial
from pathlib import Path
from statistics import fmean

from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.item import Row, Rows

ZERO_SHOT = ("hellaswag", "piqa", "winogrande", "openbookqa")  # the paper's five without StoryCloze
DOCUMENTS = 250  # of each task, the first ones


def perplexities(context: Context) -> Rows:
    """A row per run, with its perplexity and, where a folder of tasks lies beside the corpus, its zero-shot mean."""
    folder = context.corpus.parent / "zeroshot" if context.corpus else None
    rows: list[Row] = []
    for run in context.trained:
        loss = run.outcome.get("validation_loss")
        row = run.row(perplexity=None if loss is None else math.exp(min(loss, 700.0)))
        if folder and folder.is_dir():
            name = f"zero-shot accuracies: {run.group} {run.arm}, seed {run.seed}"
            found = context.once(name, partial(_zero_shot, run, folder))
            row |= found | {"zero_shot": fmean(found.values())}
        rows.append(row)
    return rows


def _zero_shot(run: Trained, folder: Path) -> dict[str, float]:
    """Accuracy in percent; of tasks that have one the accuracy by length-normalized likelihood, as the paper's are."""
    from isograd.lab.evaluate.harness_tasks import load_tasks
    from isograd.lab.evaluate.loading import load_causal_model
    from isograd.lab.evaluate.zero_shot import zero_shot

    model, tokenizer = load_causal_model(run.folder)
    found = zero_shot(model, tokenizer, load_tasks(ZERO_SHOT, folder), limit=DOCUMENTS)
    scores = {(score.task, score.metric): 100 * score.value for score in found.scores}
    return {task: scores.get((task, "acc_norm"), scores.get((task, "acc"), math.nan)) for task in ZERO_SHOT}


def glue_mean(context: Context) -> Rows:
    """A row per run; and per pre-trained model its mean score over the tasks, in percent.

    The arms of the groups that are tasks are called as those of the group "pretrained", whose models they fine-tune.
    """
    rows: list[Row] = []
    for run in context.trained:
        row = run.row()
        if row.get("score") is not None:
            row["score"] = 100 * row["score"]
        if run.group == "pretrained" and row.get("validation_loss") is not None:
            row["perplexity"] = math.exp(min(row["validation_loss"], 700.0))
        rows.append(row)
    tasks = list(dict.fromkeys(row["group"] for row in rows if row["group"] != "pretrained"))
    for arm, seed in dict.fromkeys((row["arm"], row["seed"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["seed"]) == (arm, seed) and row["group"] != "pretrained"]
        scores = {row["group"]: row["score"] for row in own if row.get("score") is not None}
        if own and len(scores) == len(tasks):
            mean = {"what": "mean", "mean": fmean(scores.values())}
            rows.append({"arm": arm, "placement": own[0]["placement"], "seed": seed, **mean, **scores})
    return rows


def by_epoch(context: Context) -> Rows:
    """A row per fine-tuning, one per epoch with the dev part's accuracy in percent."""
    rows: list[Row] = []
    for run in context.trained:
        if run.group == "pretrained":
            continue
        found = [row for row in run.read("validation.jsonl") if row.get("accuracy") is not None]
        own = run.row()
        own["score"] = None if own.get("score") is None else 100 * own["score"]
        if found:
            own["mean_of_epochs"] = 100 * fmean(row["accuracy"] for row in found)
        rows.append(own)
        who = {name: own[name] for name in ("group", "arm", "placement", "seed")}
        rows += [{**who, "what": "epoch", "epoch": row["epoch"], "accuracy": 100 * row["accuracy"]} for row in found]
    return rows

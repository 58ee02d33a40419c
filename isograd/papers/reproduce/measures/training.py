"""What the files of runs say beside how they ended: gradients by layer, learned scales, steps to equal loss."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from isograd.lab.statistics import compare
from isograd.outcome import reached
from isograd.papers.reproduce.context import Context, Trained
from isograd.papers.reproduce.item import Row, Rows

END = 50  # steps: what is called the end of a run


def validations(context: Context) -> Rows:
    """A row per run, and one per validation with its epoch and loss, or scores."""
    found = [
        {**_who(run), "what": "validation", **{name: value for name, value in row.items() if value is not None}}
        for run in context.trained
        for row in run.read("validation.jsonl")
    ]
    return [*context.rows(), *found]


def around_warmup(context: Context) -> Rows:
    """Of runs with a warm-up |gradient| of the decoder's feed-forward sublayers, at the start and after.

    The update after warm-up is the first observed one at the full rate; `gradient` of a "moment" row
    is that of the last layer.
    """
    rows: list[Row] = []
    for run in context.trained:
        warmup = run.run.training.warmup
        observed = [r for r in run.read("quantities.jsonl") if (r["kind"], r["stack"]) == ("ffn", "decoder")]
        later = [row["step"] for row in observed if row["step"] > warmup]
        if not warmup or not later:
            continue
        last = max(row["layer"] for row in observed)
        for moment, step in (("the first update", 1), ("the update after warm-up", min(later))):
            for row in (one for one in observed if one["step"] == step and one.get("gradient_norm") is not None):
                shown = {**_who(run), "arm": moment, "panel": run.arm, "layer": row["layer"]}
                rows.append({**shown, "what": "layer", "gradient": row["gradient_norm"]})
                if row["layer"] == last:
                    rows.append({**shown, "what": "moment", "gradient": row["gradient_norm"]})
    return rows


def layer_gradients(context: Context) -> Rows:
    """mean |gradient| of W_2 by layer, mean over the observed steps of all training and of its end; first over last."""
    rows: list[Row] = context.rows()
    for run in context.trained:
        observed = [row for row in run.read("quantities.jsonl") if row["kind"] == "ffn" and "gradient_mean_abs" in row]
        steps = run.run.training.steps
        for moment, begin in (("all of training", 0), (f"the last {END} steps", steps - END)):
            by_layer: dict[int, list[float]] = defaultdict(list)
            for row in observed:
                if row["step"] > begin:
                    by_layer[row["layer"]].append(row["gradient_mean_abs"])
            means = {layer: fmean(values) for layer, values in sorted(by_layer.items())}
            shown = {**_who(run), "panel": moment}
            rows += [{**shown, "what": "layer", "layer": layer, "gradient": mean} for layer, mean in means.items()]
            first, last = means[min(means)], means[max(means)]
            rows.append({**shown, "what": "ratio", "ratio": first / last, "log_ratio": math.log(first / last)})
    return rows


SCALES = {
    ("mid", "ffn"): "weight of the norm inside the feed-forward",
    ("out", "attn"): "weight of the norm after attention",
    ("heads", "attn"): "head scale",
    ("skip", "ffn"): "ResScale",
}


def learned_scales(context: Context) -> Rows:
    """Each learned scale by layer, at the end: mean, lowest and highest; what the paper says of them as numbers.

    "early/late" of the norm inside the feed-forward: the mean over the first third of the layers over that of the last
    third; "highest" of the norm after attention: the layer with the largest mean; "spread" of the head scales: highest
    minus lowest in a layer, mean over layers; "top" of ResScale: the last layer minus the mean of all.
    """
    rows: list[Row] = []
    for run in context.trained:
        steps, found = run.run.training.steps, defaultdict(list)
        for row in run.read("quantities.jsonl"):
            if row["step"] > steps - END:
                for (name, kind), words in SCALES.items():
                    if row["kind"] == kind and name in row:
                        found[words, row["layer"]].append((row[name], row[f"{name}_min"], row[f"{name}_max"]))
        curves: dict[str, dict[int, tuple[float, ...]]] = defaultdict(dict)
        for (words, layer), values in sorted(found.items()):
            value, low, high = (fmean(column) for column in zip(*values, strict=True))
            curves[words][layer] = value, low, high
            shown = {**_who(run), "panel": words, "layer": layer}
            rows.append({**shown, "what": "layer", "value": value, "low": low, "high": high})
        rows.append({**_who(run), "what": "summary", **_of_scales(curves)})
    return rows


def _of_scales(curves: dict[str, dict[int, tuple[float, ...]]]) -> Row:
    inner, after, heads, top = (list(curves.get(words, {}).values()) for words in SCALES.values())
    third = max(1, len(inner) // 3)
    found = {
        "early_late": fmean(v for v, *_ in inner[:third]) / fmean(v for v, *_ in inner[-third:]),
        "highest_after": max(v for v, *_ in after),
        "head_spread": fmean(high - low for _, low, high in heads),
    }
    return found | ({"top": top[-1][0] - fmean(v for v, *_ in top)} if top else {})


def steps_to_equal_loss(context: Context) -> Rows:
    """A row per run; and per seed the steps, and the time, that an arm takes to the first arm's final validation loss.

    As shares of what the first arm takes, on straight lines between validations; infinite where it is not reached.
    """
    rows, arms = context.rows(), list(dict.fromkeys((run.group, run.arm) for run in context.trained))
    for group, reference in _first_of_each(arms):
        for theirs in context.of(group=group, arm=reference):
            for mine in context.of(group=group, seed=theirs.seed):
                if mine.arm != reference and (share := _share(mine, theirs, "step")) is not None:
                    seconds = _share(mine, theirs, "seconds")
                    rows.append({**_who(mine), "what": "equal loss", "share_of_steps": share, "share_of_time": seconds})
    return rows


def effects_by_update(context: Context) -> Rows:
    """A row per run; and per validation how far an arm's loss lies above that of its group's first arm, over seeds."""
    return _effects(context, "step", _losses)


def effects_by_rate(context: Context) -> Rows:
    """The same at the end of training, by the learning rate of a group."""
    return _effects(context, "lr", lambda run: {run.run.training.lr: _last_loss(run)})


def effects_by_depth(context: Context) -> Rows:
    """The same at the end of training, by the layers of a group, of the decoder where there are two stacks."""
    return _effects(context, "layers", lambda run: {run.run.layers or 0: _last_loss(run)})


def _last_loss(run: Trained) -> float:
    loss = None if run.outcome["outcome"] == "diverged" else run.outcome.get("validation_loss")
    return math.inf if loss is None else loss


def _effects(context: Context, x: str, of: Callable[[Trained], dict[float, float]]) -> Rows:
    """`of` gives the losses of a run by their place on the axis x."""
    rows, arms = context.rows(), list(dict.fromkeys((run.group, run.arm) for run in context.trained))
    for group, reference in _first_of_each(arms):
        theirs = {run.seed: of(run) for run in context.of(group=group, arm=reference)}
        for arm in (arm for own, arm in arms if own == group and arm != reference):
            runs = context.of(group=group, arm=arm)
            mine = {run.seed: of(run) for run in runs if run.seed in theirs}
            for place in of(runs[0]):
                a, b = ({seed: one[place] for seed, one in side.items() if place in one} for side in (mine, theirs))
                if (found := compare(a, b)).interval:
                    ends = {"effect": found.median, "low": found.interval.low, "high": found.interval.high}
                    rows.append({**_who(runs[0]), "seed": 0, "what": "effect", x: place, "n": found.n, **ends})
    return rows


def _losses(run: Trained) -> dict[float, float]:
    """By step."""
    return {row["step"]: row["loss"] for row in run.read("validation.jsonl") if row["loss"] is not None}


def _first_of_each(arms: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Of each group its first arm."""
    seen: dict[str, str] = {}
    for group, arm in arms:
        seen.setdefault(group, arm)
    yield from seen.items()


def _share(mine: Trained, theirs: Trained, x: str) -> float | None:
    """None where nothing tells: no validations, or the reference did not train."""
    points = [
        [(row[x], row["loss"]) for row in run.read("validation.jsonl") if row["loss"] is not None]
        for run in (mine, theirs)
    ]
    if not all(points) or theirs.outcome["outcome"] != "finished":
        return None
    target = points[1][-1][1]
    took, own = reached(points[1], target), reached(points[0], target)
    return None if not took else math.inf if own is None else own / took


def _who(run: Trained) -> Row:
    return {"group": run.group, "arm": run.arm, "placement": run.placement, "seed": run.seed}

"""Why a run ended as it did, from its files: the verdict, the step where it began, causes by evidence, what to do.

Causes are ranked by what speaks for them: a change that a replay has tried, then what was measured in the run itself,
then what was known before its first step.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from isograd.errors import command
from isograd.files import read_json, read_rows
from isograd.outcome import Onset

Row = dict[str, Any]
GROWN = 10.0  # times the usual gradient
SMALL = 1e-5  # of a matrix, in a step: it hardly moves
BROKEN = ("diverged", "collapsed")


def explain_run(folder: Path, findings: Sequence[Mapping[str, Any]] = ()) -> Row:
    """What is known of a run: verdict, began (a step, a layer), causes, profile, next.

    Args:
        findings: of `isograd check` on the model before its first update.
    """
    run, outcome, resolved = (_json(folder / f"{name}.json") for name in ("run", "outcome", "resolved"))
    metrics, warnings = read_rows(folder / "metrics.jsonl"), read_rows(folder / "warnings.jsonl")
    quantities = read_rows(folder / "quantities.jsonl")
    began = _began(metrics, warnings, resolved)
    broken = outcome.get("outcome") in BROKEN
    layer = next((row["layer"] for row in warnings if row.get("layer")), None)
    failed = _failed(folder)
    predicted = next((one for one in findings if one["code"] == "collapse-predicted"), None)
    measured = _measured(run, outcome, metrics, warnings, quantities, began, failed, predicted)
    vanished = any(row["signal"] == "gradients" for row in warnings)
    before = [one for one in findings if not (vanished and one is predicted)]  # one cause, named once
    causes = [*_tested(folder), *measured, *_before(before)]
    return {
        "of": str(folder),
        "verdict": _verdict(outcome, metrics, began if broken else None, layer),
        "began": began if broken else None,
        "layer": layer,
        "outcome": outcome,
        "causes": list({row["cause"]: row for row in reversed(causes)}.values())[::-1] if broken else [],
        "warnings": [{k: row.get(k) for k in ("step", "signal", "layer", "message")} for row in warnings],
        "findings": [dict(one) for one in findings],
        "profile": profile_of(quantities),
        "next": _next(folder, outcome, [one["remedy"] for one in causes if one["tested"]]),
    }


def explain_watched(folder: Path) -> Row:
    """The same of a watched loop: what was warned of is what is known of it."""
    metrics, warned = read_rows(folder / "metrics.jsonl"), read_rows(folder / "warnings.jsonl")
    causes = [_cause(row["cause"], row["message"], row["remedy"]) for row in warned if row.get("cause")]
    first = f"{warned[0]['message'][:1].upper()}{warned[0]['message'][1:]}." if warned else "Nothing was reported."
    known = [row["loss"] for row in metrics if row["loss"] is not None]
    losses = f" {len(metrics):,} steps, loss {known[0]:.3g} to {known[-1]:.3g}." if known else ""
    return {
        "of": str(folder),
        "verdict": f"{first}{losses}",
        "broken": any(row["signal"] in ("nonfinite", "rise", "gradients", "unigram") for row in warned),
        "causes": causes,
        "warnings": [{k: row.get(k) for k in ("step", "signal", "layer", "message")} for row in warned],
        "findings": [],
        "profile": [],
        "next": command("report", folder),
        "note": "the curves, and the gradients of each layer",
    }


def _verdict(outcome: Row, metrics: Sequence[Row], began: int | None, layer: str | None) -> str:
    name = outcome.get("outcome")
    if name is None:
        return f"The run has not ended; {len(metrics):,} steps are written."
    if name == "failed":
        return f"The run failed: {outcome.get('error')}."
    if name == "interrupted":
        steps = f"{len(metrics):,} steps"
        return f"The run was interrupted after {steps}; the command that started it goes on from its last checkpoint."
    where = "" if began is None else f" It began at step {began:,}" + (f", in {layer}." if layer else ".")
    return f"The run {name if name != 'undecided' else 'is undecided'}: {outcome.get('reason')}.{where}"


def _began(metrics: Sequence[Row], warnings: Sequence[Row], resolved: Row) -> int | None:
    level = (resolved.get("data") or {}).get("unigram_entropy")
    onset = Onset()
    for row in metrics:
        loss = math.nan if row["loss"] is None else row["loss"]
        onset.follow(row["step"], loss, math.nan if level is None else level)
    warned = [row.get("left_at") or row["step"] for row in warnings if row.get("step")]
    return min(filter(None, [onset.since, *warned]), default=None)


def _tested(folder: Path) -> Iterator[Row]:
    """What a replay has tried."""
    content = _json(folder / "replay/replay.json")
    chance = content.get("by_chance")
    for one in content.get("changes", ()):
        if one["verdict"] == "cures" and not one["control"] and not chance:
            keys = [word.partition("=")[0].rpartition(".")[2] for word in one["settings"]]
            yield _cause(
                " and ".join(_CURED.get(key, f"{key} does not fit") for key in keys),
                f"isograd replay: with {one['change']} it finishes in {one['finished']} of {one['seeds']} seeds",
                " ".join(one["settings"]),
                tested=True,
            )


_CURED = {
    "lr": "the learning rate is too high",
    "warmup": "the warm-up is too short",
    "placement": "the placement does not fit this depth and this rate",
    "clip": "single steps have gradients far beyond the others",
}


def _measured(
    run: Row,
    outcome: Row,
    metrics: Sequence[Row],
    warnings: Sequence[Row],
    quantities: Sequence[Row],
    began: int | None,
    failed: Mapping[str, str] | None = None,
    predicted: Mapping[str, Any] | None = None,
) -> Iterator[Row]:
    training, model = run.get("training", {}), run.get("model", {})
    norms = [row["grad_norm"] for row in metrics if row.get("grad_norm") is not None]
    bad = next((row["step"] for row in metrics if row["loss"] is None), None)
    spike = _spike(metrics, began)
    vanished = next((row for row in warnings if row["signal"] == "gradients"), None)
    if spike is not None:
        usual = median(norms[: max(1, (began or 1) - 1)])
        yield _cause(
            "a step with a gradient far beyond the others: of one batch, or of a rate that is too high",
            f"at step {spike['step']:,} the gradient norm was {spike['grad_norm'] / usual:.0f} times the usual",
            f"training.clip={usual:.2g} (clip_grad_norm_ at the usual norm), or a lower rate",
        )
    if vanished is not None:
        yield _vanishing(training, model, vanished, failed or {}, predicted)
    peak = max((row["lr"] for row in metrics), default=0.0)
    at_peak = next((row["step"] for row in metrics if row["lr"] >= peak), None)
    if began is not None and at_peak is not None and at_peak > 1 and abs(began - at_peak) <= max(20, at_peak // 10):
        yield _cause(
            f"the peak rate of {peak:g} is too high",
            f"the break came at step {began:,}, where the rate came to its peak (step {at_peak:,})",
            f"training.lr={0.3 * peak:.2g}, or a longer warm-up",
        )
    if bad is not None and spike is None and vanished is None:
        yield _cause(
            "numbers beyond the range of their format",
            f"the loss of step {bad:,} is not finite, and no gradient before it was unusual",
            "training.precision=fp32 or bf16 in place of fp16; a lower rate",
        )
    moves = [row["update_ratio"] for row in quantities if row.get("update_ratio") is not None]
    if outcome.get("outcome") == "collapsed" and moves and median(moves) < SMALL:
        yield _cause(
            "the rate is far too small",
            f"a matrix moves by {median(moves):.1g} of its length in a step",
            f"training.lr={10 * training.get('lr', 0.0):g}",
        )
    if vanished is None and spike is None and bad is None:
        yield _cause(
            "the rate, the warm-up or the placement",
            "neither a gradient out of the ordinary nor vanishing ones were seen",
            "a lower rate; isograd replay tries the usual suspects",
        )


def _vanishing(
    training: Row, model: Row, vanished: Row, failed: Mapping[str, str], predicted: Mapping[str, Any] | None
) -> Row:
    """A stack that does not tolerate its rate; what a replay has tried in vain is not advised."""
    warmup = training.get("warmup")
    rate = f"LR {training.get('lr'):g} {f'after {warmup} steps of warm-up' if warmup else 'without warm-up'}"
    evidence = f"from step {vanished.get('left_at')} on gradients vanish towards the input ({vanished['layer']} first)"
    if predicted is not None and predicted["severity"] == "error":
        evidence += f"; isograd check predicted it before the first step (p = {predicted['measured']:.2f})"
    if failed:
        evidence += f"; isograd replay: {' and '.join(failed.values())} did not cure it"
    advice = {
        "warmup": "a longer warm-up",
        "lr": "a lower rate",
        "placement": "norms inside the branches (model.placement=pre-ln; in your own layers x + f(norm(x)))",
    }
    left = [text for key, text in advice.items() if key not in failed]
    return _cause(
        f"{model.get('placement')} with {model.get('layers')} layers does not tolerate {rate}",
        evidence,
        ", or ".join(left) or "fewer layers, or another placement (isograd show)",
    )


def _spike(metrics: Sequence[Row], began: int | None) -> Row | None:
    """The step about the break whose gradient is far beyond those before."""
    if began is None or began < 10:
        return None
    before = [row["grad_norm"] for row in metrics if row["step"] < began - 2 and row.get("grad_norm") is not None]
    near = [row for row in metrics if abs(row["step"] - began) <= 3 and row.get("grad_norm") is not None]
    top = max(near, key=lambda row: row["grad_norm"], default=None)
    return top if top is not None and before and top["grad_norm"] > GROWN * median(before) else None


def _before(findings: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for one in findings:
        if one["severity"] != "info":
            yield _cause(one["message"], f"{one['code']}, by isograd check before the first step", one["remedy"])


def _failed(folder: Path) -> dict[str, str]:
    """The last word of each setting that a replay has tried, and that did not cure: how it is called."""
    changes = _json(folder / "replay/replay.json").get("changes", ())
    missed = [one for one in changes if one["verdict"] == "does not cure" and not one["control"]]
    return {key.partition("=")[0].rpartition(".")[2]: one["change"] for one in missed for key in one["settings"]}


def _cause(cause: str, evidence: str, remedy: str, tested: bool = False) -> Row:
    return {"cause": cause, "evidence": evidence, "remedy": remedy, "tested": tested}


def profile_of(quantities: Sequence[Row]) -> list[Row]:
    """Of each feed-forward sublayer: mean |gradient| of W_2 over that of its stack's last layer, at first and at last.

    The reference of both is 1: all layers learn alike.
    """
    rows = [row for row in quantities if row.get("kind") == "ffn" and row.get("gradient_mean_abs") is not None]
    found: list[Row] = []
    for stack in dict.fromkeys(row.get("stack") for row in rows):
        own = [row for row in rows if row.get("stack") == stack]
        steps = sorted({row["step"] for row in own})
        by = {(row["step"], row["layer"]): row for row in own}
        depth = max(row["layer"] for row in own)
        for layer in range(1, depth + 1):
            one = {"stack": stack, "layer": layer, "steps": [steps[0], steps[-1]]}
            for name, step in (("first", steps[0]), ("last", steps[-1])):
                mine, top = by.get((step, layer)), by.get((step, depth))
                known = mine is not None and top is not None and top["gradient_mean_abs"]
                one[name] = mine["gradient_mean_abs"] / top["gradient_mean_abs"] if known else None  # type: ignore[index]
                one[f"stream_{name}"] = mine.get("residual_rms") if mine else None
            found.append(one)
    return found


def _next(folder: Path, outcome: Row, cures: Sequence[str] = ()) -> str:
    name = outcome.get("outcome")
    if cures and name in BROKEN:
        return command(
            "train", folder / "run.json", *shlex.split(cures[0]), out=folder.with_name(f"{folder.name}-cured")
        )
    replayed = (folder / "replay/replay.json").exists()
    needed = (outcome.get("judged") or {}).get("needed")
    steps = outcome.get("steps", 0)
    longer = f"training.steps={steps + needed if needed else 2 * steps}"
    broken = command("report", folder / "replay") if replayed else command("replay", folder)
    return {
        "diverged": broken,
        "collapsed": broken,
        "undecided": command("train", folder / "run.json", longer, out=folder.with_name(f"{folder.name}-longer")),
        "failed": shlex.join(["cat", str(folder / "error.txt")]),
    }.get(str(name), command("report", folder))


def _json(path: Path) -> Row:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

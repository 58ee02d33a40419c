"""Which weights a run's numbers are of, in words, and what the other candidates reached; from outcome.json."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, get_args

from isograd.lab.report.runs import ArmFiles, RunFiles
from isograd.lab.train.run import Kept

Outcome = Mapping[str, Any]


def named(kind: str, steps: Sequence[int]) -> str:
    """
    >>> named("last", [900]), named("average", [600, 750, 900])
    ('last (step 900)', 'average of 3 (steps 600 to 900)')
    """
    if len(steps) > 1:
        return f"{kind} of {len(steps)} (steps {steps[0]} to {steps[-1]})"
    return f"{kind} (step {steps[0]})" if steps else kind


def better(outcome: Outcome) -> str | None:
    """The candidate of the lowest validation loss, where that is not what was kept."""
    losses = {kind: one["loss"] for kind, one in _candidates(outcome).items() if one.get("loss") is not None}
    lowest = min(losses, key=losses.__getitem__, default=None)
    kept = outcome.get("kept_weights")
    if lowest is None or losses[lowest] >= losses.get(kept or "", float("inf")):
        return None
    return lowest


def lines(outcome: Outcome) -> Iterator[str]:
    """What the numbers of a run are of, and of a run that could have kept others their numbers."""
    kept = outcome.get("kept_weights")
    if kept is None:
        return
    candidates = _candidates(outcome)
    yield f"weights kept: {named(kept, outcome.get('kept_steps') or [])}"
    for kind, one in candidates.items():
        if kind != kept:
            yield f"not kept: {named(kind, one.get('steps') or [])}, {_numbers(one)}"
    if (lowest := better(outcome)) is not None:
        yield f"{lowest} is better on validation than what was kept (training.select=auto keeps the better)"


def warnings(arms: Sequence[ArmFiles]) -> list[str]:
    """A sentence for each run that keeps weights which are not its best; one for all where there are more than two."""
    runs = [(arm, run) for arm in arms for run in arm.runs if run.outcome.get("kept_weights")]
    worse = [(arm, run, lowest) for arm, run in runs if (lowest := better(run.outcome)) is not None]
    if len(worse) <= 2:
        return [_warning(*one) for one in worse]
    gaps = [_gap(run.outcome, lowest) for _, run, lowest in worse]
    return [
        f"{len(worse)} of {len(runs)} runs keep weights that are not their best on validation, by up to"
        f" {max(gaps):.3f} nats (candidates in results.json)."
    ]


def point(arm: ArmFiles, name: str) -> tuple[float, float] | None:
    """Where the kept weights stand in a figure: at the last validation that they are made of; means over seeds."""
    x = "epoch" if arm.in_epochs else "step"
    found = []
    for run in arm.runs:
        end = (run.outcome.get("kept_steps") or [])[-1:]
        last = next((row for row in run.validation if [row["step"]] == end), {})
        value = _candidates(run.outcome).get(run.outcome.get("kept_weights", ""), {}).get(name)
        if last.get(x) is not None and value is not None:
            found.append((last[x], value))
    return (fmean(at for at, _ in found), fmean(value for _, value in found)) if found else None


def cell(arm: ArmFiles) -> str:
    """Of a table: "last", or "average 2, last 1" over seeds that differ."""
    counts = Counter(kept for run in arm.runs if (kept := run.outcome.get("kept_weights")))
    return next(iter(counts), "–") if len(counts) < 2 else ", ".join(f"{kind} {n}" for kind, n in counts.most_common())


def _warning(arm: ArmFiles, run: RunFiles, lowest: str) -> str:
    one = _candidates(run.outcome)[lowest]
    name = f"{arm.label}, seed {run.run['seed']}" if len(arm.runs) > 1 else arm.label
    better_one = f"{named(lowest, one.get('steps') or [])} is better, with {_numbers(one)}"
    return f"{name}: kept is the {run.outcome.get('kept_weights')}, but {better_one}."


def _gap(outcome: Outcome, lowest: str) -> float:
    """In nats, what the kept weights lie above the lowest."""
    own, least = (_candidates(outcome).get(kind, {}).get("loss") for kind in (outcome.get("kept_weights", ""), lowest))
    return float("inf") if own is None or least is None else own - least


def _candidates(outcome: Outcome) -> dict[str, Any]:
    found = outcome.get("candidates") or {}
    return {kind: found[kind] for kind in get_args(Kept) if isinstance(found.get(kind), dict)}


def _numbers(one: Outcome) -> str:
    """Of a candidate."""
    known = {"validation loss": ("loss", ".4f"), "BLEU": ("bleu", ".1f")}
    return ", ".join(f"{name} {one[key]:{form}}" for name, (key, form) in known.items() if one.get(key) is not None)

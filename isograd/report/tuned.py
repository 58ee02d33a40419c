"""Fine-tunings on a task of GLUE: an arm's scores over its seeds, and whether pre-training was worth it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from isograd.evaluate.classification import Spread, ranked, spread
from isograd.report.runs import ArmFiles, RunFiles
from isograd.statistics import Comparison, caution, compare, side_by_side


def spread_of(arm: ArmFiles) -> Spread | None:
    """Over the runs that have ended; None where there is none."""
    ended = _ended(arm)
    return spread([run.outcome.get("score") for run in ended], [failed(run) for run in ended]) if ended else None


def failed(run: RunFiles) -> bool:
    """Not above the majority line, or diverged."""
    return run.outcome["outcome"] == "diverged" or bool(run.outcome.get("failed"))


def majority(arm: ArmFiles, part: str = "dev") -> str:
    """Of the score."""
    found = (_of_part(run, "majority_scores", part) for run in _scored(arm))
    return _shown(next(found, None))


def as_dict(arm: ArmFiles) -> dict[str, Any]:
    """What a program reads of an arm."""
    of = spread_of(arm)
    return {"arm": arm.label, "task": arm.first.run["glue"]["task"], **(asdict(of) if of else {})}


def median(arm: ArmFiles) -> str:
    return _shown(of.median) if (of := spread_of(arm)) else "–"


def ends(arm: ArmFiles) -> str:
    """ "0.671 to 0.702"."""
    of = spread_of(arm)
    return f"{_shown(of.lowest)} to {_shown(of.highest)}" if of and of.n > 1 and of.lowest is not None else "–"


def mean(arm: ArmFiles) -> str:
    """ "0.688 [0.675, 0.701]"."""
    of = spread_of(arm)
    inside = f" [{of.interval[0]:.3f}, {of.interval[1]:.3f}]" if of and of.interval else ""
    return _shown(of.mean) + inside if of else "–"


def failures(arm: ArmFiles) -> str:
    """ "1 of 5"."""
    ended = _ended(arm)
    return f"{sum(map(failed, ended))} of {len(ended)}"


def test(arm: ArmFiles) -> str:
    """The median of the score on the test part, where that has labels, of the runs that have not diverged."""
    found = [_of_part(run, "scores", "test") for run in _scored(arm)]
    return _shown(spread(found, [False] * len(found)).median) if found else "–"


def _of_part(run: RunFiles, name: str, part: str) -> float | None:
    """The score, or its majority line, on a part; None where it is not known."""
    found: float | None = ((run.outcome.get(name) or {}).get(part) or {}).get(run.outcome.get("metric"))
    return found


def title(arm: ArmFiles) -> str:
    """ "accuracy of mrpc"."""
    metric = next((run.outcome["metric"] for run in _scored(arm)), "score")
    return f"{metric} of {arm.first.run['glue']['task']}"


def summary(arms: Sequence[ArmFiles]) -> str:
    """Which runs did not get above the majority line."""
    ended = [run for arm in arms for run in _ended(arm)]
    lost = sum(map(failed, ended))
    lines = {title(arm): majority(arm) for arm in arms if _scored(arm)}
    said = "; ".join(f"{name}: the majority line is at {line}" for name, line in lines.items())
    return f"{said}. {lost} of {len(ended)} runs failed: not above that line, or diverged."


def findings(arms: Sequence[ArmFiles]) -> Iterator[str]:
    """For each task and pre-trained model: is its best arm above the best arm from scratch?"""
    groups: dict[tuple[str, str], list[ArmFiles]] = {}
    for arm in arms:
        glue = arm.first.run["glue"]
        if _ended(arm):
            groups.setdefault((glue["task"], glue["model"]), []).append(arm)
    pairs = []
    for group in groups.values():
        tuned, scratch = ([arm for arm in group if arm.first.run["glue"]["scratch"] is kind] for kind in (False, True))
        if tuned and scratch:
            pairs.append((best(tuned), best(scratch), max(len(tuned), len(scratch))))
    found = side_by_side([compare(_by_seed(tuned), _by_seed(scratch)) for tuned, scratch, _ in pairs])
    for (tuned_best, scratch_best, of), one in zip(pairs, found, strict=True):
        yield against(tuned_best, scratch_best, of, one)
    yield from filter(None, [caution(found)])


def best(arms: Sequence[ArmFiles]) -> ArmFiles:
    """The arm of the highest median."""
    return max(arms, key=lambda arm: ranked([of.median if (of := spread_of(arm)) else None])[0])


def against(tuned: ArmFiles, scratch: ArmFiles, of: int, found: Comparison) -> str:
    """Whether pre-training is above training from scratch, by the one rule."""
    said = f"{title(tuned)}, medians: {tuned.label} {median(tuned)}, {scratch.label} {median(scratch)}"
    said += f" (each the best of up to {of} arms by its median)" if of > 1 else ""
    if not found.seeds:
        return f"{said}; no seed in common: not compared."
    above = {"higher": "above", "lower": "below"}.get(found.verdict)
    verdict = f"pre-training is {above} training from scratch" if above else found.verdict
    counted = f", {found.count_said()}" if found.count_said() else ""
    return f"{said}; {verdict}{counted} (n = {found.n}, {found.p_said()}){_low(tuned, scratch)}."


def _by_seed(arm: ArmFiles) -> dict[int, float]:
    """The score of each seed; a run without one is below all others."""
    ended = _ended(arm)
    return dict(zip([r.run["seed"] for r in ended], ranked([r.outcome.get("score") for r in ended]), strict=True))


def _low(tuned: ArmFiles, scratch: ArmFiles) -> str:
    """What a comparison must not be silent about."""
    line = next((_of_part(run, "majority_scores", "dev") for arm in (tuned, scratch) for run in _scored(arm)), None)
    medians = [of.median for of in map(spread_of, (tuned, scratch)) if of and of.median is not None]
    if line is None or any(one > line for one in medians):
        return ""
    return f", and neither is above the majority line at {line:.3f}"


def _ended(arm: ArmFiles) -> list[RunFiles]:
    return [run for run in arm.runs if run.outcome["outcome"] in ("finished", "diverged")]


def _scored(arm: ArmFiles) -> list[RunFiles]:
    return [run for run in _ended(arm) if run.outcome.get("metric")]


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"

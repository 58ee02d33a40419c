"""Up to which learning rate a training holds: runs whose rate rises until the loss breaks.

Shleifer et al. 2021, figure 5. The rate of such a run says nothing but this; it is not a rate to train at.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from isograd.outcome import WINDOW
from isograd.report.runs import ArmFiles, RunFiles, paired, reference_of, smoothed
from isograd.statistics import Comparison, compare_ratios, side_by_side


def is_ramp(arm: ArmFiles) -> bool:
    """Whether these runs stop where the loss breaks."""
    return bool(arm.first.run["training"].get("stop_when_broken"))


@dataclass(frozen=True, kw_only=True)
class End:
    """Where the rate of one run stopped to be bearable, and the loss there; see `isograd.outcome.LossWatch`.

    "held": it did not; then `rate` is the highest there was.
    """

    rate: float
    loss: float | None
    how: Literal["broke", "held"]

    def __str__(self) -> str:
        return {"broke": "{:.3g}", "held": "above {:.3g}"}[self.how].format(self.rate)


def end_of(run: RunFiles) -> End | None:
    """None of a run that has not ended, or has not trained: its loss was never 0.10 nat below the unigram entropy."""
    rate, broke = run.outcome.get("lr_reached"), run.outcome.get("broke_at")
    if not rate:
        return None
    loss = next((loss for step, _, loss in curve_of(run) if step == broke), None)
    return End(rate=rate, loss=loss, how="held" if broke is None else "broke")


def curve_of(run: RunFiles) -> list[tuple[int, float, float]]:
    """Step, rate, and the mean loss of the last ten steps."""
    rows = [row for row in run.metrics if row["loss"] is not None and row.get("lr") is not None]
    losses = smoothed([(row["step"], row["loss"]) for row in rows], WINDOW)
    return [(step, row["lr"], loss) for row, (step, loss) in zip(rows, losses, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The rate that an arm reached over the one that the reference reached, seed by seed.

    Attributes:
        seeds: how many both arms have.
        values: for each of them with which both arms trained, and not both held to the end.
        at_least, at_most: seeds whose true ratio is higher (the arm held) or lower (the reference held).
        why: what kept the other seeds out.
        found: the values against 1, by the one rule; a bound counts as the value that it is.
    """

    arm: str
    reference: str
    seeds: int
    values: Mapping[int, float]
    at_least: Sequence[int]
    at_most: Sequence[int]
    why: str
    found: Comparison


def ratios(arms: Sequence[ArmFiles], named: str | None = None) -> list[Ratio]:
    """Every other arm over the reference arm; see `reference_of` for `named`."""
    reference = reference_of([arm for arm in arms if any(map(end_of, arm.runs))], named)
    found = [_ratio(arm, reference) for arm in arms if arm is not reference] if reference else []
    corrected = side_by_side([ratio.found for ratio in found])
    return [replace(ratio, found=one) for ratio, one in zip(found, corrected, strict=True)]


def _ratio(arm: ArmFiles, reference: ArmFiles) -> Ratio:
    ends = {seed: (end_of(mine), end_of(theirs)) for seed, (mine, theirs) in paired(arm, reference).items()}
    both = {seed: (one, other) for seed, (one, other) in ends.items() if one and other}
    known = {seed: pair for seed, pair in both.items() if any(end.how != "held" for end in pair)}
    values = {seed: one.rate / other.rate for seed, (one, other) in known.items()}
    return Ratio(
        arm=arm.label,
        reference=reference.label,
        seeds=len(ends),
        values=values,
        found=compare_ratios(values),
        at_least=[seed for seed, (one, _) in known.items() if one.how == "held"],
        at_most=[seed for seed, (_, other) in known.items() if other.how == "held"],
        why="both held up to the highest rate" if both else "with no seed did both train" if ends else "no common seed",
    )


def said(ratio: Ratio) -> str:
    """What was found, in a sentence."""
    values = [*ratio.values.values()]
    if not values:
        return f"{ratio.arm} and {ratio.reference}: no rates to compare; {ratio.why}."
    many = len(values) > 1
    of = f" of {ratio.seeds}" if len(values) < ratio.seeds else ""
    spread = f"median of {len(values)}{of} seeds, {min(values):.2f} to {max(values):.2f}" if many else f"one seed{of}"
    open_ends = {"at least": ratio.at_least, "at most": ratio.at_most}
    told = [f"; seed {', '.join(map(str, which))}: {words} that" for words, which in open_ends.items() if which]
    times = f"{statistics.median(values):.2f} times the learning rate of {ratio.reference}"
    verdict = f": {ratio.found.verdict} ({ratio.found.p_said()})" if many else ""
    return f"{ratio.arm} held up to {times} ({spread}{''.join(told)}){verdict}."


def table(arms: Sequence[ArmFiles]) -> list[tuple[str, ...]]:
    """A header, and for each arm the rate reached with each seed."""
    seeds = sorted({run.run["seed"] for arm in arms for run in arm.runs})
    lines = [("learning rate reached", *(f"seed {seed}" for seed in seeds))]
    for arm in arms:
        ends = {run.run["seed"]: str(end_of(run) or "not trained") for run in arm.runs}
        lines.append((arm.label, *(ends.get(seed, "–") for seed in seeds)))
    return lines

"""LR range test: up to which learning rate a run is stable whose rate rises until the loss diverges.

Shleifer et al. 2021, figure 5. The rate of such a run says nothing but this; it is not a rate to train at.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from isograd.lab.report.compared import Compared, corrected, table, verdicts
from isograd.lab.report.figures import Subject
from isograd.lab.report.page import Section, Table
from isograd.lab.report.runs import ArmFiles, RunFiles, paired, reference_of, smoothed
from isograd.lab.report.style import INK, Drawing, drawing, entropy_line, label
from isograd.lab.statistics import compare_ratios
from isograd.outcome import WINDOW


@dataclass(frozen=True, kw_only=True)
class End:
    """Where the loss of one run diverged, and the loss there; see `isograd.outcome.LossWatch`.

    "stable": it did not; then `rate` is the highest there was.
    """

    rate: float
    loss: float | None
    how: Literal["diverged", "stable"]

    def __str__(self) -> str:
        return {"diverged": "{:.3g}", "stable": "above {:.3g}"}[self.how].format(self.rate)


def end_of(run: RunFiles) -> End | None:
    """None of a run that has not ended, or has not trained: its loss was never 0.10 nat below the unigram entropy."""
    rate, broke = run.outcome.get("lr_reached"), run.outcome.get("broke_at")
    if not rate:
        return None
    loss = next((loss for step, _, loss in _curve(run) if step == broke), None)
    return End(rate=rate, loss=loss, how="stable" if broke is None else "diverged")


def _curve(run: RunFiles) -> list[tuple[int, float, float]]:
    """Step, rate, and the mean loss of the last ten steps."""
    rows = [row for row in run.metrics if row["loss"] is not None and row.get("lr") is not None]
    losses = smoothed([(row["step"], row["loss"]) for row in rows], WINDOW)
    return [(step, row["lr"], loss) for row, (step, loss) in zip(rows, losses, strict=True)]


def ratios(arms: Sequence[ArmFiles], named: str | None = None) -> list[Compared]:
    """The rate that every other arm reached over the one that the reference arm reached, seed by seed, against 1.

    Of the seeds with which both arms trained, and not both were stable to the end; a bound counts as the value that it
    is. See `reference_of` for `named`.
    """
    reference = reference_of([arm for arm in arms if any(map(end_of, arm.runs))], named)
    return corrected([_ratio(arm, reference) for arm in arms if arm is not reference] if reference else [])


def _ratio(arm: ArmFiles, reference: ArmFiles) -> Compared:
    ends = {seed: (end_of(mine), end_of(theirs)) for seed, (mine, theirs) in paired(arm, reference).items()}
    both = {seed: (one, other) for seed, (one, other) in ends.items() if one and other}
    known = {seed: pair for seed, pair in both.items() if any(end.how != "stable" for end in pair)}
    values = {seed: one.rate / other.rate for seed, (one, other) in known.items()}
    stable = {
        "at least": [seed for seed, (one, _) in known.items() if one.how == "stable"],
        "at most": [seed for seed, (_, other) in known.items() if other.how == "stable"],
    }
    bounds = [f"seed {', '.join(map(str, seeds))}: {words}" for words, seeds in stable.items() if seeds]
    if values and len(values) < len(ends):
        bounds.append(f"{len(ends) - len(values)} of {len(ends)} seeds without a ratio")
    why = "both stable up to the highest rate" if both else "no seed with which both trained"
    return Compared(
        mine=arm.label,
        theirs=reference.label,
        found=compare_ratios(values),
        size=_size([*values.values()]) if values else why if ends else "no common seed",
        more=["; ".join(bounds) or "–"],
    )


def _size(values: Sequence[float]) -> str:
    middle = f"× {statistics.median(values):.2f}"
    return f"{middle} ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else middle


WORDS = {"lower": "stable up to a lower learning rate than", "higher": "stable up to a higher learning rate than"}


def rates_table(arms: Sequence[ArmFiles]) -> Table:
    """For each arm the rate reached with each seed."""
    seeds = sorted({run.run["seed"] for arm in arms for run in arm.runs})
    lines = []
    for arm in arms:
        ends = {run.run["seed"]: str(end_of(run) or "not trained") for run in arm.runs}
        lines.append((arm.label, *(ends.get(seed, "–") for seed in seeds)))
    header = ("learning rate reached", *(f"seed {seed}" for seed in seeds))
    return Table(header=header, lines=lines, looks=[arm.look for arm in arms])


def curves(about: Subject) -> Section:
    return Section(
        name="lr-range",
        title="Loss as the learning rate rises",
        sentence=_TEXT,
        figure=partial(range_curves, about.arms, about.entropy),
        table=rates_table(about.arms),
    )


def ratio_section(about: Subject) -> Section | None:
    found = ratios(about.arms, about.reference)
    shown = table(found, "ratio of the rates", more=["bounds"])
    said = list(verdicts([one for one in found if one.found.n > 1], WORDS))
    title = "Maximum stable learning rate, seed by seed"
    return Section(name="lr-ratios", title=title, table=shown, verdicts=said) if shown else None


_TEXT = (
    "A line per run. A run ends for this figure where its loss diverges: a mean of ten steps 0.5 nat above the lowest"
    " such mean before it, or a loss that is not finite; or where it returns to the unigram entropy after it had been"
    " 0.10 nat below, whichever is first."
)


def range_curves(arms: Sequence[ArmFiles], entropy: float | None) -> Drawing:
    """Loss over the learning rate as it rises, a line per run, and where it diverged."""
    drawn = drawing(1, height=4.2)
    (axes,) = drawn.panels
    mark: dict[str, Any] = {"markeredgecolor": INK, "markersize": 7}
    for arm in arms:
        for run in arm.runs:
            points = [(rate, loss) for _, rate, loss in _curve(run)]
            named = arm.label if run is arm.first else ""
            axes.plot(*zip(*points, strict=True), label=named, **(arm.look | {"linewidth": 1.1}))
            end = end_of(run)
            if end and end.loss is not None:
                axes.plot([end.rate], [end.loss], "X", color=arm.look["color"], zorder=4, **mark)
    axes.plot([], [], "X", color="none", label="diverged", **mark)
    if entropy is not None:
        entropy_line(axes, entropy)
        low, high = axes.dataLim.intervaly
        if low < entropy:  # what a divergence shot up to is out of sight
            axes.set_ylim(low - 0.1 * (entropy - low), min(high, entropy + 2 * (entropy - low)))
    label(axes, "learning rate", "training loss (nats), mean of ten steps")
    axes.set_xlim(left=0)
    return drawn

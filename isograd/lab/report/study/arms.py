"""The arms of a study: cells that differ only in their seed, and what is chosen and compared among them."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from isograd.lab.report.runs import ArmFiles, Row, RunFiles
from isograd.lab.report.study.files import COUNTED, CellFiles, StudyFiles, condition_said, shown_value, who_names
from isograd.lab.report.style import Look, looks
from isograd.lab.statistics import Comparison, Interval, compare, median, median_interval, side_by_side, wilson

Edge = Literal["lowest", "highest", "only"]
RATE, WARMUP = "training.lr", "training.warmup"
LOSSES = {"validation_loss": "validation loss", "final_loss": "training loss (mean of the last 20 steps)"}
LAYERS, STEPS = "model.layers", "training.steps"
SAME = 0.01  # nats; seeds hold out other sequences, mask other tokens


@dataclass(frozen=True, kw_only=True)
class StudyArm:
    """One point of the axes, all seeds.

    Attributes:
        values: of every axis.
        cells: those that ended, one per seed; one that failed counts nowhere.
        measure: the number of the outcome by which arms are compared.
    """

    label: str
    who: str
    look: Look
    values: Row
    cells: Sequence[CellFiles]
    measure: str

    @cached_property
    def losses(self) -> dict[int, float]:
        """The loss of each seed; infinite where it diverged."""
        return {cell.seed: _loss(cell, self.measure) for cell in self.cells}

    @property
    def n(self) -> int:
        return len(self.cells)

    @cached_property
    def median(self) -> float:
        """Over all seeds, one that diverged above all others."""
        return median([*self.losses.values()])

    @cached_property
    def interval(self) -> Interval | None:
        return median_interval([*self.losses.values()])

    def count(self, how: str) -> int:
        return sum(cell.how == how for cell in self.cells)

    def rate(self, how: str) -> Interval:
        """Of how many seeds in all, as a share with its Wilson interval."""
        return wilson(self.count(how), self.n)

    def ratio(self, name: str) -> float | None:
        """The geometric mean over the seeds of a ratio in the outcome; None where it is not known, or one is 0."""
        found = [value for cell in self.cells if (value := cell.number(name)) is not None]
        return statistics.geometric_mean(found) if found and min(found) > 0 else None

    @property
    def runs(self) -> list[RunFiles]:
        """Those whose files are here."""
        return [cell.files for cell in self.cells if cell.files is not None]

    @property
    def trains(self) -> bool:
        """Whether more than half of the seeds finished."""
        return 2 * self.count("finished") > self.n and math.isfinite(self.median)

    @property
    def trouble(self) -> list[str]:
        """What became of those that did not finish: ["2/3 collapsed"]; [] where all finished."""
        return [f"{self.count(how)}/{self.n} {how}" for how in COUNTED[1:] if self.count(how)]


def _loss(cell: CellFiles, measure: str) -> float:
    """Infinite where there is none: a diverged cell is worse than any that came to an end."""
    if cell.how == "diverged":
        return math.inf
    names = dict.fromkeys((measure, "validation_loss", "final_loss", "unigram_entropy"))
    return next((value for value in map(cell.number, names) if value is not None), math.inf)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What is compared under one condition (of every other axis a value), over the learning rates that were swept.

    Attributes:
        who: a placement, or the label of an arm.
        condition: the axes beside, and what they are here; {} where there is none.
        arms: one per rate, the rates ascending; a single one where no rate was swept.
        best: the arm of the lowest median among those that train; None where none does.
        edge: where its rate is an end of the sweep: beyond it there may be a better one.
    """

    who: str
    condition: Row
    arms: Sequence[StudyArm]
    best: StudyArm | None
    edge: Edge | None

    @property
    def tried(self) -> tuple[float, ...]:
        """The rates of which a cell has ended, ascending."""
        return tuple(arm.values[RATE] for arm in self.arms)

    @property
    def stable_rate(self) -> float | None:
        """The highest rate at which every seed finished; None where there is none."""
        return max((arm.values[RATE] for arm in self.arms if arm.count("finished") == arm.n), default=None)

    def stable_said(self) -> str:
        """ "0.008"; "≥ 0.032" at the end of the sweep; "none"; "undecided" where no seed collapsed or diverged."""
        if self.stable_rate is None:
            broke = any(arm.count("collapsed") + arm.count("diverged") for arm in self.arms)
            return "none" if broke else "undecided"
        return f"{'≥ ' if self.stable_rate == self.tried[-1] else ''}{shown_value(self.stable_rate)}"

    @property
    def shown(self) -> StudyArm:
        """The best arm; where none trains, that of the lowest median."""
        return self.best or min(self.arms, key=lambda arm: arm.median)

    def sensitivity(self, nothing_learnt: float | None) -> float | None:
        """Mean over the swept rates of the loss above that of the best one; None where no rate trains.

        Args:
            nothing_learnt: the loss that a rate counts with at most, as one that diverged does: the unigram entropy.
        """
        if len(self.arms) < 2 or self.best is None or nothing_learnt is None:
            return None
        return sensitivity({arm.values[RATE]: arm.median for arm in self.arms}, nothing_learnt)


@dataclass(frozen=True, kw_only=True)
class Design:
    """What was swept, by its part in the comparison.

    Attributes:
        who_key: the axis whose values are compared: "arm", "model.placement", or the first of words, such as
            "model.norm"; None where there is none.
        who: its values as people read them; `looks` their colours and dashes.
        rates: the learning rates, ascending; [] where they were not swept.
        others: every other axis that was swept, with its values.
        conditions: each combination of values of the other axes; [{}] where there is none.
    """

    who_key: str | None
    who: list[str]
    looks: list[Look]
    rates: list[float]
    others: dict[str, list[Any]]
    conditions: list[Row]


def design_of(study: StudyFiles) -> Design:
    swept = {key: values for key, values in study.axes.items() if len(values) > 1}
    words = (key for key, values in swept.items() if not all(map(is_number, values)))
    who_key = next((key for key in ("arm", "model.placement", *words) if key in swept), None)
    others = {key: values for key, values in swept.items() if key not in (who_key, RATE)}
    conditions: list[Row] = [{}]
    for key, values in others.items():
        conditions = [{**condition, key: value} for condition in conditions for value in values]
    who = who_names(who_key, swept[who_key]) if who_key else [_placement(study)]
    return Design(
        who_key=who_key,
        who=who,
        looks=looks(_placements(study, who_key, swept[who_key]) if who_key else who),
        rates=sorted(swept.get(RATE, [])),
        others=others,
        conditions=conditions,
    )


def _placements(study: StudyFiles, key: str, values: Sequence[Any]) -> list[str]:
    """The placement of each value of what is compared; where it says none, its own name."""
    found = {}
    for cell in study.cells:
        placement = cell.values.get("model.placement", study.setting("model.placement") if key == "arm" else None)
        found[json.dumps(cell.values.get(key))] = str(placement)
    return [str(value) if key != "arm" else found.get(json.dumps(value), str(value)) for value in values]


def _placement(study: StudyFiles) -> str:
    single = study.axes.get("model.placement") or [study.setting("model.placement")]
    return shown_value(single[0]) if single[0] is not None else study.name


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def measure_of(study: StudyFiles) -> str:
    """ "validation_loss" where every cell that finished has one (collapsed or undecided, where none did)."""
    by_end = ([cell for cell in study.cells if cell.how == how] for how in ("finished", "collapsed", "undecided"))
    whole = next(filter(None, by_end), [])
    held_out = whole and all(cell.number("validation_loss") is not None for cell in whole)
    return "validation_loss" if held_out else "final_loss"


def study_arms(study: StudyFiles, design: Design) -> list[StudyArm]:
    """Every point of the axes that a cell has ended at, in the order of the plan."""
    measure = measure_of(study)
    groups: dict[str, list[CellFiles]] = {}
    for cell in study.cells:
        if cell.how in COUNTED:
            groups.setdefault(json.dumps([cell.values.get(key) for key in study.axes]), []).append(cell)
    return [_arm(study, design, group, measure) for group in groups.values()]


def _arm(study: StudyFiles, design: Design, cells: Sequence[CellFiles], measure: str) -> StudyArm:
    values = {key: cells[0].values.get(key) for key in study.axes}
    place = study.axes[design.who_key].index(values[design.who_key]) if design.who_key else 0
    who = design.who[place]
    named = {key: value for key, value in values.items() if key in design.others or (key == RATE and design.rates)}
    return StudyArm(
        label=", ".join([who, *([condition_said(named)] if named else [])]),
        who=who,
        look=design.looks[place],
        values=values,
        cells=cells,
        measure=measure,
    )


def best_rate(losses: Mapping[float, float]) -> tuple[float, Edge | None] | None:
    """The learning rate of the lowest loss (the lower of two equal ones), and whether it ends the sweep.

    At an end of the sweep the true optimum may lie outside: the arm is not tuned.

    Args:
        losses: for each rate, such as the median over seeds; infinite where it diverged.

    Returns:
        None where nothing but divergence was seen.

    >>> best_rate({3e-4: 2.2, 1e-3: 2.0, 3e-3: math.inf})
    (0.001, None)
    >>> best_rate({3e-4: 2.2, 1e-3: 2.0})
    (0.001, 'highest')
    """
    rates = sorted(losses)
    best = min(rates, key=losses.__getitem__, default=None)
    if best is None or losses[best] == math.inf:
        return None
    if len(rates) == 1:
        return best, "only"
    ends: dict[float, Edge] = {rates[0]: "lowest", rates[-1]: "highest"}
    return best, ends.get(best)


def sensitivity(losses: Mapping[float, float], start: float) -> float | None:
    """The mean over the rates of min(loss, start), less the lowest loss: LR sensitivity (Wortsman et al. 2023).

    0 where every rate trains as well as the best one; start - lowest where all others fail. It depends on the rates
    that were swept, which should be even in log(rate): compare it between arms of one sweep only.

    Args:
        losses: for each rate; infinite where it diverged, which counts as `start`.
        start: the loss at the start of training.

    Returns:
        None where no rate ends below `start`: a lowest loss, against which to compare, is not known.

    >>> round(sensitivity({1e-4: 3.0, 1e-3: 2.0, 1e-2: math.inf}, start=4.0), 12)
    1.0
    """
    lowest = min(losses.values(), default=math.inf)
    if not lowest < start:
        return None
    return math.fsum(min(loss, start) for loss in losses.values()) / len(losses) - lowest


def tuned(arms: Sequence[StudyArm], design: Design) -> list[Tuned]:
    """What is compared, under each condition, in their order; without those of which no cell has ended."""
    found = [_tuned(arms, who, condition) for condition in design.conditions for who in design.who]
    return [one for one in found if one.arms]


def overall(arms: Sequence[StudyArm], design: Design) -> list[StudyArm]:
    """The best arm of each over all conditions and rates."""
    chosen = (_best([arm for arm in arms if arm.who == who]) for who in design.who)
    return [arm for arm in chosen if arm is not None]


def _best(arms: Sequence[StudyArm]) -> StudyArm | None:
    """That of the lowest median among those that train; None where a collapse ends lower still: nothing was learnt."""
    best = min((arm for arm in arms if arm.trains), key=lambda arm: arm.median, default=None)
    collapsed = [arm.median for arm in arms if 2 * arm.count("collapsed") > arm.n]
    return None if best is None or min(collapsed, default=math.inf) < best.median else best


def _tuned(arms: Sequence[StudyArm], who: str, condition: Row) -> Tuned:
    mine = [arm for arm in arms if arm.who == who and all(arm.values[key] == condition[key] for key in condition)]
    mine.sort(key=lambda arm: arm.values.get(RATE) or 0)
    best = _best(mine)
    if best is None or len(mine) < 2:
        return Tuned(who=who, condition=condition, arms=mine, best=best, edge=None)
    found = best_rate({arm.values[RATE]: arm.median if arm.trains else math.inf for arm in mine})
    return Tuned(who=who, condition=condition, arms=mine, best=best, edge=found[1] if found else None)


# ------------------------------------------------------------------------------------------------ what is compared

Group = tuple[Row | None, list[StudyArm]]  # arms under a condition; None: each over all conditions


@dataclass(frozen=True, kw_only=True)
class ArmsCompared:
    """One best arm against the reference's best arm.

    Attributes:
        condition: under which both were chosen; None: over all conditions.
    """

    condition: Row | None
    mine: StudyArm
    theirs: StudyArm
    found: Comparison


def reference_among(design: Design, named: str | None = None) -> str | None:
    """The one `named` by its label or the placement that this begins with, else pre-ln, else the first.

    None where there is none of that name.
    """
    if named in design.who:
        return named
    found = [who for who in design.who if who.partition(",")[0] == (named or "pre-ln")]
    return found[0] if found else None if named else design.who[0]


def comparisons(
    chosen: Sequence[Tuned], arms: Sequence[StudyArm], design: Design, reference: str
) -> list[ArmsCompared]:
    """Under each condition, then over all; without those of which one trained at no rate. Corrected for each other."""
    groups: list[Group] = [
        (condition, [one.best for one in chosen if one.condition == condition and one.best is not None])
        for condition in design.conditions
    ]
    if tunable(design):
        groups.append((None, overall(arms, design)))
    return _compared(
        (condition, mine, theirs)
        for condition, best in groups
        for theirs in best
        for mine in best
        if theirs.who == reference and mine is not theirs
    )


def _compared(pairs: Iterable[tuple[Row | None, StudyArm, StudyArm]]) -> list[ArmsCompared]:
    """Corrected for each other."""
    known = [*pairs]
    found = side_by_side([compare(mine.losses, theirs.losses) for _, mine, theirs in known])
    return [
        ArmsCompared(condition=condition, mine=mine, theirs=theirs, found=one)
        for (condition, mine, theirs), one in zip(known, found, strict=True)
    ]


def against_no_warmup(chosen: Sequence[Tuned], design: Design) -> list[ArmsCompared]:
    """Each warm-up with none, of the same placement and all else; corrected for each other.

    Each at its best rate, or, where it trained at none, at that of its lowest median: that it does not train without is
    what is asked.
    """
    if 0 not in design.others.get(WARMUP, []):
        return []
    none = {_but_warmup(one): one.shown for one in chosen if one.condition[WARMUP] == 0}
    mine = [one for one in chosen if one.condition[WARMUP] != 0 and _but_warmup(one) in none]
    return _compared((_without(one.condition), one.shown, none[_but_warmup(one)]) for one in mine)


def _without(condition: Row) -> Row:
    return {key: value for key, value in condition.items() if key != WARMUP}


def _but_warmup(one: Tuned) -> str:
    return json.dumps([one.who, _without(one.condition)])


def tunable(design: Design) -> bool:
    """Whether the other axes are settings of the training, which each placement may choose for itself."""
    return len(design.conditions) > 1 and all(key.startswith("training.") for key in design.others)


def showcase(chosen: Sequence[Tuned], arms: Sequence[StudyArm], design: Design) -> list[Group]:
    """Best arms whose curves are drawn: over all conditions where that can be said, then of each condition.

    For what trained nowhere the arm of its lowest median stands.
    """
    groups: list[Group] = []
    if tunable(design):
        best = {arm.who: arm for arm in overall(arms, design)}
        others = {who: [arm for arm in arms if arm.who == who] for who in design.who if who not in best}
        best |= {who: min(mine, key=lambda arm: arm.median) for who, mine in others.items() if mine}
        groups.append((None, [best[who] for who in design.who if who in best]))
    for condition in design.conditions:
        here = [one for one in chosen if one.condition == condition]
        groups.append((condition, [one.shown for one in here]))
    return [group for group in groups if group[1]]


def in_line(arms: Sequence[StudyArm], design: Design) -> dict[str, ArmFiles]:
    """The runs of these arms by who they are, with how their seeds ended; without those that have no files here."""
    own = {arm.who: arm for arm in reversed(arms)}
    return {who: _files(own[who]) for who in design.who if who in own and own[who].runs}


def _files(arm: StudyArm) -> ArmFiles:
    wrong = ", ".join(f"{n} {how}" for how in COUNTED[1:] if (n := arm.count(how)))
    return ArmFiles(label=f"{arm.who} ({wrong})" if wrong else arm.who, runs=arm.runs, look=arm.look)


# ------------------------------------------------------------------------------------------------- all that is shown


@dataclass(frozen=True, kw_only=True)
class StudyFindings:
    """All that the page shows."""

    design: Design
    arms: Sequence[StudyArm]
    chosen: Sequence[Tuned]
    compared: Sequence[ArmsCompared]
    reference: str
    measure: str
    entropy: float | None
    groups: Sequence[Group]

    @property
    def what(self) -> str:
        return f"{LOSSES[self.measure]} (nats)"


def found_in(study: StudyFiles, named: str | None = None) -> StudyFindings:
    """Everything that is written and drawn.

    Args:
        named: what the others are compared with; None: pre-ln, or the first.

    Raises:
        ValueError: nothing is called so.
    """
    design = design_of(study)
    reference = reference_among(design, named)
    if reference is None:
        raise ValueError(f"nothing called {named} is compared here; there are {'; '.join(design.who)}")
    arms = study_arms(study, design)
    chosen = tuned(arms, design)
    groups = showcase(chosen, arms, design)
    return StudyFindings(
        design=design,
        arms=arms,
        chosen=chosen,
        compared=comparisons(chosen, arms, design, reference),
        reference=reference,
        measure=measure_of(study),
        entropy=_entropy(study),
        groups=groups,
    )


def _entropy(study: StudyFiles) -> float | None:
    """The one of all cells; None where they are of different texts."""
    known = [value for cell in study.cells if (value := cell.number("unigram_entropy")) is not None]
    return known[0] if known and max(known) - min(known) < SAME else None


def at_rate(arm: StudyArm) -> str:
    return f"{arm.who}, LR {shown_value(arm.values[RATE])}" if RATE in arm.values else arm.who

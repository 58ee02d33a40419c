"""The parts of a study's page in their order: what was swept decides the main figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isograd.report import figures, finding_figures, pace, study_figures, study_tables
from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm, Tuned, is_number
from isograd.report.study_compared import Compared, Group, Race, in_line
from isograd.report.study_findings import LOSSES
from isograd.report.study_maps import PANELS, WARMUP, outcome_map
from isograd.report.study_tables import Table
from isograd.report.study_verdicts import caution, compared_said
from isograd.report.study_words import axis_name, condition_said
from isograd.report.style import Drawing

LAYERS = "model.layers"
SHOWN = 4  # conditions whose curves are drawn; the tables have all
IN_WORDS = 4  # comparisons at most that are told one by one


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the page; `name` is that of its figure's files. A table is a header and its lines."""

    name: str
    title: str
    text: str
    drawn: Drawing | None = None
    table: Table = field(default_factory=list)
    findings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that is drawn and told of."""

    design: Design
    arms: Sequence[StudyArm]
    chosen: Sequence[Tuned]
    compared: Sequence[Compared]
    reference: str
    measure: str
    entropy: float | None
    groups: Sequence[Group]
    races: Sequence[Race]

    @property
    def what(self) -> str:
        return f"{LOSSES[self.measure]} (nats)"

    def look(self, arm: StudyArm) -> int:
        return self.design.who.index(arm.who)


def parts(found: Found) -> list[Part]:
    """What these arms have to show, the main figure first."""
    if not found.arms:
        return []
    return [part for part in _parts(found) if part.drawn is not None or part.table]


def _parts(found: Found) -> Iterator[Part]:
    design = found.design
    main = _main(found)
    yield main
    yield Part(
        name="arms",
        title="Every arm",
        text=_ARMS,
        table=study_tables.arms_table(found.arms, design, f"median {found.what}"),
    )
    if design.rates:
        text = _RATES + (f" Unigram entropy: {found.entropy:.3f} nats." if found.entropy is not None else "")
        yield Part(
            name="rates",
            title="The best learning rate",
            text=text,
            table=study_tables.rates_table(found.chosen, design),
        )
    if found.compared:
        yield _comparisons(found)
    for i, race in enumerate(found.races[:SHOWN]):
        yield _race(race, i)
    if design.rates and main.name != "learning-rates":
        yield _learning_rates(found)
    if main.name == "against":
        yield _ratios(found)
    panels = [(_heading(condition), in_line(arms, design)) for condition, arms in found.groups[:SHOWN]]
    yield Part(
        name="losses",
        title="Training loss",
        text=f"{_BEST} {_LOSSES}",
        drawn=study_figures.loss_panels(panels, found.entropy),
    )
    yield from _depths(found)


def _comparisons(found: Found) -> Part:
    """A table of all; in words where they are few."""
    few = len(found.compared) <= IN_WORDS
    said = [compared_said(one, LOSSES[found.measure]) for one in found.compared] if few else []
    return Part(
        name="comparisons",
        title=f"Against {found.reference}, seed by seed",
        text=_COMPARED + (_TUNED_SEEDS if found.design.rates else ""),
        table=study_tables.compared_table(found.compared, found.design),
        findings=[*said, *caution(found.compared)],
    )


def _main(found: Found) -> Part:
    """By what was swept: a map, a loss against a number, or dots."""
    design = found.design
    if design.rates and WARMUP in design.others:
        drawn = outcome_map(found.arms, design, found.what)
        return Part(name="map", title="What trained, and how well", text=_MAP, drawn=drawn)
    key = _numeric(design)
    if key is not None:
        drawn = study_figures.against(_groups(found, key), key, found.what)
        own = ", each placement at its own best learning rate" if design.rates else ""
        text = f"Median over the seeds{own}, and its interval. {_ABOVE}"
        return Part(name="against", title=f"The loss against {axis_name(key)}", text=text, drawn=drawn)
    if design.rates and len(design.others) == 0:
        return _learning_rates(found)
    return Part(
        name="seeds", title="Every seed", text=_STRIPS, drawn=study_figures.strips(found.arms, design, found.what)
    )


def _numeric(design: Design) -> str | None:
    """The axis of numbers that losses are drawn against: the layers before any other."""
    numeric = [key for key, values in design.others.items() if all(map(is_number, values))]
    return LAYERS if LAYERS in numeric else numeric[0] if numeric else None


def _ratios(found: Found) -> Part:
    key = _numeric(found.design) or ""
    return Part(
        name="ratios",
        title=f"Gradients, first over last layer, against {axis_name(key)}",
        text=_RATIO,
        drawn=study_figures.gradient_ratios(_groups(found, key), key),
    )


def _groups(found: Found, key: str) -> list[study_figures.Group]:
    """For a figure against an axis: best arms, a panel for each combination of the axes beside it."""
    groups: dict[str, list[tuple[int, StudyArm]]] = {}
    for one in found.chosen:
        rest = {name: value for name, value in one.condition.items() if name != key}
        groups.setdefault(condition_said(rest), []).append((found.look(one.shown), one.shown))
    return list(groups.items())[:PANELS]


def _learning_rates(found: Found) -> Part:
    groups: dict[str, list[tuple[int, StudyArm]]] = {}
    for one in found.chosen:
        groups.setdefault(condition_said(one.condition), []).extend((found.look(arm), arm) for arm in one.arms)
    drawn = study_figures.against(list(groups.items())[:PANELS], RATE, found.what, found.entropy)
    return Part(name="learning-rates", title="The loss against the learning rate", text=_CURVES, drawn=drawn)


def _race(race: Race, number: int) -> Part:
    where = f": {condition_said(race.condition)}" if race.condition else ""
    return Part(
        name=f"pace-{number + 1}" if number else "pace",
        title=f"How soon they are at an equal loss{where}",
        text=f"{_BEST if race.condition is None else ''} {_PACE}".strip(),
        drawn=finding_figures.pace_curves(race.runs, race.paces[0].reference),
        findings=[pace.said(one) for one in race.paces],
    )


def _heading(condition: Row | None) -> str:
    return "each at its own best" if condition is None else condition_said(condition)


def _depths(found: Found) -> Iterator[Part]:
    """Depth profiles of the best arms: over all conditions and under the first one, or under the first and the last."""
    over_all = bool(found.groups) and found.groups[0][0] is None
    for i in dict.fromkeys([0, 1 if over_all else len(found.groups) - 1] if found.groups else []):
        condition, arms = found.groups[i]
        runs = in_line(arms, found.design)
        if not any(run.quantities for of in runs for run in of.runs):
            continue
        where = f": {_heading(condition)}" if _heading(condition) else ""
        number = f"-{i + 1}" if i else ""
        yield Part(
            name=f"gradients{number}",
            title=f"Gradients over depth{where}",
            text="Level lines are the aim; in a collapsed stack they fall by orders of magnitude towards the input.",
            drawn=figures.gradient_profiles(runs),
        )
        yield Part(
            name=f"residual{number}",
            title=f"The residual stream over depth{where}",
            text="Without a norm on the sum the stream grows with depth; with one it is held at 1.",
            drawn=figures.residual_profiles(runs),
        )


_MAP = (
    "A square per arm: the median loss over the seeds, one scale for all panels; how many seeds collapsed, diverged"
    " or are undecided stands below it. Hatched: half of the seeds or more did not train; dotted: for most of them"
    " that is undecided. The frame is around the lowest median of each placement."
)
_ABOVE = (
    "Above a panel: how many seeds collapsed (rings), diverged (crosses) or are undecided (squares); where that is"
    " half of them or more there is no median below."
)
_STRIPS = "A dot per seed that finished; the bar is the median of all. What did not finish is counted beside its arm."
_ARMS = (
    "Median over the seeds, and the bootstrap interval of the median; a seed that diverged counts above all others."
    " Of three seeds such an interval holds the true median in 75 % of cases at most, of five in 94 %. Collapsed: at"
    " rest, and not 0.10 nat below what token frequencies alone reach; diverged: a loss was not finite, or was thrown"
    " up and never came back; undecided: too short to tell, and counted as neither. Behind the counts the Wilson"
    " interval of the rate (95 %). Gradient first/last: mean |gradient| of W₂ in the first layer over that in the"
    " last, at step 1 → over the last 50 steps, geometric mean over the seeds."
)
_RATES = (
    "The rate of the lowest median among those at which more than half of the seeds finished; none where a rate at"
    " which most collapsed ends lower still. LR sensitivity: the mean over the swept rates of the loss above that of"
    " the best one, each loss counted as the unigram entropy at most (0: every rate does as well; –: none is below it)."
)
_COMPARED = (
    "The same seed is the same data in the same order. Lower or higher is said where p of the exact sign-flip test over"
    " the seeds is at most 0.05 after Holm's correction for all comparisons of this table."
)
_TUNED_SEEDS = " The rates were chosen on the same seeds, which favours each side alike."
_PACE = (
    "Held-out loss, the mean over seeds and a band from the lowest to the highest. Diamonds: where a line first comes"
    " down to the loss at which the reference ends. Times compare only where each training had the machine to itself."
)
_CURVES = f"Median over the seeds, and its interval. {_ABOVE}"
_BEST = "Each at its own best, or, where it did not train, at its lowest median loss."
_LOSSES = (
    "A running mean of ten steps: the mean over the seeds, and a band from the lowest to the highest; a line per seed"
    " where they ended differently."
)
_RATIO = (
    "mean |gradient| of W₂ in the first layer over that in the last, geometric mean over the seeds: thin at step 1,"
    " bold over the last 50 steps. 1 means that the first and the last layer get gradients of the same size."
)

"""The parts of a study's page in their order: what was swept decides the main figure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isograd.report import figures, finding_figures, study_figures, study_tables
from isograd.report.canvas import Drawing
from isograd.report.runs import Row
from isograd.report.study_arms import RATE, Design, StudyArm, Tuned
from isograd.report.study_compared import Compared, pace_of, showcase
from isograd.report.study_figures import Group
from isograd.report.study_findings import LOSSES, compared_said, pace_said
from isograd.report.study_maps import PANELS, WARMUP, outcome_map
from isograd.report.study_tables import Table
from isograd.report.study_words import axis_name, condition_said

LAYERS = "model.layers"
SHOWN = 4  # conditions whose curves are drawn; the tables have all


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
        table=study_tables.arms_table(found.arms, design, f"median {LOSSES[found.measure]}"),
    )
    if design.rates:
        text = _RATES + (f" Unigram entropy: {found.entropy:.3f} nats." if found.entropy is not None else "")
        yield Part(
            name="rates",
            title="The best learning rate",
            text=text,
            table=study_tables.rates_table(found.chosen, design, found.entropy),
        )
    if found.compared:
        yield Part(
            name="comparisons",
            title=f"Against {found.reference}, seed by seed",
            text=_COMPARED + (_TUNED_SEEDS if design.rates else ""),
            table=study_tables.compared_table(found.compared, design),
            findings=[compared_said(one, LOSSES[found.measure]) for one in found.compared],
        )
    groups = showcase(found.chosen, found.arms, design)
    yield from _paces(found, groups)
    if design.rates and main.name != "learning-rates":
        yield _learning_rates(found)
    yield Part(
        name="losses",
        title="Training loss",
        text=_LOSSES,
        drawn=study_figures.loss_panels(_drawn(found, groups), found.entropy),
    )
    yield from _depths(groups)


def _main(found: Found) -> Part:
    """By what was swept: a map, a loss against a number, or dots."""
    design = found.design
    if design.rates and WARMUP in design.others:
        drawn = outcome_map(found.arms, design, found.what)
        return Part(name="map", title="What trained, and how well", text=_MAP, drawn=drawn)
    numeric = [key for key, values in design.others.items() if all(_is_number(value) for value in values)]
    key = LAYERS if LAYERS in numeric else numeric[0] if numeric else None
    if key is not None:
        drawn = study_figures.against(_groups(found, key), key, found.what)
        own = ", each placement at its own best learning rate" if design.rates else ""
        text = f"Median over the seeds{own}, and its interval. {_ABOVE}"
        return Part(name="main", title=f"The loss against {axis_name(key)}", text=text, drawn=drawn)
    if design.rates and len(design.others) == 0:
        return _learning_rates(found)
    return Part(
        name="main", title="Every seed", text=_STRIPS, drawn=study_figures.strips(found.arms, design, found.what)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _groups(found: Found, key: str) -> list[Group]:
    """For a figure against an axis: best arms, a panel for each combination of the axes beside it."""
    groups: dict[str, list[tuple[int, StudyArm]]] = {}
    for one in found.chosen:
        rest = {name: value for name, value in one.condition.items() if name != key}
        shown = one.best or min(one.arms, key=lambda arm: arm.median)
        groups.setdefault(condition_said(rest), []).append((found.look(shown), shown))
    return list(groups.items())[:PANELS]


def _learning_rates(found: Found) -> Part:
    groups: dict[str, list[tuple[int, StudyArm]]] = {}
    for one in found.chosen:
        groups.setdefault(condition_said(one.condition), []).extend((found.look(arm), arm) for arm in one.arms)
    drawn = study_figures.against(list(groups.items())[:PANELS], RATE, found.what, found.entropy)
    return Part(name="learning-rates", title="The loss against the learning rate", text=_CURVES, drawn=drawn)


def _paces(found: Found, groups: Sequence[tuple[Row | None, Sequence[StudyArm]]]) -> Iterator[Part]:
    """The speed-up to equal loss: over all conditions where that can be said, else of each of the first."""
    for i, (condition, arms) in enumerate(groups[: 1 if groups and groups[0][0] is None else SHOWN]):
        said = pace_said(arms, found.reference)
        runs, paces = pace_of(arms, found.reference)
        if paces:
            where = condition_said(condition) if condition else ""
            yield Part(
                name=f"pace-{i + 1}" if i else "pace",
                title=f"How soon they are at an equal loss{f': {where}' if where else ''}",
                text=_PACE,
                drawn=finding_figures.pace_curves(runs, paces[0].reference),
                findings=said,
            )


def _drawn(found: Found, groups: Sequence[tuple[Row | None, Sequence[StudyArm]]]) -> list[Group]:
    return [(_heading(condition), [(found.look(arm), arm) for arm in arms]) for condition, arms in groups[:SHOWN]]


def _heading(condition: Row | None) -> str:
    return "each at its own best" if condition is None else condition_said(condition)


def _depths(groups: Sequence[tuple[Row | None, Sequence[StudyArm]]]) -> Iterator[Part]:
    """Depth profiles of the best arms, under the first and the last condition."""
    ends = dict.fromkeys([0, len(groups) - 1]) if groups else {}
    for i in ends:
        condition, arms = groups[i]
        runs = [of for arm in arms if (of := arm.files()) is not None]
        if not any(run.quantities for arm in runs for run in arm.runs):
            continue
        where = f": {_heading(condition)}" if _heading(condition) else ""
        number = f"-{i + 1}" if i else ""
        yield Part(
            name=f"gradients{number}",
            title=f"Gradients over depth{where}",
            text=_GRADIENTS,
            drawn=figures.gradient_profiles(runs),
        )
        yield Part(
            name=f"residual{number}",
            title=f"The residual stream over depth{where}",
            text="Without a norm on the sum the stream grows with depth; with one it is held at 1.",
            drawn=figures.residual_profiles(runs),
        )


_MAP = (
    "A square per arm: the median loss over the seeds, one scale for all panels; how many seeds collapsed or diverged"
    " stands below it. Grey and hatched: half of the seeds or more did not train. The frame is around the lowest median"
    " of each placement."
)
_ABOVE = (
    "Above a panel: how many seeds collapsed (rings) or diverged (crosses); where that is half of them or more there is"
    " no median below."
)
_STRIPS = "A dot per seed, the bar is the median; rings collapsed. What did not finish is counted beside its arm."
_ARMS = (
    "Median over the seeds, and the bootstrap interval of the median; a seed that diverged counts above all others. Of"
    " three seeds such an interval holds the true median in 75 % of cases at most, of five in 94 %. Collapsed: within"
    " 0.10 nat of the unigram entropy; diverged: a loss was not finite; behind the counts the Wilson interval of the"
    " rate (95 %). Gradient first/last: mean |gradient| of W₂ in the first layer over that in the last, at step 1 →"
    " over the last 50 steps, geometric mean over the seeds."
)
_RATES = (
    "The rate of the lowest median among those at which more than half of the seeds finished. LR sensitivity: the mean"
    " over the swept rates of the loss above that of the best one, each loss counted as the unigram entropy at most"
    " (0: every rate does as well)."
)
_COMPARED = (
    "The same seed is the same data in the same order. Lower or higher is said of three seeds or more, where neither"
    " the intervals of the two arms overlap nor the interval of the differences holds 0."
)
_TUNED_SEEDS = " The rates were chosen on the same seeds, which favours each side alike."
_PACE = (
    "Held-out loss, the mean over seeds and a band from the lowest to the highest. Diamonds: where a line first comes"
    " down to the loss at which the reference ends. Times compare only where each training had the machine to itself."
)
_CURVES = f"Median over the seeds, and its interval. {_ABOVE}"
_LOSSES = (
    "Each placement at its best arm, a running mean of ten steps: the mean over the seeds, and a band from the lowest"
    " to the highest."
)
_GRADIENTS = "Of the best arms. Level lines are the aim; in a collapsed stack they fall towards the input."

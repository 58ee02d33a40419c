"""The page of a study: what was swept decides the main figure; tables of arms, rates and comparisons. Files alone."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from isograd.files import finite, write_text
from isograd.report import compared, equal_loss, figures
from isograd.report.compared import difference
from isograd.report.page import Page, Section, Table, csv_of, csv_of_rows, write_page
from isograd.report.pages.runs import loss_words
from isograd.report.references import bibtex
from isograd.report.runs import ArmFiles, Row, curves
from isograd.report.settings import settings, subtitle
from isograd.report.study import figures as study_figures
from isograd.report.study import order as study_order
from isograd.report.study.arms import (
    RATE,
    WARMUP,
    ArmsCompared,
    Design,
    Group,
    Race,
    StudyArm,
    Tuned,
    against_no_warmup,
    comparisons,
    design_of,
    in_line,
    is_number,
    measure_of,
    overall,
    races,
    reference_among,
    showcase,
    study_arms,
    tuned,
)
from isograd.report.study.figures import PANELS, outcome_map
from isograd.report.study.files import (
    COUNTED,
    CellFiles,
    StudyFiles,
    axis_name,
    condition_said,
    read_study,
    shown_value,
)
from isograd.report.style import Output
from isograd.statistics import Interval
from isograd.study.labels import flat

LOSSES = {"validation_loss": "validation loss", "final_loss": "training loss (mean of the last 20 steps)"}
LAYERS, STEPS = "model.layers", "training.steps"
SHOWN = 4  # conditions whose curves are drawn; the tables have all
MANY = 12  # arms or errors at most that a sentence lists
SAME = 0.01  # nats; seeds hold out other sequences, mask other tokens


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
    races: Sequence[Race]

    @property
    def what(self) -> str:
        return f"{LOSSES[self.measure]} (nats)"


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """What was written, and what a terminal shows of it.

    Attributes:
        page: report.html.
        summary: the headline, warnings, verdicts.
        table: of the arms.
        left_out: what could not be read.
        results: the content of results.json.
    """

    page: Path
    summary: list[str]
    table: Table
    left_out: list[str]
    results: dict[str, Any]


def write_study_report(
    folder: Path,
    out: Path | None = None,
    title: str | None = None,
    reference: str | None = None,
    output: Output | None = None,
) -> StudyReport:
    """Write report.html, figures, tables, results.csv, results.json, curves.csv and references.bib of a study.

    Args:
        out: None: `folder`/report.
        title: None: the study's name.
        reference: what the others are compared with; None: pre-ln, or the first.
        output: of the figures' files.

    Raises:
        ValueError: neither the plan nor the ledger can be read, or nothing of the reference's name was compared.
    """
    study = read_study(folder)
    found = found_in(study, reference)
    page = study_page(study, found, title)
    said = [page.headline, *page.warnings, *verdicts(found)]
    out = folder / "report" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    results = {
        "summary": said,
        "arms": [_arm_row(arm) for arm in found.arms],
        "comparisons": [_comparison_row(one, LOSSES[found.measure]) for one in found.compared],
        "cells": [_cell_row(cell) for cell in study.cells],
        "left_out": study.left_out,
    }
    runs = [cell.files for cell in study.cells if cell.files is not None]
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", csv_of_rows([dict(flat(_cell_row(cell))) for cell in study.cells]))
    write_text(out / "curves.csv", csv_of(curves(runs)))
    write_text(out / "references.bib", bibtex(run.resolved.get("paper") for run in runs))
    write_page(page, out / "report.html", output)
    table = arms_table(found)
    return StudyReport(page=out / "report.html", summary=said, table=table, left_out=study.left_out, results=results)


def found_in(study: StudyFiles, named: str | None = None) -> StudyFindings:
    """Everything that is told and drawn.

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
        races=races(groups, design, reference),
    )


def _entropy(study: StudyFiles) -> float | None:
    """The one of all cells; None where they are of different texts."""
    known = [value for cell in study.cells if (value := cell.number("unigram_entropy")) is not None]
    return known[0] if known and max(known) - min(known) < SAME else None


# ------------------------------------------------------------------------------------------------------------ sections


def study_page(study: StudyFiles, found: StudyFindings, title: str | None = None) -> Page:
    lines = list(provenance(study))
    known = [ArmFiles(label="", runs=runs) for arm in found.arms if (runs := [c.files for c in arm.cells if c.files])]
    text = next((run.resolved["data"] for arm in known for run in arm.runs if run.resolved.get("data")), None)
    left_out = Table(header=("file, and what is wrong",), lines=[(line,) for line in study.left_out])
    return Page(
        title=title or f"Study: {study.name}",
        headline=headline(study, found),
        warnings=[*failures(study), *undecided(found.arms), *unlearnt(found), *edges(found)],
        subtitle=subtitle(known, text) if known else "",
        sections=[
            *sections(found),
            Section(name="provenance", title="Provenance", table=Table(header=("", "value"), lines=lines, left=2)),
            Section(name="recipe", title="Recipe", code=recipe(study)),
            *(
                [Section(name="left-out", title="Left out", sentence=_LEFT_OUT, table=left_out)]
                if study.left_out
                else []
            ),
        ],
        made=f"Made by isograd from the files of {len(study.cells)} cells. `results.csv`: a row per cell;"
        " `curves.csv`: every curve; `references.bib`: the papers.",
    )


_LEFT_OUT = "What could not be read. Nothing else was lost by it."


def sections(found: StudyFindings) -> list[Section]:
    """What these arms have to show, the main figure first."""
    return [section for section in _sections(found) if section is not None] if found.arms else []


def _sections(found: StudyFindings) -> Iterator[Section | None]:
    design = found.design
    if is_order(design):
        yield from study_order.sections(found.chosen, design, found.reference, found.what)
        yield comparison_section(found)
        yield Section(name="arms", title="Every arm", sentence=_ARMS, table=arms_table(found), folded=True)
        return
    main = main_section(found)
    yield main
    if design.rates or len(design.conditions) > 1:
        yield Section(name="rates", title="Best learning rates", sentence=_RATES, table=rates_table(found))
    yield comparison_section(found)
    yield warmup_section(found)
    for i, race in enumerate(found.races[:SHOWN]):
        yield _race(race, f"equal-loss-{i + 1}" if i else "equal-loss")
    if design.rates and main.name != "learning-rates":
        yield _learning_rates(found)
    if main.name == "against":
        yield _ratios(found)
    panels = [(_heading(condition), in_line(arms, design)) for condition, arms in found.groups[:SHOWN]]
    draw = partial(study_figures.loss_panels, panels, found.entropy)
    yield Section(name="losses", title="Training loss", sentence=f"{_BEST} {_LOSSES}", figure=draw)
    yield from _depths(found)
    folded = len(found.arms) > 40
    yield Section(name="arms", title="Every arm", sentence=_ARMS, table=arms_table(found), folded=folded)


def is_order(design: Design) -> bool:
    """Whether so many placements are compared that lines of them in one panel could not be told apart."""
    return len(design.who) > study_order.MANY and design.who_key == "model.placement" and bool(design.rates)


def main_section(found: StudyFindings) -> Section:
    """By what was swept: a map, a loss against a number, or dots."""
    design = found.design
    if design.rates and WARMUP in design.others:
        draw = partial(outcome_map, found.arms, design, found.what)
        return Section(name="map", title="Outcome and loss over warm-up and learning rate", sentence=_MAP, figure=draw)
    key = _numeric(design)
    if key is not None:
        against = partial(study_figures.against, _groups(found, key), key, found.what)
        best = ", each placement at its own best learning rate" if design.rates else ""
        text = f"Median over the seeds{best}, and its interval. {_ABOVE}"
        return Section(name="against", title=f"Loss against {axis_name(key)}", sentence=text, figure=against)
    if design.rates and not design.others:
        return _learning_rates(found)
    strips = partial(study_figures.strips, found.arms, found.what)
    return Section(name="seeds", title="Every seed", sentence=_STRIPS, figure=strips)


def _numeric(design: Design) -> str | None:
    """The axis of numbers that losses are drawn against: the layers before any other."""
    numeric = [key for key, values in design.others.items() if all(map(is_number, values))]
    return LAYERS if LAYERS in numeric else numeric[0] if numeric else None


def _groups(found: StudyFindings, key: str) -> list[study_figures.Panel]:
    """For a figure against an axis: best arms, a panel for each combination of the axes beside it."""
    groups: dict[str, list[StudyArm]] = {}
    for one in found.chosen:
        rest = {name: value for name, value in one.condition.items() if name != key}
        groups.setdefault(condition_said(rest), []).append(one.shown)
    return list(groups.items())[:PANELS]


def _learning_rates(found: StudyFindings) -> Section:
    groups: dict[str, list[StudyArm]] = {}
    for one in found.chosen:
        groups.setdefault(condition_said(one.condition), []).extend(one.arms)
    draw = partial(study_figures.against, list(groups.items())[:PANELS], RATE, found.what, found.entropy)
    text = f"Median over the seeds, and its interval. {_ABOVE}"
    return Section(name="learning-rates", title="Loss against the learning rate", sentence=text, figure=draw)


def _ratios(found: StudyFindings) -> Section:
    key = _numeric(found.design) or ""
    draw = partial(study_figures.gradient_ratios, _groups(found, key), key)
    return Section(
        name="ratios", title=f"First/last gradient ratio against {axis_name(key)}", sentence=_RATIO, figure=draw
    )


def comparison_section(found: StudyFindings) -> Section | None:
    """Each best arm against the reference's, under each condition."""
    header = f"median difference, {LOSSES[found.measure].partition(' (')[0]} (nats)"
    table = compared.table(_compared(found), header, who=_who(found.design))
    if table is None:
        return None
    return Section(
        name="comparisons",
        title=f"Against {found.reference}, seed by seed",
        sentence=_COMPARED + (_TUNED_SEEDS if found.design.rates else ""),
        table=table,
        verdicts=verdicts(found),
    )


def warmup_section(found: StudyFindings) -> Section | None:
    """Each warm-up with none, of the same placement; None where these were not swept."""
    pairs = [
        compared.Compared(
            mine=f"{_at_rate(one.mine)}, warm-up {one.mine.values[WARMUP]}",
            theirs=f"{_at_rate(one.theirs)}, none",
            found=one.found,
            size=difference(one.found),
            unit=" nats",
            where=condition_said(one.condition or {}),
        )
        for one in against_no_warmup(found.chosen, found.design)
    ]
    table = compared.table(pairs, f"median difference, {found.what}", who=_who(found.design))
    if table is None:
        return None
    return Section(
        name="warmup",
        title="Each warm-up against none, seed by seed",
        sentence=_WARMUP,
        table=table,
        verdicts=list(compared.verdicts(pairs, loss_words(found.measure))),
    )


def _compared(found: StudyFindings) -> list[compared.Compared]:
    return [
        compared.Compared(
            mine=_at_rate(one.mine),
            theirs=_at_rate(one.theirs),
            found=one.found,
            size=difference(one.found),
            unit=" nats",
            where=_heading(one.condition),
        )
        for one in found.compared
    ]


def _at_rate(arm: StudyArm) -> str:
    return f"{arm.who}, LR {shown_value(arm.values[RATE])}" if RATE in arm.values else arm.who


def verdicts(found: StudyFindings) -> list[str]:
    """By the one rule; of many conditions only what is over all of them."""
    every = _compared(found)
    over_all = [one for one in every if one.where == _heading(None)]
    return list(compared.verdicts(over_all or every, loss_words(found.measure), every))


def _race(race: Race, name: str) -> Section:
    about = figures.Subject(arms=race.runs, reference=race.speeds[0].reference)
    return equal_loss.section(about, name, condition_said(race.condition) if race.condition else "")


def _heading(condition: Row | None) -> str:
    return "each at its own best" if condition is None else condition_said(condition)


def _depths(found: StudyFindings) -> Iterator[Section | None]:
    """Depth profiles of the best arms: over all conditions and under the first one, or under the first and the last."""
    over_all = bool(found.groups) and found.groups[0][0] is None
    for i in dict.fromkeys([0, 1 if over_all else len(found.groups) - 1] if found.groups else []):
        condition, arms = found.groups[i]
        about = figures.Subject(arms=in_line(arms, found.design))
        for name in ("gradients", "residual"):
            section = figures.DEPTH_CHARTS[name](about)
            if section:
                where = f": {_heading(condition)}" if _heading(condition) else ""
                number = f"-{i + 1}" if i else ""
                yield replace(section, name=f"{name}{number}", title=f"{section.title}{where}")


_MAP = (
    "A square per arm: the median loss over the seeds, one scale for all panels; below it how many seeds collapsed,"
    " diverged or are undecided. Hatched: half of the seeds or more did not train; dotted: most of them undecided. The"
    " frame is around the lowest median of each placement."
)
_ABOVE = (
    "Above a panel: how many seeds collapsed (rings), diverged (crosses) or are undecided (squares); where that is half"
    " of them or more there is no median below."
)
_STRIPS = "A dot per seed that finished; the bar is the median of all. What did not finish is counted beside its arm."
_ARMS = (
    "Median over the seeds and its bootstrap interval; a seed that diverged counts above all others. Of three seeds"
    " such an interval covers the true median in 75 % of cases at most, of five in 94 %. Collapsed: at rest, and not"
    " 0.10 nat below the unigram entropy, the loss of a model that knows only how often each token occurs. Diverged: a"
    " loss was not finite, or rose and did not come back. Undecided: too short to tell. After the counts the Wilson"
    " interval of the rate (95 %). First/last gradient ratio: mean |gradient| of W_2 in the first layer over that in"
    " the last, at step 1 → over the last 50 steps, geometric mean over the seeds."
)
_RATES = (
    "The rate of the lowest median among those at which more than half of the seeds finished; none where a rate at"
    " which most collapsed ends lower still. LR sensitivity: the mean over the swept rates of the loss above that of"
    " the best one, each loss counted as the unigram entropy at most (0: every rate does as well; –: none is below it)."
)
_COMPARED = (
    "The same seed is the same data in the same order. Lower or higher: p of the exact sign-flip test over the seeds is"
    " at most 0.05 after Holm's correction for all comparisons of this table."
)
_WARMUP = (
    "The same placement with and without a warm-up, each at its own best rate (where it trained at none, at that of its"
    " lowest median). Lower or higher: p of the exact sign-flip test over the seeds is at most 0.05 after Holm's"
    " correction for all comparisons of this table."
)
_TUNED_SEEDS = " The rates were chosen on the same seeds, which favors each side alike."
_BEST = "Each at its own best, or, where it did not train, at its lowest median loss."
_LOSSES = (
    "A running mean of ten steps: the mean over the seeds, and a band from the lowest to the highest; a line per seed"
    " where they ended differently."
)
_RATIO = (
    "Mean |gradient| of W_2 in the first layer over that in the last, geometric mean over the seeds: thin at step 1,"
    " bold over the last 50 steps. 1 where both get gradients of one size."
)


# ----------------------------------------------------------------------------------------------------------- sentences


def headline(study: StudyFiles, found: StudyFindings) -> str:
    """How far the study came, and who is lowest."""
    best = min((arm for arm in overall(found.arms, found.design) if arm.trains), key=_median, default=None)
    if best is None or len(found.design.who) < 2:
        return f"{progress(study)}."
    loss = LOSSES[found.measure].partition(" (")[0]
    if is_order(found.design):
        return f"{progress(study)}; {study_order.headline(found.chosen, found.design, best, size(study), loss)}."
    return f"{progress(study)}; lowest median {loss}: {best.label}, {_loss(best.median)} nats (n = {best.n})."


def _median(arm: StudyArm) -> float:
    return arm.median


def progress(study: StudyFiles) -> str:
    ended, planned = study.ended, len(study.cells)
    counts = Counter(cell.how for cell in ended)
    ends = ", ".join(f"{counts[how]} {how}" for how in (*COUNTED, "failed") if counts[how])
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    how_many = f"All {planned} cells" if len(ended) == planned > 1 else f"{len(ended)} of {planned} cells"
    return f"{how_many} {'has' if planned == 1 else 'have'} ended ({seeds}){f': {ends}' if ends else ''}"


def size(study: StudyFiles) -> str:
    """ "12 layers, width 64, 300 updates"; without what an axis sweeps."""
    words = {LAYERS: "{:,} layers", "model.width": "width {:,}", STEPS: "{:,} updates"}
    known = {**dict(flat(study.base)), **({STEPS: steps} if (steps := (study.budget or {}).get("steps")) else {})}
    known |= {key: values[0] for key, values in study.axes.items() if len(values) == 1}
    fixed = {key: value for key, value in known.items() if len(study.axes.get(key, [0])) == 1 and is_number(value)}
    return ", ".join(form.format(fixed[key]) for key, form in words.items() if key in fixed) or "this size"


def failures(study: StudyFiles) -> Iterator[str]:
    """Why cells failed, which are counted in nothing else."""
    errors = Counter(str(cell.outcome.get("error", "unknown error")) for cell in study.cells if cell.how == "failed")
    said = [f"{error}{f' ({many} cells)' if many > 1 else ''}" for error, many in errors.most_common()]
    if said:
        yield f"Failed, and counted in nothing else: {_some(said, 'errors')}."


def undecided(arms: Sequence[StudyArm]) -> Iterator[str]:
    """How many cells were too short to tell, and how many more steps they need at most."""
    cells = [cell for arm in arms for cell in arm.cells if cell.how == "undecided"]
    if cells:
        needed = [(cell.outcome.get("judged") or {}).get("needed") for cell in cells]
        known = [steps for steps in needed if steps is not None]
        more = f"; up to {max(known):,} more steps would tell" if known else ""
        yield f"Undecided, too short to tell: {len(cells)} of {sum(arm.n for arm in arms)} cells{more}."


def unlearnt(found: StudyFindings) -> Iterator[str]:
    """Which finished, and are no better on held-out text than token frequencies; each cell by its own entropy."""
    known = [(arm, sum(map(_is_unlearnt, arm.cells))) for arm in found.arms]
    said = [f"{arm.label} ({many} of {arm.n} seed{'s' * (arm.n > 1)})" for arm, many in known if many]
    if said:
        level = "of its text" if found.entropy is None else f"({found.entropy:.3f} nats)"
        yield f"Finished, with a validation loss not below the unigram entropy {level}: {_some(said, 'arms')}."


def _is_unlearnt(cell: CellFiles) -> bool:
    loss, entropy = cell.number("validation_loss"), cell.number("unigram_entropy")
    return cell.how == "finished" and entropy is not None and loss is not None and loss >= entropy


def edges(found: StudyFindings) -> Iterator[str]:
    """Whose best rate stands at an end of the sweep."""
    at_end = [one for one in found.chosen if one.edge is not None]
    if at_end:
        who = dict.fromkeys(one.who for one in at_end)
        yield f"Best learning rate at an end of the sweep, beyond which a rate may be better: {_some([*who], 'arms')}."


def _some(said: Sequence[str], what: str) -> str:
    """The first of them, and how many more; a sentence is no table."""
    left = len(said) - MANY
    return "; ".join([*said[:MANY], f"and {left} other {what}"] if left > 1 else said)


# -------------------------------------------------------------------------------------------------------------- tables


def arms_table(found: StudyFindings) -> Table:
    """A line per arm: where it stands on each axis, its loss, and how many of its seeds did not finish.

    Its updates, too, where they differ, as under a budget in seconds; "undecided" only where there is any.
    """
    arms, design = found.arms, found.design
    keys = [*design.others, *([RATE] if design.rates else [])]
    different = STEPS not in keys and len({steps for arm in arms for steps in _steps(arm)}) > 1
    ends = [how for how in COUNTED[1:] if how != "undecided" or any(arm.count(how) for arm in arms)]
    updates = ["updates"] if different else []
    header = (_who(design), *map(axis_name, keys), *updates, f"median {found.what}", "seeds", *ends)
    lines = [
        (
            arm.who,
            *(shown_value(arm.values[key]) for key in keys),
            *([" to ".join(f"{steps:,.0f}" for steps in _first_and_last(_steps(arm))) or "–"] if different else []),
            _with_interval(arm),
            str(arm.n),
            *(_share(arm, how) for how in ends),
            f"{_ratio(arm, 'gradient_ratio_start')} → {_ratio(arm, 'gradient_ratio_end')}",
        )
        for arm in arms
    ]
    return Table(header=(*header, "first/last gradient ratio"), lines=lines, looks=[arm.look for arm in arms])


def _who(design: Design) -> str:
    return axis_name(design.who_key or "model.placement")


def _steps(arm: StudyArm) -> set[float]:
    """Of the cells that came to their end."""
    return {steps for cell in arm.cells if cell.how != "diverged" and (steps := cell.number("steps")) is not None}


def _first_and_last(numbers: Iterable[float]) -> list[float]:
    found = sorted(numbers)
    return list(dict.fromkeys([*found[:1], *found[-1:]]))


def _with_interval(arm: StudyArm) -> str:
    """ "2.013 (2.001 to 2.020)": the median, and its interval."""
    ends = arm.interval
    return _loss(arm.median) + (f" ({_loss(ends.low)} to {_loss(ends.high)})" if ends else "")


def _loss(value: float) -> str:
    return "diverged" if value == math.inf else f"{value:.3f}"


def _share(arm: StudyArm, how: str) -> str:
    """ "2/3 (21 to 94 %)": of how many seeds, and the Wilson interval of the rate."""
    interval = arm.rate(how)
    return f"{arm.count(how)}/{arm.n} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def _ratio(arm: StudyArm, name: str) -> str:
    found = [value for cell in arm.cells if (value := cell.number(name)) is not None]
    return f"{statistics.geometric_mean(found):.2g}" if found and min(found) > 0 else "–"


def rates_table(found: StudyFindings) -> Table:
    """A line per condition and placement: its best rate, the loss there, what a wrong rate costs, how cells ended."""
    design, lines = found.design, []
    for one in found.chosen:
        cells = [cell for arm in one.arms for cell in arm.cells]
        entropies = [value for cell in cells if (value := cell.number("unigram_entropy")) is not None]
        score = one.sensitivity(max(entropies, default=None))
        rate = "none trained" if one.best is None else shown_value(one.best.values.get(RATE))
        edge = "" if one.edge is None else f", the {one.edge} {'one' if one.edge == 'only' else 'of the sweep'}"
        lines.append(
            (
                one.who,
                *([condition_said(one.condition)] if design.others else []),
                *([rate + edge] if design.rates else []),
                "–" if one.best is None else _with_interval(one.best),
                *(["–" if score is None else f"{score:.3f}"] if design.rates else []),
                ", ".join(f"{n} {how}" for how in COUNTED if (n := sum(cell.how == how for cell in cells))),
            )
        )
    rates = (["best learning rate"], ["LR sensitivity (nats)"]) if design.rates else ([], [])
    under = ["under"] if design.others else []
    header = (_who(design), *under, *rates[0], f"median {LOSSES[found.measure]} (nats)", *rates[1], "cells")
    looks = [one.shown.look for one in found.chosen]
    return Table(header=header, lines=lines, looks=looks, left=1 + len(under))


# --------------------------------------------------------------------------------------------------- for a program


def _arm_row(arm: StudyArm) -> Row:
    return {
        "arm": arm.label,
        **arm.values,
        "measure": arm.measure,
        "median": arm.median,
        "interval": _interval(arm.interval),
        "n": arm.n,
        "losses": {str(seed): loss for seed, loss in arm.losses.items()},
        **{how: {"count": arm.count(how), "rate": _interval(arm.rate(how))} for how in COUNTED[1:]},
    }


def _interval(interval: Interval | None) -> Row | None:
    return None if interval is None else asdict(interval)


def _comparison_row(one: ArmsCompared, what: str) -> Row:
    found = one.found
    where = f"{condition_said(one.condition)}: " if one.condition else ""
    return {
        "arm": one.mine.label,
        "reference": one.theirs.label,
        "under": one.condition,
        "n": found.n,
        "differences": {str(seed): value for seed, value in found.differences.items()},
        "median": found.median,
        "interval": _interval(found.interval),
        "p": found.p,
        "p_corrected": found.corrected,
        "verdict": found.verdict,
        "said": where + found.said(_at_rate(one.mine), _at_rate(one.theirs), what),
    }


def _cell_row(cell: CellFiles) -> Row:
    """A row of results.csv: where the cell stands on the axes, and how it ended."""
    hidden = ("provenance", "cell", "seed", "outcome", "values")
    numbers = {name: value for name, value in cell.outcome.items() if name not in hidden}
    return {"cell": cell.name, **cell.values, "seed": cell.seed, "outcome": cell.how, **numbers}


# ---------------------------------------------------------------------------------------------------------- provenance

_SECTIONS = ("model", "data", "pairs", "search", "glue", "training")  # the recipe says them


def provenance(study: StudyFiles) -> Iterator[tuple[str, str]]:
    """Names and values: the data, versions and hardware, of what differs between cells each value; what was spent."""
    runs = [cell.files for cell in study.cells if cell.files is not None]
    text = next((run.resolved["data"] for run in runs if run.resolved.get("data")), None)
    known = settings([ArmFiles(label="", runs=runs)], text) if runs else ()
    yield from ((name, value) for name, value in known if name not in _SECTIONS)
    hashes = dict.fromkeys(str((run.resolved.get("data") or {}).get("sha256")) for run in runs)
    if len(hashes) > 1:
        yield "sha256 of every text", "; ".join(hashes)
    yield "seeds", ", ".join(map(str, study.seeds))
    budget = [f"{value:,g} {unit}" for unit, value in (study.budget or {}).items()]
    yield "budget of a cell", ", ".join(budget) or "the recipe's"
    seconds = [value for cell in study.ended if (value := cell.number("seconds"))]
    if seconds:
        spent, n = sum(seconds), len(seconds)
        yield (
            "training time",
            f"{spent / 3600:.2f} hours of {n} cells: {3600 * n / spent:,.0f} cells per hour and worker",
        )


def recipe(study: StudyFiles) -> str:
    """The study as a recipe that `isograd study` takes."""
    base: Row = {}
    for name, value in study.base.items():
        if name not in ("name", "seed"):
            base[name] = value
    grids = [{key: values for key, values in axes.items() if key != "arm"} for axes in study.grids or [study.axes]]
    also = [{key: values for key, values in grid.items() if values != grids[0].get(key)} for grid in grids[1:]]
    content = {"name": study.name, **base, **_arms(study), "axes": grids[0], **({"also": also} if also else {})}
    content |= {"seeds": study.seeds, "budget": study.budget}
    content = json.loads(json.dumps(content))  # texts that have names are none of YAML's
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)


def _arms(study: StudyFiles) -> Row:
    """The arms of a recipe that has some: a placement, and other settings."""
    found = {}
    for cell in study.cells:
        own = {key: value for key, value in cell.values.items() if key not in study.axes}
        if "arm" in cell.values and own:
            placement = own.pop("model.placement", study.setting("model.placement"))
            found[cell.values["arm"]] = [placement, *(f"{key}={json.dumps(value)}" for key, value in own.items())]
    return {"arms": list(found.values())} if found else {}

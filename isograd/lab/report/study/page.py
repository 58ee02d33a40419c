"""The page of a study: what was swept decides the main figure; tables of arms, rates and comparisons. Files alone."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from isograd.files import write_json, write_text
from isograd.lab.report import compared, equal_loss, figures
from isograd.lab.report.page import (
    Page,
    Section,
    Table,
    csv_of,
    csv_of_rows,
    in_words,
    page_in_words,
    settings_table,
    write_page,
)
from isograd.lab.report.pages.runs import loss_words
from isograd.lab.report.references import bibtex
from isograd.lab.report.runs import ArmFiles, Row, curves
from isograd.lab.report.settings import settings, subtitle
from isograd.lab.report.study import figures as study_figures
from isograd.lab.report.study import order as study_order
from isograd.lab.report.study.arms import (
    LAYERS,
    LOSSES,
    RATE,
    STEPS,
    WARMUP,
    Design,
    StudyArm,
    StudyFindings,
    against_no_warmup,
    at_rate,
    found_in,
    in_line,
    is_number,
    overall,
)
from isograd.lab.report.study.figures import PANELS, outcome_map
from isograd.lab.report.study.files import COUNTED, CellFiles, StudyFiles, axis_name, condition_said, read_study
from isograd.lab.report.study.tables import arm_row, arms_table, cell_row, comparison_row, loss_said, rates_table, who
from isograd.lab.report.style import Output
from isograd.lab.study.labels import flat
from isograd.lab.train.tasks import DEFAULT, TASKS

SHOWN = 4  # conditions whose curves are drawn; the tables have all


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
    said = [page.headline, *page.warnings, *(in_words(line, words(study)) for line in verdicts(found))]
    out = folder / "report" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    results = {
        "summary": said,
        "arms": [arm_row(arm) for arm in found.arms],
        "comparisons": [comparison_row(one) for one in found.compared],
        "cells": [cell_row(cell) for cell in study.cells],
        "left_out": study.left_out,
    }
    runs = [cell.files for cell in study.cells if cell.files is not None]
    write_json(out / "results.json", results)
    write_text(out / "results.csv", csv_of_rows([dict(flat(cell_row(cell))) for cell in study.cells]))
    arms = [ArmFiles(label=arm.label, runs=arm.runs) for arm in found.arms if arm.runs]
    write_text(out / "curves.csv", csv_of(curves(arms)))
    write_text(out / "references.bib", bibtex(run.resolved.get("paper") for run in runs))
    write_page(page, out / "report.html", output)
    table = arms_table(found)
    table = replace(table, header=[in_words(name, words(study)) for name in table.header])
    return StudyReport(page=out / "report.html", summary=said, table=table, left_out=study.left_out, results=results)


# ------------------------------------------------------------------------------------------------------------ sections


def study_page(study: StudyFiles, found: StudyFindings, title: str | None = None) -> Page:
    known = [ArmFiles(label="", runs=arm.runs) for arm in found.arms if arm.runs]
    text = next((run.resolved["data"] for arm in known for run in arm.runs if run.resolved.get("data")), None)
    left_out = Table(header=("file, and what is wrong",), lines=[(line,) for line in study.left_out])
    page = Page(
        title=title or f"Study: {study.name}",
        headline=headline(study, found),
        warnings=[*failures(study), *undecided(found.arms), *unlearnt(found), *edges(found)],
        subtitle=subtitle(known, text) if known else "",
        sections=[
            *sections(found),
            Section(name="provenance", title="Provenance", table=settings_table(provenance(study), ("", "value"))),
            Section(name="recipe", title="Recipe", code=recipe(study)),
            Section(name="left-out", title="Left out", sentence=_LEFT_OUT, table=left_out),
        ],
        made=f"Made by isograd from the files of {len(study.cells)} cells. `results.csv`: a row per cell;"
        " `curves.csv`: every curve; `references.bib`: the papers.",
    )
    return page_in_words(page, words(study))


def words(study: StudyFiles) -> Mapping[str, str]:
    """Of its task."""
    return TASKS[study.setting("task") or DEFAULT].words


_LEFT_OUT = "What could not be read. Nothing else was lost by it."


def sections(found: StudyFindings) -> list[Section]:
    """What these arms have to show, the main figure first."""
    return [section for section in _sections(found) if section is not None] if found.arms else []


def _sections(found: StudyFindings) -> Iterator[Section | None]:
    design = found.design
    if study_order.is_order(design):
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
    yield from _races(found)
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
    strips = partial(study_figures.seed_strips, found.arms, found.what)
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
    title = f"Against {found.reference}, seed by seed"
    text = _COMPARED + (_TUNED_SEEDS if found.design.rates else "")
    words = loss_words(found.measure)
    made = compared.section("comparisons", title, _compared(found), header, words, text, who(found.design))
    return replace(made, verdicts=verdicts(found)) if made else None


def warmup_section(found: StudyFindings) -> Section | None:
    """Each warm-up with none, of the same placement; None where these were not swept."""
    pairs = [
        compared.Compared(
            mine=f"{at_rate(one.mine)}, warm-up {one.mine.values[WARMUP]}",
            theirs=f"{at_rate(one.theirs)}, none",
            found=one.found,
            unit=" nats",
            where=condition_said(one.condition or {}),
        )
        for one in against_no_warmup(found.chosen, found.design)
    ]
    title, header = "Each warm-up against none, seed by seed", f"median difference, {found.what}"
    return compared.section("warmup", title, pairs, header, loss_words(found.measure), _WARMUP, who(found.design))


def _compared(found: StudyFindings) -> list[compared.Compared]:
    return [
        compared.Compared(
            mine=at_rate(one.mine),
            theirs=at_rate(one.theirs),
            found=one.found,
            unit=" nats",
            where=_heading(one.condition),
        )
        for one in found.compared
    ]


def verdicts(found: StudyFindings) -> list[str]:
    """By the one rule; of many conditions only what is over all of them."""
    every = _compared(found)
    over_all = [one for one in every if one.where == _heading(None)]
    return list(compared.verdicts(over_all or every, loss_words(found.measure), every))


def _races(found: StudyFindings) -> Iterator[Section]:
    """How soon each is where the reference ends, of each group that can tell; of that over all conditions alone."""
    groups = found.groups[:1] if found.groups and found.groups[0][0] is None else found.groups
    sections = 0
    for condition, arms in groups:
        runs = in_line(arms, found.design)
        reference = runs[found.reference].label if found.reference in runs else None
        about = figures.Subject(arms=[*runs.values()], reference=reference)
        if sections < SHOWN and any(run.validation for arm in about.arms for run in arm.runs):
            name, where = f"equal-loss-{sections + 1}" if sections else "equal-loss", condition_said(condition or {})
            if (section := equal_loss.section(about, name, where)).table:
                sections += 1
                yield section


def _heading(condition: Row | None) -> str:
    return "each at its own best" if condition is None else condition_said(condition)


def _depths(found: StudyFindings) -> Iterator[Section | None]:
    """Depth profiles of the best arms: over all conditions and under the first one, or under the first and the last."""
    over_all = bool(found.groups) and found.groups[0][0] is None
    for i in dict.fromkeys([0, 1 if over_all else len(found.groups) - 1] if found.groups else []):
        condition, arms = found.groups[i]
        about = figures.Subject(arms=[*in_line(arms, found.design).values()])
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

MANY = 12  # arms or errors at most that a sentence lists


def headline(study: StudyFiles, found: StudyFindings) -> str:
    """How far the study came, and who is lowest."""
    best = min(
        (arm for arm in overall(found.arms, found.design) if arm.trains), key=lambda arm: arm.median, default=None
    )
    if best is None or len(found.design.who) < 2:
        return f"{progress(study)}."
    loss = LOSSES[found.measure].partition(" (")[0]
    if study_order.is_order(found.design):
        return f"{progress(study)}; {study_order.headline(found.chosen, found.design, best, size(study), loss)}."
    return f"{progress(study)}; lowest median {loss}: {best.label}, {loss_said(best.median)} nats (n = {best.n})."


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
    """Which finished, and are no better on validation text than token frequencies."""
    known = [(arm, [*filter(_is_unlearnt, arm.cells)]) for arm in found.arms]
    known = [(arm, cells) for arm, cells in known if cells]
    said = [f"{arm.label} ({len(cells)} of {arm.n} seed{'s' * (arm.n > 1)})" for arm, cells in known]
    if said:
        rough = any(_judged_excess(cell) is None for _, cells in known for cell in cells)
        of = ", by those of the training text where a run does not record others" if rough else ""
        yield (f"Finished, with a validation loss not below the unigram entropy{of}: {_some(said, 'arms')}.")


def _is_unlearnt(cell: CellFiles) -> bool:
    """By the unigram loss of the validation text; where the run does not record it, by that of the training text."""
    loss, entropy, excess = cell.number("validation_loss"), cell.number("unigram_entropy"), _judged_excess(cell)
    if cell.how != "finished" or loss is None:
        return False
    return excess >= 0 if excess is not None else entropy is not None and loss >= entropy


def _judged_excess(cell: CellFiles) -> float | None:
    """Nats of the validation loss above the unigram loss of the same text."""
    excess: float | None = (cell.outcome.get("judged") or {}).get("held_out_excess")
    return excess


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


# ---------------------------------------------------------------------------------------------------------- provenance

# the recipe says them
_SECTIONS = ("model", "data", "pairs", "search", "glue", "training")


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
    content = {"name": study.name, **base, **_recipe_arms(study), "axes": grids[0], **({"also": also} if also else {})}
    content |= {"seeds": study.seeds, "budget": study.budget}
    content = json.loads(json.dumps(content))  # texts that have names are none of YAML's
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)


def _recipe_arms(study: StudyFiles) -> Row:
    """The arms of a recipe that has some: a placement, and other settings."""
    found = {}
    for cell in study.cells:
        own = {key: value for key, value in cell.values.items() if key not in study.axes}
        if "arm" in cell.values and own:
            placement = own.pop("model.placement", study.setting("model.placement"))
            found[cell.values["arm"]] = [placement, *(f"{key}={json.dumps(value)}" for key, value in own.items())]
    return {"arms": list(found.values())} if found else {}

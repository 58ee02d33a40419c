"""The page of a study: one self-contained HTML file from its folder, with results and figures beside it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.report.canvas import save, svg
from isograd.report.page import as_csv
from isograd.report.runs import Row
from isograd.report.study_arms import StudyArm, design_of, measure_of, study_arms, tuned
from isograd.report.study_compared import Compared, comparisons, reference_among
from isograd.report.study_files import Cell, StudyFiles, read_study
from isograd.report.study_findings import LOSSES, compared_said, summary
from isograd.report.study_sections import Found, Part, parts
from isograd.report.study_tables import Table, arms_table
from isograd.study.statistics import Interval
from isograd.train.metrics import finite, write_text


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """What was written, and what a terminal shows of it.

    Attributes:
        page: report.html.
        summary: sentences.
        table: of the arms, the header first.
        left_out: what could not be read.
        results: the content of results.json.
    """

    page: Path
    summary: list[str]
    table: Table
    left_out: list[str]
    results: dict[str, Any]


def write_study_report(
    folder: Path, out: Path | None = None, title: str | None = None, reference: str | None = None
) -> StudyReport:
    """Write report.html, results.csv, results.json and every figure, from the files in a study's folder.

    Args:
        out: None: `folder`/report.
        title: None: the study's name.
        reference: what the others are compared with; None: pre-ln, or the first.

    Raises:
        ValueError: neither the plan nor the ledger can be read, or nothing of the reference's name was compared.
    """
    study = read_study(folder)
    design = design_of(study)
    if reference is not None and reference not in design.who:
        raise ValueError(f"nothing called {reference} is compared here; there are {', '.join(design.who)}")
    arms = study_arms(study, design)
    chosen, against = tuned(arms, design), reference_among(design, reference)
    compared = comparisons(chosen, arms, design, against)
    said = summary(study, design, arms, chosen, compared, against)
    found = Found(
        design=design,
        arms=arms,
        chosen=chosen,
        compared=compared,
        reference=against,
        measure=measure_of(study),
        entropy=_entropy(study),
    )
    shown = parts(found)
    out = folder / "report" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    results = {
        "summary": said,
        "arms": [_arm(arm) for arm in arms],
        "comparisons": [_comparison(one, LOSSES[found.measure]) for one in compared],
        "cells": [_cell(cell) for cell in study.cells],
        "left_out": study.left_out,
    }
    page = Environment(
        loader=PackageLoader("isograd.report", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("study.html.j2")
    text = page.render(
        title=title or f"Study: {study.name}",
        summary=said,
        parts=[{**vars(part), "svg": _svg(part)} for part in shown],
        files=[part.name for part in shown if part.drawn is not None],
        left_out=study.left_out,
        recipe=_recipe(study),
        provenance=list(_provenance(study)),
        cells=len(study.cells),
    )
    write_text(out / "report.html", text.encode("utf-8", "replace").decode())  # a file's name need not be UTF-8
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", as_csv([finite(_cell(cell)) for cell in study.cells]))
    for part in shown:
        if part.drawn is not None:
            save(part.drawn, out / part.name)
    table = arms_table(arms, design, "median loss")
    return StudyReport(page=out / "report.html", summary=said, table=table, left_out=study.left_out, results=results)


def _svg(part: Part) -> str | None:
    return None if part.drawn is None else svg(part.drawn, part.name)


def _entropy(study: StudyFiles) -> float | None:
    return next((value for cell in study.cells if (value := cell.number("unigram_entropy")) is not None), None)


def _arm(arm: StudyArm) -> Row:
    return {
        "arm": arm.label,
        **arm.values,
        "measure": arm.measure,
        "median": arm.median,
        "interval": _interval(arm.interval),
        "n": arm.n,
        "losses": {str(seed): loss for seed, loss in arm.losses.items()},
        **{how: {"count": arm.count(how), "rate": _interval(arm.rate(how))} for how in ("collapsed", "diverged")},
    }


def _interval(interval: Interval | None) -> Row | None:
    return None if interval is None else asdict(interval)


def _comparison(one: Compared, what: str) -> Row:
    found = one.found
    return {
        "arm": one.mine.label,
        "reference": one.theirs.label,
        "under": one.condition,
        "n": found.n,
        "differences": {str(seed): value for seed, value in found.differences.items()},
        "median": found.median,
        "interval": _interval(found.interval),
        "p": found.p,
        "verdict": found.verdict,
        "said": compared_said(one, what),
    }


def _cell(cell: Cell) -> Row:
    """A row of results.csv: where the cell stands on the axes, and how it ended."""
    hidden = ("provenance", "cell", "seed", "outcome", "values")
    numbers = {name: value for name, value in cell.outcome.items() if name not in hidden}
    return {"cell": cell.name, **cell.values, "seed": cell.seed, "outcome": cell.how, **numbers}


def _recipe(study: StudyFiles) -> str:
    """The study as a recipe that `isograd study` would take."""
    sections = {"name": study.name, "axes": study.axes, "seeds": study.seeds, "budget": study.budget}
    content = {**sections, **{name: value for name, value in study.base.items() if name not in ("name", "seed")}}
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)


def _provenance(study: StudyFiles) -> Iterator[tuple[str, str]]:
    """Versions and hardware, each value once; the data; what was spent."""
    runs = [cell.files for cell in study.cells if cell.files is not None]
    made = [run.outcome["provenance"] for run in runs if run.outcome.get("provenance")]
    for name in dict.fromkeys(name for one in made for name in one):
        yield name, "; ".join(dict.fromkeys(str(one[name]) for one in made if name in one))
    for name in ("source", "sha256"):
        data = [run.resolved.get("data") or {} for run in runs]
        values = dict.fromkeys(str(facts[name]) for facts in data if facts.get(name) is not None)
        if values:
            yield {"source": "text", "sha256": "sha256 of the data"}[name], "; ".join(values)
    yield "seeds", ", ".join(map(str, study.seeds))
    budget = [f"{value:,g} {unit}" for unit, value in (study.budget or {}).items()]
    yield "budget of a cell", ", ".join(budget) or "the recipe's"
    seconds = [value for cell in study.ended if (value := cell.number("seconds"))]
    if seconds:
        spent, n = sum(seconds), len(seconds)
        pace = f"{3600 * n / spent:,.0f} cells per hour and worker"
        yield "training time", f"{spent / 3600:.2f} hours of {n} cells: {pace}"

"""The page of a study: one self-contained HTML file from its folder, with results and figures beside it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.files import finite, write_text
from isograd.report.runs_page import as_csv
from isograd.report.study_arms import design_of, measure_of, study_arms, tuned
from isograd.report.study_compared import comparisons, races, reference_among, showcase
from isograd.report.study_files import StudyFiles, read_study
from isograd.report.study_findings import (
    LOSSES,
    best,
    failures,
    progress,
    rates,
    sooner,
    trained,
    undecided,
    unlearnt,
)
from isograd.report.study_provenance import described, provenance, recipe
from isograd.report.study_results import arm_row, cell_row, comparison_row
from isograd.report.study_sections import Found, Part, parts
from isograd.report.study_tables import Table, arms_table
from isograd.report.study_verdicts import corrected, differences
from isograd.report.style import save, svg
from isograd.report.style import settings as look

SAME = 0.01  # nats; seeds hold out other sequences, mask other tokens


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


@look()
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
    found = found_in(study, reference)
    said, shown = _summary(study, found), parts(found)
    out = folder / "report" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    results = {
        "summary": said,
        "arms": [arm_row(arm) for arm in found.arms],
        "comparisons": [comparison_row(one, LOSSES[found.measure]) for one in found.compared],
        "cells": [cell_row(cell) for cell in study.cells],
        "left_out": study.left_out,
    }
    page = Environment(
        loader=PackageLoader("isograd.report", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("study.html.j2")
    text = page.render(
        title=title or f"Study: {study.name}",
        summary=said,
        subtitle=described(found.arms),
        parts=[{**vars(part), "svg": _svg(part)} for part in shown],
        files=[part.name for part in shown if part.drawn is not None],
        left_out=study.left_out,
        recipe=recipe(study),
        provenance=list(provenance(study)),
        cells=len(study.cells),
    )
    write_text(out / "report.html", text.encode("utf-8", "replace").decode())  # a file's name need not be UTF-8
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", as_csv([finite(cell_row(cell)) for cell in study.cells]))
    for part in shown:
        if part.drawn is not None:
            save(part.drawn, out / part.name, ("svg", "png"))
    table = arms_table(found.arms, found.design, f"median {LOSSES[found.measure].partition(' (')[0]} (nats)")
    return StudyReport(page=out / "report.html", summary=said, table=table, left_out=study.left_out, results=results)


def found_in(study: StudyFiles, named: str | None = None) -> Found:
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
    return Found(
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


def _summary(study: StudyFiles, found: Found) -> list[str]:
    """What trained, which rates were best, what differs, who is sooner."""
    over_all = next((arms for condition, arms in found.groups if condition is None), [])
    return [
        progress(study),
        *failures(study),
        *trained(found.design, found.arms),
        *undecided(found.arms),
        *unlearnt(found.arms, found.entropy),
        *rates(found.design, found.chosen),
        *best(found.design, over_all),
        *differences(found.design, found.compared, found.reference),
        *corrected(found.compared),
        *(line for race in found.races for line in sooner(race.condition, race.paces)),
    ]


def _svg(part: Part) -> str | None:
    return None if part.drawn is None else svg(part.drawn, part.name)


def _entropy(study: StudyFiles) -> float | None:
    """The one of all cells; None where they are of different texts."""
    known = [value for cell in study.cells if (value := cell.number("unigram_entropy")) is not None]
    return known[0] if known and max(known) - min(known) < SAME else None

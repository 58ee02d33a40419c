"""The page of runs: one self-contained HTML file from the folders of runs."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.files import finite, write_text
from isograd.report import tables
from isograd.report.ramps import is_ramp
from isograd.report.runs import ArmFiles, Row, arms_of
from isograd.report.sections import Section, sections
from isograd.report.style import look as style
from isograd.report.style import save, svg
from isograd.report.style import settings as in_style
from isograd.report.words import differing, settings, subtitle
from isograd.study.labels import flat

TITLES = {"classification": "Fine-tuning", "ramp": "Up to which learning rate a training holds"}


@in_style()
def write_report(
    folders: Sequence[Path],
    out: Path,
    title: str | None = None,
    all_figures: bool = False,
    reference: str | None = None,
) -> Path:
    """Write report.html, results.csv and results.json into `out`, from the files in `folders`, and the main figure.

    The figure, the page's first, is there as .svg and .png, for a paper or a README.

    Args:
        folders: run folders, in the order of the table; seeds of one recipe are taken together.
        title: None: what the page is about.
        all_figures: write every figure of the page as .svg and .png.
        reference: label or placement of the arm that others are measured against; None: the first pre-ln, or first.

    Returns:
        the path of the page.

    Raises:
        ValueError: none of the folders holds a run.
    """
    arms = arms_of(folders)
    if not arms:
        raise ValueError(f"no runs to report on in {', '.join(map(str, folders)) or 'no folders'}")
    page = Environment(
        loader=PackageLoader("isograd.report", "."), autoescape=True, undefined=StrictUndefined
    ).get_template("runs.html.j2")
    shown = sections(arms, _entropy(arms), reference)
    content = _content(arms, title or TITLES.get(tables.kind_of(arms), "Placements side by side"), shown)
    kept = shown if all_figures else shown[:1]
    text = page.render(**content, files=[one.name for one in kept])
    write_text(out / "report.html", text.encode("utf-8", "replace").decode())  # a file's name need not be UTF-8
    more = differing(arms)
    results = [_result(arm, run.run, run.outcome, more) for arm in arms for run in arm.runs]
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", as_csv(results))
    for one in kept:
        save(one.drawn, out / one.name, ("svg", "png"))
    return out / "report.html"


def _content(arms: Sequence[ArmFiles], title: str, shown: Sequence[Section]) -> dict[str, Any]:
    text = next((run.resolved["data"] for arm in arms for run in arm.runs if run.resolved.get("data")), None)
    entropy = _entropy(arms)
    return {
        "title": title,
        "kind": tables.kind_of(arms),
        "summary": tables.summary(arms),
        "subtitle": subtitle(arms, text),
        "header": [column.name for column in tables.columns(arms)],
        "table": [_line(i, arm, cells) for i, (arm, cells) in enumerate(zip(arms, tables.rows(arms), strict=True))],
        "entropy": "unknown here" if entropy is None else f"{entropy:.3f} here",
        "figures": [{**vars(one), "svg": svg(one.drawn, one.name)} for one in shown],
        "cards": list(_cards(arms)),
        "settings": list(settings(arms, text)),
        "runs": sum(len(a.runs) for a in arms),
    }


def _entropy(arms: Sequence[ArmFiles]) -> float | None:
    facts = (run.resolved.get("data") or {} for arm in arms for run in arm.runs)
    return next((one["unigram_entropy"] for one in facts if one.get("unigram_entropy") is not None), None)


def _line(index: int, arm: ArmFiles, cells: tuple[str, ...]) -> dict[str, Any]:
    look = style(index)
    dash = "none" if look["linestyle"] == "-" else " ".join(str(2.6 * d) for d in look["linestyle"][1])
    worst = next((o for o in arm.outcomes if o != "finished"), "finished")
    return {"cells": cells, "colour": look["color"], "dash": dash, "outcome": "" if is_ramp(arm) else worst}


_CARD = ("placement", "formulas", "legend", "about", "note", "paper", "init", "parameters")


def _cards(arms: Sequence[ArmFiles]) -> Iterator[dict[str, Any]]:
    seen = set()
    for arm in arms:
        built = arm.first.resolved
        if any(built.get(name) is None for name in _CARD) or built["placement"] in seen:
            continue
        seen.add(built["placement"])
        yield {
            "placement": built["placement"],
            "formulas": [line.replace("<-", "←") for line in built["formulas"].values() if line],
            "final": (built.get("final") or "").replace("<-", "←"),
            "legend": built["legend"],
            "about": built["about"],
            "note": built["note"],
            "paper": built["paper"],
            "init": built["init"],
            "parameters": f"{built['parameters']:,}",
        }


def _result(arm: ArmFiles, run: Row, outcome: Row, more: Sequence[str]) -> Row:
    """A row of results.json: settings, those in which the arms differ (`more`) under their dotted keys, the outcome."""
    model, training = run["model"], run["training"]
    encoder = model.get("encoder_layers")
    settings = {
        "arm": arm.label,
        "task": arm.task,
        "placement": model["placement"],
        "encoder_layers": (model["layers"] if encoder is None else encoder) if arm.task == "translation" else None,
        "layers": None if arm.task == "classification" else model["layers"],
        "lr": training["lr"],
        "warmup": training["warmup"],
        "steps": training["steps"],
        "seed": run["seed"],
    }
    values = dict(flat(run))
    known = {"model.placement", "model.layers", "training.lr", "training.warmup", "training.steps"}
    settings |= {key: values.get(key) for key in more if key not in known}
    return settings | {k: v for k, v in outcome.items() if k != "provenance"}


def as_csv(results: Sequence[Row]) -> str:
    """A table with a header; what lies deeper, such as scores by part and metric, under dotted names."""
    results = [dict(flat(row)) for row in results]
    names = list(dict.fromkeys(name for row in results for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()

"""The page: one self-contained HTML file from the folders of runs, with results and the main figure beside it."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.report import figures, tables
from isograd.report.canvas import Drawing, save, style, svg
from isograd.report.runs import ArmFiles, Row, arms_of
from isograd.report.words import differing, settings, subtitle
from isograd.study.labels import flat
from isograd.train.metrics import finite, write_text


def write_report(folders: Sequence[Path], out: Path, title: str = "Placements side by side") -> Path:
    """Write report.html, results.csv and results.json into `out`, from the files in `folders`, and the main figure.

    The figure, validation (of translations) or loss, is there as .svg and .png, for a paper or a README.

    Args:
        folders: run folders, in the order of the table; seeds of one recipe are taken together.

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
    ).get_template("page.html.j2")
    text = page.render(**_content(arms, title))
    write_text(out / "report.html", text.encode("utf-8", "replace").decode())  # a file's name need not be UTF-8
    more = differing(arms)
    results = [_result(arm, run.run, run.outcome, more) for arm in arms for run in arm.runs]
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", _csv(results))
    name, drawn = _main_figure(arms)
    save(drawn, out / name)
    return out / "report.html"


def _main_figure(arms: Sequence[ArmFiles]) -> tuple[str, Drawing]:
    """Its file's name, and the figure; of translations without any validation yet the training loss."""
    entropy = _entropy(arms)
    drawn = figures.validation_curves(arms, entropy) if arms[0].task == "translation" else None
    return ("validation", drawn) if drawn else ("loss", figures.loss_curves(arms, entropy))


def _content(arms: Sequence[ArmFiles], title: str) -> dict[str, Any]:
    text = next((run.resolved["data"] for arm in arms for run in arm.runs if run.resolved), None)
    entropy = _entropy(arms)
    return {
        "title": title,
        "task": arms[0].task,
        "summary": tables.summary(arms),
        "subtitle": subtitle(arms, text),
        "header": [column.name for column in tables.columns(arms)],
        "table": [_line(i, arm, cells) for i, (arm, cells) in enumerate(zip(arms, tables.rows(arms), strict=True))],
        "entropy": "unknown here" if entropy is None else f"{entropy:.3f} here",
        "figures": list(_figures(arms, entropy)),
        "cards": list(_cards(arms)),
        "settings": list(settings(arms, text)),
        "runs": sum(len(a.runs) for a in arms),
    }


def _entropy(arms: Sequence[ArmFiles]) -> float | None:
    built = (run.resolved for arm in arms for run in arm.runs if run.resolved)
    return next((one["data"]["unigram_entropy"] for one in built), None)


def _line(index: int, arm: ArmFiles, cells: tuple[str, ...]) -> dict[str, Any]:
    look = style(index)
    dash = "none" if look["linestyle"] == "-" else " ".join(str(2.6 * d) for d in look["linestyle"][1])
    worst = next((o for o in arm.outcomes if o != "finished"), "finished")
    return {"cells": cells, "colour": look["color"], "dash": dash, "outcome": worst}


def _figures(arms: Sequence[ArmFiles], entropy: float | None) -> Iterator[dict[str, str]]:
    """Title, text and SVG of each."""
    for title, text, salt, drawn in _drawings(arms, entropy):
        if drawn is not None:
            yield {"title": title, "text": text, "svg": svg(drawn, salt)}


def _drawings(arms: Sequence[ArmFiles], entropy: float | None) -> Iterator[tuple[str, str, str, Drawing | None]]:
    smoothed = any(arm.first.run["training"].get("label_smoothing") for arm in arms)
    if arms[0].task == "translation":
        yield "Validation", _VALIDATION, "validation", figures.validation_curves(arms, entropy)
    yield "Training loss", _SMOOTHED if smoothed else _LOSS, "loss", figures.loss_curves(arms, entropy)
    if not any(run.quantities for arm in arms for run in arm.runs):
        return
    yield "Gradients over depth", _GRADIENTS, "gradients", figures.gradient_profiles(arms)
    yield "First over last layer, through training", _RATIO, "ratio", figures.ratio_curves(arms)
    yield "The residual stream over depth", _RESIDUAL, "residual", figures.residual_profiles(arms)
    yield "How much each layer adds", _DEPENDENCY, "dependency", figures.dependency_profiles(arms)
    yield "Learned coefficients over depth", _COEFFICIENTS, "coefficients", figures.coefficients(arms)


_VALIDATION = (
    "Held-out loss without label smoothing, and BLEU of held-out pairs, as training went; the mean over the seeds that"
    " got so far, and a band from the lowest to the highest."
)
_LOSS = "A running mean of ten steps. A collapsed run comes down to the unigram entropy and stays there."
_SMOOTHED = "A running mean of ten steps, label smoothing included: it lies above the loss of validation."
_GRADIENTS = "Level lines are the aim. In a collapsed stack they fall by orders of magnitude towards the input."
_RATIO = "1 means that the first and the last layer get gradients of the same size."
_RESIDUAL = "Without a norm on the sum the stream grows with depth; with one it is held at 1."
_DEPENDENCY = "Variance of the branch over variance of the skip: where it is small, a layer hardly counts."
_COEFFICIENTS = "Thin without dots: at the start. Bold with dots: mean of the last 50 steps."


def _cards(arms: Sequence[ArmFiles]) -> Iterator[dict[str, Any]]:
    seen = set()
    for arm in arms:
        built = arm.first.resolved
        if not built or built["placement"] in seen:
            continue
        seen.add(built["placement"])
        yield {
            "placement": built["placement"],
            "formulas": [line.replace("<-", "←") for line in built["formulas"].values()],
            "final": (built["final"] or "").replace("<-", "←"),
            "legend": built["legend"],
            "about": built["about"],
            "note": built["note"],
            "paper": built["paper"],
            "start": built["start"],
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
        "encoder_layers": None if arm.task == "language" else model["layers"] if encoder is None else encoder,
        "layers": model["layers"],
        "lr": training["lr"],
        "warmup": training["warmup"],
        "steps": training["steps"],
        "seed": run["seed"],
    }
    values = dict(flat(run))
    known = {"model.placement", "model.layers", "training.lr", "training.warmup", "training.steps"}
    settings |= {key: values.get(key) for key in more if key not in known}
    return settings | {k: v for k, v in outcome.items() if k != "provenance"}


def _csv(results: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in results for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()

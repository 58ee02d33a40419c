"""The page: one self-contained HTML file from the folders of runs, with results.csv and results.json beside it."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from isograd.report import figures, tables
from isograd.report.runs import ArmFiles, Row, arms_of
from isograd.train.metrics import finite, write_text


def write_report(folders: Sequence[Path], out: Path, title: str = "Placements side by side") -> Path:
    """Write report.html, results.csv and results.json into `out`, from the files in `folders`.

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
    results = [_result(run.run, run.outcome) for arm in arms for run in arm.runs]
    write_text(out / "results.json", json.dumps(finite(results), indent=2) + "\n")
    write_text(out / "results.csv", _csv(results))
    return out / "report.html"


def _content(arms: Sequence[ArmFiles], title: str) -> dict[str, Any]:
    model, data, training = (arms[0].first.run[part] for part in ("model", "data", "training"))
    text = next((run.resolved["data"] for arm in arms for run in arm.runs if run.resolved), None)
    entropy = text["unigram_entropy"] if text else None
    seeds = sorted({r.run["seed"] for a in arms for r in a.runs})
    return {
        "title": title,
        "summary": tables.summary(arms),
        "subtitle": (
            f"{model['layers']} layers, width {model['width']}, {model['heads']} heads; sequences of {data['length']}"
            f" ({data['level']} level), batch {training['batch']}, {training['optimizer']} at LR {training['lr']:g},"
            f" {training['steps']} steps; seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}."
            " Same data order and same start seed for all arms."
        ),
        "header": tables.HEADER,
        "table": [_line(i, arm, cells) for i, (arm, cells) in enumerate(zip(arms, tables.rows(arms), strict=True))],
        "entropy": "unknown here" if entropy is None else f"{entropy:.3f} here",
        "figures": list(_figures(arms, entropy)),
        "cards": list(_cards(arms)),
        "settings": list(_settings(arms, text)),
        "runs": sum(len(a.runs) for a in arms),
    }


def _line(index: int, arm: ArmFiles, cells: tuple[str, ...]) -> dict[str, Any]:
    style = figures.style(index)
    dash = "none" if style["linestyle"] == "-" else " ".join(str(2.6 * d) for d in style["linestyle"][1])
    worst = next((o for o in arm.outcomes if o != "finished"), "finished")
    return {"cells": cells, "colour": style["color"], "dash": dash, "outcome": worst}


def _figures(arms: Sequence[ArmFiles], entropy: float | None) -> Iterator[dict[str, str]]:
    yield {
        "title": "Training loss",
        "text": "A running mean of ten steps. A collapsed run comes down to the unigram entropy and stays there.",
        "svg": figures.loss_curves(arms, entropy),
    }
    if not any(run.quantities for arm in arms for run in arm.runs):
        return
    yield {
        "title": "Gradients over depth",
        "text": "Level lines are the aim. In a collapsed stack they fall by orders of magnitude towards the input.",
        "svg": figures.gradient_profiles(arms),
    }
    yield {
        "title": "First over last layer, through training",
        "text": "1 means that the first and the last layer get gradients of the same size.",
        "svg": figures.ratio_curves(arms),
    }
    yield {
        "title": "The residual stream over depth",
        "text": "Without a norm on the sum the stream grows with depth; with one it is held at 1.",
        "svg": figures.residual_profiles(arms),
    }
    yield {
        "title": "How much each layer adds",
        "text": "Variance of the branch over variance of the skip: where it is small, a layer hardly counts.",
        "svg": figures.dependency_profiles(arms),
    }
    learned = figures.coefficients(arms)
    if learned:
        yield {
            "title": "Learned coefficients over depth",
            "text": "Thin without dots: at the start. Bold with dots: mean of the last 50 steps.",
            "svg": learned,
        }


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


def _settings(arms: Sequence[ArmFiles], text: Row | None) -> Iterator[tuple[str, str]]:
    if text:
        yield "text", f"{text['source']}: {text['tokens']:,} training tokens, vocabulary {text['vocab_size']:,}"
        yield "sha256 of the data", text["sha256"]
        yield "unigram entropy", f"{text['unigram_entropy']:.4f} nats"
    for section in ("model", "data", "training"):
        values = arms[0].first.run[section]
        shown = {
            k: v for k, v in values.items() if (section, k) not in (("model", "placement"), ("training", "warmup"))
        }
        yield section, ", ".join(f"{k} {_show(v)}" for k, v in shown.items())
    made = [run.outcome["provenance"] for arm in arms for run in arm.runs if "provenance" in run.outcome]
    for name in made[0] if made else ():
        yield name, "; ".join(dict.fromkeys(one[name] for one in made))


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(map(_show, value)) + ")"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def _result(run: Row, outcome: Row) -> Row:
    settings = {
        "placement": run["model"]["placement"],
        "layers": run["model"]["layers"],
        "lr": run["training"]["lr"],
        "warmup": run["training"]["warmup"],
        "steps": run["training"]["steps"],
        "seed": run["seed"],
    }
    return settings | {k: v for k, v in outcome.items() if k != "provenance"}


def _csv(results: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in results for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(results)
    return text.getvalue()

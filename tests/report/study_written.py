"""Study folders written by hand: a rule says how each cell ends, so that a report must find the rule again."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.report.written import ENTROPY, put

Row = dict[str, Any]
Rule = Callable[[Row, int], float | str]  # values and seed -> the validation loss, or how it ended else
BASE: Row = {
    "name": None,
    "task": "language",
    "seed": 0,
    "model": {"placement": "pre-ln", "layers": 12, "width": 8, "heads": 2},
    "data": {"source": "embedded", "length": 8, "level": "char"},
    "training": {"steps": 40, "batch": 4, "lr": 0.001, "warmup": 0, "optimizer": "adam", "valid_every": 10},
}
PLACEMENTS = ["post-ln", "pre-ln", "normformer", "admin", "deepnorm"]


def warmup_rule(values: Row, seed: int) -> float | str:
    """Post-ln collapses without warm-up and diverges at a high rate; the others are best at 0.001, pre-ln at 0.003."""
    placement, rate, warmup = (values[key] for key in ("model.placement", "training.lr", "training.warmup"))
    if placement == "post-ln" and (warmup == 0 and (rate > 3e-4 or seed == 2)):
        return "collapsed"
    if placement == "post-ln" and rate == 3e-3 and (warmup < 150 or seed == 3):
        return "diverged"
    best = math.log(3e-3 if placement == "pre-ln" else 1e-3)
    level = {"post-ln": 2.12, "pre-ln": 2.05, "normformer": 2.0, "admin": 2.06, "deepnorm": 2.08}[placement]
    noise = np.random.default_rng([seed, len(placement), round(rate * 1e6), warmup]).normal(0, 0.008)
    return float(level + 0.07 * (math.log(rate) - best) ** 2 - 0.0003 * warmup + noise)


def write_study(
    folder: Path,
    axes: Mapping[str, Sequence[Any]],
    rule: Rule,
    seeds: Sequence[int] = (1, 2, 3),
    base: Row | None = None,
    arms: Mapping[str, Row] | None = None,
    ended: Callable[[int], bool] = lambda index: True,
    curves: bool = True,
) -> Path:
    """study.json, ledger.jsonl and the cells' folders.

    Args:
        arms: labels of an axis "arm", and the settings of each.
        curves: whether the cells have rows of steps, quantities and validations; a page without them is made sooner.
        ended: which cells have ended, by their place in the plan; the others have not begun.
    """
    base = base or BASE
    cells: list[Row] = []
    for seed in seeds:
        for label, settings in (arms or {"": {}}).items():
            for point in product(*axes.values()):
                values = {**({"arm": label} if arms else {}), **settings, **dict(zip(axes, point, strict=True))}
                name = "-".join([*(str(value) for value in values.values()), f"s{seed}"]).replace("/", "_")
                cells.append({"cell": name.replace(" ", "-"), "values": values, "seed": seed})
    folder.mkdir(parents=True, exist_ok=True)
    swept = {**({"arm": list(arms)} if arms else {}), **{key: list(values) for key, values in axes.items()}}
    budget = {"steps": base["training"]["steps"]}
    plan = {"name": folder.name, "axes": swept, "seeds": list(seeds), "budget": budget, "base": base, "threads": 1}
    put(folder / "study.json", plan | {"cells": cells})
    done = [cell for i, cell in enumerate(cells) if ended(i)]
    rows = [_cell(folder, cell, rule(cell["values"], cell["seed"]), base, curves) for cell in done]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _cell(folder: Path, cell: Row, end: float | str, base: Row, curves: bool) -> Row:
    """A cell's folder; its row of the ledger is given back."""
    run = json.loads(json.dumps(base)) | {"seed": cell["seed"]}
    for key, value in cell["values"].items():
        section, _, name = key.rpartition(".")
        if section:
            run[section][name] = value
    own = folder / "cells" / cell["cell"]
    own.mkdir(parents=True)
    put(own / "run.json", run)
    data = {"source": "a text", "unigram_entropy": ENTROPY, "tokens": 999, "vocab_size": 30, "sha256": "ab" * 32}
    put(
        own / "resolved.json", {"placement": run["model"]["placement"], "data": data, "steps": run["training"]["steps"]}
    )
    how = end if isinstance(end, str) else "finished"
    loss = (
        {"collapsed": ENTROPY + 0.02, "undecided": ENTROPY + 0.01, "diverged": None}[end]
        if isinstance(end, str)
        else end
    )
    ratios = {"gradient_ratio_start": 0.5, "gradient_ratio_end": 1e-4 if how == "collapsed" else 0.9}
    numbers: Row = {
        "outcome": how,
        "steps": run["training"]["steps"],
        "final_loss": None if loss is None else loss - 0.02,
        "validation_loss": loss,
        "unigram_entropy": ENTROPY,
        **ratios,
        "parameters": 12345,
        "warning": None,
    }
    slow = {"mhc": 3.0, "pre-ln": 1.0}.get(run["model"]["placement"], 1.5)
    times = {"cpu_seconds_per_step": 0.001 * slow * run["model"]["layers"]}
    provenance = {"isograd": "0.1.0", "torch": "2.13.0", "device": "a processor, 1 threads"}
    needed = {"reason": "too short", "judged": {"needed": 200 + cell["seed"]}} if how == "undecided" else {}
    put(
        own / "outcome.json",
        numbers | needed | times | {"seconds": 12.0, "tokens_per_second": 800.0, "provenance": provenance},
    )
    if curves:
        _curves(own, run, loss)
    return {**cell, **numbers}


def _curves(own: Path, run: Row, loss: float | None) -> None:
    """The files of rows; a loss of None breaks off half way."""
    steps, layers = run["training"]["steps"], run["model"]["layers"]
    until = steps // 2 if loss is None else steps
    end = ENTROPY if loss is None else loss
    losses = [end + 2 * math.exp(-6 * step / steps) for step in range(1, until + 1)]
    rows = [{"step": i, "loss": value, "lr": 1e-3, "grad_norm": 1.0} for i, value in enumerate(losses, 1)]
    held = [{"step": i, "seconds": i * 0.3, "loss": losses[i - 1] + 0.02} for i in range(10, until, 10)]
    held += [] if loss is None else [{"step": steps, "seconds": steps * 0.3, "loss": loss}]
    fall = 0.4 if loss is None or abs(loss - ENTROPY) < 0.1 else 0.98
    quantities = [
        {
            "step": step,
            "address": f"layers.{layer - 1}.ffn",
            "layer": layer,
            "kind": "ffn",
            "gradient_mean_abs": 1e-3 * fall ** (layers - layer),
            "residual_rms": 1 + 0.2 * layer,
            "branch_skip_ratio": 1 / layer,
        }
        for step in (1, until)
        for layer in range(1, layers + 1)
    ]
    for name, content in (("metrics", rows), ("validation", held), ("quantities", quantities)):
        (own / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))

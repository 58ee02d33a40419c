"""The two rules of collapse, fitted and tested on the grid: `collapse-predicted` of check, and the early warning.

    python benchmarks/collapse_rules.py --folder runs/collapse-grid             both tables, of the rules as they are
    python benchmarks/collapse_rules.py --folder runs/collapse-grid --fit       the numbers that go into them
    python benchmarks/collapse_rules.py --folder runs/collapse-grid --table docs/results/collapse-grid.csv
    python benchmarks/collapse_rules.py --table docs/results/collapse-grid.csv  the tables from this file alone

The split was fixed before a run was trained: depths `HELD_LAYERS` and the width `HELD_WIDTH` are held out, with all
their runs; the rest is for fitting, and so are the bold runs. A run counts as collapsed where `isograd.outcome.judge`
says so by its losses, or that it diverged, or where it learned nothing and its gradients are `VANISHED` times apart
(the grid stops many of these early); what is undecided is left out, and counted.
"""

import argparse
import csv
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from collapse_grid import apart, learned, rows_in
from scipy.optimize import minimize

from isograd.diagnose.watch.collapse import CollapseWatch
from isograd.lab.statistics import wilson
from isograd.lint.initial.collapse import COLLAPSES, RATE, WARMUP, CollapseRule
from isograd.outcome import VANISHED, judge
from isograd.trace.anatomy import Function

HELD_LAYERS, HELD_WIDTH = (9, 18, 36), 64
SMALL_SHARE = 1e-3  # of a branch in its sum, from N(0, 0.02^2): another line of the rule
FUNCTIONS: tuple[Function, ...] = ("post-ln", "admin", "deepnorm")
COLUMNS = ("run", "init", "text", "placement", "layers", "width", "batch", "lr", "warmup", "seed", "steps", "excess",
           "apart", "outcome", "warned_at")  # fmt: skip


def outcome_of(row: dict[str, Any]) -> str:
    """finished, collapsed (diverged counts as such) or undecided."""
    warmup = row["warmup"]
    rates = [min(1.0, step / warmup) if warmup else 1.0 for step in range(1, len(row["loss"]) + 1)]
    unigram = {"held_out": row["valid"], "held_out_unigram": row["valid_unigram"]}
    said = judge(row["loss"], row["unigram"], rates=rates, **unigram).outcome
    dead = apart(row)[-1] >= VANISHED and not learned(row, 0.1)
    return "collapsed" if dead or said == "diverged" else said


def warned_at(row: dict[str, Any], entropy: float | None) -> int | None:
    """The step of the first gradient warning, as a run with these losses and gradients gets it."""
    layers = len(row["norms"][0])
    watch = CollapseWatch([str(i) for i in range(layers)], ["decoder"] * layers, entropy)
    for step, (loss, powers) in enumerate(zip(row["loss"], row["norms"], strict=True), 1):
        watch.follow(step, loss, [None if power is None else 10**power for power in powers])
    return next((warning["step"] for warning in watch.warnings if warning["signal"] == "gradients"), None)


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """A line of the table."""
    end = np.mean(row["loss"][-20:]) - np.mean(row["unigram"][-20:])
    found = {"steps": len(row["loss"]), "excess": round(float(end), 3), "apart": round(apart(row)[-1], 1)}
    told = {"outcome": outcome_of(row), "warned_at": warned_at(row, row["valid_unigram"]), "init": row.get("init")}
    return {name: (row | found | told)[name] for name in COLUMNS}


def read_table(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{name: _value(name, text) for name, text in line.items()} for line in csv.DictReader(file)]


def _value(name: str, text: str) -> Any:
    if name in ("init", "placement", "outcome"):
        return text or None
    return None if not text else float(text) if name in ("lr", "excess", "apart") else int(text)


def write_table(rows: Iterable[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def held_out(row: dict[str, Any]) -> bool:
    return row["layers"] in HELD_LAYERS or row["width"] == HELD_WIDTH


PARTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "for fitting": lambda row: not row["init"] and not held_out(row),
    "held out": lambda row: not row["init"] and held_out(row),
    "held out: depth": lambda row: not row["init"] and row["layers"] in HELD_LAYERS,
    "held out: width": lambda row: not row["init"] and row["width"] == HELD_WIDTH,
    "for fitting: another init": lambda row: bool(row["init"]),
}


def risk_of(row: dict[str, Any]) -> float | None:
    """What the rule of check says before the first step; None for placements without a norm on the sum."""
    if row["placement"] not in FUNCTIONS:
        return None
    share = SMALL_SHARE if row["init"] else math.nan
    rule = CollapseRule(function=row["placement"], layers=row["layers"], width=row["width"], share=share)
    return rule.risk(row["lr"], row["warmup"])


def predicted(row: dict[str, Any]) -> bool:
    risk = risk_of(row)
    return risk is not None and risk >= COLLAPSES


def warned(row: dict[str, Any]) -> bool:
    return row["warned_at"] is not None


def confusion(rows: Sequence[dict[str, Any]], said: Callable[[dict[str, Any]], bool]) -> str:
    """A line of a Markdown table: what was said against what happened, precision and recall with 95 % intervals."""
    count = Counter((said(row), row["outcome"]) for row in rows)
    hit, false = count[True, "collapsed"], count[True, "finished"]
    missed, quiet = count[False, "collapsed"], count[False, "finished"]
    undecided = f"{count[True, 'undecided'] + count[False, 'undecided']} ({count[True, 'undecided']})"
    return f"| {hit} | {false} | {missed} | {quiet} | {undecided} | {_share(hit, false)} | {_share(hit, missed)} |"


def _share(hit: int, other: int) -> str:
    if not hit + other:
        return "-"
    interval = wilson(hit, hit + other)
    return f"{hit / (hit + other):.2f} ({interval.low:.2f} to {interval.high:.2f})"


def print_tables(rows: Sequence[dict[str, Any]]) -> None:
    for title, said in (("Prediction before the first step", predicted), ("Early warning", warned)):
        print(f"\n{title}\n")
        print("| part | hits | false alarms | misses | quiet | undecided (flagged) | precision | recall |")
        print("|---|---|---|---|---|---|---|---|")
        for name, part in PARTS.items():
            print(f"| {name} {confusion([row for row in rows if part(row)], said)}")
        for placement in dict.fromkeys(row["placement"] for row in rows):
            chosen = [row for row in rows if PARTS["held out"](row) and row["placement"] == placement]
            print(f"| held out: {placement} {confusion(chosen, said)}")
    late = sorted(row["warned_at"] for row in rows if PARTS["held out"](row) and warned(row))
    if late:
        print(f"\nWarned at step {late[0]} to {late[-1]}, median {late[len(late) // 2]} (held out, n = {len(late)})")


def features(row: dict[str, Any]) -> list[float]:
    """Of the rule in `isograd.lint.initial.collapse`: intercept, depth and width by function, rate, warm-up."""
    mine = [float(row["placement"] == name) for name in FUNCTIONS]
    depth, width = math.log(row["layers"] / 12), math.log(row["width"] / 64)
    sizes = [one * depth for one in mine] + [one * width for one in mine]
    return [*mine, *sizes, math.log(row["lr"] / 1e-3), math.log1p(row["warmup"] / 10)]


def fit(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Maximum likelihood with a slight pull of the slopes to zero; size and rate do harm, warm-up does not."""
    x = np.array([features(row) for row in rows])
    y = np.array([row["outcome"] == "collapsed" for row in rows], float)

    def loss(w: np.ndarray) -> float:
        z = x @ w
        return float(np.sum(np.logaddexp(0, z) - y * z) + 0.05 * np.sum(w[3:] ** 2))

    free, up, down = (None, None), (0, None), (None, 0)
    return minimize(loss, np.zeros(11), bounds=[free] * 3 + [up] * 7 + [down], method="L-BFGS-B").x


def fit_small(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Intercept and slopes of depth and width of the other initialization; those of rate and warm-up are the grid's."""
    x = np.array([[1, math.log(row["layers"] / 12), math.log(row["width"] / 64)] for row in rows])
    given = np.array([RATE * math.log(row["lr"] / 1e-3) + WARMUP * math.log1p(row["warmup"] / 10) for row in rows])
    y = np.array([row["outcome"] == "collapsed" for row in rows], float)

    def loss(w: np.ndarray) -> float:
        z = x @ w + given
        return float(np.sum(np.logaddexp(0, z) - y * z) + 0.05 * np.sum(w[1:] ** 2))

    return minimize(loss, np.zeros(3), method="L-BFGS-B").x


def print_small(rows: Sequence[dict[str, Any]]) -> None:
    """Its numbers, and what the threshold of the rule gives when a depth is left out at a time."""
    mine = [row for row in rows if PARTS["for fitting: another init"](row) and row["outcome"] != "undecided"]
    print({"another init": np.round(fit_small(mine), 2).tolist()})
    flagged = []
    for left in sorted({row["layers"] for row in mine}):
        a, b, d = fit_small([row for row in mine if row["layers"] != left])
        for row in mine:
            z = a + b * math.log(row["layers"] / 12) + d * math.log(row["width"] / 64)
            z += RATE * math.log(row["lr"] / 1e-3) + WARMUP * math.log1p(row["warmup"] / 10)
            if row["layers"] == left and z >= math.log(COLLAPSES / (1 - COLLAPSES)):
                flagged.append(row["outcome"] == "collapsed")
    collapsed = sum(row["outcome"] == "collapsed" for row in mine)
    print(f"p >= {COLLAPSES}: {sum(flagged)} of {len(flagged)} flagged collapsed, of {collapsed} that did")


def print_fit(rows: Sequence[dict[str, Any]]) -> None:
    """Coefficients from the part for fitting; thresholds by leaving out a depth of that part at a time."""
    mine = [row for row in rows if PARTS["for fitting"](row) and row["outcome"] != "undecided"]
    mine = [row for row in mine if row["placement"] in FUNCTIONS]
    sizes = [f"{size}, {name}" for size in ("layers", "width") for name in FUNCTIONS]
    names = [*FUNCTIONS, *sizes, "rate", "warm-up"]
    print(dict(zip(names, np.round(fit(mine), 3).tolist(), strict=True)))
    found: list[tuple[float, bool]] = []
    for left in sorted({row["layers"] for row in mine}):
        w = fit([row for row in mine if row["layers"] != left])
        rest = [row for row in mine if row["layers"] == left]
        chances = 1 / (1 + np.exp(-np.array([features(row) for row in rest]) @ w))
        found += [(p, row["outcome"] == "collapsed") for p, row in zip(chances, rest, strict=True)]
    for at in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95):
        flagged = [collapsed for p, collapsed in found if p >= at]
        both = sum(flagged), sum(collapsed for _, collapsed in found)
        print(f"p >= {at}: {both[0]} of {len(flagged)} flagged collapsed, of {both[1]} that did")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="of the grid's rows")
    parser.add_argument("--table", type=Path, help="written with --folder, read without")
    parser.add_argument("--fit", action="store_true", help="fit anew, and print the numbers")
    options = parser.parse_args(arguments)
    if options.folder is None and options.table is None:
        parser.error("name a --folder of the grid, or a --table that was made of one")
    rows = [summary(row) for row in rows_in(options.folder)] if options.folder else read_table(options.table)
    rows.sort(key=lambda row: (row["init"] or "", row["run"]))
    if options.folder and options.table:
        write_table(rows, options.table)
    if options.fit:
        print_fit(rows)
        print_small(rows)
    else:
        print_tables(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

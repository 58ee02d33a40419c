"""Cells per hour of a study of small models: a worker per core, against one process, cell after cell.

    python benchmarks/study.py                              6 cells of 60 steps, three rounds: some six minutes
    python benchmarks/study.py --rounds 3 --steps 300       cells as long as those of studies/warmup
    python benchmarks/study.py --quick --json study.json    does it run?

Each side is a command of its own that trains the same cells into a fresh folder and keeps the same ledger:

    study      the local engine as `isograd study` has it: a process per core, with one thread each
    alone      one process with one thread, cell after cell: what the cores are worth
    threads    one process with as many threads as torch takes by default: what one has without the engine

They take turns, in an order that changes from round to round. A ratio is formed within a round: each of the other sides
over the study, of the wall time from the start of the command to its end, and of the cells alone, in which what the
command itself imports is left out; the server of the workers imports at the same time. The table shows medians over the
rounds with smallest and largest value. "start" is what passes until the first cell can begin in the command; "idle" the
share of the workers' time in which no cell trains: their own start, and the end, when there are fewer cells than
workers. "CPU s" is processor time of a cell: where it is larger in the study, two processes beside each other share
caches and memory, which no engine can mend. Where "busy", processor time of the cells over the time that they took on
the clock, is well below 1, the machine was doing something else, and the wall times say little.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from step import machine

from isograd.lab.recipes import path_of

RECIPE = path_of("studies/warmup")
SIDES = ("study", "alone", "threads")
Times = dict[str, float]


# One side, in a process of its own.


def one_side(side: str, overrides: Sequence[str], folder: Path) -> Times:
    """Train every cell; seconds of the cells, the sum of each cell's own, and how many finished."""
    from isograd.lab.study.engine.server import begin

    if side == "study":
        begin()
    import torch

    from isograd.lab.study.engine.runner import run_cells
    from isograd.lab.study.engine.workers import at_once, local
    from isograd.lab.study.plan import load_study

    threads = 1 if side != "threads" else torch.get_num_threads()
    study = load_study(RECIPE, overrides)
    engine = local() if side == "study" else in_turn(threads)
    began = time.perf_counter()
    rows = run_cells(study.cells, folder, engine, lambda i, step, loss: None, lambda i, row: None)
    wall = time.perf_counter() - began
    outcomes = [json.loads((folder / "cells" / row["cell"] / "outcome.json").read_text()) for row in rows]
    return {
        "cells": len(study.cells),
        "finished": sum(row["outcome"] == "finished" for row in rows),
        "workers": at_once(None, 1) if side == "study" else 1,
        "threads": threads,
        "began": time.time() - (time.perf_counter() - began),
        "training": wall,
        "busy": sum(outcome["seconds"] for outcome in outcomes),
        "cpu_cells": sum(outcome["cpu_seconds"] for outcome in outcomes),
        "load": os.getloadavg()[0],
        "loss": statistics.fmean(row["final_loss"] for row in rows),
    }


def in_turn(threads: int) -> Any:
    """An engine without workers: cell after cell, here."""
    from isograd.lab.study.engine.jobs import Job, OnEnd, OnStep, attempt, prepare
    from isograd.placement import get

    def engine(jobs: Mapping[int, Job], on_step: OnStep, on_end: OnEnd) -> None:
        prepare(threads)
        for index, job in jobs.items():
            on_end(index, attempt(get(job[0].model.placement), job))

    return engine


# The parent: rounds, table.


def timed(side: str, overrides: Sequence[str]) -> Times:
    """The side's own times, and seconds of its whole command and until its first cell could begin."""
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", side, "--folder", folder, "--override", *overrides]
        began, now = time.time(), time.perf_counter()
        said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
        whole = time.perf_counter() - now
    times: Times = json.loads(said.splitlines()[-1])
    return times | {"whole": whole, "start": times["began"] - began}


def measure(sides: Sequence[str], overrides: Sequence[str], rounds: int) -> dict[str, list[Times]]:
    found: dict[str, list[Times]] = {side: [] for side in sides}
    for i in range(rounds):
        first = i % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            found[side].append(timed(side, overrides))
            print(f"round {i + 1}: {side} {found[side][-1]['whole']:.1f} s", file=sys.stderr, flush=True)
    return found


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def table(found: Mapping[str, Sequence[Times]]) -> list[str]:
    """A row for each side."""
    columns = ("whole", "training", "start")
    names = ("cells/h", "whole s", "cells s", "start s", "CPU s", "busy", "idle", "load")
    lines = [" " * 9 + "".join(f"{name:>9}" for name in names)]
    for side, turns in found.items():
        whole, *others = (statistics.median(turn[key] for turn in turns) for key in columns)
        each = (
            statistics.median(turn["cpu_cells"] / turn["cells"] for turn in turns),
            statistics.median(turn["cpu_cells"] / turn["busy"] for turn in turns),
            statistics.median(1 - turn["busy"] / (turn["workers"] * turn["training"]) for turn in turns),
            statistics.median(turn["load"] for turn in turns),
        )
        rate = 3600 * turns[0]["cells"] / whole
        first = "".join(f"{number:9.1f}" for number in (whole, *others))
        lines.append(f"{side:9}{rate:9.0f}{first}" + "".join(f"{number:9.2f}" for number in each))
    for side in (side for side in found if side != "study"):
        pairs = list(zip(found[side], found["study"], strict=True))
        whole, cells = (spread([other[key] / mine[key] for other, mine in pairs]) for key in ("whole", "training"))
        apart = spread([mine["cpu_cells"] / other["cpu_cells"] for other, mine in pairs])
        lines.append(f"study over {side}: speed {whole}, of the cells {cells}; CPU time of a cell {apart}")
    return lines


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="of a cell")
    parser.add_argument("--seeds", type=int, default=2, help="each with three placements")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    parser.add_argument("--quick", action="store_true", help="one round of short cells: does it run?")
    parser.add_argument("--one", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--override", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.steps, options.seeds = 1, 6, 1
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.one:
        print(json.dumps(one_side(options.one, options.override, options.folder)))
        return
    overrides = [
        "model.placement=[post-ln,pre-ln,normformer]",
        "training.lr=[1e-3]",
        f"training.warmup=[{options.steps // 2}]",
        f"seeds={list(range(1, options.seeds + 1))}",
        f"budget.steps={options.steps}",
    ]
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    found = measure(["study", *(side for side in SIDES[1:] if side in options.sides)], overrides, options.rounds)
    print(f"{found['study'][0]['cells']} cells of {options.steps} steps, {options.rounds} rounds")
    print("\n".join(table(found)))
    for side, turns in found.items():
        print(f"{side}: finished {[t['finished'] for t in turns]}, mean loss {turns[0]['loss']:.6f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "steps": options.steps, "turns": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

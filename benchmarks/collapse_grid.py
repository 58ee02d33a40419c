"""A grid of short runs, drawn at random, on which the rules of collapse are fitted and tested.

    python benchmarks/collapse_grid.py --runs 600 --folder runs/collapse-grid --data embedded FILE
    python benchmarks/collapse_grid.py --longer 300 --folder runs/collapse-grid --data embedded FILE

Each run draws its placement, depth, width, batch, peak rate, warm-up and text independently, from its own number: the
first n runs are a random sample of the grid, whatever n is. A run trains until its loss has been `LEARNED` nats below
that of token frequencies, at full rate; or until `AFTER` updates after its warm-up; or, once it has been at the loss of
token frequencies for long enough, until the median layer's gradient is `DEAD` times the largest. Started again, it goes
on with the runs that are not in the folder yet.

With --longer the runs that are open are trained anew for so many updates after their warm-up: those whose gradients
came apart tenfold, that learned nothing and may yet. So is every `TESTED`-th of those whose gradients came `DEAD_APART`
times apart, to see whether one of them comes back.

rows-*.jsonl.gz, a line per run: run, text, placement, layers, width, batch (of 32 characters each), lr, warmup, seed,
init; skips (ADMIN's, as calibrated); loss and unigram (the loss of token frequencies on the same batch), one number a
step, nats; norms, log10 of each sublayer's gradient norm by step; valid and valid_unigram (held-out loss, entropy);
diverged (a loss was not finite); seconds.
"""

import argparse
import gzip
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import set_seed

from isograd import watch
from isograd.diagnose.calibrate import calibrate
from isograd.diagnose.watch.collapse import CollapseWatch
from isograd.lab.train.optim import optimizer_of, schedule_of
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.train import load_task

PLACEMENTS = {"post-ln": 8, "admin": 4, "deepnorm": 4, "pre-ln": 2, "normformer": 1, "gpt2": 1}  # with their weights
LAYERS = {6: 3, 9: 2, 12: 3, 18: 2, 24: 3, 36: 2, 48: 2}
WIDTHS = {32: 2, 64: 2, 128: 1}
BATCHES = (4, 8, 16)
RATES = (2e-4, 3e-4, 6e-4, 1e-3, 1.5e-3, 3e-3, 6e-3)
WARMUPS = {0: 6, 1: 1, 10: 3, 50: 4, 100: 4, 200: 2}
BOLD = 100_000  # runs from this number on: ADMIN and DeepNorm, deep, at high rates, with little warm-up or none
STABLE = ("pre-ln", "normformer", "gpt2")  # these are tried at larger rates
AFTER = 150  # updates at full rate
LEARNED = 0.4  # nats
DEAD = 1e-5  # of the largest gradient norm of a layer: nothing that came so low has come back
WINDOW = 20  # losses whose mean is looked at
APART, DEAD_APART = 10.0, 100.0  # times, of `CollapseWatch.apart`
TESTED = 8


def setting(number: int, texts: Sequence[str], init: str | None = None) -> dict[str, Any]:
    """What run `number` trains; with another initialization, Post-LN only; from `BOLD` on as it says there.

    >>> setting(3, ["embedded"]) == setting(3, ["embedded"])
    True
    """
    draw = random.Random(number)
    placement = "post-ln" if init else draw.choices(list(PLACEMENTS), list(PLACEMENTS.values()))[0]
    layers = draw.choices(list(LAYERS), list(LAYERS.values()))[0]
    width = draw.choices(list(WIDTHS), list(WIDTHS.values()))[0]
    batch, lr = draw.choice(BATCHES), draw.choice(RATES) * (8 if placement in STABLE else 1)
    warmup = draw.choices(list(WARMUPS), list(WARMUPS.values()))[0]
    if number >= BOLD:
        placement, layers = draw.choice(("admin", "deepnorm")), draw.choice((24, 48))
        width, lr, warmup = draw.choice((32, 128)), draw.choice(RATES[2:]), draw.choice((0, 0, 1, 10))
    run = {"run": number, "text": draw.randrange(len(texts)), "placement": placement, "layers": layers}
    return run | {"width": width, "batch": batch, "lr": lr, "warmup": warmup, "seed": 10_000 + number, "init": init}


def trained(one: dict[str, Any], texts: Sequence[str], corpora: dict[int, Any], longer: int) -> dict[str, Any]:
    """The row of one run."""
    began = time.perf_counter()
    steps = one["warmup"] + (longer or AFTER)
    run = run_from_dict(
        {
            "seed": one["seed"],
            "model": {key: one[key] for key in ("placement", "layers", "width")} | {"start": one["init"]},
            "data": {"source": texts[one["text"]]},
            "training": {"lr": one["lr"], "warmup": one["warmup"], "batch": one["batch"], "steps": steps}
            | {"valid_sequences": 128},
        }
    )
    task = load_task(run, corpora.get(one["text"]))
    corpora[one["text"]] = task.corpus
    set_seed(one["seed"])
    model = task.build(task.config())
    if model.config.entry().calibrate:
        calibrate(model, task.first_batch())
    model.train()
    optimizer_class, settings = optimizer_of(run.training)
    optimizer = optimizer_class(model.parameters(), **settings)
    rate = schedule_of(run.training)
    seen = watch(model, unigram_entropy=task.unigram_entropy)
    row: dict[str, Any] = one | {"skips": model.config.calibration, "loss": [], "unigram": [], "norms": []}
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = one["lr"] * rate(step)
        batch = task.samples.__getitems__(range((step - 1) * one["batch"], step * one["batch"]))
        loss = model(**batch).loss
        loss.backward()
        seen.step(loss, batch=batch)
        optimizer.step()
        optimizer.zero_grad()
        row["loss"].append(round(loss.item(), 4))
        row["unigram"].append(round(task.unigram_loss([step]), 4))
        row["norms"].append([_power(layer["gradient_norm"]) for layer in seen.layers])
        if not math.isfinite(loss.item()) or (step >= one["warmup"] + 40 and _decided(row, longer)):
            break
    row["addresses"] = [layer["address"] for layer in seen.layers]
    seen.close()
    row["diverged"] = not all(map(math.isfinite, row["loss"]))
    row["valid"], row["valid_unigram"] = task.validate(model)["loss"], task.unigram_entropy
    return row | {"seconds": round(time.perf_counter() - began, 2)}


def _decided(row: dict[str, Any], longer: int) -> bool:
    return learned(row) or (not longer and _dead(row))


def apart(row: dict[str, Any]) -> list[float]:
    """`CollapseWatch.apart` by step, 1.0 until there is one."""
    layers = len(row["norms"][0])
    watched, found = CollapseWatch([str(i) for i in range(layers)], ["decoder"] * layers), []
    for step, powers in enumerate(row["norms"], 1):
        watched.follow(step, math.nan, [None if power is None else 10**power for power in powers])
        found.append(watched.apart or 1.0)
    return found


def wants_more(row: dict[str, Any]) -> bool:
    """Whether --longer trains a run again."""
    if row["diverged"] or learned(row, 0.1):
        return False
    came = apart(row)
    return row["run"] % TESTED == 0 if came[-1] >= DEAD_APART else max(came) >= APART


def learned(row: dict[str, Any], by: float = LEARNED) -> bool:
    """Whether the last losses lie so many nats below those of token frequencies."""
    loss, unigram = row["loss"][-WINDOW:], row["unigram"][-WINDOW:]
    return sum(loss) / WINDOW < sum(unigram) / WINDOW - by


def _dead(row: dict[str, Any]) -> bool:
    """For forty steps at or above the loss of token frequencies, and no gradient reaches half of the layers."""
    last = [power for power in row["norms"][-1] if power is not None]
    above = sum(row["loss"][-40:]) > sum(row["unigram"][-40:]) - 40 * 0.02
    return above and median(last) < max(last) + math.log10(DEAD)


def _power(norm: float | None) -> float | None:
    return None if norm is None or not math.isfinite(norm) else round(math.log10(max(norm, 1e-38)), 3)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All runs that a folder holds, each as long as it was trained; a line cut off by a kill is left out."""
    rows: dict[tuple[int, str | None], dict[str, Any]] = {}
    for path in sorted(folder.glob("rows-*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            try:
                for row in map(json.loads, lines):
                    before = rows.get(key := (row["run"], row.get("init")))
                    if before is None or row.get("longer", 0) > before.get("longer", 0):
                        rows[key] = row
            except (ValueError, EOFError):
                print(f"{path}: the last line is cut off", file=sys.stderr)
    return list(rows.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, metavar="RUN", help=f"from this number on ({BOLD}: bold ones)")
    parser.add_argument("--folder", type=Path, default=Path("runs/collapse-grid"))
    parser.add_argument("--data", nargs="+", default=["embedded"], metavar="FILE", help="texts to draw from")
    parser.add_argument("--init", help="Post-LN only, with this initialization (such as normal: N(0, 0.02^2))")
    parser.add_argument("--longer", type=int, default=0, metavar="UPDATES", help="after the warm-up, of what is open")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="train every N-th run only, from the I-th on")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    shard, shards = map(int, options.shard.split("/"))
    there = [row for row in rows_in(options.folder) if options.longer or row.get("init") == options.init]
    if options.longer:
        numbers = [(row["run"], row.get("init")) for row in there if wants_more(row) and not row.get("longer")]
    else:
        done = {row["run"] for row in there}
        numbers = [(number, options.init) for number in range(options.first, options.first + options.runs)]
        numbers = [one for one in numbers if one[0] not in done]
    name = "longer" if options.longer else options.init or "grid"
    path, corpora = options.folder / f"rows-{name}-{shard}.jsonl.gz", {}
    for number, start in sorted(numbers, key=str):
        if number % shards != shard:
            continue
        row = trained(setting(number, options.data, start), options.data, corpora, options.longer)
        row["longer"] = options.longer
        with gzip.open(path, "at") as file:
            file.write(json.dumps(row) + "\n")
        name = f"{row['placement']:10} {row['layers']:2} layers, width {row['width']:3}, batch {row['batch']:2}"
        end = sum(row["loss"][-WINDOW:]) / WINDOW - sum(row["unigram"][-WINDOW:]) / WINDOW
        ended = "diverged" if row["diverged"] else f"{end:+.2f}"
        print(f"{number:4} {name}, LR {row['lr']:<7g} warm-up {row['warmup']:3}: {len(row['loss']):3} steps,"
              f" {ended:8} {row['seconds']:5.1f} s", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What watching costs: one training step watched, watched every hundredth step, and not at all.

    python benchmarks/watching.py                       eager, compiled, and DDP on two processes; some five minutes
    python benchmarks/watching.py --way eager --shape tiny --rounds 15
    python benchmarks/watching.py --quick --json watching.json

A step is forward, loss, backward, clipping, fused Adam. The three kinds take turns in one process, a few steps each,
so that what else the machine does falls on all of them; their order changes from round to round. Time is CPU time per
step, the median of a turn; a ratio is formed within a round, and the table shows its median over the rounds and its
quartiles. "inside" is the time within `watch.step` over that of the rest of the same steps. Rows go to JSON lines, as
in use. Two processes of DDP are pinned to a processor each, and the first one is measured.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from step import machine
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import isograd
from isograd import IsogradConfig, IsogradForCausalLM

KINDS = ("not", "every step", "off")
WAYS = ("eager", "compiled", "ddp")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of the model and of the batch that a process has."""

    layers: int = 12
    width: int
    heads: int = 4
    vocabulary: int
    time: int
    batch: int


SHAPES = {
    "tiny": Shape(width=64, vocabulary=97, time=32, batch=16),  # that of `isograd compare`
    "small": Shape(width=256, vocabulary=8192, time=64, batch=4),  # so few tokens that parameters count most
    "medium": Shape(width=512, heads=8, vocabulary=8192, time=128, batch=8),
}


@dataclass(kw_only=True)
class Turns:
    """Seconds per step of each kind, the median of each turn; and the share of the time inside the watch."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    inside: list[float] = field(default_factory=list)


def build(shape: Shape) -> nn.Module:
    torch.manual_seed(0)
    return IsogradForCausalLM(
        IsogradConfig(
            placement="pre-ln",
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            vocab_size=shape.vocabulary,
            max_position_embeddings=shape.time,
        )
    )


def measure(shape: Shape, way: str, rounds: int, steps: int, folder: Path) -> Turns:
    """All turns of one way of training."""
    model: Any = build(shape)
    model = {"eager": lambda m: m, "compiled": torch.compile, "ddp": DistributedDataParallel}[way](model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    watches = {"every step": isograd.watch(model, folder=folder / "every"), "off": isograd.watch(model, every=10**9)}
    batches = [torch.randint(shape.vocabulary, (shape.batch, shape.time)) for _ in range(4)]
    clock: Callable[[], float] = time.process_time

    def step(ids: Tensor, watch: Any) -> tuple[float, float]:
        begin = clock()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        before = clock()
        if watch is not None:
            watch.step(loss, batch={"labels": ids})
        inside = clock() - before
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return clock() - begin, inside

    turns = Turns()
    for watch in (None, *watches.values()):
        for ids in batches:
            step(ids, watch)
    for turn in range(rounds):
        for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
            times = [step(batches[i % 4], watches.get(kind)) for i in range(steps)]
            turns.seconds[kind].append(statistics.median(whole for whole, _ in times))
            if kind == "every step":
                turns.inside.append(statistics.median(inside / (whole - inside) for whole, inside in times))
    return turns


def work(rank: int, processes: int, shape: Shape, way: str, options: argparse.Namespace, folder: str) -> None:
    """A process: alone, or one of those that DDP joins. The first one leaves its turns in a file."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1 - rank]})
    torch.set_num_threads(1)
    if processes > 1:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(options.port)}
        dist.init_process_group("gloo", rank=rank, world_size=processes)
    turns = measure(shape, way, options.rounds, options.steps, Path(folder))
    if rank == 0:
        (Path(folder) / "turns.json").write_text(json.dumps({"seconds": turns.seconds, "inside": turns.inside}))
    if processes > 1:
        dist.destroy_process_group()


def turns_of(shape: Shape, way: str, options: argparse.Namespace) -> Turns:
    processes = 2 if way == "ddp" else 1
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (processes, shape, way, options, folder), nprocs=processes)
        return Turns(**json.loads((Path(folder) / "turns.json").read_text()))


def ratios(turns: Turns, kind: str) -> list[float]:
    return [a / b for a, b in zip(turns.seconds[kind], turns.seconds["not"], strict=True)]


def said(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:7.4f} ({low:.3f}..{high:.3f})"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=5, help="of each kind in a round")
    parser.add_argument("--port", type=int, default=29517)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    parser.add_argument("--quick", action="store_true", help="three rounds: does it run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.steps = 3, 2
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    print(f"{options.rounds} rounds of {options.steps} steps of each kind; medians, in brackets quartiles")
    print(f"{'':18}{'step ms':>9}  {'watched / not':24}{'off / not':24}{'inside':>8}")
    report: dict[str, Any] = {"machine": about, "rounds": options.rounds, "steps": options.steps, "turns": {}}
    for shape in options.shape:
        for way in options.way:
            turns = turns_of(SHAPES[shape], way, options)
            middle = statistics.median(turns.seconds["not"]) * 1e3
            every, off = (said(ratios(turns, kind)) for kind in KINDS[1:])
            inside = statistics.median(turns.inside)
            print(f"{shape + ', ' + way:18}{middle:9.1f}  {every:24}{off:24}{inside:8.4f}", flush=True)
            report["turns"][f"{shape} {way}"] = {"seconds": turns.seconds, "inside": turns.inside}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

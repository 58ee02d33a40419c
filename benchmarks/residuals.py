"""What each entry of the catalogue costs over Pre-LN: step time and memory, docs/results/residual-cost.md.

    python benchmarks/residuals.py                                 all entries, some twenty minutes
    python benchmarks/residuals.py --only mhc hyper --rounds 5 --page cost.md

One process, one thread. An entry and Pre-LN take turns, step by step (A B B A ...), so that what else the machine does
falls on both; a ratio is formed of two neighbouring steps' CPU time, and the table shows its median and quartiles over
n. A step is forward, loss, backward, clipping, fused AdamW, and what the placement does to weights after it. Memory is
what autograd keeps for the backward pass beside the parameters, by its own hooks, and that with parameters, gradients
and both moments of AdamW: what a step holds at its peak, but for what operations need for themselves.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from contestants import Shape, isograd
from step import machine, make_batches

from isograd.placement import CATALOGUE

BASE = "pre-ln"
SHAPE = Shape(width=256, layers=6, heads=8, vocabulary=512, time=128, batch=4)
WIDE = Shape(width=1024, layers=2, heads=16, vocabulary=512, time=128, batch=4)
WIDE_ENTRIES = ("hyper-connections-static", "hyper-connections", "mhc", "attention-residuals", "siamesenorm")
PUBLISHED = {"mhc": "6.7 % at n = 4, 27B, kernels of their own (arXiv 2512.24880)"}
DEAR = 1.1  # times a step of Pre-LN: from here on an entry has a line of the page
PAGE = Path(__file__).parents[1] / "docs/results/residual-cost.md"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One entry beside Pre-LN: ratios of CPU time, step by step, and sizes."""

    name: str
    ratios: tuple[float, ...]
    seconds: float  # Pre-LN's median
    kept: float  # of what autograd keeps, over Pre-LN
    memory: float  # that with parameters, gradients and optimizer, over Pre-LN
    parameters: int

    def quartiles(self) -> tuple[float, float, float]:
        low, middle, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, middle, high


def stepper(shape: Shape, placement: str) -> tuple[Any, Callable[[], None]]:
    """A model in training, and one whole step of it."""
    torch.manual_seed(0)
    model, loss = isograd(shape, placement)
    model.train()
    feed = itertools.cycle(make_batches(shape, ours=True))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step() -> None:
        loss(next(feed)).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if model.constrains:
            model.constrain()
        optimizer.zero_grad()

    return model, step


def kept(shape: Shape, placement: str) -> tuple[int, int]:
    """Bytes that autograd keeps of one forward pass beside the parameters, and how many parameters there are."""
    torch.manual_seed(0)
    model, loss = isograd(shape, placement)
    model.train()
    batch = make_batches(shape, ours=True)[0]
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, torch.Tensor] = {}  # by the storage's address; held, so that no later tensor gets it

    def pack(x: torch.Tensor) -> torch.Tensor:
        x = x.detach()  # with its history an operation that keeps its own result would keep itself for ever
        if (place := x.untyped_storage().data_ptr()) not in own:
            held[place] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        value = loss(batch)
    assert value.requires_grad
    del value
    return sum(x.untyped_storage().nbytes() for x in held.values()), sum(p.numel() for p in model.parameters())


def beside(shape: Shape, name: str, rounds: int) -> tuple[list[float], list[float]]:
    """CPU seconds of Pre-LN's and of the entry's steps, in turn."""
    pair = [stepper(shape, placement)[1] for placement in (BASE, name)]
    for step in pair:
        step()
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            begun = time.process_time()
            pair[which]()
            seconds[which].append(time.process_time() - begun)
    return seconds


STATE = 16  # bytes for each parameter: itself, its gradient, two moments


def costs(shape: Shape, names: Sequence[str], rounds: int) -> list[Cost]:
    """Every entry beside Pre-LN."""
    found, (base_kept, base_parameters) = [], kept(shape, BASE)
    for name in names:
        base, own = beside(shape, name, rounds)
        bytes_kept, parameters = kept(shape, name)
        found.append(
            Cost(
                name=name,
                ratios=tuple(b / a for a, b in zip(base, own, strict=True)),
                seconds=statistics.median(base),
                kept=bytes_kept / base_kept,
                memory=(STATE * parameters + bytes_kept) / (STATE * base_parameters + base_kept),
                parameters=parameters - base_parameters,
            )
        )
        print(row(found[-1]), end="", flush=True)
    return found


def row(cost: Cost) -> str:
    low, middle, high = cost.quartiles()
    more = f"{cost.parameters:+,}" if cost.parameters else "0"
    cells = (f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{cost.kept:.2f}", f"{cost.memory:.2f}", more)
    return f"| {cost.name} | {' | '.join(cells)} | {PUBLISHED.get(cost.name, '')} |\n"


HEAD = """\
# What a residual costs

{headline}

A step (forward, loss, backward, clipping, fused AdamW, what the placement does to weights after it) and memory over
Pre-LN's. An entry and Pre-LN took turns in one process with one thread: the ratio is that of two neighbouring steps'
CPU time, median and quartiles over n pairs. *Kept*: what autograd keeps for the backward pass beside the parameters.
*Memory*: that with parameters, gradients and both moments of AdamW. fp32, eager.

Machine: {machine}.
Its load was {load} before and {load_after} after (one-minute average). CPU time does not count waiting, but processes
share caches; the row of Pre-LN beside itself says how much that is.

`python benchmarks/residuals.py` writes this page and [residual-cost.csv](residual-cost.csv), which has every entry.
"""
TABLE = """
## {title}

{shape.layers} layers, width {shape.width}, {shape.heads} heads, {shape.batch} x {shape.time} tokens, n = {rounds}.
A step of Pre-LN takes {seconds:.2f} s of CPU time.

| entry | step | quartiles | kept | memory | parameters | published |
|---|---|---|---|---|---|---|
"""
Part = tuple[str, Shape, list[Cost]]  # a title, the shape, and what was found


def page(tables: Sequence[Part], load: float) -> str:
    """The page in Markdown."""
    about = ", ".join(f"{name} {value}" for name, value in machine().items() if name != "x-transformers")
    facts = {"machine": about, "load": f"{load:.1f}", "load_after": f"{os.getloadavg()[0]:.1f}"}
    parts = [HEAD.format(headline=headline(tables), **facts)]
    for title, shape, found in tables:
        seconds = statistics.median(cost.seconds for cost in found)
        rounds = len(found[0].ratios)
        dear = [cost for cost in found if cost.quartiles()[1] >= DEAR]
        parts.append(TABLE.format(title=title, shape=shape, rounds=rounds, seconds=seconds) + "".join(map(row, dear)))
        if cheap := [cost.name for cost in found if cost not in dear]:
            parts.append(f"\nLess than a tenth more: {', '.join(cheap)}.\n")
    return "".join(parts)


def write_rows(tables: Sequence[Part], file: Path) -> None:
    """Every entry, as CSV."""
    lines = ["table,entry,step,low,high,kept,memory,parameters"]
    for title, _, found in tables:
        for cost in found:
            low, middle, high = (f"{ratio:.3f}" for ratio in cost.quartiles())
            more = f"{cost.parameters:+}" if cost.parameters else "0"
            lines.append(f"{title},{cost.name},{middle},{low},{high},{cost.kept:.2f},{cost.memory:.2f},{more}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def headline(tables: Sequence[Part]) -> str:
    """What most entries cost, and the dearest one."""
    every = [cost for _, _, found in tables[:1] for cost in found if cost.name != BASE]
    cheap = sum(cost.quartiles()[1] < DEAR for cost in every)
    dearest = max(every, key=lambda cost: cost.quartiles()[1])
    return (
        f"{cheap} of {len(every)} entries take less than a tenth more time a step than Pre-LN; the dearest is"
        f" `{dearest.name}`, {dearest.quartiles()[1]:.2f} times the time and {dearest.kept:.2f} times the activations."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="entries whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--wide-rounds", type=int, default=5)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--quick", action="store_true", help="small shapes, two rounds: does it run?")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    narrow, wide = SHAPE, WIDE
    if options.quick:
        narrow, wide = (replace(one, layers=2, width=one.width // 8, time=16) for one in (SHAPE, WIDE))
        options.rounds = options.wide_rounds = 2
    names = [name for name in CATALOGUE if not options.only or any(part in name for part in options.only)]
    few = [name for name in WIDE_ENTRIES if name in names]
    tables = [("Every entry", narrow, names, options.rounds)]
    if few:
        tables.append(("Streams at a larger width", wide, few, options.wide_rounds))
    found = [(title, shape, costs(shape, which, rounds)) for title, shape, which, rounds in tables]
    options.page.write_text(page(found, load), encoding="utf-8")
    write_rows(found, options.page.with_suffix(".csv"))
    print(options.page)


if __name__ == "__main__":
    main()

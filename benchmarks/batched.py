"""Several small models of one shape, trained one after another or together, as one model on stacked parameters.

    python benchmarks/batched.py                                  K 2, 4, 8, 16 at three batches; some fifteen minutes
    python benchmarks/batched.py --models 8 --batch 2x32 --rounds 31
    python benchmarks/batched.py --quick --json batched.json      does it run?

A step is forward, loss, backward and fused Adam of K models (Pre-LN, 12 layers, width 64) on a batch each of the
embedded text. The kinds take turns in one pinned process, in an order that changes from round to round, so that what
else the machine does falls on all of them:

    single    IsogradForCausalLM as `isograd train` has it, one model after another: the reference
    vmap      the same model under torch.func.vmap
    bmm       a plain network on stacks, written by hand; a product of all models is one torch.baddbmm
    control   the network of `bmm` with one model in its stacks, one after another: what is not due to stacking

Time is CPU time per step of all K models. A ratio to `single` is formed within a round; the table shows its median over
the rounds with its quartiles, and the median of the ratios of wall time. First, losses and gradients of every kind are
compared with those of `single`; exit code 1 where they differ by more than TOLERANCE.

"calls" is a step of one model on two tokens: hardly any arithmetic. Were all of it done once for K models, and the rest
no faster, the ratio would be "bound".
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from stacked_adam import Update, adam_apart, adam_on_stacks, adam_on_views, adam_scaled
from stacks import KINDS, LAYERS, Losses, differences, drift, make_models, stacked
from step import machine
from torch import Tensor, nn

from isograd.lab.data import load_corpus
from isograd.machine import keep_freed_memory

RATE = 1e-4
RATES = (3e-4, 1e-3, 1e-3, 3e-3)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}  # of a loss; of a gradient over the model's largest entry
ADAMS = {"on stacks, one rate": adam_on_stacks, "on views": adam_on_views, "scaled": adam_scaled}
Turn = Callable[[], None]
Times = Mapping[str, list[tuple[float, float]]]  # of each turn, in each round: CPU and wall time, seconds


def turn_of(kind: str, models: Sequence[nn.Module], batches: Sequence[Tensor]) -> Turn:
    """A step on each of the batches; models apart take theirs one model after another, as in a study."""
    if kind == "single":
        return _apart([_single(model, [ids[k] for ids in batches]) for k, model in enumerate(models)])
    if kind == "control":
        own = [[ids[k, None] for ids in batches] for k in range(len(models))]
        return _apart([_stacks(KINDS["bmm"], [model], ids) for model, ids in zip(models, own, strict=True)])
    return _stacks(KINDS[kind], models, batches)


def _apart(turns: Sequence[Turn]) -> Turn:
    def turn() -> None:
        for one in turns:
            one()

    return turn


def _single(model: nn.Module, batches: Sequence[Tensor]) -> Turn:
    update = adam_apart([model.parameters()])

    def turn() -> None:
        for ids in batches:
            model(input_ids=ids, labels=ids).loss.backward()
            update([RATE])

    return turn


def _stacks(
    kind: Callable[[Sequence[nn.Module]], Losses], models: Sequence[nn.Module], batches: Sequence[Tensor]
) -> Turn:
    losses, stacks = kind(models), stacked(models)
    update, rates = adam_on_stacks(stacks), [RATE] * len(models)

    def turn() -> None:
        for ids in batches:
            losses(stacks, ids).sum().backward()
            update(rates)

    return turn


def measure(turns: Mapping[str, Turn], rounds: int) -> Times:
    """Every turn once unmeasured, then in each round."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    names = list(turns)
    for turn in turns.values():
        turn()
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            wall, cpu = time.perf_counter(), time.process_time()
            turns[name]()
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return times


def ratios(times: Times, name: str, reference: str, clock: int = 0) -> list[float]:
    return [a[clock] / b[clock] for a, b in zip(times[name], times[reference], strict=True)]


def milliseconds(times: Times, name: str) -> float:
    return statistics.median(cpu for cpu, _ in times[name]) * 1e3


# What is printed.


def said(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}..{high:.2f})"


def check(vocabulary: int, ids: Tensor, layers: int) -> bool:
    """Print how far each kind is from `single`; whether all are near enough."""
    holds = True
    count, _, length = ids.shape
    for dtype, tolerance in TOLERANCE.items():
        models = [model.to(dtype) for model in make_models(count, vocabulary, length, layers)]
        for name, kind in KINDS.items():
            loss, gradient = differences(kind(models), models, ids)
            right = max(loss, gradient) <= tolerance
            holds &= right
            print(f"  {name:8}{dtype}: losses {loss:.0e}, gradients {gradient:.0e}{'' if right else ' WRONG'}")
    return holds


def print_drift(text: Tensor, vocabulary: int, options: argparse.Namespace) -> None:
    """How far the losses of `bmm` have gone from those of `single` after some steps, at four rates."""
    models = make_models(len(RATES), vocabulary, 32, options.layers)
    off = drift(KINDS["bmm"](models), models, batches_of(text, len(RATES), "16x32", options.drift), RATES)
    marks = sorted({min(step, options.drift) for step in (1, 10, 100, options.drift)})
    said = ", ".join(f"{max(off[:step]):.0e} until step {step}" for step in marks)
    print(f"bmm, trained at rates {RATES}: losses off by {said}")


def compare_kinds(count: int, batches: Sequence[Tensor], vocabulary: int, options: argparse.Namespace) -> Any:
    """One row of the table: all kinds at one K and one batch."""
    _, batch, length = batches[0].shape
    models, two = make_models(count, vocabulary, length, options.layers), [ids[:1, :1, :2] for ids in batches]
    turns = {kind: turn_of(kind, models, batches) for kind in options.kinds}
    turns["calls"] = turn_of("single", models[:1], two)
    times = measure(turns, options.rounds)
    step, calls = (milliseconds(times, name) / len(batches) for name in ("single", "calls"))
    bound = 1 - (count - 1) * calls / step  # `step` is of all K
    print(f"{count:3} x {f'{batch}x{length}':6}{step:9.1f}{calls:8.1f}{bound:8.2f}", end="")
    of = ((ratios(times, kind, "single"), ratios(times, kind, "single", 1)) for kind in options.kinds[1:])
    print("".join(f"   {said(cpu)} {statistics.median(wall):.2f}" for cpu, wall in of), flush=True)
    return {"models": count, "batch": batch, "length": length, "times": times}


def compare_adams(count: int, vocabulary: int, options: argparse.Namespace) -> Any:
    """The optimizer alone, on gradients that are there: K of them, and the ways to have one."""
    models, rates = make_models(count, vocabulary, 32, options.layers), [RATE] * count
    leaves = [p for model in models for p in model.parameters()]
    turns = {"apart": _updates(adam_apart([model.parameters() for model in models]), leaves, rates)}
    for name, adam in ADAMS.items():
        stacks = stacked(models)
        turns[name] = _updates(adam(stacks), list(stacks.values()), rates)
    times = measure(turns, 4 * options.rounds)
    print(f"{count:3} models: apart {milliseconds(times, 'apart'):.1f} ms", end="")
    print("".join(f"   {name} {said(ratios(times, name, 'apart'))}" for name in ADAMS), flush=True)
    return {"models": count, "times": times}


def _updates(update: Update, leaves: Sequence[Tensor], rates: Sequence[float]) -> Turn:
    gradients = [torch.randn_like(leaf) for leaf in leaves]

    def turn() -> None:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        update(rates)

    return turn


def batches_of(text: Tensor, count: int, shape: str, steps: int = 1) -> list[Tensor]:
    """In each step a batch for each of K models, (K, batch, length), from anywhere in the text."""
    batch, length = map(int, shape.split("x"))
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(text) - length, (steps, count, batch, 1), generator=generator)
    return list(text[places + torch.arange(length)])


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", type=int, default=[2, 4, 8, 16], metavar="K")
    parser.add_argument(
        "--batch", nargs="+", default=["16x32", "2x32", "8x64"], metavar="BxT", help="sequences x tokens"
    )
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "control"], default=[*KINDS, "control"])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=2, help="of each kind in a round")
    parser.add_argument("--drift", type=int, default=300, help="steps in which losses are followed; 0: none")
    parser.add_argument("--processor", type=int, default=(os.cpu_count() or 1) - 1, help="the one to pin to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    parser.add_argument("--quick", action="store_true", help="two layers, two rounds: does it run?")
    options = parser.parse_args(arguments)
    options.kinds = ["single", *options.kinds]
    if options.quick:
        options.layers, options.rounds, options.steps, options.drift = 2, 2, 1, 10
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.processor})
    torch.set_num_threads(1)
    keep_freed_memory()
    corpus, about = load_corpus(), machine()
    vocabulary, text = corpus.vocab_size, torch.tensor(corpus.train, dtype=torch.long)
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    print("against single:")
    holds = check(vocabulary, batches_of(text, 3, "4x32")[0], options.layers)
    if options.drift:
        print_drift(text, vocabulary, options)
    print(
        f"{options.rounds} rounds of {options.steps} steps; CPU time over single's, median (quartiles), and wall time"
    )
    print(f"{'K x batch':12}{'single':>9}{'calls':>8}{'bound':>8}" + "".join(f"   {k:21}" for k in options.kinds[1:]))
    report: dict[str, Any] = {"machine": about, "rounds": options.rounds, "steps": options.steps, "rows": []}
    for shape in options.batch:
        for count in options.models:
            batches = batches_of(text, count, shape, options.steps)
            report["rows"].append(compare_kinds(count, batches, vocabulary, options))
    print("Adam alone, over K optimizers")
    report["adams"] = [compare_adams(count, vocabulary, options) for count in options.models]
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""One whole training step beside peers: forward, loss, backward, clipping, fused AdamW.

    python benchmarks/step.py                        causal and masked, fp32 and bf16, some ten minutes
    python benchmarks/step.py --case deep --rounds 9
    python benchmarks/step.py --quick --json step.json

Every contestant lives in its own process, pinned to one processor, and they take turns (A B C A B C ...), so that
what else the machine does falls on all of them. Time is CPU time per step, the median over the steps of a round; a
ratio is formed within a round, and the table shows its median over the rounds and its smallest and largest value.
Memory is the peak over the first steps above what the process held once imports and model were there: gradients,
optimizer state and activations. Peers that are not installed are named as absent.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from contestants import BUILDERS, CASES, IGNORE, MASKED, NORMFORMER, OURS, Contestant, Loss, Shape, contestants

from isograd.machine import processor


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The medians of one contestant in one round, seconds per step."""

    cpu: float
    wall: float


@dataclass(kw_only=True)
class Result:
    contestant: Contestant
    turns: list[Turn] = field(default_factory=list)
    memory: float | None = None  # MiB
    parameters: int = 0

    def median(self) -> float:
        return statistics.median(turn.cpu for turn in self.turns)


def work(connection: Connection, contestant: Contestant, shape: Shape, threads: int, processors: set[int]) -> None:
    """Builds the model, runs the warm-up, then one turn of n steps for every n received; 0 ends."""
    if processors:
        os.sched_setaffinity(0, processors)
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, loss = BUILDERS[contestant.build](shape, contestant.placement)
    model.train()
    step = make_step(model, loss, make_batches(shape, ours=contestant.package == "isograd"), contestant.bf16)
    with peak_memory() as peak:
        for _ in range(2):
            step()
    connection.send((peak.get("mib"), sum(p.numel() for p in model.parameters())))
    while steps := connection.recv():
        connection.send(turn(step, steps))


def make_batches(shape: Shape, ours: bool) -> list[dict[str, Any]]:
    """Four batches of random tokens; ours gets the masked places from the collator, as isograd's own collator does."""
    import torch

    def one() -> dict[str, Any]:
        ids = torch.randint(4, shape.vocabulary, (shape.batch, shape.time))
        if shape.causal:
            return {"input_ids": ids, "labels": ids}
        places = torch.rand(ids.shape) < MASKED
        batch = {"input_ids": ids.masked_fill(places, 3), "labels": ids.where(places, torch.tensor(IGNORE))}
        return batch | {"masked_positions": places.flatten().nonzero().squeeze(1)} if ours else batch

    return [one() for _ in range(4)]


def make_step(model: Any, loss: Loss, batches: list[dict[str, Any]], bf16: bool) -> Callable[[], None]:
    """Forward, loss, backward, clipping at norm 1, fused AdamW."""
    import itertools

    import torch

    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    feed = itertools.cycle(batches)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            value = loss(next(feed))
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def turn(step: Callable[[], None], steps: int) -> Turn:
    """One step unmeasured, to fill the caches again, then `steps` measured ones."""
    step()
    cpu, wall = [], []
    for _ in range(steps):
        wall_before, cpu_before = time.perf_counter(), time.process_time()
        step()
        cpu.append(time.process_time() - cpu_before)
        wall.append(time.perf_counter() - wall_before)
    return Turn(cpu=statistics.median(cpu), wall=statistics.median(wall))


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Sets "mib" to the peak resident memory inside the block above the one at its beginning (Linux)."""
    out: dict[str, float] = {}
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
    before = _resident("VmRSS")
    yield out
    if before is not None:
        out["mib"] = (_resident("VmHWM") or before) - before


def _resident(entry: str) -> float | None:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(entry + ":"):
                return int(line.split()[1]) / 1024
    return None


# The parent: processes, rounds, table.


def measure(shape: Shape, every: Sequence[Contestant], options: argparse.Namespace) -> list[Result]:
    """All contestants of one case, in turn."""
    context = multiprocessing.get_context("spawn")
    processors = set() if options.free else {options.processor}
    lines, results = [], []
    for contestant in every:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, contestant, shape, options.threads, processors), daemon=True
        )
        process.start()
        theirs.close()
        memory, parameters = ours.recv()  # waits: one process is busy at a time
        lines.append((ours, process))
        results.append(Result(contestant=contestant, memory=memory, parameters=parameters))
    for _ in range(options.rounds):
        for (line, _), result in zip(lines, results, strict=True):
            line.send(options.steps)
            result.turns.append(line.recv())
    for line, process in lines:
        line.send(0)
        process.join()
    return results


def ratios(result: Result, reference: Result) -> list[float]:
    return [a.cpu / b.cpu for a, b in zip(result.turns, reference.turns, strict=True)]


def best_peer(results: Sequence[Result], bf16: bool) -> Result | None:
    peers = [r for r in results if r.contestant.package != "isograd" and r.contestant.bf16 == bf16]
    return min(peers, key=Result.median, default=None)


def table(results: Sequence[Result]) -> list[str]:
    """One row per contestant; ratios to the best peer of the same dtype."""
    lines = [f"{'':26}{'CPU ms':>9}{'wall ms':>9}{'ratio':>8}{'min..max':>13}{'MiB':>7}{'params':>8}"]
    for result in results:
        best = best_peer(results, result.contestant.bf16)
        cells = spread(ratios(result, best)) if best else ("", "")
        wall = statistics.median(t.wall for t in result.turns)
        memory = "-" if result.memory is None else f"{result.memory:.0f}"
        lines.append(
            f"{result.contestant.name:26}{result.median() * 1e3:9.1f}{wall * 1e3:9.1f}{cells[0]:>8}{cells[1]:>13}"
            f"{memory:>7}{result.parameters / 1e6:7.1f}M"
        )
    return lines


def own_ratios(results: Sequence[Result]) -> list[str]:
    """isograd against itself: NormFormer over Pre-LN, bf16 over fp32."""
    named = {r.contestant.name: r for r in results}
    pairs = ((NORMFORMER.name, OURS.name), (OURS.name + " bf16", OURS.name))
    return [
        f"{a} over {b}: {' '.join(spread(ratios(named[a], named[b])))}" for a, b in pairs if a in named and b in named
    ]


def spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.3f}", f"{min(values):.2f}..{max(values):.2f}"


def installed(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def machine() -> dict[str, str]:
    """Processor and versions."""
    packages = ("torch", "transformers", "x-transformers", "isograd")
    return {"processor": processor(), "cores": str(os.cpu_count())} | {p: version(p) for p in packages}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=["causal", "masked"])
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contestants whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="measured steps per round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor", type=int, default=(os.cpu_count() or 1) - 1, help="the one to pin to")
    parser.add_argument("--free", action="store_true", help="pin to no processor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every turn as JSON")
    parser.add_argument("--quick", action="store_true", help="small shapes, two rounds: does it run?")
    options = parser.parse_args(arguments)
    options.free = options.free or options.threads > 1 or not hasattr(os, "sched_setaffinity")
    if options.quick:
        options.rounds, options.steps = 2, 1
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    about = machine()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    report: dict[str, Any] = {"machine": about, "rounds": options.rounds, "steps": options.steps, "cases": {}}
    for case in options.case:
        shape = replace(CASES[case], layers=2, time=32, batch=2) if options.quick else CASES[case]
        wanted = contestants(shape, options.dtype)
        if options.only:
            wanted = [c for c in wanted if any(part in c.name for part in options.only)]
        present = [c for c in wanted if installed(c.package)]
        print(f"\n{case}: {shape}, {options.rounds} rounds of {options.steps} steps, {options.threads} thread")
        results = measure(shape, present, options)
        print("\n".join([*table(results), *own_ratios(results)]))
        print_notes(present, [c for c in wanted if c not in present])
        report["cases"][case] = {"shape": asdict(shape), "results": [asdict(r) for r in results]}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def print_notes(present: Sequence[Contestant], absent: Sequence[Contestant]) -> None:
    for contestant in present:
        if contestant.note and not contestant.bf16:
            print(f"  {contestant.name}: {contestant.note}")
    for contestant in absent:
        print(f"  absent: {contestant.name} ({contestant.package} is not installed)")


if __name__ == "__main__":
    main()

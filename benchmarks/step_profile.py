"""Where a training step goes, and how far it is from its matrix products alone.

    python benchmarks/step_profile.py                                  the studies' shape, a minute
    python benchmarks/step_profile.py --placement normformer
    python benchmarks/step_profile.py --case causal deep --dtype fp32 bf16 -n 24

A step is forward, loss, backward, clipping and fused AdamW, as `step.py` has it, on one thread with memory kept
(`keep_freed_memory`), as `isograd train` has it. First the CPU time of each phase, medians over n steps without a
profiler. *Products alone* are the products that one step was seen to call, each on warm operands of its shapes, strides
and dtype and nothing else; steps and products in turn, one pair a round, the ratio
their quotient within a round (median, smallest to largest). Then torch's profiler over other steps, self CPU time of
operations by kind, as shares: it makes each call dearer, so a share is of the profiled step, and many small calls show
larger.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from contestants import BUILDERS, CASES, Shape

KINDS = (  # the first that is part of an operation's name
    ("products", ("addmm", "aten::mm", "bmm", "linear_pointwise", "baddbmm", "mkldnn")),
    ("attention", ("scaled_dot_product", "flash_attention")),
    ("softmax of the loss", ("softmax", "exp_", "scatter_add", "gather")),
    ("norms", ("layer_norm", "rms_norm")),
    ("activation", ("gelu", "relu", "silu")),
    ("optimizer", ("adamw", "adam")),
    ("clipping", ("norm", "clamp", "reciprocal", "foreach")),
    ("sums and copies", ("add", "mul", "copy", "cat", "sum", "zero", "fill", "clone")),
    ("views", ("view", "transpose", "reshape", "aten::t", "expand", "slice", "select", "as_strided", "unsqueeze")),
    ("backward's nodes", ("autograd::", "Backward")),
)


def parts(shape: Shape, placement: str, bf16: bool) -> dict[str, Callable[[], None]]:
    """The phases of a step, to be called in this order."""
    import torch

    torch.manual_seed(0)
    model, loss = BUILDERS["isograd"](shape, placement)
    parameters = list(model.train().parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    ids = torch.randint(4, shape.vocabulary, (shape.batch, shape.time))
    kept: dict[str, Any] = {}

    def forward() -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            kept["loss"] = loss({"input_ids": ids, "labels": ids})

    return {
        "forward and loss": forward,
        "backward": lambda: kept["loss"].backward(),
        "clipping": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0) and None,
        "optimizer": lambda: (optimizer.step(), optimizer.zero_grad())[1],
    }


def products(called: dict[str, Callable[[], None]]) -> list[Callable[[], object]]:
    """Each product that a step calls, alone."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[Any, ...]] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                bias = args[0] if func is torch.ops.aten.addmm.default else None
                seen.append((bias, *args[-2:]))
            return func(*args, **(kwargs or {}))

    with Seen():
        for call in called.values():
            call()
    drawn: dict[Any, Callable[[], object]] = {}
    return [drawn.setdefault(_signature(*one), _alone(*one)) for one in seen]


def _signature(*tensors: Any) -> tuple[Any, ...]:
    return tuple(t if t is None else (t.shape, t.stride(), t.dtype) for t in tensors)


def _alone(bias: Any, a: Any, b: Any) -> Callable[[], object]:
    """a b + bias."""
    import torch
    from torch.nn.functional import linear

    a, b = (torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).uniform_(-1, 1) for t in (a, b))
    bias = bias if bias is None or bias.ndim > 1 else torch.rand(bias.shape, dtype=bias.dtype)

    def product() -> object:
        with torch.no_grad():
            return linear(a, b.t(), bias)

    return product


def phases(called: dict[str, Callable[[], None]], steps: int) -> tuple[dict[str, float], list[float], list[float]]:
    """CPU milliseconds of each phase, medians; of steps; of products alone, one round after another."""
    alone, found = products(called), defaultdict[str, list[float]](list)
    both: tuple[list[float], list[float]] = ([], [])
    for step in range(steps + 3):
        times = {name: _timed([call]) for name, call in called.items()}
        only = _timed(alone)
        if step >= 3:
            for name, ms in times.items():
                found[name].append(ms)
            both[0].append(sum(times.values()))
            both[1].append(only)
    return {name: statistics.median(times) for name, times in found.items()}, *both


def _timed(calls: list[Callable[[], Any]]) -> float:
    began = time.process_time()
    for call in calls:
        call()
    return 1e3 * (time.process_time() - began)


def operations(called: dict[str, Callable[[], None]], steps: int) -> tuple[dict[str, float], int]:
    """Shares of self CPU time by kind, and operations called in a step."""
    from torch.profiler import ProfilerActivity, profile

    calls = list(called.values())
    for call in calls * 2:
        call()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for call in calls * steps:
            call()
    shares, counted = defaultdict[str, float](float), 0
    for event in found.key_averages():
        kind = next((kind for kind, names in KINDS if any(name in event.key for name in names)), "others")
        shares[kind] += event.self_cpu_time_total
        counted += event.count if event.key.startswith("aten::") else 0
    whole = sum(shares.values())
    return {kind: share / whole for kind, share in sorted(shares.items(), key=lambda one: -one[1])}, counted // steps


def report(case: str, placement: str, dtype: str, steps: int) -> None:
    shape = replace(CASES[case], vocabulary=175) if case == "study" else CASES[case]  # the embedded text's characters
    called = parts(shape, placement, dtype == "bf16")
    medians, whole, alone = phases(called, steps)
    ratios = [one / other for one, other in zip(whole, alone, strict=True)]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    print(f"{case}, {placement}, {dtype}: {statistics.median(whole):.1f} ms of CPU time a step, n = {steps}")
    print("  " + ", ".join(f"{name} {ms:.1f}" for name, ms in medians.items()))
    print(f"  products alone {statistics.median(alone):.1f} ms; a step is {spread} of them")
    shares, calls = operations(called, max(3, steps // 6))
    print(f"  {calls:,} operations a step; " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=["study"])
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--placement", default="pre-ln")
    parser.add_argument("-n", type=int, default=60, help="steps (default 60)")
    options = parser.parse_args()
    import torch

    from isograd.machine import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for case in options.case:
        for dtype in options.dtype:
            report(case, options.placement, dtype, options.n)


if __name__ == "__main__":
    main()

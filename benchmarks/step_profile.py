"""Where a step of the study shape goes: 12 layers, width 64, 4 heads, 16 x 32 tokens, one thread.

    python benchmarks/step_profile.py               a minute
    python benchmarks/step_profile.py --placement normformer

A step is forward, loss, backward, clipping and fused AdamW, as `step.py` has it. First the CPU time of each phase, the
median over n steps without a profiler; then torch's profiler over other steps, self CPU time of operations by kind, as
shares: it makes each call dearer, so a share is of the profiled step, and many small calls show larger than they are.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from contestants import BUILDERS, Shape

SHAPE = Shape(width=64, layers=12, heads=4, vocabulary=175, time=32, batch=16)
KINDS = (  # the first that is part of an operation's name
    ("products", ("addmm", "aten::mm", "bmm", "linear_pointwise", "baddbmm", "mkldnn")),
    ("attention", ("scaled_dot_product", "flash_attention", "softmax")),
    ("norms", ("layer_norm", "rms_norm")),
    ("activation", ("gelu", "relu", "silu")),
    ("optimizer", ("adamw", "adam")),
    ("clipping", ("norm", "clamp", "reciprocal", "foreach")),
    ("sums and copies", ("add", "mul", "copy", "cat", "sum", "zero", "fill", "clone")),
    ("views", ("view", "transpose", "reshape", "aten::t", "expand", "slice", "select", "as_strided", "unsqueeze")),
    ("backward's nodes", ("autograd::", "Backward")),
)


def parts(placement: str) -> dict[str, Callable[[], None]]:
    """The phases of a step, to be called in this order."""
    import torch

    torch.manual_seed(0)
    model, loss = BUILDERS["isograd"](SHAPE, placement)
    parameters = list(model.train().parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    ids = torch.randint(4, SHAPE.vocabulary, (SHAPE.batch, SHAPE.time))
    kept: dict[str, Any] = {}

    def forward() -> None:
        kept["loss"] = loss({"input_ids": ids, "labels": ids})

    return {
        "forward and loss": forward,
        "backward": lambda: kept["loss"].backward(),
        "clipping": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0) and None,
        "optimizer": lambda: (optimizer.step(), optimizer.zero_grad())[1],
    }


def phases(placement: str, steps: int) -> dict[str, float]:
    """CPU milliseconds of each phase, medians."""
    called, found = parts(placement), defaultdict[str, list[float]](list)
    for step in range(steps + 5):
        for name, call in called.items():
            began = time.process_time()
            call()
            if step >= 5:
                found[name].append(1e3 * (time.process_time() - began))
    return {name: statistics.median(times) for name, times in found.items()}


def operations(placement: str, steps: int) -> tuple[dict[str, float], int]:
    """Shares of self CPU time by kind, and operations called in a step."""
    from torch.profiler import ProfilerActivity, profile

    called = list(parts(placement).values())
    for call in called * 3:
        call()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for call in called * steps:
            call()
    shares, calls = defaultdict[str, float](float), 0
    for event in found.key_averages():
        kind = next((kind for kind, names in KINDS if any(name in event.key for name in names)), "others")
        shares[kind] += event.self_cpu_time_total
        calls += event.count if event.key.startswith("aten::") else 0
    whole = sum(shares.values())
    return {kind: share / whole for kind, share in sorted(shares.items(), key=lambda one: -one[1])}, calls // steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placement", default="pre-ln")
    parser.add_argument("-n", type=int, default=60, help="steps (default 60)")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found = phases(options.placement, options.n)
    print(f"{options.placement}: {sum(found.values()):.1f} ms of CPU time a step, n = {options.n}")
    print(", ".join(f"{name} {ms:.1f}" for name, ms in found.items()))
    shares, calls = operations(options.placement, max(5, options.n // 6))
    print(f"{calls:,} operations a step; " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


if __name__ == "__main__":
    main()

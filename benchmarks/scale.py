"""1.3 and 2.7 billion parameters on 8, 64 and 512 devices, without one: memory and exchange under FSDP2.

    python benchmarks/scale.py                     all cases, minutes each; writes docs/results/scale.md
    python benchmarks/scale.py --devices 8 --recipe normformer2021/clm-1.3b

Each case is a process: a fake process group of n devices, the recipe's model as fake tensors, sharded as accelerate
shards it (every layer, then the rest), one micro-batch forward and backward with checkpointing under torch's
`FSDPMemTracker`. What the collectives carry is counted on their way. Beside it stands the forecast of
`isograd train --dry-run`. Seconds are a model: arithmetic at 40 % of an H100's dense bf16 peak (989 TFLOP/s, NVIDIA's
data sheet), the exchange at 80 % of a link: NVLink 4 inside a machine of eight (450 GB/s in each direction, the same
sheet), 400 Gb/s InfiniBand for each device between machines (DGX H100's). FSDP2 overlaps the two: a step takes the
longer of both at least, and at most their sum.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs/results/scale.md"
RECIPES = ("normformer2021/clm-1.3b", "normformer2021/clm-2.7b")
DEVICES = (8, 64, 512)
PEAK, MFU, LINK, SHARE = 989e12, 0.4, {"inside": 450e9, "between": 50e9}, 0.8
SEQUENCES = 4  # at most, in a micro-batch of a device
GIB = 2**30


def planned(recipe: str, devices: int, extra: tuple[str, ...] = ()) -> Any:
    """The recipe with as many micro-batches as leave each device at most four sequences."""
    from isograd.train.recipe import load_run

    extra = ("model.attention_dropout=0", *extra)  # with it a CPU writes attention out, and a GPU does not
    run = load_run(Path(recipe), extra)
    accumulation = max(1, run.training.batch // (devices * SEQUENCES))
    return load_run(Path(recipe), [*extra, f"training.accumulation={accumulation}"])


def tracked(recipe: str, devices: int) -> dict[str, Any]:
    """Bytes by torch's tracker and on the wire, one micro-batch."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    from isograd.models import IsogradForCausalLM

    class Wire(TorchDispatchMode):
        """Bytes of what is gathered, and of what is scattered."""

        gathered = reduced = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(func)
            if "_allgather_base_" in name:
                self.gathered += args[0].nbytes
            elif "_reduce_scatter_base_" in name:
                self.reduced += args[1].nbytes
            return func(*args, **(kwargs or {}))

    run = planned(recipe, devices)
    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    mesh = init_device_mesh("cpu", (devices,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = IsogradForCausalLM(run.config()).train()
        model.gradient_checkpointing_enable()
        for part in (*model.model.layers, model):
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        ids = torch.zeros(run.micro_tokens(devices) // run.data.length, run.data.length, dtype=torch.long)
        tracker = FSDPMemTracker(model)
        tracker.track_inputs((ids,))
        with tracker, Wire() as wire:
            model(input_ids=ids, labels=ids).loss.backward()
        peak = {kind.name: count for kind, count in _snapshot(tracker).items() if hasattr(kind, "name")}
    dist.destroy_process_group()
    return {"peak": peak, "gathered": wire.gathered, "reduced": wire.reduced}


def _snapshot(tracker: Any) -> dict[Any, int]:
    (found,) = (parts for device, parts in tracker.get_tracker_snapshot("peak").items() if device.type == "cpu")
    return dict(found)


def case(recipe: str, devices: int) -> dict[str, Any]:
    from isograd.train.forecast.exchange import exchanged
    from isograd.train.forecast.forecast import flops_per_token, forecast

    began = time.perf_counter()
    run = planned(recipe, devices)
    found, config = forecast(run, devices), run.config()
    exchange = exchanged(run, config, devices)
    flop = flops_per_token(run, config) * 4 / 3 * run.tokens_per_update / devices  # the forward pass twice
    link = LINK["inside"] if devices <= 8 else LINK["between"]
    admin = forecast(planned(recipe, devices, ("model.placement=admin",)), devices).memory.calibration
    return {
        "recipe": recipe,
        "devices": devices,
        "parameters": found.parameters,
        "accumulation": run.training.accumulation,
        "memory": {**vars(found.memory), "total": found.memory.total},
        "exchange": vars(exchange),
        "compute_s": flop / (PEAK * MFU),
        "exchange_s": exchange.seconds(SHARE * link),
        "admin": admin,
        **tracked(recipe, devices),
        "seconds": time.perf_counter() - began,
    }


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Scale, on paper",
        "",
        "Written by `python benchmarks/scale.py`; no GPU was used, and none of the seconds is measured. "
        + " ".join((__doc__ or "").split("\n\n")[2].split()),
        "",
        "*forecast*: `isograd train --dry-run`, without the optimizer's state; *tracked*: the peak of torch's"
        " `FSDPMemTracker` over forward and backward of one micro-batch, likewise. Its fused attention and norms are a"
        " CPU's; dropout on attention is off. *exchange*: what a device receives in one update, by the formula of"
        " `forecast/exchange.py`; *wire*: counted on the collectives. *ADMIN*: what its calibration holds on the host"
        " before the first step.",
        "",
        "| recipe | devices | micro-batches | forecast GiB | tracked GiB | exchange GiB | wire GiB | arithmetic s |"
        " exchange s | step s | ADMIN GiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        memory, n, turns = row["memory"], row["devices"], row["accumulation"]
        ours = (memory["total"] - memory["optimizer"]) / GIB
        theirs = sum(row["peak"].values()) / GIB
        wire = (row["gathered"] + row["reduced"]) * turns * (n - 1) / n / GIB
        both = row["exchange"]["gathered"] + row["exchange"]["reduced"]
        times = (row["compute_s"], row["exchange_s"])
        lines.append(
            f"| {row['recipe'].rpartition('/')[2]} | {n} | {turns} | {ours:.2f} | {theirs:.2f} | {both / GIB:.1f} |"
            f" {wire:.1f} | {times[0]:.2f} | {times[1]:.2f} | {max(times):.2f} to {sum(times):.2f} |"
            f" {row['admin'] / GIB:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES))
    parser.add_argument("--devices", nargs="+", type=int, default=list(DEVICES))
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="rows are kept here, and not measured again")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(options.case[0], int(options.case[1]))))
        return
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for recipe in options.recipe:
        for devices in options.devices:
            if any((row["recipe"], row["devices"]) == (recipe, devices) for row in rows):
                continue
            command = [sys.executable, __file__, "--case", recipe, str(devices)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(rows[-1], flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows))
    if (options.recipe, options.devices) == (list(RECIPES), list(DEVICES)):
        PAGE.write_text(page(rows))
    print(page(rows))


if __name__ == "__main__":
    main()

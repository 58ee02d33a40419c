"""1.3 and 2.7 billion parameters on 8, 64 and 512 devices, without one: memory and exchange under FSDP2.

    python benchmarks/scale.py                     all cases, minutes each; writes docs/results/scale.md
    python benchmarks/scale.py --devices 8 --recipe normformer2021/clm-1.3b

Each case is a process: a fake process group of n devices, the recipe's model as fake tensors, sharded as accelerate
shards it (every layer, then the rest), one micro-batch forward and backward with checkpointing under torch's
`FSDPMemTracker`. What the collectives carry is counted on their way. Beside it stands the forecast of
`isograd train --dry-run`. Seconds are a model of the figures in the table; latency is left out. The exchange takes
S (n - 1) / (n B), B the bus bandwidth as nccl-tests defines it. FSDP2 overlaps it with the arithmetic: a step takes the
longer of both at least (at the fast B), and at most their sum (at the slow one).

    python benchmarks/scale.py --arithmetic        seconds and the cost of ADMIN and the probe, without the tracker
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs/results/scale.md"
RECIPES = ("normformer2021/clm-1.3b", "normformer2021/clm-2.7b")
DEVICES = (8, 64, 512)
ISSUES = "https://github.com/NVIDIA"
COPY = "https://www.dynasys.com.hk/blog/introducing-nvidia-hgx-h100-an-accelerated-server-platform-for-ai-and-high-performance-computing/"
GUIDE, SHEET = (
    "https://www.easymanua.ls/nvidia/dgx-h100/manual?p=19",
    "https://glennklockwood.com/garden/processors/h100",
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of the model, what it is, and where it was read."""

    value: float
    what: str
    kind: str  # data sheet, reported (measured by others) or assumption
    source: str = ""


FIGURES = {
    "peak": Figure(value=989e12, what="dense bf16 FLOP/s of an H100 SXM", kind="data sheet", source=SHEET),
    "mfu": Figure(value=0.4, what="share of it that a step reaches", kind="assumption"),
    "hbm": Figure(value=3.35e12, what="bytes/s of its memory", kind="data sheet", source=SHEET),
    "line": Figure(
        value=450e9, what="bytes/s of NVLink per device and direction (900 GB/s both)", kind="data sheet", source=COPY
    ),
    "inside": Figure(
        value=370e9,
        what="bus bandwidth inside a machine of eight, after some 20 % of protocol",
        kind="reported",
        source=f"{ISSUES}/nccl-tests/issues/212",
    ),
    "inside, slow": Figure(
        value=350e9, what="all-gather there (reduce-scatter: 360)", kind="reported", source=f"{ISSUES}/nccl/issues/1281"
    ),
    "ports": Figure(value=8, what="network ports of a machine, one for each device", kind="data sheet", source=GUIDE),
    "port": Figure(
        value=48e9,
        what="bytes/s of a 400 Gb/s port (50e9 of line rate); rings use all ports of a machine, so they add up",
        kind="reported",
        source=f"{ISSUES}/nccl-tests/issues/319",
    ),
    "between, slow": Figure(
        value=200e9,
        what="bus bandwidth of an all-gather of 2 GB over 256 H100",
        kind="reported",
        source=f"{ISSUES}/nccl/issues/1218",
    ),
    "host": Figure(value=0.5e12, what="float32 FLOP/s of a host's cores per device", kind="assumption"),
}


def value(name: str) -> float:
    return FIGURES[name].value


def bandwidths(devices: int) -> tuple[float, float]:
    """Bus bandwidth in bytes a second, fast and slow."""
    if devices <= 8:
        return value("inside"), value("inside, slow")
    return min(value("inside"), value("ports") * value("port")), value("between, slow")


SEQUENCES = 4  # at most, in a micro-batch of a device
GIB = 2**30


def planned(recipe: str, devices: int, extra: tuple[str, ...] = ()) -> Any:
    """The recipe with as many micro-batches as leave each device at most four sequences."""
    from isograd.lab.train.recipe import load_run

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


def calibration_cost(run: Any, devices: int) -> dict[str, float]:
    """ADMIN's profile: on the host before sharding, as `isograd train` runs it, or of a model that is sharded already.

    One forward pass of the first micro-batch without the head. Nothing but three numbers for each of two terms is
    exchanged at each sum (`all_gather_object`: the sizes of the messages, then the messages); a sharded model's layers
    are gathered once besides.
    """
    from isograd.lab.train.forecast.forecast import exchanged, flops_per_token, forecast

    config = run.config()
    head = 6 * run.predicted * config.vocab_size * config.hidden_size
    forward = (flops_per_token(run, config) - head) / 3 * run.micro_tokens(devices)
    gathered = exchanged(run, config, devices).gathered / 2 / run.training.accumulation
    return {
        "sums": sublayers(config),
        "collectives": 2 * sublayers(config),
        "host_bytes": forecast(run, devices).memory.calibration,
        "host_s": forward / value("host"),
        "gathered": gathered,
        "sharded_s": forward / (value("peak") * value("mfu")) + gathered / bandwidths(devices)[1],
    }


def probe_cost(run: Any, devices: int) -> dict[str, float]:
    """The probe in an update that it observes, on shards: a scalar of each last projection's gradient and two of its
    update are added up over the devices (their norms clipping has anyway), learned coefficients and norm weights
    gathered, the shards of the last projections copied.

    Activations are read at each sum, in every micro-batch and again where checkpointing computes a layer twice: of the
    stream 18 bytes an element (2 read, 4 written as float32; 4 read, 4 written as squares; 4 read), of each of the two
    terms at most 14 (2 read, 2 written with its coefficient; 2 read, 4 written as float32; 4 read).
    """
    from isograd.models import IsogradForCausalLM

    config, training = run.config(), run.training
    with torch_meta():
        model = IsogradForCausalLM(config)
    from isograd.diagnose.watch.probe import Probe

    probe = Probe(model)
    matrices = [watched.matrix for watched in probe.watched if watched.matrix is not None]
    coefficients = [p for named in probe._coefficients for p in named.values()]
    passes = training.accumulation * (2 if training.gradient_checkpointing else 1)
    elements = run.micro_tokens(devices) * config.hidden_size * len(probe.watched) * passes
    return {
        "scalars": 3 * len(matrices),
        "gathers": len(coefficients),
        "gathered": sum(p.numel() for p in coefficients) * 4 * (devices - 1) / devices,
        "kept_bytes": sum(m.numel() for m in matrices) * 4 / devices,
        "read_s": elements * (18 + 2 * 14) / value("hbm"),
    }


def torch_meta() -> Any:
    import torch

    return torch.device("meta")


def sublayers(config: Any) -> int:
    from isograd.placement import sites

    return sum(len(list(sites(config.depths(s)[0], s, config.depths(s)[1]))) for s in config.stacks())


def case(recipe: str, devices: int, track: bool = True) -> dict[str, Any]:
    from isograd.lab.train.forecast.forecast import exchanged, flops_per_token, forecast

    began = time.perf_counter()
    run = planned(recipe, devices)
    found, config = forecast(run, devices), run.config()
    exchange = exchanged(run, config, devices)
    flop = flops_per_token(run, config) * 4 / 3 * run.tokens_per_update / devices  # the forward pass twice
    fast, slow = bandwidths(devices)
    return {
        "recipe": recipe,
        "devices": devices,
        "parameters": found.parameters,
        "accumulation": run.training.accumulation,
        "memory": {**vars(found.memory), "total": found.memory.total},
        "exchange": vars(exchange),
        "compute_s": flop / (value("peak") * value("mfu")),
        "exchange_s": [exchange.seconds(fast), exchange.seconds(slow)],
        "steps": run.training.steps,
        "every": run.training.probe_every,
        "admin": calibration_cost(planned(recipe, devices, ("model.placement=admin",)), devices),
        "probe": probe_cost(run, devices),
        **(tracked(recipe, devices) if track else {}),
        "seconds": time.perf_counter() - began,
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The page: the model and its figures, memory and exchange as tracked, seconds, what ADMIN and the probe cost."""
    model = " ".join((__doc__ or "").split("\n\n")[2].split())
    parts = [
        ["# Scale, on paper"],
        [
            "Written by `python benchmarks/scale.py`; no GPU was used, and none of the seconds is measured. " + model,
            " NCCL: [bus bandwidth](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), by which an"
            " all-gather or a reduce-scatter of S bytes takes that time. *data sheet*: NVIDIA's figure, read in a copy;"
            " *reported*: measured by users, or given by NCCL's maintainers, in the thread.",
        ],
        figures(),
        [
            "*forecast*: `isograd train --dry-run`, without the optimizer's state; *tracked*: the peak of torch's"
            " `FSDPMemTracker` over forward and backward of one micro-batch, likewise. Its fused attention and norms"
            " are a CPU's; dropout on attention is off. *exchange*: what a device receives in one update, by the"
            " formula of `forecast/forecast.py`; *wire*: counted on the collectives."
        ],
        memory_table(rows),
        seconds_table(rows),
        ["## ADMIN's calibration"],
        [" ".join((calibration_cost.__doc__ or "").split()), " *share*: of a whole run, at its shortest step."],
        admin_table(rows),
        ["## The probe"],
        [
            " ".join((probe_cost.__doc__ or "").split()),
            " *step*: share of the shortest step that is observed; *run*: of all steps, with the recipe's"
            " `probe_every`. No latency is counted: each scalar is a collective that waits for its turn.",
        ],
        probe_table(rows),
    ]
    return "\n\n".join(("\n" if part[0].startswith("|") else "").join(part) for part in parts) + "\n"


def named(row: dict[str, Any]) -> str:
    return f"| {row['recipe'].rpartition('/')[2]} | {row['devices']} |"


def head(*columns: str) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]


def figures() -> list[str]:
    lines = head("figure", "what", "kind", "read at")
    for figure in FIGURES.values():
        lines.append(f"| {figure.value:.3g} | {figure.what} | {figure.kind} | {figure.source} |")
    return lines


def memory_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = head("recipe", "devices", "micro-batches", "forecast GiB", "tracked GiB", "exchange GiB", "wire GiB")
    for row in rows:
        memory, n, turns = row["memory"], row["devices"], row["accumulation"]
        ours = (memory["total"] - memory["optimizer"]) / GIB
        theirs = sum(row["peak"].values()) / GIB
        wire = (row["gathered"] + row["reduced"]) * turns * (n - 1) / n / GIB
        both = row["exchange"]["gathered"] + row["exchange"]["reduced"]
        lines.append(f"{named(row)} {turns} | {ours:.2f} | {theirs:.2f} | {both / GIB:.1f} | {wire:.1f} |")
    return lines


def seconds_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = head("recipe", "devices", "arithmetic s", "exchange s", "step s")
    for row in rows:
        compute, (fast, slow) = row["compute_s"], row["exchange_s"]
        step = f"{max(compute, fast):.2f} to {compute + slow:.2f}"
        lines.append(f"{named(row)} {compute:.2f} | {fast:.3f} to {slow:.3f} | {step} |")
    return lines


def shortest(row: dict[str, Any]) -> float:
    return float(max(row["compute_s"], row["exchange_s"][0]))


def admin_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = head("recipe", "devices", "sums", "collectives", "host GiB", "host s", "share", "gathered GiB", "sharded s")
    for row in rows:
        a = row["admin"]
        share = a["host_s"] / (row["steps"] * shortest(row))
        lines.append(
            f"{named(row)} {a['sums']} | {a['collectives']} | {a['host_bytes'] / GIB:.1f} | {a['host_s']:.0f} |"
            f" {share:.1e} | {a['gathered'] / GIB:.2f} | {a['sharded_s']:.2f} |"
        )
    return lines


def probe_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = head("recipe", "devices", "scalars", "gathers", "gathered MiB", "kept MiB", "reading s", "step", "run")
    for row in rows:
        p = row["probe"]
        share = p["read_s"] / shortest(row)
        lines.append(
            f"{named(row)} {p['scalars']} | {p['gathers']} | {p['gathered'] / 2**20:.2f} |"
            f" {p['kept_bytes'] / 2**20:.1f} | {p['read_s']:.3f} | {share:.1%} | {share / row['every']:.1e} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES))
    parser.add_argument("--devices", nargs="+", type=int, default=list(DEVICES))
    parser.add_argument("--arithmetic", action="store_true", help="print what needs no tracker")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="rows are kept here, and not measured again")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(options.case[0], int(options.case[1]))))
        return
    cases = [(recipe, devices) for recipe in options.recipe for devices in options.devices]
    if options.arithmetic:
        rows = [case(recipe, devices, track=False) for recipe, devices in cases]
        print("\n\n".join("\n".join(table(rows)) for table in (seconds_table, admin_table, probe_table)))
        return
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for recipe, devices in cases:
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

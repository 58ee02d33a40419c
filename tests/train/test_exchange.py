"""What FSDP2 exchanges, beside the bytes of its collectives on a process group that only counts."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from isograd.diagnose.calibrate import calibrate
from isograd.diagnose.watch.probe import Probe, whole
from isograd.lab.train.forecast.forecast import exchanged
from isograd.lab.train.run import Run
from isograd.models import IsogradForCausalLM
from tests.study.arms import called
from tests.train.recipes import small

DEVICES = 4


class Wire(TorchDispatchMode):
    gathered = reduced = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_allgather_base_" in str(func):
            self.gathered += args[0].nbytes
        elif "_reduce_scatter_base_" in str(func):
            self.reduced += args[1].nbytes
        return func(*args, **(kwargs or {}))


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("fake", rank=0, world_size=DEVICES, store=FakeStore())
    yield init_device_mesh("cpu", (DEVICES,))
    dist.destroy_process_group()


def sharded(**training: Any) -> Run:
    return small(model={"width": 32, "heads": 4, "layers": 3}, training={"fsdp": True, **training})


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import scale  # type: ignore[import-not-found]

    found: ModuleType = scale
    return found


class Collectives(TorchDispatchMode):
    """Those of DTensor, by their kind."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("_c10d_functional.all_"):
            self.of[name.split(".")[1]] += 1
        return func(*args, **(kwargs or {}))


def in_shards(run: Run, mesh: Any) -> IsogradForCausalLM:
    model = IsogradForCausalLM(run.config()).train()
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return model


def counted(run: Run, mesh: Any, again: bool = True) -> Wire:
    """A micro-batch, forward and backward; `again`: layers are freed after their forward pass, and gathered again."""
    dtype = torch.bfloat16 if run.training.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    model = IsogradForCausalLM(run.config()).train()
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    ids = torch.zeros(1, 8, dtype=torch.long)
    with Wire() as wire:
        model(input_ids=ids, labels=ids).loss.backward()
    return wire


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_device_receives(group: Any, precision: str) -> None:
    run = sharded(precision=precision)
    wire, found = counted(run, group), exchanged(run, run.config(), DEVICES)
    others = (DEVICES - 1) / DEVICES
    assert found.gathered == pytest.approx(wire.gathered * others, rel=1e-3)  # a shard is filled up to whole rows
    assert found.reduced == pytest.approx(wire.reduced * others, rel=1e-3)
    assert found.seconds(found.total / 2) == 2


def test_layers_that_stay_are_gathered_once(group: Any) -> None:
    """The negative control: the forecast is of layers that are freed."""
    run = sharded()
    wire = counted(run, group, again=False)
    assert exchanged(run, run.config(), DEVICES).gathered > 1.9 * wire.gathered * (DEVICES - 1) / DEVICES


def test_accumulation_and_one_device() -> None:
    once, twice = (exchanged(run, run.config(), DEVICES) for run in (sharded(), sharded(accumulation=2)))
    assert twice.total == 2 * once.total
    assert exchanged(sharded(), sharded().config(), 1).total == 0


def test_the_dry_run_has_a_line() -> None:
    words = ["training.fsdp=true", "training.precision=bf16", "model.layers=2", "--dry-run"]
    code, out, _ = called("train", *words, "--world-size", "4")
    assert code == 0 and "exchanged per update" in out
    code, out, _ = called("train", *words)
    assert code == 0 and "exchanged" not in out


def test_what_a_calibration_costs(group: Any, scale: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(model={"width": 32, "heads": 4, "layers": 3, "placement": "admin"}, training={"fsdp": True})
    found, calls = scale.calibration_cost(run, DEVICES), []

    def gather(parts: list[Any], own: Any) -> None:
        calls.append(own)
        parts[:] = [own] * DEVICES  # the fake group carries nothing

    monkeypatch.setattr(dist, "all_gather_object", gather)
    batch = {"input_ids": torch.zeros(run.micro_tokens(DEVICES) // run.data.length, run.data.length, dtype=torch.long)}
    with FlopCounterMode(display=False) as flops:
        calibrate(IsogradForCausalLM(run.config()), batch)
    tokens, width, inner = run.micro_tokens(DEVICES), 32, run.config().intermediate_size
    uncounted = 3 * tokens * (4 * width * run.data.length + 2 * (4 * width + inner + width))  # attention, and biases
    assert found["host_s"] * scale.value("host") == pytest.approx(flops.get_total_flops() + uncounted, rel=1e-6)
    model = in_shards(run, group)
    with Wire() as wire:
        skips = calibrate(model, batch)
    assert len(calls) == len(skips["decoder"]) == found["sums"] == found["collectives"] / 2
    assert wire.reduced == 0
    assert found["gathered"] == pytest.approx(wire.gathered * (DEVICES - 1) / DEVICES, rel=1e-2)


@pytest.mark.parametrize("observed", [True, False])
def test_what_the_probe_costs(group: Any, scale: ModuleType, observed: bool) -> None:
    run = small(model={"width": 32, "heads": 4, "layers": 3, "placement": "normformer"}, training={"fsdp": True})
    model, found = in_shards(run, group), scale.probe_cost(run, DEVICES)
    ids = torch.zeros(1, 8, dtype=torch.long)
    probe, optimizer = Probe(model), torch.optim.SGD(model.parameters(), lr=0.1)
    with Collectives() as seen, probe.step(1):
        model(input_ids=ids, labels=ids).loss.backward()
        norms = {p: whole(p.grad.norm()) for p in model.parameters() if p.grad is not None}  # what clipping needs
        before = Counter(seen.of)
        if observed:
            probe.read_gradients(norms)
            kept = sum(x.to_local().nbytes for x in probe._before.values())  # type: ignore[attr-defined]
            assert kept == found["kept_bytes"]
        optimizer.step()
    more = seen.of - before
    assert more["all_reduce"] == (found["scalars"] if observed else 0)
    assert before["all_gather_into_tensor"] == found["gathers"] > 0


def test_rings_use_every_port_of_a_machine(scale: ModuleType) -> None:
    assert scale.bandwidths(8) == (370e9, 350e9)
    assert scale.bandwidths(64) == (370e9, 200e9)  # 8 ports of 48e9 are more than NVLink carries
    assert all(figure.source or figure.kind == "assumption" for figure in scale.FIGURES.values())

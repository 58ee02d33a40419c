"""What FSDP2 exchanges, beside the bytes of its collectives on a process group that only counts."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from isograd.models import IsogradForCausalLM
from isograd.train.forecast.exchange import exchanged
from isograd.train.run import Run
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

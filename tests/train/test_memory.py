"""The forecast of memory and arithmetic against real tensors: exact where it says so, elsewhere within a factor."""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from isograd.diagnose.calibrate import calibrate
from isograd.errors import RecipeError
from isograd.lab.train.forecast.forecast import flops_per_token, forecast
from isograd.lab.train.forecast.memory import Memory, activations, memory, must_fit
from isograd.lab.train.optim import optimizer_of
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Model, Run
from isograd.models import IsogradForCausalLM
from isograd.placement import CATALOGUE, get, register
from isograd.placement.laws import sites
from tests.build import LATER, NAMES, ONE_PER_STREAM, few, in_turn
from tests.study.arms import refused
from tests.train.recipes import small, text_file

WITH_LAYERNORM = [name for name in NAMES if "rmsnorm" not in repr(get(name))]  # of RMSNorm a CPU keeps more
LENGTH = 320  # above attention's SHORT, below which a CPU forms bfloat16 products in float32


def shaped(placement: str = "pre-ln", **training: Any) -> Run:
    model = {key: training.pop(key) for key in [*training] if key in Model().__dict__}
    return run_from_dict(
        {
            "model": {"placement": placement, "layers": 3, "width": 64, "heads": 4, **model},
            "data": {"length": LENGTH},
            "training": {"batch": 1, "checkpoint_every": 0, **training},
        }
    )


def ids_of(run: Run) -> Tensor:
    return torch.randint(0, 256, (1, LENGTH), generator=torch.Generator().manual_seed(0))


def kept(network: nn.Module, call: Callable[[], Any]) -> int:
    """Bytes that autograd keeps for the backward pass of `call`, storages counted once, parameters not."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    held: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        x = x.detach()  # with its history an operation that keeps its own result would keep itself for ever
        if x.untyped_storage().data_ptr() not in own:
            held[x.untyped_storage().data_ptr()] = x  # held, so that no later tensor gets its place
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return sum(x.untyped_storage().nbytes() for x in held.values())


def ratio(run: Run) -> float:
    """Forecast of the activations over what a real tower keeps, the casts of its matrices with both."""
    network = IsogradForCausalLM(run.config()).train()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=run.training.precision == "bf16"):
        real = kept(network, lambda: network.model(ids_of(run)))
    copies = memory(run, network.config).copies
    return (activations(run, network.config, LENGTH) + copies) / real


@pytest.mark.parametrize("name", few(WITH_LAYERNORM, 2))
def test_activations(name: str) -> None:
    """In float32 nothing but the ids of the positions is missing."""
    assert ratio(shaped(name)) == pytest.approx(1.0, abs=0.002)


MORE_ON_A_CPU = (
    "sub-ln-bitnet",
    "ngpt",
    "attention-residuals",
)  # RMSNorm and division by a length are several operations there


@pytest.mark.parametrize("name", few([name for name in LATER if name not in MORE_ON_A_CPU], ONE_PER_STREAM))
def test_activations_of_the_later_entries(name: str) -> None:
    """Streams, gates, curves in place of norms and weights apart from them, as exactly."""
    assert ratio(shaped(name)) == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        ("denseformer", {"dilation": 2, "period": 3}),
        ("mhc", {"copies": 2, "iterations": 3}),
        ("value-residual", {"learned": True}),
    ],
)
def test_streams_with_other_numbers(entry: str, options: dict[str, Any], own_catalogue: None) -> None:
    register("other", replace(get(entry), stream=replace(get(entry).stream, **options)))
    assert ratio(shaped("other", layers=16)) == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize("name", ["mhc", "siamesenorm", "x0-scalars"])
def test_checkpointing_keeps_the_state(name: str) -> None:
    """All copies, or both streams, before each layer; of x_0 one for all layers."""
    run = shaped(name, gradient_checkpointing=True)
    network = IsogradForCausalLM(run.config()).train()
    enable = getattr(network, "activation_checkpointing_enable", None) or network.gradient_checkpointing_enable
    enable()
    real = kept(network, lambda: network.model(ids_of(run)))
    inside = max_layer(shaped(name))
    twice = LENGTH * 64 * 4  # what the largest layer is given may be counted with both
    assert 0.98 * real < activations(run, network.config, LENGTH) - inside < 1.02 * real + twice


def max_layer(run: Run) -> int:
    """What a layer in the middle keeps: that of a stack of one layer more, less that of the same without it."""
    three, four = (shaped(run.model.placement, layers=layers) for layers in (3, 4))
    return activations(four, four.config(), LENGTH) - activations(three, three.config(), LENGTH)


@in_turn("name, act", ["pre-ln", "normformer"], ["relu", "relu_squared", "swiglu", "gelu_tanh"])
def test_activations_of_every_feedforward(name: str, act: str) -> None:
    assert ratio(shaped(name, act=act)) == pytest.approx(1.0, abs=0.002)


class FusedRMSNorm(torch.autograd.Function):
    """As on a GPU: what was read, the weight and a number per row are kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd if weight is None else x * rstd * weight


class AsOnAGPU(TorchFunctionMode):
    """CUDA's autocast lets `layer_norm` and `rms_norm` read float32 (AT_FORALL_FP32 in ATen/autocast_mode.h)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (functional.layer_norm, functional.rms_norm):
            return func(*args, **kwargs)
        if torch.is_autocast_enabled("cpu"):
            args = [x.float() if isinstance(x, Tensor) else x for x in args]
            kwargs = {name: x.float() if isinstance(x, Tensor) else x for name, x in kwargs.items()}
        with torch.autocast("cpu", enabled=False):
            if func is functional.layer_norm:
                return func(*args, **kwargs)
            x, _, weight, eps = [*args, *[None] * (4 - len(args))]
            found: Tensor = FusedRMSNorm.apply(x, kwargs.get("weight", weight), kwargs.get("eps", eps))
            return found


INNER = ["normformer-resscale-qkv", "sub-ln-bitnet", "variance-gate", "qk-norm-heads", "qk-norm-free", "olmo2"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in INNER else pytest.mark.slow) for name in CATALOGUE if name != "ngpt"],
)
def test_activations_as_on_a_gpu(name: str) -> None:
    """Norms inside a branch too; nGPT's divisions by a length keep more than is counted, on any device."""
    with AsOnAGPU():
        assert 0.98 < ratio(shaped(name, precision="bf16")) < 1.01


@pytest.mark.parametrize("name", few(WITH_LAYERNORM, 4))
def test_activations_in_bfloat16(name: str) -> None:
    """A GPU's autocast lets a LayerNorm read float32 where a CPU's lets it read bfloat16: at most a quarter more."""
    residuals = [get(name).of(site) for site in sites(1)]
    plain = not any(residual.mid or residual.out or residual.projections for residual in residuals)
    assert 0.99 < ratio(shaped(name, precision="bf16")) < (1.01 if plain else 1.26)


@pytest.mark.parametrize("options", [{"norm": "rmsnorm"}, {"dropout": 0.1, "activation_dropout": 0.1}])
@pytest.mark.parametrize("name", ["pre-ln", "normformer-resscale"])
def test_what_a_cpu_keeps_more(name: str, options: dict[str, Any]) -> None:
    """A CPU's RMSNorm is several operations, and its dropout keeps a factor where a GPU's keeps a byte."""
    assert 0.75 < ratio(shaped(name, **options)) < 1.0


def test_the_foil_of_the_activations() -> None:
    """Another placement's, another width's, or a checkpointed model's forecast does not fit."""
    real = activations(run := shaped("normformer"), run.config(), LENGTH)
    for other in (shaped("pre-ln"), shaped("normformer", width=60), shaped("normformer", gradient_checkpointing=True)):
        assert abs(activations(other, other.config(), LENGTH) / real - 1) > 0.05


def test_checkpointing_keeps_the_stream() -> None:
    """Between the passes what each layer and the final norm read; the largest layer is there while it goes back."""
    run = shaped("normformer", gradient_checkpointing=True)
    network = IsogradForCausalLM(run.config()).train()
    enable = getattr(network, "activation_checkpointing_enable", None) or network.gradient_checkpointing_enable
    enable()
    real = kept(network, lambda: network.model(ids_of(run)))
    inside = activations(shaped("normformer", layers=1), shaped("normformer", layers=1).config(), LENGTH)
    stream = 3 * LENGTH * 64 * 4
    assert activations(run, network.config, LENGTH) == stream + inside
    assert real == pytest.approx(stream + LENGTH * (64 * 4 + 8), rel=0.01)


def test_the_loss_keeps_both_gradients_of_the_head() -> None:
    run = shaped()
    network, ids = IsogradForCausalLM(run.config()).train(), ids_of(run)
    whole = kept(network, lambda: network(ids, labels=ids).loss)
    tower = kept(network, lambda: network.model(ids))
    logits = LENGTH * 256 * 4
    assert memory(run, network.config).loss - logits == pytest.approx(whole - tower, rel=0.01)


class Peak(TorchDispatchMode):
    """The most bytes of activations that are there at one time, storages counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[int] = Counter()
        self.live = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in (t for t in tree_leaves(made) if isinstance(t, Tensor)):
            storage = tensor.untyped_storage()
            where, size = storage.data_ptr(), storage.nbytes()
            if where in given and not self.held[where]:
                continue  # a parameter's own
            self.live += 0 if self.held[where] else size
            self.held[where] += 1
            weakref.finalize(tensor, self.drop, where, size)
        self.most = max(self.most, self.live)
        return made

    def drop(self, where: int, size: int) -> None:
        self.held[where] -= 1
        self.live -= 0 if self.held[where] else size


@pytest.mark.parametrize("act", ["gelu", "swiglu"])
def test_a_calibration_holds_one_sublayer_at_a_time(act: str) -> None:
    """The micro-batch of a pass, not the batch; no logits; less than a step keeps, whatever the depth."""
    run = shaped("admin", act=act, batch=4, accumulation=4)
    network = IsogradForCausalLM(run.config())
    with Peak() as peak:
        calibrate(network, {"input_ids": ids_of(run)})
    expected = memory(run, network.config)
    assert expected.calibration - expected.parameters == pytest.approx(peak.most, rel=0.2)
    whole = shaped("admin", act=act, batch=4)
    assert memory(whole, network.config).calibration - expected.parameters > 3 * peak.most
    assert not memory(shaped(), shaped().config()).calibration


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layers", [1, 24])
def test_a_calibration_fits_where_a_step_does(layers: int, precision: str) -> None:
    for checkpointing in (False, True):
        run = shaped("admin", layers=layers, precision=precision, gradient_checkpointing=checkpointing, batch=8)
        found = memory(run, run.config())
        assert 0 < found.calibration < found.total


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(name, {}) for name in ("adam", "adamw", "sgd", "radam", "radam-original", "lamb")]
    + [("sgd", {"betas": (0.0, 0.9)})],
)
def test_parameters_gradients_and_state_are_those_of_real_tensors(optimizer: str, options: dict[str, Any]) -> None:
    """Every byte, but for the counters of steps that torch keeps one of per tensor."""
    run = shaped("normformer-resscale", optimizer=optimizer, **options)
    network, ids = IsogradForCausalLM(run.config()), ids_of(run)
    kind, arguments = optimizer_of(run.training)
    made = kind(network.parameters(), **arguments)
    network(ids, labels=ids).loss.backward()
    made.step()
    expected = memory(run, network.config)
    state = [t for of in made.state.values() for t in of.values() if isinstance(t, Tensor) and t.ndim]
    assert expected.parameters == sum(p.nbytes for p in network.parameters())
    assert expected.gradients == sum(p.grad.nbytes for p in network.parameters() if p.grad is not None)
    assert expected.optimizer == sum(t.nbytes for t in state)
    assert expected.static == expected.parameters + expected.gradients + expected.optimizer


def test_devices_share_what_is_sharded() -> None:
    def on(devices: int, **training: Any) -> Memory:
        run = shaped(batch=8, **training)
        return memory(run, run.config(), devices)

    whole = on(1)
    assert on(4).static == whole.static and on(4).buckets == whole.gradients and not whole.buckets
    assert on(4, fsdp=True).static == pytest.approx(whole.static / 4, rel=1e-3) and not on(4, fsdp=True).buckets
    assert on(4).activations == whole.activations / 4
    assert on(1, accumulation=4).activations == whole.activations / 4
    with pytest.raises(RecipeError, match="batch=8 does not divide by 3 processes"):
        on(3)


@pytest.mark.parametrize("act", ["gelu", "swiglu"])
@pytest.mark.parametrize("name", ["pre-ln", "normformer"])
def test_arithmetic_is_what_torch_counts(name: str, act: str) -> None:
    """torch counts the products of a training step with attention written out: three times two per entry and token."""
    run = shaped(name, act=act)
    network, ids = IsogradForCausalLM(run.config()), ids_of(run)
    network.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        network(ids, output_logits=True).logits.sum().backward()
    assert flops_per_token(run, network.config) * LENGTH == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_recipe_that_cannot_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly as many bytes as there are do fit, one less does not; nothing is built and nothing written."""
    run = small()
    needed = memory(run, run.config()).static
    must_fit(run, run.config(), 1, needed, "this machine")
    with pytest.raises(RecipeError, match=r"a recipe that cannot fit: its .* this machine has 0.0 GiB"):
        must_fit(run, run.config(), 1, needed - 1, "this machine")
    sharded = small(training={"fsdp": True})
    must_fit(sharded, sharded.config(), 2, needed / 2 + 8, "this GPU")
    with pytest.raises(RecipeError, match=r"or more devices$"):
        must_fit(sharded, sharded.config(), 1, needed / 2 + 8, "this GPU")
    monkeypatch.chdir(tmp_path)
    vast = ("model.width=400000", "model.layers=1000", f"data.source={text_file()}")
    assert "cannot fit: its 1,920,0" in refused("train", *vast)
    assert not [*tmp_path.iterdir()]


def test_rates_are_those_of_the_updates() -> None:
    run = shaped(steps=100, warmup=10, decay="polynomial", lr=0.5, first="fairseq")
    found = dict(forecast(run).rates)
    assert [*found] == [1, 10, 55, 100]
    assert found[1] == 0.0 and found[10] == pytest.approx(0.45) and 0 < found[100] < 0.01
    assert found[55] == pytest.approx(0.5 * 46 / 90)

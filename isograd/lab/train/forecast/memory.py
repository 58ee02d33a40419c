"""What one device holds while a run trains, in bytes, from its recipe alone.

    static = parameters + gradients + optimizer state      exact; a share of it on each device with training.fsdp
    then   = copies in the precision of the products + buckets + activations + loss      an estimate

Parameters are counted on the meta device, and so are activations: what autograd keeps for the backward pass of one
micro-batch with the operations of a GPU, where attention, norms and dropout are fused. Parameters, gradients and
optimizer state are float32 in every precision (mixed precision multiplies in the other one), so none of the three
shrinks with bf16.

A calibration (ADMIN's profile) comes before all that, and goes: the parameters and one float32 pass over the first
micro-batch without gradients. It is less than a step takes, unless parameters are sharded: it runs on the host, then.
"""

import copy
import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from isograd.errors import RecipeError
from isograd.lab.train.run import Run, Training, sharded_by
from isograd.lab.train.tasks import TASKS
from isograd.machine import memory_limit
from isograd.models import IsogradConfig, IsogradForSeq2SeqLM, IsogradPreTrainedModel
from isograd.transformer.feedforward import GATED
from isograd.transformer.loss import rows_at_once
from isograd.transformer.parameters import roles
from isograd.transformer.stack import Layer

MemoryPart = Literal["embedding", "attention", "feed-forward", "head", "norms and coefficients"]
PARTS: tuple[MemoryPart, ...] = ("embedding", "attention", "feed-forward", "head", "norms and coefficients")
_PART_OF: dict[str, MemoryPart] = {
    **dict.fromkeys(("query", "key", "value", "attn_out"), PARTS[1]),
    **dict.fromkeys(("ffn_in", "ffn_out"), PARTS[2]),
    **dict.fromkeys(("head", "dense"), PARTS[3]),
    **dict.fromkeys(("norm", "coefficient", "shortcut"), PARTS[4]),
    "embed": PARTS[0],
}
FLOAT = 4  # bytes of float32
MOMENTS = {"adam": 2, "adamw": 2, "sgd": 1, "radam": 2, "radam-original": 2, "lamb": 2, "muon": 2}  # per parameter


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device.

    `copies` are the matrices in the precision of the products, or where parameters are sharded the layers that are
    gathered at one time; `buckets` are what gradients are exchanged through.
    """

    parameters: int
    gradients: int
    optimizer: int
    copies: int
    buckets: int
    activations: int
    loss: int
    calibration: int = 0  # before the first step; of the host, where parameters are sharded

    @property
    def static(self) -> int:
        """What is there at every moment of a run, whatever the batch."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """All of a step together, though not all is there at the same moment."""
        return sum(asdict(self).values()) - self.calibration


def parameters(config: IsogradConfig, task: str) -> dict[MemoryPart, int]:
    """Trainable numbers by what they do, of the task's model on the meta device; a tied table counts as embedding.

    The vocabulary is the one that the configuration asks for; data may have fewer tokens.

    Raises:
        RecipeError: a tensor of it would be larger than any can be.
    """
    model = _model(_described(config), task)
    role_of, count = roles(model), dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        count[_PART_OF[role_of[name]]] += parameter.numel()
    return count


def _described(config: IsogradConfig) -> str:
    return json.dumps(config.to_diff_dict(), sort_keys=True)


@lru_cache(maxsize=16)
def _model(config: str, task: str) -> IsogradPreTrainedModel:
    """On the meta device, once per shape: a study checks hundreds of runs."""
    try:
        with torch.device("meta"):
            return TASKS[task].empty(IsogradConfig(**json.loads(config)))
    except (RuntimeError, TypeError) as error:  # torch's, of a tensor that has more bytes than an address can say
        if "overflow" not in str(error).lower():
            raise
        raise RecipeError("no tensor can be as large as this model's; make it narrower") from error


def memory(run: Run, config: IsogradConfig, devices: int = 1) -> Memory:
    """What each of `devices` holds.

    Raises:
        RecipeError: the batch does not divide by so many devices.
    """
    count = sum(parameters(config, run.task).values())
    tokens = run.micro_tokens(devices)
    return Memory(
        **_static(run.training, count, devices),
        copies=_copies(run, config),
        buckets=0 if run.training.fsdp or devices == 1 else FLOAT * count,  # DDP's are as large as the gradients
        activations=activations(run, config, tokens),
        loss=_loss(run, config, tokens),
        calibration=_calibration(config, count, tokens) if config.calibrated_stacks() else 0,
    )


def _calibration(config: IsogradConfig, count: int, tokens: int) -> int:
    """All parameters, and what one sublayer holds at a time: x, what it makes of it, and the two terms of the sum.

    In the feed-forward that is what goes into the activation and what comes out; in attention q, k, v and the result.
    A decoder's attention over an encoder reads that one's stream, which stays.
    """
    width, inner = config.hidden_size, config.intermediate_size
    queries, groups = (n * config.head_size for n in (config.num_attention_heads, config.key_value_heads))
    inside = max((3 if config.hidden_act in GATED else 2) * inner, 2 * queries + 2 * groups)
    memory = width * (len(config.stacks()) - 1)
    return FLOAT * (count + tokens * (3 * width + inside + memory))


def _static(training: Training, count: int, devices: int) -> dict[str, int]:
    part = FLOAT * (-(-count // devices) if training.fsdp else count)
    return {"parameters": part, "gradients": part, "optimizer": part * _moments(training)}


def _moments(training: Training) -> int:
    return 0 if training.optimizer == "sgd" and not training.betas[0] else MOMENTS[training.optimizer]


def must_fit(run: Run, config: IsogradConfig, devices: int, available: float, where: str) -> None:
    """Refuse a recipe whose parameters, gradients and optimizer state alone are more than `available` bytes.

    Raises:
        RecipeError: what it needs, what there is, and what to do.
    """
    try:
        count = sum(parameters(config, run.task).values())
    except RecipeError:
        raise
    except Exception:  # of a placement's own law: a model that cannot be built is the run's outcome, and written there
        return
    needed = sum(_static(run.training, count, devices).values())
    if needed > available:
        spread = "more devices" if sharded_by(run.training) else "shards on several GPUs (training.fsdp=true)"
        raise RecipeError(
            f"a recipe that cannot fit: its {count:,} parameters need {needed / 2**30:,.1f} GiB on each device with"
            f" gradients and optimizer state, and {where} has {available / 2**30:,.1f} GiB; take a smaller"
            f" model.width, model.layers or vocabulary, or {spread}"
        )


def available_memory() -> tuple[float, str]:
    """Bytes of the device that a run here would use, and what it is called."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory, "this GPU"
    return min(psutil.virtual_memory().total, memory_limit()), "this machine"


def activations(run: Run, config: IsogradConfig, tokens: int) -> int:
    """What is kept for the backward pass outside the loss, beside the matrices in the precision of the products.

    With gradient checkpointing that is the state before each layer, and everything inside the largest layer.
    """
    places = min(run.places, config.max_position_embeddings)  # of a fine-tuning there may be too few, which data say
    rows = max(1, tokens // places)
    found = _kept(_described(config), run.task, rows, places, product_bytes(run.training), run.training.fsdp)
    layers = max(found.layers) + found.carried if run.training.gradient_checkpointing else sum(found.layers)
    return round((found.ends + layers) * tokens / (rows * places))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes that autograd keeps of one pass.

    Attributes:
        layers: of each layer, all stacks.
        carried: of the states that the layers are given, each tensor once.
        ends: outside the layers.
    """

    layers: tuple[int, ...]
    carried: int
    ends: int


@lru_cache(maxsize=256)
def _kept(config: str, task: str, rows: int, places: int, narrow: int, whole: bool) -> Kept:
    """Of the model on the meta device; `whole`: its parameters are in the precision of the products too."""
    model = _model(config, task)
    if whole and narrow < FLOAT:
        model = copy.deepcopy(model).bfloat16()
    ids = torch.zeros(rows, places, dtype=torch.long, device="meta")
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow < FLOAT)
    with torch.enable_grad(), autocast, _Counter(model) as counter:
        if isinstance(model, IsogradForSeq2SeqLM):
            model.decoder(ids, encoder_hidden_states=model.encoder(ids)[0])
        else:
            model.model(ids)
    return counter.found()


class _Counter(TorchFunctionMode):
    """Counts what autograd keeps of the forward passes inside, as on a GPU: tensors of the meta device have no values.

    There attention, norms and dropout are one operation each, autocast casts for products, and `layer_norm` and
    `rms_norm` read float32 (AT_FORALL_FP32 in ATen/autocast_mode.h). The autocast of the CPU says whether it is on.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.own = {p.untyped_storage()._cdata for p in model.parameters()}
        self.held: dict[int, Any] = {}  # storages by address; held, so that no other gets it
        self.states: dict[int, Any] = {}  # likewise, those that layers are given
        self.casts: dict[int, Tensor] = {}  # of parameters
        self.layers: list[int] = []
        self._before = 0
        self._hooks = ExitStack()
        for layer in filter(lambda module: isinstance(module, Layer), model.modules()):
            for hook in (layer.register_forward_pre_hook(self._begins), layer.register_forward_hook(self._ends)):
                self._hooks.callback(hook.remove)

    def __enter__(self) -> "_Counter":
        super().__enter__()
        self._hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda x: x))
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def found(self) -> Kept:
        return Kept(layers=tuple(self.layers), carried=_sum(self.states), ends=_sum(self.held) - sum(self.layers))

    def _keep(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        if storage._cdata not in self.own:
            self.held[storage._cdata] = storage

    def _begins(self, layer: nn.Module, given: tuple[Any, ...]) -> None:
        self._before = _sum(self.held)
        x, _, *more = given  # the second is what cross-attention reads
        self.states |= {t.untyped_storage()._cdata: t.untyped_storage() for t in (x, *more)}

    def _ends(self, *_: Any) -> None:
        self.layers.append(_sum(self.held) - self._before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return torch.native_dropout(args[0], kwargs["p"], kwargs["training"])[0]
        if func in (functional.layer_norm, functional.rms_norm):
            args, kwargs = self._cast(torch.float32, args, kwargs)
            return _fused_norm(*args, **kwargs) if func is functional.rms_norm else func(*args, **kwargs)
        if func in _PRODUCTS:
            args, kwargs = self._cast(torch.bfloat16, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            return _Fused.apply(torch.empty_like(args[0].transpose(1, 2)).transpose(1, 2), True, *args[:3])
        return func(*args, **kwargs)

    def _cast(self, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
        """What autocast makes of what an operation reads; a parameter is cast once."""
        if not torch.is_autocast_enabled("cpu"):
            return args, kwargs
        return tree_map_only(Tensor, lambda x: self._as(x, dtype), (args, kwargs))

    def _as(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.dtype == dtype or not x.is_floating_point():
            return x
        if not isinstance(x, nn.Parameter):
            return x.to(dtype)
        if id(x) not in self.casts:
            self.casts[id(x)] = x.to(dtype)
            self.own.add(self.casts[id(x)].untyped_storage()._cdata)
        return self.casts[id(x)]


_PRODUCTS = (
    functional.linear,
    functional.scaled_dot_product_attention,
    torch.matmul,
    Tensor.matmul,
    Tensor.__matmul__,
)


class _Fused(torch.autograd.Function):
    """An operation that keeps what it read, and a number per row."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, keeps_result: bool, *read: Tensor | None) -> Tensor:
        rows = made.new_empty(made.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(*read, rows, *([made] if keeps_result else []))
        return made


def _fused_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    made: Tensor = _Fused.apply(torch.empty_like(x), False, x, weight)
    return made


def _sum(storages: Mapping[int, Any]) -> int:
    return sum(storage.nbytes() for storage in storages.values())


def product_bytes(training: Training) -> int:
    """Bytes of one number in a product of matrices."""
    return FLOAT if training.precision == "fp32" else 2


def _copies(run: Run, config: IsogradConfig) -> int:
    """Autocast casts every matrix once.

    On shards two layers and the tables are gathered, and FSDP2 has as many gradients whole.
    """
    narrow, parts = product_bytes(run.training), parameters(config, run.task)
    layers = parts["attention"] + parts["feed-forward"]
    gathered = 2 * layers // sum(config.depths(stack)[0] for stack in config.stacks())
    gathered += config.vocab_size * config.hidden_size
    if run.training.fsdp:
        return 2 * narrow * gathered
    return 0 if narrow == FLOAT else narrow * layers


def _loss(run: Run, config: IsogradConfig, tokens: int) -> int:
    """The chunked loss keeps both gradients of the head and what it reads; one chunk's logits stand beside them."""
    if not run.predicted:
        return 0
    rows, width, narrow = config.vocab_size, config.hidden_size, product_bytes(run.training)
    predicted = math.ceil(tokens * run.predicted)
    cast = 0 if narrow == FLOAT else rows * width * narrow
    logits = min(loss_chunk(config), predicted) * rows * (FLOAT if narrow == FLOAT else FLOAT + 2 * narrow)
    return (2 * predicted + rows) * width * FLOAT + cast + logits


def loss_chunk(config: IsogradConfig) -> int:
    """Rows of the loss taken at a time by the device that a run here would use."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return config.loss_chunk or rows_at_once(config.vocab_size, device)

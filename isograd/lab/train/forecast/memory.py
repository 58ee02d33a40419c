"""What one device holds while a run trains, in bytes, from its recipe alone.

    static = parameters + gradients + optimizer state      exact; a share of it on each device with training.fsdp
    then   = copies in the precision of the products + buckets + activations + loss      an estimate

Parameters are counted on the meta device. Activations are what autograd keeps for the backward pass with fused
attention on a GPU, summed over the operations of each sublayer: on the meta device attention is not fused, and a CPU's
norms and dropout keep more. What a stream other than the plain one keeps is counted on its own modules (`streams.py`
beside this file). Parameters, gradients and optimizer state are float32 in every precision (mixed precision multiplies
in the other one), so none of the three shrinks with bf16.

A calibration (ADMIN's profile) comes before all that, and goes: the parameters and one float32 pass over the first
micro-batch without gradients. It is less than a step takes, unless parameters are sharded: it runs on the host, then.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal

import psutil
import torch

from isograd.errors import RecipeError
from isograd.lab.train.forecast.streams import Kept, stream_kept
from isograd.lab.train.run import Run, Training, sharded_by
from isograd.lab.train.tasks import TASKS
from isograd.machine import memory_limit
from isograd.models import IsogradConfig
from isograd.placement import Norm, Residual, Site, Stack, sites
from isograd.placement.formula import Learned
from isograd.transformer.feedforward import GATED
from isograd.transformer.loss import rows_at_once
from isograd.transformer.parameters import roles

Part = Literal["embedding", "attention", "feed-forward", "head", "norms and coefficients"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "feed-forward", "head", "norms and coefficients")
_PART_OF: dict[str, Part] = {
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


def parameters(config: IsogradConfig, task: str) -> dict[Part, int]:
    """Trainable numbers by what they do, of the task's model on the meta device; a tied table counts as embedding.

    The vocabulary is the one that the configuration asks for; data may have fewer tokens.

    Raises:
        RecipeError: a tensor of it would be larger than any can be.
    """
    return dict(_parameters(json.dumps(config.to_diff_dict(), sort_keys=True), task))


@lru_cache(maxsize=16)
def _parameters(config: str, task: str) -> Mapping[Part, int]:
    """Once per shape: a study checks hundreds of runs."""
    try:
        with torch.device("meta"):
            model = TASKS[task].empty(IsogradConfig(**json.loads(config)))
    except (RuntimeError, TypeError) as error:  # torch's, of a tensor that has more bytes than an address can say
        if "overflow" not in str(error).lower():
            raise
        raise RecipeError("no tensor can be as large as this model's; make it narrower") from error
    role_of, count = roles(model), dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        count[_PART_OF[role_of[name]]] += parameter.numel()
    return count


def memory(run: Run, config: IsogradConfig, devices: int = 1) -> Memory:
    """What each of `devices` holds.

    Raises:
        RecipeError: the batch does not divide by so many devices.
    """
    count = sum(parameters(config, run.task).values())
    share = -(-count // devices) if run.training.fsdp else count
    tokens = run.micro_tokens(devices)
    return Memory(
        **_static(run.training, share),
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
    queries, groups = _attention_widths(config)
    inside = max((3 if config.hidden_act in GATED else 2) * inner, 2 * queries + 2 * groups)
    memory = width * (len(config.stacks()) - 1)
    return FLOAT * (count + tokens * (3 * width + inside + memory))


def _static(training: Training, share: int) -> dict[str, int]:
    part = FLOAT * share
    return {"parameters": part, "gradients": part, "optimizer": part * _moments(training)}


def _moments(training: Training) -> int:
    return 0 if training.optimizer == "sgd" and not training.betas[0] else MOMENTS[training.optimizer]


def must_fit(run: Run, config: IsogradConfig, devices: int, available: float, where: str) -> None:
    """Refuse a recipe whose parameters, gradients and optimizer state alone are more than `available` bytes.

    Raises:
        RecipeError: what it needs, what there is, and what to do.
    """
    try:
        needed = memory(run, config, devices).static
    except RecipeError:
        raise
    except Exception:  # of a placement's own law: a model that cannot be built is the run's outcome, and written there
        return
    if needed > available:
        count = sum(parameters(config, run.task).values())
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
    """What is kept for the backward pass outside the loss.

    With gradient checkpointing that is the stream before each layer, and everything inside the largest layer.
    """
    width, every = config.hidden_size, _layers(run, config)
    streams = {stack: _stream(run.training, config, stack) for stack in config.stacks()}
    stream = width * stream_bytes(run.training)
    layers = sum(every)
    if run.training.gradient_checkpointing:
        plain = sum(config.depths(stack)[0] * stream for stack, kept in streams.items() if kept is None)
        layers = max(every) + plain + sum(sum(kept.carried) for kept in streams.values() if kept)
    ends = sum(_normed(config, norm, width, stream_bytes(run.training)) for norm in _ends(config))
    ends += _normed(config, Norm() if config.embedding_norm else None, width, FLOAT)
    ends += width if config.embedding_dropout else 0
    return tokens * (layers + len(config.stacks()) * ends + sum(kept.ends for kept in streams.values() if kept))


def _ends(config: IsogradConfig) -> tuple[Norm | None, ...]:
    return config.entry().first, config.entry().final


def _stream(training: Training, config: IsogradConfig, stack: Stack) -> Kept | None:
    narrow, carried = (
        torch.float32 if size == FLOAT else torch.bfloat16 for size in (product_bytes(training), stream_bytes(training))
    )
    return stream_kept(config, stack, narrow, carried)


def stream_bytes(training: Training) -> int:
    """Bytes of one feature of the residual stream: float32 under autocast, the lower precision on shards."""
    return product_bytes(training) if sharded_by(training) else FLOAT


def product_bytes(training: Training) -> int:
    """Bytes of one number in a product of matrices."""
    return FLOAT if training.precision == "fp32" else 2


def _layers(run: Run, config: IsogradConfig) -> list[int]:
    """Bytes per token of every layer, all stacks."""
    found: dict[tuple[str, int], int] = {}
    for stack in config.stacks():
        for site in sites(config.depths(stack)[0], stack, config.depths(stack)[1]):
            place = stack, site.layer
            found[place] = found.get(place, 0) + _sublayer(run.training, config, config.entry().at(site), site)
        if kept := _stream(run.training, config, stack):
            for layer, more in enumerate(kept.layers, 1):
                found[stack, layer] += more
    return list(found.values())


def _sublayer(training: Training, config: IsogradConfig, residual: Residual, site: Site) -> int:
    """Bytes per token that autograd keeps of one sublayer."""
    width, narrow, stream = config.hidden_size, product_bytes(training), stream_bytes(training)
    kept = _feedforward(training, config, residual) if site.kind == "ffn" else _attention(training, config, residual)
    kept += sum(_normed(config, norm, width, stream) for norm in (residual.pre, residual.post))
    kept += _normed(config, residual.out, width, narrow)
    kept += width if config.hidden_dropout else 0
    shared = narrow == FLOAT or (residual.pre is not None and stream == FLOAT)  # x is kept anyway, to be read or normed
    if isinstance(residual.skip, Learned) and not shared:
        kept += width * stream
    if isinstance(residual.scale, Learned):  # what a LayerNorm wrote is float32, as it read
        kept += width * (FLOAT if _is_fused(config, residual.out, "layernorm") else narrow)
    return kept


def _attention_widths(config: IsogradConfig) -> tuple[int, int]:
    """Features of all queries, and of all keys."""
    return config.num_attention_heads * config.head_size, config.key_value_heads * config.head_size


def _attention(training: Training, config: IsogradConfig, residual: Residual) -> int:
    width, narrow = config.hidden_size, product_bytes(training)
    queries, groups = _attention_widths(config)
    reads = FLOAT if narrow == FLOAT else (4 if residual.gate else 3) * narrow  # autocast casts once for each matrix
    kept = width * reads + 2 * (queries + groups) * narrow  # q and the result, k and v
    kept += FLOAT * config.num_attention_heads  # its normaliser
    if residual.mid or residual.head_scale or residual.gate:
        kept += queries * narrow  # what W_O reads is no longer the result itself
    if residual.mid and narrow == FLOAT and not residual.head_scale:
        kept -= queries * narrow  # what the norm reads is
    if residual.gate:  # its sigmoid, a number for each feature or each head
        kept += narrow * (queries if residual.gate.per == "element" else config.num_attention_heads)
    if residual.projections:
        over = residual.projections.over
        rows = 1 if over == "width" else config.num_attention_heads
        for role in residual.projections.of:
            features = queries if role == "query" else groups
            kept += _normed(config, residual.projections.norm, features, narrow, rows, fused=over != "heads")
    return kept + _normed(config, residual.mid, queries, narrow)


def _feedforward(training: Training, config: IsogradConfig, residual: Residual) -> int:
    width, inner, narrow = config.hidden_size, config.intermediate_size, product_bytes(training)
    into = 2 if config.hidden_act in GATED and narrow < FLOAT else 1
    kept = width * narrow * into + inner * narrow  # what W_1 and W_2 read
    apart = residual.mid is not None and narrow < FLOAT  # of relu only its result is kept, which W_2 may read
    plain = int(apart or config.activation_dropout > 0) if config.hidden_act == "relu" else 1
    inside = 3 if config.hidden_act in GATED else plain
    kept += inner * narrow * inside + (inner if config.activation_dropout else 0)
    norms = (residual.projections.norm if residual.projections else None, residual.mid)
    return kept + sum(_normed(config, norm, inner, narrow) for norm in norms)


def _normed(
    config: IsogradConfig, norm: Norm | None, features: int, reads: int, rows: int = 1, fused: bool = True
) -> int:
    """A norm keeps what it read, and the statistics of its rows; under a GPU's autocast it reads float32.

    A weight apart from the norm's own operation keeps what was normalized, too; a curve in place of a norm what it
    read, its result, and erf its argument.
    """
    if norm is None:
        return 0
    kind = _kind(config, norm)
    if kind in ("dyt", "derf"):
        return features * reads * (2 if kind == "dyt" else 3)
    if kind == "none":
        return features * reads * norm.affine
    fused = fused and _is_fused(config, norm, kind)
    reads = FLOAT if kind in ("layernorm", "rmsnorm") else reads
    weighed = features * reads * (norm.affine and not fused)
    return features * reads + weighed + rows * FLOAT * (1 + (kind == "layernorm"))


def _kind(config: IsogradConfig, norm: Norm) -> str:
    return config.norm if norm.kind == "model" else norm.kind


def _is_fused(config: IsogradConfig, norm: Norm | None, kind: str) -> bool:
    """Whether it is torch's operation of that kind, weight included."""
    if norm is None or _kind(config, norm) != kind or kind == "l2" or norm.centered:
        return False
    return (norm.scale, norm.init) == (1.0, 1.0)


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

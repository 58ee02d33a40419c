"""What a run will take, before a tensor exists: parameters, memory, tokens, arithmetic, the rates of its updates."""

from dataclasses import dataclass
from typing import Any

from isograd.lab.train.forecast.memory import PARTS, Memory, MemoryPart, memory, parameters, product_bytes
from isograd.lab.train.optim import schedule_of
from isograd.lab.train.run import Run
from isograd.models import IsogradConfig


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A run in numbers.

    Attributes:
        parts: parameters by what they do.
        memory: bytes on each of `devices`.
        steps: updates; where a recipe counts epochs, at most.
        tokens_per_update: all devices together; of a translation, those of the larger side at most.
        flops: multiplications and additions of the whole training, 6 per matrix entry and token and 12 per layer,
            feature and pair of places for the attention's products (Kaplan et al. 2020; Chowdhery et al. 2022,
            appendix B); what gradient checkpointing computes twice is counted once.
        rates: (update, rate) at the turns of the schedule; empty where it counts epochs of data not yet read.
    """

    run: Run
    config: IsogradConfig
    devices: int
    parts: dict[MemoryPart, int]
    memory: Memory
    tokens_per_update: int
    flops: float
    rates: list[tuple[int, float]]

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def non_embedding(self) -> int:
        """Without tables: of tokens, of positions, and of a head of its own."""
        c = self.config
        table = 0 if c.tie_word_embeddings or not self.run.predicted else c.vocab_size * c.hidden_size
        return self.parameters - self.parts["embedding"] - table

    @property
    def steps(self) -> int:
        return self.run.training.steps

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_update

    def as_dict(self) -> dict[str, Any]:
        """Plain data; memory in bytes."""
        m = self.memory
        return {
            "parameters": self.parameters,
            "parts": {part: self.parts[part] for part in PARTS},
            "non_embedding": self.non_embedding,
            "vocabulary": self.config.vocab_size,
            "devices": self.devices,
            "memory": {**vars(m), "static": m.static, "total": m.total},
            "tokens_per_update": self.tokens_per_update,
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_per_parameter": self.tokens / self.parameters,
            "flops": self.flops,
            "rates": [{"step": step, "lr": rate} for step, rate in self.rates],
        }


def forecast(run: Run, devices: int = 1) -> Forecast:
    """The forecast of a run on so many devices.

    Raises:
        RecipeError: what training it would raise: a shape that no model has, a batch that does not divide.
    """
    config = run.config()
    per_update = run.tokens_per_update
    return Forecast(
        run=run,
        config=config,
        devices=devices,
        parts=parameters(config, run.task),
        memory=memory(run, config, devices),
        tokens_per_update=per_update,
        flops=flops_per_token(run, config) * per_update * run.training.steps,
        rates=rates(run),
    )


def flops_per_token(run: Run, config: IsogradConfig) -> float:
    """Forward and backward; of a translation, for one token on each side of sentences that fill its limit."""
    parts = parameters(config, run.task)
    total = 6.0 * (parts["attention"] + parts["feed-forward"])
    for stack in config.stacks():
        layers, other = config.depths(stack)
        attentions = 2 if stack == "decoder" and other else 1
        total += layers * attentions * 12 * config.num_attention_heads * config.head_size * run.places
    return total + 6 * run.predicted * config.vocab_size * config.hidden_size


def rates(run: Run) -> list[tuple[int, float]]:
    """The rate in the first update, at the end of the warm-up, halfway from there, and in the last update."""
    t = run.training
    if t.epochs and (t.decay_at or run.counts_rows):  # whose `steps` is but an upper bound
        return []
    schedule = schedule_of(t)
    peak = max(1, t.warmup)
    turns = {1, peak, (peak + t.steps) // 2, t.steps, *([t.decay_at] if t.decay_at else [])}
    return [(step, t.lr * schedule(step)) for step in sorted(turns) if 1 <= step <= t.steps]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Bytes that one device receives in one update with FSDP2.

    Each layer is gathered before its forward and its backward pass, its gradients are scattered:

        received by a device, per micro-batch = (n - 1) / n * P * (2 g + r)

    P parameters, n devices, g bytes of a parameter as it is gathered, r of a gradient as it is reduced: both those of
    the products (accelerate's policy). It is the volume of ring collectives (NCCL's PERFORMANCE.md: all-gather and
    reduce-scatter move (n - 1) / n of the whole through each device). Gradients are taken to be reduced in every
    micro-batch.
    """

    gathered: int
    reduced: int

    @property
    def total(self) -> int:
        return self.gathered + self.reduced

    def seconds(self, bandwidth: float) -> float:
        """At so many bytes a second in one direction, latency left out."""
        return self.total / bandwidth


def exchanged(run: Run, config: IsogradConfig, devices: int) -> Exchange:
    """Of a run with training.fsdp; nothing on one device."""
    count = sum(parameters(config, run.task).values())
    whole = count * product_bytes(run.training) * run.training.accumulation
    each = whole * (devices - 1) // devices
    return Exchange(gathered=2 * each, reduced=each)

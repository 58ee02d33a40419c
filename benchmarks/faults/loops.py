"""Training loops: a healthy one, mistakes in it (a method each), and healthy ones that look unusual.

A mistake overrides one method of `Loop`, as it would stand in a user's script; corrected, the method is `Loop`'s again.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from benchmarks.faults.base import TIME, VOCABULARY, Base, Edit, batch, build, logits_of

STEPS, BREAK, ROWS = 240, 120, 4
CAUSAL = ("mini_llama", "torch_encoder", "nano_gpt", "hf_llama")


LOOP_CAUSES = {
    "zero-grad": "gradients are added to those of the steps before",
    "same-batch": "one batch is trained on again and again",
    "labels-seen": "labels are tokens that the model is given",
    "labels-misaligned": "labels are not the next tokens of their inputs",
    "rate-spike": "the learning rate jumps",
    "lr-high": "the learning rate is far too high",
    "lr-zero": "the learning rate is 0, or nearly",
    "optimizer-of-another-model": "the optimizer holds another model's parameters",
    "optimizer-lacks-parameters": "the optimizer does not hold all parameters",
    "no-step": "the optimizer makes no step",
    "frozen": "a layer does not require gradients",
    "gradient-cut": "no gradient reaches the stack",
    "empty-batch": "a batch has no labels: its mean loss is 0 / 0",
    "overflow": "gradients overflow in half precision",
    "loss-sum": "the loss is summed over tokens where a mean is meant",
    "weight-decay-high": "weight decay is stronger than learning",
    "sign": "the loss is maximized",
    "optimizer-eps": "Adam's eps is larger than the gradients",
    "clip": "gradients are clipped to nothing",
    "data": "the data are noise from some step on",
    "weights-lost": "weights are drawn anew at a restart",
    "collapse": "depth, norms on the sums, and no warm-up",
}


class Loop:
    """Adam, 10 steps of warm-up, then a constant rate, on batches of four sequences."""

    cause: ClassVar[str] = ""
    on: ClassVar[tuple[str, ...]] = CAUSAL
    steps: ClassVar[int] = STEPS
    edits: ClassVar[dict[str, tuple[Edit, ...]]] = {}

    def __init__(self, base: Base, seed: int = 0) -> None:
        self.base, self.seed = base, seed
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.model = self.build()
        self.model.train()
        self.optimizer = self.make_optimizer()
        for group in self.optimizer.param_groups:
            group["whole"] = group["lr"]

    @classmethod
    def name(cls) -> str:
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("-")

    def build(self) -> nn.Module:
        return build(self.base, self.edits.get(self.base.name, ()), self.seed)

    def make_optimizer(self) -> Optimizer:
        return AdamW(self.model.parameters(), lr=self.base.rate, weight_decay=0.01, fused=True)

    def batch(self, step: int) -> dict[str, Tensor]:
        """`input_ids` and `labels`, the latter shifted already: what the place is to predict."""
        given = batch(self.base, self.generator, ROWS)
        return {"input_ids": given["inputs"][0], "labels": given["labels"]}

    def loss(self, given: dict[str, Tensor], step: int) -> Tensor:
        logits = logits_of(self.model(given["input_ids"]))
        return F.cross_entropy(logits.flatten(0, -2), given["labels"].flatten())

    def factor(self, step: int) -> float:
        """Of the learning rate."""
        return min(1.0, step / 10)

    def backward(self, loss: Tensor, step: int) -> None:
        loss.backward()

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def update(self, step: int) -> None:
        self.optimizer.step()

    def zero(self) -> None:
        self.optimizer.zero_grad()

    def run(self, watch: Any, until: Callable[[], bool] = lambda: False) -> list[float]:
        """The losses; `watch` sees each step where its page tells a user to call it. It ends early `until` says so."""
        losses = []
        for step in range(1, self.steps + 1):
            for group in self.optimizer.param_groups:
                group["lr"] = group["whole"] * self.factor(step)
            given = self.batch(step)
            loss = self.loss(given, step)
            self.backward(loss, step)
            if watch is not None:
                watch.step(loss, batch=(given["input_ids"], given["labels"]))
            self.clip()
            self.update(step)
            self.zero()
            losses.append(float(loss.detach()))
            if until() or (not math.isfinite(losses[-1]) and step > BREAK + 20):
                break
        return losses


# Mistakes.


class GradientsNeverZeroed(Loop):
    cause = "zero-grad"

    def zero(self) -> None: ...


class SameBatchAgain(Loop):
    cause = "same-batch"

    def batch(self, step: int) -> dict[str, Tensor]:
        self.generator.manual_seed(7)  # next(iter(loader)), with the loader's seed
        return super().batch(step)


class LabelsNotShifted(Loop):
    cause = "labels-seen"

    def batch(self, step: int) -> dict[str, Tensor]:
        given = super().batch(step)
        return {**given, "labels": given["input_ids"]}


class LabelsShiftedBack(Loop):
    cause = "labels-seen"

    def batch(self, step: int) -> dict[str, Tensor]:
        ids = super().batch(step)["input_ids"]
        return {"input_ids": ids, "labels": torch.cat([ids[:, :1], ids[:, :-1]], dim=1)}


class LabelsOfOtherSequences(Loop):
    cause = "labels-misaligned"

    def batch(self, step: int) -> dict[str, Tensor]:
        given = super().batch(step)
        return {**given, "labels": given["labels"].roll(1, dims=0)}


class LabelsShiftedTooFar(Loop):
    cause = "labels-misaligned"

    def batch(self, step: int) -> dict[str, Tensor]:
        given = super().batch(step)
        return {**given, "labels": given["labels"].roll(-9, dims=1)}


class RateBurst(Loop):
    cause = "rate-spike"

    def factor(self, step: int) -> float:
        return 60.0 if BREAK <= step < BREAK + 4 else super().factor(step)


class RateTooHigh(Loop):
    cause = "lr-high"

    def factor(self, step: int) -> float:
        return 60.0 * super().factor(step)


class RateStaysZero(Loop):
    cause = "lr-zero"

    def factor(self, step: int) -> float:
        return 0.0  # a warm-up whose scheduler is never stepped


class RateStaysAtTheFirstOfTheWarmup(Loop):
    cause = "lr-zero"

    def factor(self, step: int) -> float:
        return 1 / 2000


class RateDecayedTooEarly(Loop):
    cause = "lr-zero"

    def factor(self, step: int) -> float:
        return max(0.0, 1 - step / 25)  # stepped per micro-batch


class OptimizerOfAnotherModel(Loop):
    cause = "optimizer-of-another-model"

    def make_optimizer(self) -> Optimizer:
        return AdamW(self.build().parameters(), lr=self.base.rate)


class HalfTheModelNotInTheOptimizer(Loop):
    cause = "optimizer-lacks-parameters"

    def make_optimizer(self) -> Optimizer:
        stack = f"{self.base.stack}."
        lower = [f"{stack}{i}." for i in range(self.base.layers // 2, self.base.layers)]
        named = [p for name, p in self.model.named_parameters() if not name.startswith(tuple(lower))]
        return AdamW(named, lr=self.base.rate)


class StepForgotten(Loop):
    cause = "no-step"

    def update(self, step: int) -> None: ...


class OneLayerFrozen(Loop):
    cause = "frozen"

    def build(self) -> nn.Module:
        model = super().build()
        model.get_submodule(f"{self.base.stack}.1").requires_grad_(False)
        return model


class StackDetachedFromTheHead(Loop):
    cause = "gradient-cut"
    on = ("mini_llama", "torch_encoder", "nano_gpt")
    edits: ClassVar[dict[str, tuple[Edit, ...]]] = {
        "mini_llama": (("x = self.norm(x)", "x = self.norm(x.detach())"),),
        "torch_encoder": (("self.decoder(x)", "self.decoder(x.detach())"),),
        "nano_gpt": (("x = self.ln_f(x)", "x = self.ln_f(x.detach())"),),
    }


class ABatchWithoutLabels(Loop):
    cause = "empty-batch"

    def batch(self, step: int) -> dict[str, Tensor]:
        given = super().batch(step)
        return {**given, "labels": torch.full_like(given["labels"], -100)} if step == BREAK else given


class HalfPrecisionOverflow(Loop):
    cause = "overflow"

    def backward(self, loss: Tensor, step: int) -> None:
        """Gradients in float16 under a fixed scale that is too large from some step on."""
        scale = 2.0 ** (10 if step < BREAK else 30)
        (loss * scale).backward()
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad = p.grad.half().float() / scale


class LossSummed(Loop):
    cause = "loss-sum"

    def make_optimizer(self) -> Optimizer:
        return SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, given: dict[str, Tensor], step: int) -> Tensor:
        return super().loss(given, step) * (given["labels"] != -100).sum()

    def clip(self) -> None: ...


class DecayTooHigh(Loop):
    cause = "weight-decay-high"

    def make_optimizer(self) -> Optimizer:
        return AdamW(self.model.parameters(), lr=self.base.rate, weight_decay=30.0, fused=True)


class SignTurned(Loop):
    cause = "sign"

    def backward(self, loss: Tensor, step: int) -> None:
        (-loss).backward()


class EpsOfOne(Loop):
    cause = "optimizer-eps"

    def make_optimizer(self) -> Optimizer:
        return AdamW(self.model.parameters(), lr=self.base.rate, eps=10.0, fused=True)


class ClippedToNothing(Loop):
    cause = "clip"

    def make_optimizer(self) -> Optimizer:
        return SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-5)


class BrokenDataLater(Loop):
    cause = "data"

    def batch(self, step: int) -> dict[str, Tensor]:
        given = super().batch(step)
        if step < BREAK:
            return given
        noise = torch.randint(3, VOCABULARY, (ROWS, TIME + 1), generator=self.generator)
        return {"input_ids": noise[:, :-1], "labels": noise[:, 1:]}


class RestartWithoutTheCheckpoint(Loop):
    cause = "weights-lost"

    def batch(self, step: int) -> dict[str, Tensor]:
        if step == BREAK:
            self.model.load_state_dict(build(self.base, seed=self.seed + 1).state_dict())
        return super().batch(step)


class CollapseWithoutWarmup(Loop):
    """Many layers under norms on the sums, at the whole rate from the first step."""

    cause = "collapse"
    on = ("torch_encoder", "nano_gpt", "isograd_lm")
    steps = 160
    edits: ClassVar[dict[str, tuple[Edit, ...]]] = {
        "torch_encoder": (
            (", norm_first=True", ", norm_first=False"),
            ("nlayers, dropout = 64, 64, 4, 4, 0.0", "nlayers, dropout = 64, 64, 4, 18, 0.0"),
        ),
        "nano_gpt": (
            ("x = x + self.attn(self.ln_1(x))", "x = self.ln_1(x + self.attn(x))"),
            ("x = x + self.mlp(self.ln_2(x))", "x = self.ln_2(x + self.mlp(x))"),
            (
                "VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 64, 64, 4, 6, 32",
                "VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 64, 64, 4, 18, 32",
            ),
        ),
        "isograd_lm": (('placement="pre-ln"', 'placement="post-ln"'), ("LAYERS = 6", "LAYERS = 18")),
    }

    def factor(self, step: int) -> float:
        return 1.0


MISTAKES: tuple[type[Loop], ...] = (
    GradientsNeverZeroed,
    SameBatchAgain,
    LabelsNotShifted,
    LabelsShiftedBack,
    LabelsOfOtherSequences,
    LabelsShiftedTooFar,
    RateBurst,
    RateTooHigh,
    RateStaysZero,
    RateStaysAtTheFirstOfTheWarmup,
    RateDecayedTooEarly,
    OptimizerOfAnotherModel,
    HalfTheModelNotInTheOptimizer,
    StepForgotten,
    OneLayerFrozen,
    StackDetachedFromTheHead,
    ABatchWithoutLabels,
    HalfPrecisionOverflow,
    LossSummed,
    DecayTooHigh,
    SignTurned,
    EpsOfOne,
    ClippedToNothing,
    BrokenDataLater,
    RestartWithoutTheCheckpoint,
    CollapseWithoutWarmup,
)


# Healthy loops.


class Cosine(Loop):
    def factor(self, step: int) -> float:
        return super().factor(step) * 0.5 * (1 + math.cos(math.pi * step / self.steps))


class LinearToZero(Loop):
    def factor(self, step: int) -> float:
        return super().factor(step) * (1 - step / (self.steps + 1))


class WarmupStableDecay(Loop):
    def factor(self, step: int) -> float:
        return super().factor(step) * min(1.0, (self.steps + 1 - step) / 50)


class WarmRestarts(Loop):
    def factor(self, step: int) -> float:
        return 0.05 + 0.5 * (1 + math.cos(math.pi * (step % 80) / 80))


class LongWarmup(Loop):
    def factor(self, step: int) -> float:
        return step / self.steps


class Momentum(Loop):
    def make_optimizer(self) -> Optimizer:
        return SGD(self.model.parameters(), lr=0.2, momentum=0.9)


class RootMeanSquare(Loop):
    def make_optimizer(self) -> Optimizer:
        return RMSprop(self.model.parameters(), lr=self.base.rate / 3)


class AdamOfTheSecondMomentsShort(Loop):
    def make_optimizer(self) -> Optimizer:
        return Adam(self.model.parameters(), lr=self.base.rate, betas=(0.9, 0.95), fused=True)


class TwoSequences(Loop):
    def batch(self, step: int) -> dict[str, Tensor]:
        given = batch(self.base, self.generator, 2)
        return {"input_ids": given["inputs"][0], "labels": given["labels"]}


class LabelSmoothing(Loop):
    def loss(self, given: dict[str, Tensor], step: int) -> Tensor:
        logits = logits_of(self.model(given["input_ids"]))
        return F.cross_entropy(logits.flatten(0, -2), given["labels"].flatten(), label_smoothing=0.1)


class FineTuningOnOtherText(Loop):
    """Other statistics from some step on, as after a change to the data of interest; the loss rises and falls again."""

    def batch(self, step: int) -> dict[str, Tensor]:
        given = super().batch(step)
        if step < BREAK:
            return given
        turned = torch.cat([torch.arange(3), torch.arange(3, VOCABULARY).flip(0)])
        return {
            "input_ids": turned[given["input_ids"]],
            "labels": torch.where(given["labels"] < 0, -100, turned[given["labels"].clamp(min=0)]),
        }


class LongerSequencesLater(Loop):
    def batch(self, step: int) -> dict[str, Tensor]:
        return {name: ids[:, : 8 if step < 80 else TIME] for name, ids in super().batch(step).items()}


class SmallRate(Loop):
    def factor(self, step: int) -> float:
        return 0.1 * super().factor(step)


class SmallClip(Loop):
    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)


class Accumulation(Loop):
    """Two micro-batches a step; the loss that the watch gets is the last one's."""

    def backward(self, loss: Tensor, step: int) -> None:
        (loss / 2).backward()
        (super().loss(super().batch(step), step) / 2).backward()


HEALTHY: tuple[type[Loop], ...] = (
    Loop,
    Cosine,
    LinearToZero,
    WarmupStableDecay,
    WarmRestarts,
    LongWarmup,
    Momentum,
    RootMeanSquare,
    AdamOfTheSecondMomentsShort,
    TwoSequences,
    LabelSmoothing,
    FineTuningOnOtherText,
    LongerSequencesLater,
    SmallRate,
    SmallClip,
    Accumulation,
)

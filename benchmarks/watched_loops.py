# ruff: noqa: E501  (a row of the tables is a line)
"""What `isograd.watch` reports of broken loops and of healthy ones, in plain PyTorch, on models that are none of ours.

    python benchmarks/watched_loops.py                      every loop, on both models; some four minutes
    python benchmarks/watched_loops.py --part held-out      the loops that no threshold was chosen on
    python benchmarks/watched_loops.py --only same-batch --model handwritten
    python benchmarks/watched_loops.py --fine-tunes         rates at which trained weights are trained on; ten minutes

A loop is that of docs/watch.md with one thing changed: in `BROKEN` something that keeps a model from training (the signal
that has to come beside it), in `HEALTHY` something unusual that does not. Loops are parted by a hash of their name, before
any threshold was chosen. Text: the one that every Python carries, characters; 4 layers of width 48, 300 steps.
"""

import argparse
import copy
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import isograd
from isograd.lab.data import load_corpus

WIDTH, LAYERS, HEADS, TIME, BATCH, STEPS = 48, 4, 4, 32, 16, 300


class Handwritten(nn.Module):
    """A GPT as people write it: pre-norm, learned positions, a head of its own."""

    def __init__(self, vocabulary: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.causal, self.cut, self.blow = True, False, False
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(TIME, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, self.causal)
            x = x.detach() if self.cut and i == 1 else x
            x = x * 1e30 if self.blow and i == 2 else x
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class OfTorch(nn.Module):
    """torch's own encoder layers with a causal mask, and dropout."""

    def __init__(self, vocabulary: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.causal, self.cut, self.blow = True, False, False
        self.embed, self.position = nn.Embedding(vocabulary, WIDTH), nn.Parameter(0.02 * torch.randn(TIME, WIDTH))
        one = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(one, layers, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.lm_head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * math.sqrt(WIDTH) + self.position[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        if self.cut:
            x = self.encoder.layers[1](self.encoder.layers[0](x, mask), mask).detach()
            return self.lm_head(self.encoder.norm(self.encoder.layers[3](self.encoder.layers[2](x, mask), mask)))
        if self.blow:
            x = x * 1e30
        return self.lm_head(self.encoder(x, mask=mask))


MODELS: dict[str, Callable[..., nn.Module]] = {"handwritten": Handwritten, "of-torch": OfTorch}


@dataclass(kw_only=True)
class Loop:
    """A training loop, and what is changed in it.

    Attributes:
        begin: called with the loop before the first step.
        batch: called with the loop, the step and the batch; gives the batch.
        every: called with the loop and the step before the forward pass.
    """

    name: str
    model_name: str
    steps: int = STEPS
    lr: float = 1e-3
    batch_size: int = BATCH
    zero: bool | str = True
    stepping: Callable[[int], bool] = lambda step: True
    clip: float = 1.0
    smoothing: float = 0.0
    begin: Callable[["Loop"], None] = lambda loop: None
    batch: Callable[["Loop", int, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda loop, step, x, y: (x, y)
    every: Callable[["Loop", int], None] = lambda loop, step: None
    accumulation: int = 1
    layers: int = LAYERS
    model: Any = None
    optimizer: Any = None
    schedule: Any = None
    kept: dict[str, Any] = field(default_factory=dict)

    def run(self, ids: Tensor, vocabulary: int) -> tuple[list[dict[str, Any]], float]:
        """The warnings, and the mean of the last twenty losses."""
        torch.manual_seed(0)
        self.model = MODELS[self.model_name](vocabulary, self.layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.lr)
        self.begin(self)
        watch = isograd.watch(self.model)
        losses = []
        for step in range(1, self.steps + 1):
            self.every(self, step)
            parts = []
            for part in range(self.accumulation):
                x, y = self.batch(self, step, *sample(ids, self.batch_size, step * self.accumulation + part))
                logits = self.model(x)
                loss = functional.cross_entropy(
                    logits.flatten(0, 1), y.flatten(), label_smoothing=self.smoothing, ignore_index=-100
                )
                (loss / self.accumulation).backward()
                parts.append(loss.detach())
            loss = torch.stack(parts).mean()
            watch.step(loss, batch=(x, y))
            losses.append(float(loss))
            if self.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            if self.stepping(step):
                self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            if self.zero:
                self.optimizer.zero_grad(set_to_none=self.zero != "in place")
        watch.close()
        return watch.warnings, sum(losses[-20:]) / 20


def sample(ids: Tensor, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    places = torch.randint(len(ids) - TIME - 2, (batch,), generator=torch.Generator().manual_seed(seed))
    rows = torch.stack([ids[p : p + TIME + 1] for p in places])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _set(**attributes: Any) -> Callable[[Loop], None]:
    def begin(loop: Loop) -> None:
        for name, value in attributes.items():
            setattr(loop.model, name, value)

    return begin


def _layers(loop: Loop) -> nn.ModuleList:
    return loop.model.blocks if hasattr(loop.model, "blocks") else loop.model.encoder.layers


def _other_parameters(loop: Loop) -> None:
    copy = MODELS[loop.model_name](loop.model.lm_head.out_features if hasattr(loop.model, "lm_head") else 97)
    loop.optimizer = torch.optim.AdamW(copy.parameters(), loop.lr)


def _only_some(loop: Loop) -> None:
    out = {id(p) for layer in _layers(loop)[1:3] for p in layer.parameters()}
    loop.optimizer = torch.optim.AdamW([p for p in loop.model.parameters() if id(p) not in out], loop.lr)


def _frozen(*which: int) -> Callable[[Loop], None]:
    def begin(loop: Loop) -> None:
        for i in which:
            _layers(loop)[i].requires_grad_(False)

    return begin


def _rate(factor: Callable[[int], float]) -> Callable[[Loop, int], None]:
    def every(loop: Loop, step: int) -> None:
        for group in loop.optimizer.param_groups:
            group["lr"] = loop.lr * factor(step)

    return every


def _kept(loop: Loop, step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return loop.kept.setdefault("batch", (x, y))


def _dead(loop: Loop) -> None:
    """One layer's output projections lie on a path that is multiplied by zero."""
    layer = _layers(loop)[1]
    for p in layer.parameters():
        p.register_hook(torch.zeros_like)


BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "same-batch": ("same-batch", {"batch": _kept}),
    "same-batch-from-reseeding": ("same-batch", {"batch": lambda loop, s, x, y: sample(loop.kept["ids"], BATCH, 7)}),
    "no-optimizer-step": ("updates", {"stepping": lambda step: False}),
    "optimizer-of-a-copy": ("updates", {"begin": _other_parameters}),
    "lr-zero": ("updates", {"every": _rate(lambda step: 0.0)}),
    "optimizer-stops": ("updates", {"stepping": lambda step: step < 100}),
    "optimizer-without-two-layers": ("frozen", {"begin": _only_some}),
    "frozen-in-the-middle": ("frozen", {"begin": _frozen(1, 2)}),
    "frozen-last": ("frozen", {"begin": _frozen(3)}),
    "detached": ("gradient", {"begin": _set(cut=True)}),
    "dead-layer": ("gradient", {"begin": _dead}),
    "zero-grad-missing": ("zero-grad", {"zero": False}),
    "zero-grad-missing-no-clip": ("zero-grad", {"zero": False, "clip": 0.0}),
    "not-causal": ("leak", {"begin": _set(causal=False)}),
    "labels-not-shifted": ("low", {"batch": lambda loop, s, x, y: (x, x)}),
    "labels-previous": ("labels", {"batch": lambda loop, s, x, y: (y, x)}),
    "labels-after-next": ("labels", {"batch": lambda loop, s, x, y: (x[:, :-1], y[:, 1:])}),
    "labels-of-other-rows": ("labels", {"batch": lambda loop, s, x, y: (x, y.roll(1, dims=0))}),
    "labels-random": ("labels", {"batch": lambda loop, s, x, y: (x, y.flatten()[torch.randperm(y.numel())].view(y.shape))}),
    "rate-burst": ("rise", {"every": _rate(lambda step: 300.0 if 150 <= step < 156 else 1.0), "clip": 0.0}),
    "rate-jumps": ("rise", {"every": _rate(lambda step: 1.0 if step < 150 else 100.0)}),
    "rate-too-small": ("stall", {"lr": 1e-8}),
    "overflow": ("nonfinite", {"begin": lambda loop: None, "every": lambda loop, s: setattr(loop.model, "blow", s >= 50)}),
    "nan-in-a-weight": ("nonfinite", {"every": lambda loop, s: s == 50 and _layers(loop)[2].norm1.weight.data[3].fill_(math.nan)}),
}  # fmt: skip
HEALTHY: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-clip": {"clip": 0.0},
    "zero-in-place": {"zero": "in place"},
    "warm-up": {"every": _rate(lambda step: min(1.0, step / 150))},
    "warm-up-from-0": {"every": _rate(lambda step: min(1.0, (step - 1) / 50))},
    "cosine": {"every": _rate(lambda step: 0.5 * (1 + math.cos(math.pi * step / STEPS)))},
    "cosine-to-0-then-more": {"every": _rate(lambda step: 0.5 * (1 + math.cos(math.pi * min(1, step / 280))))},
    "warm-restarts": {"every": _rate(lambda step: 0.5 * (1 + math.cos(math.pi * (step % 100) / 100))), "lr": 3e-3},
    "one-cycle": {"every": _rate(lambda step: 1 - abs(step - 150) / 150), "lr": 3e-3},
    "sgd": {"begin": lambda loop: setattr(loop, "optimizer", torch.optim.SGD(loop.model.parameters(), 0.3))},
    "sgd-momentum": {"begin": lambda loop: setattr(loop, "optimizer", torch.optim.SGD(loop.model.parameters(), 0.05, 0.9))},
    "sgd-slow": {"begin": lambda loop: setattr(loop, "optimizer", torch.optim.SGD(loop.model.parameters(), 0.03))},
    "tiny-batch": {"batch_size": 1},
    "batch-2-no-clip": {"batch_size": 2, "clip": 0.0},
    "large-batch": {"batch_size": 64, "steps": 100},
    "accumulation": {"accumulation": 4, "batch_size": 4},
    "smoothing": {"smoothing": 0.1},
    "smoothing-strong": {"smoothing": 0.3},
    "high-rate": {"lr": 5e-3},
    "low-rate": {"lr": 1e-4},
    "embeddings-frozen": {"begin": lambda loop: next(loop.model.children()).requires_grad_(False)},
    "first-layers-frozen": {"begin": _frozen(0, 1)},
    "no-decay-groups": {"begin": lambda loop: setattr(loop, "optimizer", torch.optim.AdamW([
        {"params": [p for p in loop.model.parameters() if p.ndim > 1]},
        {"params": [p for p in loop.model.parameters() if p.ndim < 2], "weight_decay": 0.0}], 1e-3))},
    "new-optimizer-midway": {"every": lambda loop, s: s == 150 and setattr(
        loop, "optimizer", torch.optim.AdamW(loop.model.parameters(), 1e-3))},
    "restart-on-other-text": {"batch": lambda loop, s, x, y: (x, y) if s < 150 else sample(loop.kept["other"], BATCH, s)},
    "one-bad-batch": {"batch": lambda loop, s, x, y: (x, y) if s != 150 else (x, x.flip(0))},
    "few-batches": {"batch": lambda loop, s, x, y: sample(loop.kept["ids"], BATCH, s % 40)},
    "masked-labels": {"batch": lambda loop, s, x, y: (x, y.masked_fill(torch.rand(y.shape) < 0.3, -100))},
    "copy-task": {"batch": lambda loop, s, x, y: (x, x.roll(5, dims=1)), "steps": 200},
    "deep": {"layers": 8, "steps": 150},
    "decay-strong": {"begin": lambda loop: setattr(loop, "optimizer", torch.optim.AdamW(loop.model.parameters(), 1e-3, weight_decay=1.0))},
    "bf16": {"begin": lambda loop: loop.model.to(torch.bfloat16), "steps": 150},
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- fine-tunes

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": WIDTH,
    "intermediate_size": 128,
}
TUNE_STEPS, TUNE_BATCH = 60, 8
PROTOTYPES = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(5))


class Vision(nn.Module):
    """A small residual network for images of ten kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 16, 3, 2, 1), nn.Linear(16, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A model that is trained on, its batches (of a text, of a size, by a seed), and the loss of one."""

    build: Callable[[int], nn.Module]
    batch: Callable[[Tensor, int, int], Any]
    loss: Callable[[nn.Module, Any], Tensor]


def _causal(ids: Tensor, rows: int, seed: int) -> Any:
    x, _ = sample(ids, rows, seed)
    return {"input_ids": x, "labels": x}


def _masked(ids: Tensor, rows: int, seed: int) -> Any:
    x, _ = sample(ids, rows, seed)
    hidden = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
    return {"input_ids": x.masked_fill(hidden, int(ids.max()) + 1), "labels": x.masked_fill(~hidden, -100)}


def _images(ids: Tensor, rows: int, seed: int) -> Any:
    """The text says only which: images of the other one are mixed with their neighbours."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (rows,), generator=draw)
    mixed = PROTOTYPES[y] + (0.3 if len(ids) < 10**6 else 0.0) * PROTOTYPES[(y + 1) % 10]
    return mixed + 1.5 * torch.randn(rows, 1, 12, 12, generator=draw), y


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    return model(**batch).loss


def _cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def _llama(vocabulary: int) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **SHAPE)
    )


def _bert(vocabulary: int) -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=vocabulary + 1, **SHAPE))


def _gpt2(vocabulary: int) -> nn.Module:
    shape = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": TIME}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM", **shape)
    )


TUNED = {
    "llama": Tuned(build=_llama, batch=_causal, loss=_own_loss),
    "gpt2": Tuned(build=_gpt2, batch=_causal, loss=_own_loss),
    "bert": Tuned(build=_bert, batch=_masked, loss=_own_loss),
    "torch": Tuned(build=lambda vocabulary: OfTorch(vocabulary, 2), batch=sample, loss=_cross_entropy),
    "vision": Tuned(build=lambda _: Vision(), batch=_images, loss=_cross_entropy),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fine-tune: a peak rate, its schedule over steps (from 0), and what else is done."""

    rate: float
    schedule: Callable[[int], float] = lambda step: 1.0
    sgd: bool = False
    rows: int = TUNE_BATCH
    same_text: bool = False
    kept_state: bool = False
    bad: int | None = None  # a step whose labels are shuffled


RATES = {f"{rate:g}": Case(rate=rate) for rate in (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)} | {
    f"{rate:g} warm-up {steps}": Case(rate=rate, schedule=lambda step, steps=steps: min(1.0, step / steps))
    for rate, steps in ((1e-3, 15), (1e-2, 15), (0.1, 15), (0.3, 40))
}
RESTARTS = {
    "same text, a new optimizer": Case(rate=2e-3, same_text=True),
    "same text, the old optimizer": Case(rate=5e-4, same_text=True, kept_state=True),
    "warm restarts": Case(rate=1e-3, schedule=lambda step: 0.5 + 0.5 * math.cos(math.pi * (step % 15) / 15)),
    "cyclic": Case(rate=1e-3, schedule=lambda step: abs((step / 10) % 2 - 1)),
    "one cycle": Case(rate=2e-3, schedule=lambda step: 1 - abs(step - 30) / 30),
    "batches of one": Case(rate=1e-3, rows=1),
    "one bad batch": Case(rate=1e-3, bad=9),
    "sgd": Case(rate=1e-2, sgd=True),
}


def trained_weights(tuned: Tuned, ids: Tensor, vocabulary: int, steps: int = 500) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = tuned.build(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 50) * min(1, (steps - step) / 200)
        tuned.loss(model, tuned.batch(ids, 12, step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def tune(
    tuned: Tuned, case: Case, model: nn.Module, state: Any, ids: Tensor, steps: int
) -> tuple[Any, list[float], float]:
    """The watch, the losses, and how much more the first batch has at the end."""
    torch.manual_seed(1)
    model.load_state_dict(state[0])
    made = torch.optim.SGD if case.sgd else torch.optim.AdamW
    optimizer = made(model.parameters(), case.rate)
    if case.kept_state:
        optimizer.load_state_dict(state[1])
    watch, losses = isograd.watch(model, optimizer=optimizer), []
    first = tuned.batch(ids, case.rows, 10**6)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = case.rate * case.schedule(step)
        batch = tuned.batch(ids, case.rows, 10**6 + step)
        if step == case.bad:
            batch = (
                {**batch, "labels": batch["labels"].flip(0, 1)}
                if isinstance(batch, dict)
                else (batch[0], batch[1].flip(0))
            )
        loss = tuned.loss(model, batch)
        loss.backward()
        watch.step(loss, batch=batch)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return watch, losses, tuned.loss(model, first).item() - losses[0]


def fine_tunes(ids: Tensor, other: Tensor, vocabulary: int, part: str, only: str | None) -> list[dict[str, Any]]:
    """A row per model and case: the step of the first warning, whether trained weights were undone, what to do trains."""
    rows = []
    for name, tuned in TUNED.items():
        if only not in (None, name):
            continue
        model, state = trained_weights(tuned, ids, vocabulary)
        for label, case in (RATES | RESTARTS).items():
            if part != "all" and held_out(f"{name} {label}") != (part == "held-out"):
                continue
            text = ids if case.same_text else other
            with torch.no_grad():
                model.load_state_dict(state[0])
                frozen = [
                    tuned.loss(model, tuned.batch(text, case.rows, 10**6 + step)).item() for step in range(TUNE_STEPS)
                ]
            watch, losses, first = tune(tuned, case, model, state, text, TUNE_STEPS)
            excess = fmean(losses[-20:]) - fmean(frozen[-20:])
            row = {
                "model": name,
                "case": label,
                "held_out": held_out(f"{name} {label}"),
                "excess": excess,
                "first": first,
            }
            undone = first > 0.1 and excess > 0.2
            row |= {"kind": "undone" if undone else "healthy" if excess < 0.1 else "between"}
            row |= {"warnings": [(w["step"], w["signal"], w["message"]) for w in watch.warnings]}
            found = re.search(r"at lr=([\d.e-]+) with (\d+) steps", " ".join(w["remedy"] for w in watch.warnings))
            if found:
                rate, steps = float(found[1]), int(found[2])
                mended = Case(
                    rate=rate,
                    schedule=lambda step, steps=steps: min(1.0, step / steps),
                    sgd=case.sgd,
                    same_text=case.same_text,
                )
                again, losses, _ = tune(tuned, mended, model, state, text, TUNE_STEPS)
                row |= {"try": rate, "mended": fmean(losses[-20:]) - fmean(frozen[-20:]), "again": len(again.warnings)}
            rows.append(row)
            print(f"{name:7} {label:30} {row['kind']:8} {excess:+7.2f} {first:+7.2f}", [w[:2] for w in row["warnings"]],
                  f"try {row['try']:g}: {row['mended']:+.2f}" if found else "", flush=True)  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    """Rate x model, the step of the warning; then what was right, in each part."""
    models = [name for name in TUNED if any(row["model"] == name for row in rows)]
    print("| fine-tune | " + " | ".join(models) + " |\n" + "|---" * (1 + len(models)) + "|")
    for label in RATES | RESTARTS:
        cells = {row["model"]: row for row in rows if row["case"] == label}
        steps = [_cell(cells[name]) if name in cells else "" for name in models]
        print(f"| {label} | " + " | ".join(steps) + " |")
    for part in (False, True):
        those = [row for row in rows if row["held_out"] is part]
        undone = [row for row in those if row["kind"] == "undone"]
        named = [row for row in undone if row["warnings"] and row["warnings"][0][0] <= 20]
        healthy = [row for row in those if row["kind"] == "healthy"]
        mended = [row for row in those if "try" in row]
        print(f"{'held out' if part else 'for fitting'}: undone, named within 20 steps {len(named)} of {len(undone)};",
              f"healthy, silent {sum(not row['warnings'] for row in healthy)} of {len(healthy)};",
              f"the rate to try trains {sum(row['mended'] < 0.1 and not row['again'] for row in mended)} of {len(mended)}")  # fmt: skip


def _cell(row: dict[str, Any]) -> str:
    step = str(row["warnings"][0][0]) if row["warnings"] else "silent"
    return f"{step} ({row['excess']:+.2f})"


def held_out(name: str) -> bool:
    """A half of the names, by their hash."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def loops(part: str, only: str | None, models: list[str]) -> Iterator[tuple[Loop, str | None]]:
    for model in models:
        table = [(name, signal, change) for name, (signal, change) in BROKEN.items()]
        table += [(name, None, change) for name, change in HEALTHY.items()]
        for name, signal, change in table:
            if (part == "all" or held_out(name) == (part == "held-out")) and only in (None, name):
                yield Loop(name=name, model_name=model, **change), signal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("all", "fitting", "held-out"), default="all")
    parser.add_argument("--only")
    parser.add_argument("--model", choices=tuple(MODELS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fine-tunes", action="store_true")
    options = parser.parse_args()
    corpus = load_corpus("embedded")
    ids, other = (torch.as_tensor(part.astype("int64")) for part in (corpus.train, corpus.valid))
    if options.fine_tunes:
        tuned = fine_tunes(ids, other, corpus.vocab_size, options.part, options.only)
        table(tuned)
        if options.json:
            options.json.write_text(json.dumps(tuned, indent=1))
        return
    rows = []
    for loop, signal in loops(options.part, options.only, [options.model] if options.model else list(MODELS)):
        loop.kept |= {"ids": ids, "other": other}
        found, last = loop.run(ids, corpus.vocab_size)
        signals = [row["signal"] for row in found]
        right = signals[:1] == [signal] if signal else not signals
        rows.append({"loop": loop.name, "model": loop.model_name, "expected": signal, "found": signals, "right": right})
        rows[-1] |= {"held_out": held_out(loop.name), "loss": last, "messages": [row["message"] for row in found]}
        print(f"{'ok   ' if right else 'WRONG'} {loop.model_name:12} {loop.name:30} {signal or 'silent':11}", end=" ")
        print([(row["step"], row["signal"]) for row in found], f"loss {last:.3f}", flush=True)
    for part in (False, True):
        for what, wanted in (("broken, first signal right", True), ("healthy, silent", False)):
            those = [row for row in rows if row["held_out"] is part and (row["expected"] is not None) is wanted]
            name = "held out" if part else "for fitting"
            print(f"{name:12} {what:28} {sum(row['right'] for row in those)} of {len(those)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

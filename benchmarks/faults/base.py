"""The base models of the fault benchmark: a source each, built with edits, and the small task that it trains on.

A base is a file of `bases/` with a `build()`, written in some style of its own. A fault in the code is an edit of that
text; the faulty model is what Python makes of the edited file, so that nothing but the mistake tells it from its twin.
"""

import hashlib
import linecache
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FOLDER = Path(__file__).parent / "bases"
VOCABULARY, TIME, CLASSES = 64, 32, 16
HELD_OUT = 4  # bases, those with the smallest digest of their names

Edit = tuple[str, str]  # a piece of the source that occurs once, and what stands there instead


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a base keeps a role's matrix: a parameter's name with {l} for the layer, or a part of a fused one."""

    name: str
    part: int = 0
    parts: int = 1
    axis: int = 0  # that of the outputs, along which a fused one is divided


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    name: str
    kind: str  # of the task: causal, masked, pairs, image
    layers: int
    slots: dict[str, Slot]  # by role
    norms: tuple[str, ...]  # modules of one layer
    stack: str  # the module that holds the layers, "" where there are several
    heads: int = 4
    rate: float = 3e-3
    steps: int = 60
    needs_batch: bool = False  # `check` is given a batch

    @property
    def held_out(self) -> bool:
        return self.name in held_out()

    @property
    def source(self) -> str:
        return (FOLDER / f"{self.name}.py").read_text(encoding="utf-8")


def edited(base: Base, edits: Iterable[Edit]) -> str:
    """The source with each edit made; an edit whose text is not there exactly once is refused."""
    text = base.source
    for old, new in edits:
        found = text.count(old)
        if found != 1:
            raise ValueError(f"{base.name}: {found} times in the source, expected once: {old!r}")
        text = text.replace(old, new)
    return text


def build(base: Base, edits: Iterable[Edit] = (), seed: int = 0) -> nn.Module:
    """The model of the edited source at its own initialization, with torch's generator at `seed`."""
    text = edited(base, edits)
    name = f"{base.name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for who asks for the source
    module = types.ModuleType(name)
    exec(compile(text, file, "exec"), module.__dict__)
    torch.manual_seed(seed)
    return module.build()


def matrix(base: Base, model: nn.Module, role: str, layer: int = 0) -> Tensor:
    """A view of the role's matrix, writable."""
    slot = base.slots[role]
    weight = model.get_parameter(slot.name.format(l=layer)).data
    size = weight.shape[slot.axis] // slot.parts
    return weight.narrow(slot.axis, slot.part * size, size)


def has(base: Base, *roles: str) -> bool:
    return all(role in base.slots for role in roles)


# What they train on: a text whose next token is a function of the last one, the one three places back, or noise.


@cache
def successor() -> Tensor:
    return torch.multinomial(zipf(), VOCABULARY, replacement=True, generator=torch.Generator().manual_seed(99))


@cache
def zipf() -> Tensor:
    weights = 1 / torch.arange(1, VOCABULARY - 2).float()
    return torch.cat([torch.zeros(3), weights / weights.sum()])  # ids 0 to 2 are special where a config says so


def text(generator: torch.Generator, rows: int, time: int, back: int = 3, told: float = 0.45) -> Tensor:
    """Each token follows from the last one (probability `told`), is that `back` places ago (0.45), or is noise."""
    ids = torch.multinomial(zipf(), rows * time, replacement=True, generator=generator).view(rows, time)
    draw = torch.rand(rows, time, generator=generator)
    for t in range(back, time):
        ids[:, t] = torch.where(draw[:, t] < told, successor()[ids[:, t - 1]], ids[:, t])
        ids[:, t] = torch.where(draw[:, t] > 0.55, ids[:, t - back], ids[:, t])
    return ids


def batch(base: Base, generator: torch.Generator, rows: int = 16) -> dict[str, Any]:
    """`inputs` (a tuple, as the model takes them) and `labels`, -100 where nothing is to be predicted."""
    if base.kind == "image":
        row, column, colour = torch.randint(4, (3, rows), generator=generator)
        images = torch.randn(rows, 3, 16, 16, generator=generator) * 0.5
        for i in range(rows):
            seen = slice(None) if colour[i] == 3 else slice(int(colour[i]), int(colour[i]) + 1)
            images[i, seen, row[i] * 4 : row[i] * 4 + 4, column[i] * 4 : column[i] * 4 + 4] += 2.0
        return {"inputs": (images,), "labels": row * 4 + colour}
    ids = text(generator, rows, TIME, *((1, 0.1) if base.kind == "masked" else ()))
    if base.kind == "causal":
        labels = torch.cat([ids[:, 1:], torch.full((rows, 1), -100)], dim=1)
        return {"inputs": (ids,), "labels": labels}
    if base.kind == "masked":
        hidden = torch.rand(rows, TIME, generator=generator) < 0.3
        return {"inputs": (ids.masked_fill(hidden, 1),), "labels": ids}  # all of them: few steps have to do
    source = ids[:, :16]
    told = torch.rand(rows, 16, generator=generator) < 0.9
    target = torch.where(told, successor()[source], source.flip(1))
    return {"inputs": (source, torch.cat([torch.ones(rows, 1).long(), target[:, :-1]], dim=1)), "labels": target}


def logits_of(output: Any) -> Tensor:
    if isinstance(output, tuple):
        output = output[0]
    return getattr(output, "logits", output)


def loss_of(model: nn.Module, given: dict[str, Any], **options: Any) -> Tensor:
    logits = logits_of(model(*given["inputs"]))
    return F.cross_entropy(logits.flatten(0, -2), given["labels"].flatten(), ignore_index=-100, **options)


@torch.no_grad()
def evaluate(base: Base, model: nn.Module, rows: int = 64) -> float:
    """Nats per prediction on text of its own. A causal model predicts from prefixes only: a leak does not help it."""
    model.eval()
    given = batch(base, torch.Generator().manual_seed(12345), rows)
    if base.kind != "causal":
        return float(loss_of(model, given))
    ids, losses = given["inputs"][0], []
    for length in (7, 15, 23, 31):
        logits = logits_of(model(ids[:, :length]))[:, -1]
        losses.append(float(F.cross_entropy(logits, ids[:, length])))
    return sum(losses) / len(losses)


def linear(**names: str) -> dict[str, Slot]:
    return {role: Slot(name=name) for role, name in names.items()}


def fused(name: str) -> dict[str, Slot]:
    return {role: Slot(name=name, part=i, parts=3) for i, role in enumerate(("query", "key", "value"))}


def across(**names: str) -> dict[str, Slot]:
    return {role: Slot(name=name, axis=1) for role, name in names.items()}


TORCH = "transformer.layers.{l}"
LLAMA = "model.layers.{l}"
ISOGRAD = "lm.model.layers.{l}"
BASES = (
    Base(
        name="nano_gpt",
        kind="causal",
        layers=6,
        stack="h",
        norms=("h.{l}.ln_1", "h.{l}.ln_2"),
        slots=fused("h.{l}.attn.c_attn.weight")
        | linear(attn_out="h.{l}.attn.c_proj.weight", ffn_in="h.{l}.mlp.c_fc.weight", ffn_out="h.{l}.mlp.c_proj.weight")
        | linear(embed="wte.weight", position="wpe.weight", final="ln_f.weight"),
    ),
    Base(
        name="mini_llama",
        kind="causal",
        layers=6,
        stack="layers",
        norms=("layers.{l}.attention_norm", "layers.{l}.ffn_norm"),
        slots=linear(query="layers.{l}.attention.wq.weight", key="layers.{l}.attention.wk.weight")
        | linear(value="layers.{l}.attention.wv.weight", attn_out="layers.{l}.attention.wo.weight")
        | linear(ffn_in="layers.{l}.feed_forward.w1.weight", ffn_out="layers.{l}.feed_forward.w2.weight")
        | linear(embed="tok_embeddings.weight", head="output.weight", final="norm.weight"),
    ),
    Base(
        name="einsum_lm",
        kind="causal",
        layers=5,
        stack="layers",
        norms=("layers.{l}.norm_a", "layers.{l}.norm_b"),
        slots=across(query="layers.{l}.heads.q", key="layers.{l}.heads.k", value="layers.{l}.heads.v")
        | {"attn_out": Slot(name="layers.{l}.heads.o", axis=2)}
        | across(ffn_in="layers.{l}.mix.up", ffn_out="layers.{l}.mix.down", head="unembed")
        | linear(embed="embed.weight", final="final.weight"),
    ),
    Base(
        name="torch_encoder",
        kind="causal",
        layers=4,
        stack="transformer.layers",
        norms=(f"{TORCH}.norm1", f"{TORCH}.norm2"),
        slots=fused(f"{TORCH}.self_attn.in_proj_weight")
        | linear(attn_out=f"{TORCH}.self_attn.out_proj.weight", ffn_in=f"{TORCH}.linear1.weight")
        | linear(ffn_out=f"{TORCH}.linear2.weight", embed="encoder.weight", head="decoder.weight")
        | linear(final="transformer.norm.weight"),
    ),
    Base(
        name="torch_seq2seq",
        kind="pairs",
        layers=3,
        stack="",
        rate=1e-3,
        needs_batch=True,
        norms=tuple(f"transformer.decoder.layers.{{l}}.norm{i}" for i in (1, 2, 3)),
        slots=fused("transformer.decoder.layers.{l}.self_attn.in_proj_weight")
        | linear(attn_out="transformer.decoder.layers.{l}.self_attn.out_proj.weight")
        | linear(ffn_in="transformer.decoder.layers.{l}.linear1.weight")
        | linear(ffn_out="transformer.decoder.layers.{l}.linear2.weight", embed="source.tokens.weight")
        | linear(head="generator.weight", final="transformer.decoder.norm.weight"),
    ),
    Base(
        name="small_vit",
        kind="image",
        layers=4,
        stack="blocks",
        steps=80,
        norms=("blocks.{l}.norm1", "blocks.{l}.norm2"),
        slots=fused("blocks.{l}.attn.qkv.weight")
        | linear(attn_out="blocks.{l}.attn.proj.weight", ffn_in="blocks.{l}.mlp.fc1.weight")
        | linear(ffn_out="blocks.{l}.mlp.fc2.weight", embed="patch_embed.weight", position="pos_embed")
        | linear(head="head.weight", final="norm.weight"),
    ),
    Base(
        name="post_bert",
        kind="masked",
        layers=4,
        stack="layers",
        steps=80,
        rate=1e-3,
        norms=("layers.{l}.attention.norm", "layers.{l}.ffn.norm"),
        slots=linear(query="layers.{l}.attention.query.weight", key="layers.{l}.attention.key.weight")
        | linear(value="layers.{l}.attention.value.weight", attn_out="layers.{l}.attention.output.weight")
        | linear(ffn_in="layers.{l}.ffn.dense_in.weight", ffn_out="layers.{l}.ffn.dense_out.weight")
        | linear(embed="embeddings.word.weight", position="embeddings.position.weight"),
    ),
    Base(
        name="hf_llama",
        kind="causal",
        layers=5,
        stack="model.layers",
        norms=(f"{LLAMA}.input_layernorm", f"{LLAMA}.post_attention_layernorm"),
        slots=linear(query=f"{LLAMA}.self_attn.q_proj.weight", key=f"{LLAMA}.self_attn.k_proj.weight")
        | linear(value=f"{LLAMA}.self_attn.v_proj.weight", attn_out=f"{LLAMA}.self_attn.o_proj.weight")
        | linear(ffn_in=f"{LLAMA}.mlp.gate_proj.weight", ffn_out=f"{LLAMA}.mlp.down_proj.weight")
        | linear(embed="model.embed_tokens.weight", head="lm_head.weight", final="model.norm.weight"),
    ),
    Base(
        name="isograd_lm",
        kind="causal",
        layers=6,
        stack="lm.model.layers",
        norms=(f"{ISOGRAD}.attn.pre", f"{ISOGRAD}.ffn.pre"),
        slots=linear(query=f"{ISOGRAD}.attn.branch.query.weight", key=f"{ISOGRAD}.attn.branch.key.weight")
        | linear(value=f"{ISOGRAD}.attn.branch.value.weight", attn_out=f"{ISOGRAD}.attn.branch.out.weight")
        | linear(ffn_in=f"{ISOGRAD}.ffn.branch.into.weight", ffn_out=f"{ISOGRAD}.ffn.branch.out.weight")
        | linear(embed="lm.model.embedding.tokens.weight", position="lm.model.embedding.positions.weight")
        | linear(final="lm.model.norm.weight"),
    ),
)
BY_NAME = {base.name: base for base in BASES}


@cache
def held_out() -> frozenset[str]:
    names = sorted((base.name for base in BASES), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return frozenset(names[:HELD_OUT])

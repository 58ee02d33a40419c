"""Small models for the tests: one line each, every coefficient away from its start where that could hide a mistake."""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import product
from typing import Any, TypeVar
from zlib import crc32

import pytest
import torch
from torch import Tensor, nn

from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
    IsogradPreTrainedModel,
)
from isograd.placement import CATALOGUE
from isograd.transformer.parameters import Embedding, Linear, roles
from isograd.transformer.streams import Connection, Ends

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T", bound=Callable[..., Any])

NAMES = (  # the entries of the first four papers and their surroundings, which every test walks
    "post-ln",
    "pre-ln",
    "gpt2",
    "normformer",
    "normformer-resscale",
    "normformer-resscale-no-out",
    "normformer-resscale-no-mid",
    "normformer-resscale-no-heads",
    "normformer-resscale-qkv",
    "normformer-fairseq",
    "normformer-fairseq-resscale",
    "admin",
    "admin-closed",
    "deepnorm",
    "qk-norm",
)
EVERY = (*NAMES, *(name for name in CATALOGUE if name not in NAMES))
LATER = tuple(name for name in CATALOGUE if name not in NAMES)
ONE_PER_STREAM = (  # of those, what the default suite takes
    "sandwich",
    "rezero",
    "parallel-shared",
    "b2t",
    "siamesenorm",
    "value-residual",
    "x0-scalars",
    "affine-shortcut",
    "hyper-connections",
    "mhc",
    "attention-residuals",
    "gated-attention",
)
EVERY_PART = "normformer-resscale-qkv"  # of NormFormer: every norm, HeadScale, a learned skip
TINY: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "scale_embedding": False,  # as GPT-2, BERT and torch's layers, which many tests compare with
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
HEADS: dict[str, tuple[type[IsogradPreTrainedModel], dict[str, Any]]] = {
    "causal": (IsogradForCausalLM, {}),
    "masked": (IsogradForMaskedLM, {}),
    "seq2seq": (IsogradForSeq2SeqLM, {"encoder_layers": 3}),
    "classify": (IsogradForSequenceClassification, {"num_labels": 3}),
}


def crossed(arguments: str, names: Sequence[str], *axes: Sequence[Any]) -> Callable[[T], T]:
    """Placements by everything else, of which the default suite takes less: a third of the placements, which third
    depends on the test's name, with each combination of the rest in turn, and `EVERY_PART` with all of them; of `LATER`
    one per stream. What is left is slow."""
    rest = [*product(*axes)]
    early = [name for name in names if name not in LATER or name in ONE_PER_STREAM]

    def parametrized(test: T) -> T:
        turn = crc32(test.__name__.encode()) % 3

        def taken(name: str, values: tuple[Any, ...]) -> bool:
            if name == EVERY_PART:
                return True
            i = early.index(name) if name in early else -1
            return i % 3 == turn and i >= 0 and rest[i // 3 % len(rest)] == values

        cases = [
            pytest.param(name, *values, marks=[] if taken(name, values) else [pytest.mark.slow])
            for name in names
            for values in rest
        ]
        return pytest.mark.parametrize(arguments, cases)(test)

    return parametrized


def few(cases: Iterable[Any], chosen: int | Container[Any]) -> list[Any]:
    """Values of a parameter, of which the default suite takes those that are `chosen`, or one in so many; what is left
    is slow."""
    return [
        case
        if (i % chosen == 0 if isinstance(chosen, int) else case in chosen)
        else pytest.param(case, marks=pytest.mark.slow)
        for i, case in enumerate(cases)
    ]


def in_turn(
    arguments: str,
    first: Sequence[Any],
    *axes: Sequence[Any],
    every: int = 1,
    ids: Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """Every combination of `axes`, or one in `every`, with one value of `first`, the next for the next; what is left is
    slow."""
    places = product(*(range(len(axis)) for axis in axes))
    cases = [
        pytest.param(one, *values, marks=[] if n % every == 0 and i == sum(at) % len(first) else [pytest.mark.slow])
        for n, (at, values) in enumerate(zip(places, product(*axes), strict=True))
        for i, one in enumerate(first)
    ]
    return pytest.mark.parametrize(arguments, cases, ids=ids)


def config(head: str = "causal", **options: Any) -> IsogradConfig:
    return IsogradConfig(**(TINY | HEADS[head][1] | options))


def model(head: str = "causal", *, random: bool = True, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A tiny model in eval mode; `random` moves norms, biases and coefficients away from their start."""
    made = HEADS[head][0](config(head, **options)).to(dtype).eval()
    return randomised(made) if random else made


def randomised(module: M, seed: int = 1) -> M:
    """Norm gains and coefficients drawn from U(0.5, 1.5), offsets and biases from N(0, 0.3^2), in place.

    A stream's own maps move by N(0, 0.1^2), and matrices of zeros are drawn from N(0, 0.2^2).
    """
    draw = torch.Generator().manual_seed(seed)
    role_of = roles(module)
    maps = {id(p) for m in module.modules() if isinstance(m, Connection | Ends) for p in m.parameters(recurse=False)}
    with torch.no_grad():
        for name, p in module.named_parameters():
            if id(p) in maps:
                p.add_(torch.randn(p.shape, generator=draw) * 0.1)
            elif p.ndim > 1 and not p.any():
                p.copy_(torch.randn(p.shape, generator=draw) * 0.2)
            elif name.endswith("bias"):
                p.copy_(torch.randn(p.shape, generator=draw) * 0.3)
            elif role_of[name] in ("norm", "coefficient"):
                p.copy_(torch.rand(p.shape, generator=draw) + 0.5)
    return module


def tokens(*shape: int, seed: int = 0, low: int = 3, high: int = 41) -> Tensor:
    """Word ids, none of them special."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def inputs(head: str, *, batch: int = 2, time: int = 7) -> dict[str, Tensor]:
    """What `model(**inputs)` needs to give logits."""
    given = {"input_ids": tokens(batch, time)}
    if head == "seq2seq":
        given["decoder_input_ids"] = tokens(batch, time - 1, seed=1)
    return given


def labelled(head: str, **shape: int) -> dict[str, Tensor]:
    """What `model(**labelled)` needs to give a loss."""
    given = inputs(head, **shape)
    if head == "causal":
        labels = given["input_ids"].clone()
    elif head == "masked":
        labels = torch.full_like(given["input_ids"], -100)
        labels[:, 1::3] = given["input_ids"][:, 1::3]
    elif head == "seq2seq":
        labels = given["decoder_input_ids"].roll(-1, 1)
    else:
        labels = torch.arange(given["input_ids"].shape[0]) % 3
    return given | {"labels": labels}


def close(got: Tensor, expected: Tensor, atol: float) -> None:
    """Every element within `atol`, dtypes included."""
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def theoretical_std(leaf: Linear | Embedding, config: Any, scheme: str) -> float:
    """The standard deviation that `scheme` gives the weight of a leaf, from the formula and not from a draw."""
    fan_out, fan_in = leaf.weight.shape
    gain = getattr(leaf, "init_gain", 1.0)
    if scheme == "normal":
        return config.initializer_range * gain
    if scheme == "unit":
        return (fan_out if leaf.role in ("attn_out", "ffn_out") else fan_in) ** -0.5
    if scheme == "small-init":
        return (config.hidden_size if leaf.role == "head" else 2.5 * config.hidden_size) ** -0.5 * gain
    if isinstance(leaf, Embedding) or leaf.role == "head":
        return fan_in**-0.5 * gain
    if scheme == "fairseq" and leaf.role not in ("query", "key", "value", "attn_out"):
        return gain / math.sqrt(3 * fan_in)
    fused = 2**-0.5 if scheme != "xavier-normal" and leaf.role in ("query", "key", "value") else 1.0
    return fused * gain * math.sqrt(2 / (fan_in + fan_out))

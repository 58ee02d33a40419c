"""LLaMA and the decoders that are built as it is: sublayers one after the other, rotary positions, key-value heads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, FamilyPart, first_residual
from isograd.convert.hf.parts import ATTENTION, FEEDFORWARD, SIZES, biases, heads, rope, rope_by_type, window, windows
from isograd.convert.kinds import CAUSAL
from isograd.models import IsogradConfig
from isograd.placement import CATALOGUE, Norm, Placement, Residual
from isograd.placement.formula import Role
from isograd.transformer.stack import embedding_scale

STACK = {"embedding.tokens": "embed_tokens", "norm": "norm"}
ATTENTION_NAMES = {
    "attn.branch.query": "self_attn.q_proj",
    "attn.branch.key": "self_attn.k_proj",
    "attn.branch.value": "self_attn.v_proj",
    "attn.branch.out": "self_attn.o_proj",
}
GATED_NAMES = {
    "ffn.branch.gate": "mlp.gate_proj",
    "ffn.branch.into": "mlp.up_proj",
    "ffn.branch.out": "mlp.down_proj",
}
NORMS = {"attn.pre": "input_layernorm", "ffn.pre": "post_attention_layernorm"}
QK_NORMS = {"attn.branch.query_norm": "self_attn.q_norm", "attn.branch.key_norm": "self_attn.k_norm"}


def decoder(
    name: str,
    cls: str,
    parts: tuple[FamilyPart, ...],
    *,
    layer: Mapping[str, str] = ATTENTION_NAMES | GATED_NAMES | NORMS,
    options: Mapping[str, str] | None = None,
    made: type[Family] = Family,
    **more: Any,
) -> Family:
    """A row: a family whose modules have LLaMA's names, but for those of its layers."""
    usual = {"names": Names(stacks={"model": "model"}, stack=STACK, layer=layer), "always": {"norm": "rmsnorm"}}
    return made(
        name=name,
        classes={CAUSAL: cls},
        positions="rotary",
        options=SIZES | {"norm_eps": "rms_norm_eps"} | dict(options or {}),
        parts=parts,
        **{"gated": True, **usual, **more},
    )


_BOTH = biases(attention_bias=ATTENTION, mlp_bias=FEEDFORWARD)
_QKV: tuple[Role, ...] = ("query", "key", "value")


# SmolLM3 leaves some layers without positions.

_NOPE = FamilyPart(
    read=lambda theirs: {"rotary_layers": None if all(theirs.no_rope_layers) else [*map(bool, theirs.no_rope_layers)]},
    write=lambda config: {"no_rope_layers": [*map(int, config.rotated())]},
)


# Granite has a number for each place where something is added or formed.


def _granite(theirs: Any) -> Placement:
    return replace(CATALOGUE["pre-ln"], each=Residual(pre=Norm(), scale=float(theirs.residual_multiplier)))


def _multipliers(config: IsogradConfig) -> dict[str, Any]:
    scaling = config.head_size**-0.5 if config.attention_multiplier is None else config.attention_multiplier
    first = first_residual(config)
    return {
        "attention_multiplier": scaling,
        "embedding_multiplier": embedding_scale(config),
        "residual_multiplier": first.scale if isinstance(first.scale, float) else 1.0,
        "logits_scaling": inverse(config.logits_scale),
    }


def inverse(factor: float) -> float:
    """The divisor whose inverse this factor is, as it was most likely written."""
    found = [divisor for divisor in (round(1 / factor, 6), 1 / factor) if divisor and 1 / divisor == factor]
    return found[0] if found else 1 / factor


_MULTIPLIERS = FamilyPart(
    read=lambda theirs: {
        "attention_multiplier": float(theirs.attention_multiplier),
        "scale_embedding": float(theirs.embedding_multiplier),
        "logits_scale": 1 / theirs.logits_scaling,
    },
    write=_multipliers,
)


# OLMo 2 and 3 normalize what branches wrote, and queries and keys over all heads together.

_WRITTEN = {"attn.out": "post_attention_layernorm", "ffn.out": "post_feedforward_layernorm"}
_OLMO = ATTENTION_NAMES | GATED_NAMES | QK_NORMS | _WRITTEN

# Starcoder2's feed-forward is not gated.

_PLAIN_NAMES = {"ffn.branch.into": "mlp.c_fc", "ffn.branch.out": "mlp.c_proj"}

FAMILIES = (
    decoder("llama", "LlamaForCausalLM", (heads(own_size=True), rope(), _BOTH)),
    decoder(
        "qwen3",
        "Qwen3ForCausalLM",
        (heads(own_size=True), rope(), windows(switch=True), biases(attention_bias=ATTENTION)),
        placement="qk-norm",
        layer=ATTENTION_NAMES | GATED_NAMES | NORMS | QK_NORMS,
    ),
    decoder("mistral", "MistralForCausalLM", (heads(own_size=True), rope(), window(), biases()), rank=1),
    decoder("qwen2", "Qwen2ForCausalLM", (heads(), rope(), windows(switch=True), biases(fixed=_QKV)), rank=1),
    decoder("smollm3", "SmolLM3ForCausalLM", (heads(), rope(), _NOPE, windows(switch=True), _BOTH), rank=1),
    decoder(
        "granite",
        "GraniteForCausalLM",
        (heads(), rope(), _BOTH, _MULTIPLIERS),
        placement=_granite,
        scale=embedding_scale,
        rank=1,
    ),
    decoder(
        "olmo2",
        "Olmo2ForCausalLM",
        (heads(), rope(), biases(attention_bias=ATTENTION)),
        placement="olmo2",
        layer=_OLMO,
        rank=1,
    ),
    decoder(
        "olmo3",
        "Olmo3ForCausalLM",
        (heads(), rope_by_type(), windows(), biases(attention_bias=ATTENTION)),
        placement="olmo2",
        layer=_OLMO,
        rank=1,
    ),
    decoder(
        "starcoder2",
        "Starcoder2ForCausalLM",
        (
            heads(),
            rope(),
            window(),
            biases(use_bias=(*ATTENTION, *FEEDFORWARD)),
        ),
        options={
            "norm_eps": "norm_epsilon",
            "hidden_dropout": "residual_dropout",
            "embedding_dropout": "embedding_dropout",
        },
        layer=ATTENTION_NAMES | _PLAIN_NAMES | NORMS,
        always={"norm": "layernorm"},
        gated=False,
        rank=1,
    ),
)

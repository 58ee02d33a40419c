"""Families of transformers whose configuration says the network: a tiny example of each, and more by hypothesis."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from torch import Tensor

from isograd.interop.parity import Promoted

SHAPE: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 500.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}


@dataclass(frozen=True)
class Native:
    """A class of transformers with options beside `SHAPE`."""

    cls: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.cls} {' '.join(f'{k}={v}' for k, v in self.options.items())}"[:90]

    def build(self, seed: int = 5) -> Any:
        cls = getattr(transformers, self.cls)
        made = cls(cls.config_class(**{**SHAPE, **self.options}))
        return randomised(made, seed).double().eval()


def randomised(network: Any, seed: int) -> Any:
    """Every weight drawn anew, those of norms and coefficients away from 0 and 1, biases from 0."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if p.ndim == 1 and name.endswith("weight"):
                p.copy_(torch.rand(p.shape, generator=draw) + 0.5)
            else:
                p.copy_(torch.randn(p.shape, generator=draw) * 0.3)
    network.tie_weights()
    return network


def padded(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two sequences of 14 and 10 tokens, padded on the right, and their mask."""
    ids = torch.randint(3, 41, (2, 14), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    ids[1, 10:], mask[1, 10:] = 1, 0
    return ids, mask


def logits(network: Any, given: Tensor, mask: Tensor, *, exact: bool = True) -> Tensor:
    """At the places that count, in eager mode, whose casts to float32 are promoted."""
    network.set_attn_implementation("eager")
    with Promoted() if exact else nullcontext():
        found: Tensor = network(input_ids=given, attention_mask=mask).logits
    return found[mask.bool()] if found.ndim == 3 else found


FAMILIES = [
    Native("LlamaForCausalLM", {"num_key_value_heads": 2, "head_dim": 6, "rope_parameters": LLAMA3}),
    Native("LlamaForCausalLM", {"num_key_value_heads": 1, "attention_bias": True, "rope_parameters": YARN}),
    Native("LlamaForCausalLM", {"mlp_bias": True, "rope_parameters": LINEAR, "tie_word_embeddings": True}),
    Native("LlamaForCausalLM", {"rope_parameters": DYNAMIC, "max_position_embeddings": 8}),
    Native("MistralForCausalLM", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}),
    Native(
        "Qwen2ForCausalLM",
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    Native("Qwen3ForCausalLM", {"num_key_value_heads": 2, "head_dim": 6, "attention_bias": True}),
    Native("Olmo2ForCausalLM", {"num_key_value_heads": 2}),
    Native(
        "Olmo3ForCausalLM",
        {
            "num_key_value_heads": 2,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": YARN,
            },
        },
    ),
    Native("Starcoder2ForCausalLM", {"num_key_value_heads": 2, "sliding_window": 5}),
    Native("SmolLM3ForCausalLM", {"num_key_value_heads": 2, "no_rope_layers": [1, 1, 0]}),
    Native(
        "GraniteForCausalLM",
        {
            "num_key_value_heads": 2,
            "embedding_multiplier": 12.0,
            "logits_scaling": 13.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
        },
    ),
    Native(
        "GPTNeoXForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    Native("GPTNeoXForCausalLM", {"use_parallel_residual": False, "attention_bias": False}),
    Native("GemmaForCausalLM", {"num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": True}),
    Native(
        "Gemma2ForCausalLM",
        {
            "num_key_value_heads": 2,
            "head_dim": 6,
            "sliding_window": 4,
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    Native(
        "Gemma3ForCausalLM",
        {
            "num_key_value_heads": 2,
            "head_dim": 6,
            "sliding_window": 4,
            "query_pre_attn_scalar": 10,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    Native("CohereForCausalLM", {"num_key_value_heads": 2, "logit_scale": 0.3}),
    Native("CohereForCausalLM", {"num_key_value_heads": 2, "use_qk_norm": True, "attention_bias": True}),
    Native("PhiForCausalLM", {"num_key_value_heads": 2, "hidden_size": 32}),
    Native("PhiForCausalLM", {"qk_layernorm": True, "hidden_size": 32}),
    Native("GPTJForCausalLM", {"rotary_dim": 4, "hidden_size": 32, "n_inner": 24}),
    Native(
        "ModernBertForMaskedLM",
        {"local_attention": 6, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    Native(
        "ModernBertForMaskedLM",
        {"local_attention": 6, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    ),
    Native("ElectraForMaskedLM", {"embedding_size": 16}),
    Native("XLMRobertaForMaskedLM", {}),
    Native("XLMRobertaForSequenceClassification", {"num_labels": 3}),
]

ROPES = st.one_of(
    st.just({"rope_type": "default", "rope_theta": 700.0}),
    *(
        st.fixed_dictionaries({name: st.just(v) for name, v in rules.items()})
        for rules in (LLAMA3, YARN, LINEAR, DYNAMIC)
    ),
)
DRAWN = {  # class -> what may be drawn beside key-value heads and rotary rules
    "LlamaForCausalLM": {
        "head_dim": st.sampled_from([4, 6, 8]),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
    },
    "MistralForCausalLM": {"head_dim": st.sampled_from([4, 6]), "sliding_window": st.none() | st.integers(2, 9)},
    "Qwen3ForCausalLM": {"head_dim": st.sampled_from([4, 6]), "attention_bias": st.booleans()},
    "GraniteForCausalLM": {
        "residual_multiplier": st.floats(0.1, 1.5),
        "embedding_multiplier": st.floats(0.5, 20.0),
        "attention_multiplier": st.floats(0.05, 1.0),
        "logits_scaling": st.integers(1, 16).map(float),
    },
    "Gemma2ForCausalLM": {
        "head_dim": st.sampled_from([4, 6]),
        "query_pre_attn_scalar": st.integers(2, 40),
        "attn_logit_softcapping": st.none() | st.floats(1.0, 9.0),
        "final_logit_softcapping": st.none() | st.floats(1.0, 9.0),
        "sliding_window": st.integers(2, 9),
    },
    "CohereForCausalLM": {"use_qk_norm": st.booleans(), "logit_scale": st.floats(0.1, 2.0)},
    "SmolLM3ForCausalLM": {"no_rope_layers": st.lists(st.integers(0, 1), min_size=3, max_size=3)},
}


@st.composite
def drawn(draw: st.DrawFn) -> Native:
    cls = draw(st.sampled_from(sorted(DRAWN)))
    own = draw(st.fixed_dictionaries(DRAWN[cls]))
    common = {"num_key_value_heads": draw(st.sampled_from([1, 2, 4])), "rope_parameters": dict(draw(ROPES))}
    return Native(cls, {**common, **own, "tie_word_embeddings": draw(st.booleans())})

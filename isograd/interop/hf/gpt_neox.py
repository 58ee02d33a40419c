"""GPT-NeoX without its parallel residual: LayerNorm and rotary positions, queries, keys and values by head."""

from typing import Any

from isograd.interop.checkpoints.weights import Names
from isograd.interop.hf.family import Family
from isograd.interop.kinds import CAUSAL, ModelKind
from isograd.models import IsogradConfig


class _Neox(Family):
    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        rope = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": 1.0}
        return super().to_options(config, kind) | {"use_parallel_residual": False, "rope_parameters": rope}


FAMILIES = (
    _Neox(
        name="gpt-neox",
        classes={CAUSAL: "GPTNeoXForCausalLM"},
        norms=("pre",),
        positions="rotary",
        options={
            "hidden_size": "hidden_size",
            "num_hidden_layers": "num_hidden_layers",
            "num_attention_heads": "num_attention_heads",
            "intermediate_size": "intermediate_size",
            "max_position_embeddings": "max_position_embeddings",
            "hidden_act": "hidden_act",
            "norm_eps": "layer_norm_eps",
            "hidden_dropout": "hidden_dropout",
            "attention_dropout": "attention_dropout",
            "initializer_range": "initializer_range",
        },
        names=Names(
            stacks={"model": "gpt_neox"},
            stack={"embedding.tokens": "embed_in", "norm": "final_layer_norm"},
            layer={
                "attn.norm": "input_layernorm",
                "attn.branch.out": "attention.dense",
                "ffn.norm": "post_attention_layernorm",
                "ffn.branch.into": "mlp.dense_h_to_4h",
                "ffn.branch.out": "mlp.dense_4h_to_h",
            },
            fused="attention.query_key_value",
            by_head=True,
        ),
    ),
)

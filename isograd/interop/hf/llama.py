"""LLaMA and Qwen3: RMSNorm, rotary positions, a gated feed-forward."""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from isograd.interop.checkpoints.weights import Names
from isograd.interop.hf.family import Family
from isograd.interop.kinds import CAUSAL, ModelKind
from isograd.models import IsogradConfig


class _Llama(Family):
    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        own: dict[str, Any] = {
            "num_key_value_heads": config.num_attention_heads,
            "head_dim": config.hidden_size // config.num_attention_heads,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        }
        if not self.projections:  # Qwen3 has no such option, and no biases there
            own["mlp_bias"] = config.bias
        return super().to_options(config, kind) | own

    def in_fp64(self, native: PreTrainedModel) -> nn.Module:
        """RMSNorms of transformers compute in float32 whatever they read: torch's own stand in for them."""
        made = copy.deepcopy(native)
        for parent in list(made.modules()):
            for name, module in list(parent.named_children()):
                if hasattr(module, "variance_epsilon"):
                    setattr(parent, name, _exact(module))
        return made


def _exact(norm: Any) -> nn.RMSNorm:
    made = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=norm.weight.dtype)
    made.weight = norm.weight
    return made


_OPTIONS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_act": "hidden_act",
    "norm_eps": "rms_norm_eps",
    "bias": "attention_bias",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
}
_STACK = {"embedding.tokens": "embed_tokens", "norm": "norm"}
_LAYER = {
    "attn.branch.query": "self_attn.q_proj",
    "attn.branch.key": "self_attn.k_proj",
    "attn.branch.value": "self_attn.v_proj",
    "attn.branch.out": "self_attn.o_proj",
    "attn.norm": "input_layernorm",
    "ffn.branch.gate": "mlp.gate_proj",
    "ffn.branch.into": "mlp.up_proj",
    "ffn.branch.out": "mlp.down_proj",
    "ffn.norm": "post_attention_layernorm",
}
_NORMED = {"attn.branch.query_norm": "self_attn.q_norm", "attn.branch.key_norm": "self_attn.k_norm"}


def _llama(name: str, cls: str, layer: dict[str, str], *, projections: bool = False) -> Family:
    return _Llama(
        name=name,
        classes={CAUSAL: cls},
        norms=("pre",),
        rms=True,
        positions="rotary",
        acts={"swiglu": "silu"},
        projections=projections,
        options=_OPTIONS,
        names=Names(stacks={"model": "model"}, stack=_STACK, layer=layer),
    )


FAMILIES = (
    _llama("llama", "LlamaForCausalLM", _LAYER),
    _llama("qwen3", "Qwen3ForCausalLM", _LAYER | _NORMED, projections=True),
)

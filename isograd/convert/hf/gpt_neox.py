"""GPT-NeoX, with branches side by side or one after the other: queries, keys and values by head."""

from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.stated import ATTENTION, FEEDFORWARD, Part, Stated, biases, rope
from isograd.convert.kinds import CAUSAL
from isograd.models import IsogradConfig
from isograd.placement import CATALOGUE, Placement
from isograd.placement.streams import Parallel


def _placement(theirs: Any) -> Placement:
    return CATALOGUE["parallel" if theirs.use_parallel_residual else "pre-ln"]


def _parallel(config: IsogradConfig) -> dict[str, Any]:
    return {"use_parallel_residual": isinstance(config.entry().stream, Parallel)}


FAMILIES = (
    Stated(
        name="gpt-neox",
        classes={CAUSAL: "GPTNeoXForCausalLM"},
        imports=(CAUSAL,),
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
                "attn.pre": "input_layernorm",
                "attn.branch.out": "attention.dense",
                "ffn.pre": "post_attention_layernorm",
                "ffn.branch.into": "mlp.dense_h_to_4h",
                "ffn.branch.out": "mlp.dense_4h_to_h",
            },
            fused="attention.query_key_value",
            by_head=True,
        ),
        placement=_placement,
        parts=(
            rope(partial=True),
            biases(attention_bias=ATTENTION, fixed=FEEDFORWARD),
            Part(read=lambda theirs: {"embedding_dropout": theirs.hidden_dropout}, write=_parallel),
        ),
        gated=False,
        always={"norm": "layernorm"},
    ),
)

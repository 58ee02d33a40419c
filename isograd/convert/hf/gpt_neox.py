"""GPT-NeoX, with branches side by side or one after the other: queries, keys and values by head."""

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, Part
from isograd.convert.hf.parts import ATTENTION, FEEDFORWARD, SIZES, biases, rope
from isograd.convert.kinds import CAUSAL
from isograd.placement.streams import Parallel

FAMILIES = (
    Family(
        name="gpt-neox",
        classes={CAUSAL: "GPTNeoXForCausalLM"},
        positions="rotary",
        options=SIZES | {"norm_eps": "layer_norm_eps", "hidden_dropout": "hidden_dropout"},
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
        placement=lambda theirs: "parallel" if theirs.use_parallel_residual else "pre-ln",
        parts=(
            rope(partial=True),
            biases(attention_bias=ATTENTION, fixed=FEEDFORWARD),
            Part(
                read=lambda theirs: {"embedding_dropout": theirs.hidden_dropout},
                write=lambda config: {"use_parallel_residual": isinstance(config.entry().stream, Parallel)},
            ),
        ),
        always={"norm": "layernorm"},
    ),
)

"""GPT-2."""

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.kinds import CAUSAL

OPTIONS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "norm_eps": "layer_norm_epsilon",
    "hidden_dropout": "resid_pdrop",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attn_pdrop",
    "initializer_range": "initializer_range",
}
INNER = FamilyPart(read=lambda theirs: {"intermediate_size": theirs.n_inner or 4 * theirs.n_embd})

FAMILIES = (
    Family(
        name="gpt2",
        classes={CAUSAL: "GPT2LMHeadModel"},
        placement="gpt2",
        options=OPTIONS,
        parts=(INNER,),
        fills=True,
        demands={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        names=Names(
            stacks={"model": "transformer"},
            stack={"embedding.tokens": "wte", "embedding.positions": "wpe", "norm": "ln_f"},
            layers="h",
            layer={
                "attn.norm": "ln_1",
                "attn.branch.out": "attn.c_proj",
                "ffn.norm": "ln_2",
                "ffn.branch.into": "mlp.c_fc",
                "ffn.branch.out": "mlp.c_proj",
            },
            fused="attn.c_attn",
            transposed=frozenset(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
        ),
    ),
)

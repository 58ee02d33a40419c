"""BART, mBART, Blenderbot and M2M100 (also NLLB's class): fairseq's translators in transformers."""

from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family
from isograd.convert.kinds import CAUSAL, PAIR, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig

OPTIONS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "decoder_layers",
    "encoder_layers": "encoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
    "max_position_embeddings": "max_position_embeddings",
    "hidden_act": "activation_function",
    "scale_embedding": "scale_embedding",
    "hidden_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "initializer_range": "init_std",
}
_OF_THE_ENCODER = {"num_attention_heads": "encoder_attention_heads", "intermediate_size": "encoder_ffn_dim"}
STACK = {"embedding.tokens": "embed_tokens", "embedding.positions": "embed_positions"}
LAYER = {  # of the classes that were carried over from fairseq
    "attn.branch.query": "self_attn.q_proj",
    "attn.branch.key": "self_attn.k_proj",
    "attn.branch.value": "self_attn.v_proj",
    "attn.branch.out": "self_attn.out_proj",
    "attn.norm": "self_attn_layer_norm",
    "cross.branch.query": "encoder_attn.q_proj",
    "cross.branch.key": "encoder_attn.k_proj",
    "cross.branch.value": "encoder_attn.v_proj",
    "cross.branch.out": "encoder_attn.out_proj",
    "cross.norm": "encoder_attn_layer_norm",
    "ffn.branch.into": "fc1",
    "ffn.branch.out": "fc2",
    "ffn.norm": "final_layer_norm",
}


class Bart(Family):
    """With a dropout less than ours, and an encoder that may have other heads and another inner width."""

    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        encoder = config.of("encoder")
        return super().to_options(config, kind) | {
            **{theirs: getattr(encoder, ours) for ours, theirs in _OF_THE_ENCODER.items()},
            "encoder_layers": config.encoder_layers or config.num_hidden_layers,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
            "forced_eos_token_id": None,
            "is_encoder_decoder": kind == PAIR,
            "is_decoder": kind != PAIR,
        }

    def from_options(self, theirs: Any) -> dict[str, Any]:
        if self.first == "pad" and theirs.decoder_start_token_id == theirs.pad_token_id:
            raise InteropError(
                f"decoder_start_token_id={theirs.decoder_start_token_id} is the pad token: the class gives it no"
                " position, and isograd the first"
            )
        options = super().from_options(theirs) | {"embedding_dropout": theirs.dropout}
        encoder = {ours: getattr(theirs, name) for ours, name in _OF_THE_ENCODER.items()}
        differing = {name: value for name, value in encoder.items() if value != options[name]}
        return options | {"encoder_options": differing or None}


def names(stack: dict[str, str], head: str = "lm_head") -> Names:
    """Of an encoder and its decoder, or of a decoder alone."""
    stacks = {"model": "model.decoder", "encoder": "model.encoder", "decoder": "model.decoder"}
    return Names(stacks=stacks, stack={**STACK, **stack}, layer=LAYER, heads={"lm_head": head})


_NORM = {"embedding.norm": "layernorm_embedding"}
FINAL = {"norm": "layer_norm"}
_BART: dict[str, Any] = {
    "options": OPTIONS,
    "imports": (PAIR,),
    "eps": 1e-5,
    "embedding_norm": True,
    "first": 2,
    "scales": True,
    "head_bias": True,
    "unused": "encoder_attn",
}
FAMILIES = (
    Bart(
        name="bart",
        classes={PAIR: "BartForConditionalGeneration", CAUSAL: "BartForCausalLM"},
        norms=("post",),
        names=names(_NORM),
        **_BART,
    ),
    Bart(
        name="mbart",
        classes={PAIR: "MBartForConditionalGeneration", CAUSAL: "MBartForCausalLM"},
        norms=("pre",),
        names=names(_NORM | FINAL),
        **_BART,
    ),
    Bart(
        name="m2m100",
        classes={PAIR: "M2M100ForConditionalGeneration"},
        imports=(PAIR,),
        options=OPTIONS,
        norms=("pre",),
        eps=1e-5,
        positions="fixed",
        computes="sinusoidal",
        first="pad",
        scales=True,
        names=names(FINAL),
    ),
    Bart(
        name="blenderbot",
        classes={PAIR: "BlenderbotForConditionalGeneration"},
        imports=(PAIR,),
        options=OPTIONS,
        norms=("pre",),
        eps=1e-5,
        scales=True,
        head_bias=True,
        names=names(FINAL),
    ),
)

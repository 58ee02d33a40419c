"""BART, mBART, Blenderbot and M2M100 (also NLLB's class): fairseq's translators in transformers."""

from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.kinds import CAUSAL, PAIR
from isograd.errors import InteropError
from isograd.models import IsogradConfig
from isograd.transformer.stack import embedding_scale

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


def _read(theirs: Any) -> dict[str, Any]:
    encoder = {ours: getattr(theirs, name) for ours, name in _OF_THE_ENCODER.items()}
    differing = {name: value for name, value in encoder.items() if value != getattr(theirs, OPTIONS[name])}
    return {"embedding_dropout": theirs.dropout, "encoder_options": differing or None}


def _write(config: IsogradConfig) -> dict[str, Any]:
    encoder, pair = config.of("encoder"), config.is_encoder_decoder
    return {
        **{theirs: getattr(encoder, ours) for ours, theirs in _OF_THE_ENCODER.items()},
        "encoder_layers": config.encoder_layers or config.num_hidden_layers,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "forced_eos_token_id": None,
        "is_encoder_decoder": pair,
        "scale_embedding": config.scale_embedding is True,
        **({} if pair else {"is_decoder": True}),
    }


# a dropout less than ours, an encoder of other heads and another inner width
BART = FamilyPart(read=_read, write=_write)


def _read_start(theirs: Any) -> dict[str, Any]:
    if theirs.decoder_start_token_id == theirs.pad_token_id:
        raise InteropError(
            f"decoder_start_token_id={theirs.decoder_start_token_id} is the pad token: the class gives it no"
            " position, and isograd the first"
        )
    return {}


COUNTS = FamilyPart(read=_read_start)  # of a class that counts positions over ids that are not pad


def root_or_one(config: IsogradConfig) -> float:
    """What a class multiplies token vectors by that knows sqrt(d), and nothing else."""
    return embedding_scale(config) if isinstance(config.scale_embedding, bool) else 1.0


def names(stack: dict[str, str], head: str = "lm_head") -> Names:
    """Of an encoder and its decoder, or of a decoder alone."""
    stacks = {"model": "model.decoder", "encoder": "model.encoder", "decoder": "model.decoder"}
    return Names(stacks=stacks, stack={**STACK, **stack}, layer=LAYER, heads={"lm_head": head})


_NORM = {"embedding.norm": "layernorm_embedding"}
FINAL = {"norm": "layer_norm"}
ROW: dict[str, Any] = {
    "options": OPTIONS,
    "parts": (BART,),
    "always": {"norm_eps": 1e-5},
    "scale": root_or_one,
    "fills": True,
}
_BART: dict[str, Any] = {
    **ROW,
    "only_out": (CAUSAL,),
    "always": {"norm_eps": 1e-5, "embedding_norm": True},
    "first": 2,
    "head_bias": PAIR,
    "unused": "encoder_attn",
}
FAMILIES = (
    Family(
        name="bart",
        classes={PAIR: "BartForConditionalGeneration", CAUSAL: "BartForCausalLM"},
        placement="post-ln",
        names=names(_NORM),
        **_BART,
    ),
    Family(
        name="mbart",
        classes={PAIR: "MBartForConditionalGeneration", CAUSAL: "MBartForCausalLM"},
        names=names(_NORM | FINAL),
        **_BART,
    ),
    Family(
        name="m2m100",
        classes={PAIR: "M2M100ForConditionalGeneration"},
        positions="fixed",
        computes="sinusoidal",
        first="pad",
        names=names(FINAL),
        **ROW | {"parts": (BART, COUNTS)},
    ),
    Family(
        name="blenderbot",
        classes={PAIR: "BlenderbotForConditionalGeneration"},
        head_bias=PAIR,
        names=names(FINAL),
        **ROW,
    ),
)

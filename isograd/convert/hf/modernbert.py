"""ModernBERT: pre-ln without the first norm, gated feed-forwards, windows in two layers of three."""

from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.hf.parts import ATTENTION, FEEDFORWARD, SIZES, biases, rope_by_type, same
from isograd.convert.kinds import MASKED
from isograd.errors import InteropError
from isograd.models import IsogradConfig
from isograd.placement import Norm, Placement, Residual, Site

_HEAD_ACTS = {"geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "swiglu": "silu"}


def _each(site: Site) -> Residual:
    return Residual() if site.layer == 1 and site.kind == "attn" else Residual(pre=Norm())


def _read(theirs: Any) -> dict[str, Any]:
    head, layers = theirs.classifier_activation, theirs.hidden_activation
    if head != layers:
        raise InteropError(f"classifier_activation={head!r}: ours is the layers' ({layers!r})")
    types = list(theirs.layer_types)
    return {"layer_types": types, "sliding_window": theirs.sliding_window} if "sliding_attention" in types else {}


def _write(config: IsogradConfig) -> dict[str, Any]:
    types = config.attention_types()
    window = {"local_attention": 2 * (config.sliding_window or 0)} if "sliding_attention" in types else {}
    return window | {"layer_types": types, "classifier_activation": _HEAD_ACTS[config.hidden_act]}


FAMILIES = (
    Family(
        name="modernbert",
        classes={MASKED: "ModernBertForMaskedLM"},
        positions="rotary",
        options=SIZES
        | same("norm_eps", "embedding_dropout", "norm_bias")
        | {"hidden_act": "hidden_activation", "activation_dropout": "mlp_dropout"},
        names=Names(
            stacks={"model": "model"},
            stack={
                "embedding.tokens": "embeddings.tok_embeddings",
                "embedding.norm": "embeddings.norm",
                "norm": "final_norm",
            },
            layer={
                "attn.pre": "attn_norm",
                "attn.branch.out": "attn.Wo",
                "ffn.pre": "mlp_norm",
                "ffn.branch.out": "mlp.Wo",
            },
            fused="attn.Wqkv",
            stacked={"mlp.Wi": ("ffn.branch.gate", "ffn.branch.into")},
            heads={"head.dense": "head.dense", "head.norm": "head.norm", "head.decoder": "decoder"},
        ),
        placement=lambda theirs: Placement(each=_each, final=Norm()),
        parts=(
            FamilyPart(read=_read, write=_write),
            rope_by_type(),
            biases(attention_bias=ATTENTION, mlp_bias=FEEDFORWARD, classifier_bias=("dense",), decoder_bias=("head",)),
        ),
        always={"norm": "layernorm", "embedding_norm": True},
        gated=True,
    ),
)

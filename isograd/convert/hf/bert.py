"""BERT, RoBERTa, RoBERTa-PreLayerNorm and Megatron's BERT, masked and as classifiers."""

from collections.abc import Mapping
from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.hf.parts import SIZES
from isograd.convert.kinds import CLASSIFIER, MASKED
from isograd.models import IsogradConfig

_OPTIONS = SIZES | {
    "type_vocab_size": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
}


def _write(config: IsogradConfig) -> dict[str, Any]:
    return {"type_vocab_size": config.type_vocab_size or 2}  # tokenizers send types, whether it knows them or not


_BERT = FamilyPart(read=lambda theirs: {"embedding_dropout": theirs.hidden_dropout_prob}, write=_write)


def _unread(theirs: Any) -> str | None:
    if theirs.hidden_act != "gelu":
        return f"hidden_act={theirs.hidden_act!r}: RoBERTa's head has gelu, and ours the layers' activation"
    if getattr(theirs, "embedding_size", theirs.hidden_size) != theirs.hidden_size:
        return (
            f"embedding_size={theirs.embedding_size}: ELECTRA normalizes token vectors before it projects them to"
            f" hidden_size={theirs.hidden_size}, isograd after"
        )
    return None


_STACK = {
    "embedding.tokens": "embeddings.word_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
}
_LAYER = {
    "attn.branch.query": "attention.self.query",
    "attn.branch.key": "attention.self.key",
    "attn.branch.value": "attention.self.value",
    "attn.branch.out": "attention.output.dense",
    "attn.norm": "attention.output.LayerNorm",
    "ffn.branch.into": "intermediate.dense",
    "ffn.branch.out": "output.dense",
    "ffn.norm": "output.LayerNorm",
}
_POOLED: dict[str, Any] = {  # BERT and Megatron's pool the first position for a second head
    "heads": {
        "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.decoder": "cls.predictions.decoder",
        "next_sentence.dense": "bert.pooler.dense",
        "next_sentence.classifier": "cls.seq_relationship",
    },
    "classifier": {"dense": "bert.pooler.dense", "classifier": "classifier"},
}
_UNPOOLED: dict[str, Any] = {
    "heads": {"head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm", "head.decoder": "lm_head.decoder"},
    "classifier": {"dense": "classifier.dense", "classifier": "classifier.out_proj"},
}


def _bert(
    name: str,
    cls: str,
    prefix: str,
    ends: Mapping[str, Any],
    norms: Mapping[str, str] | None = None,
    final: Mapping[str, str] | None = None,
    parts: tuple[FamilyPart, ...] = (),
    **holds: Any,
) -> Family:
    """A row: Pre-LN where the norms of its layers stand elsewhere, and one after the last."""
    classifier = {CLASSIFIER: f"{cls}ForSequenceClassification"} if "classifier" in ends else {}
    return Family(
        name=name,
        classes={MASKED: f"{cls}ForMaskedLM"} | classifier,
        placement="pre-ln" if norms else "post-ln",
        fills=True,
        options=_OPTIONS,
        parts=(_BERT, *parts),
        demands={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
        names=Names(
            stacks={"model": prefix},
            stack={**_STACK, **(final or {})},
            layers="encoder.layer",
            layer={**_LAYER, **(norms or {})},
            **ends,
        ),
        **holds,
    )


_NORMED: dict[str, Any] = {"always": {"embedding_norm": True}}
_GELU: dict[str, Any] = {**_NORMED, "head_act": "gelu", "unread": _unread}
_ROBERTA: dict[str, Any] = {**_GELU, "first": "pad"}
FAMILIES = (
    _bert("bert", "Bert", "bert", _POOLED, second_head="BertForPreTraining", **_NORMED),
    _bert("roberta", "Roberta", "roberta", _UNPOOLED, **_ROBERTA),
    _bert("xlm-roberta", "XLMRoberta", "roberta", _UNPOOLED, rank=1, **_ROBERTA),
    _bert(  # its generator; discriminators and classifiers have other heads
        "electra",
        "Electra",
        "electra",
        {
            "heads": {
                "head.dense": "generator_predictions.dense",
                "head.norm": "generator_predictions.LayerNorm",
                "head.decoder": "generator_lm_head",
            }
        },
        parts=(FamilyPart(write=lambda config: {"embedding_size": config.hidden_size}),),
        rank=1,
        **_GELU,
    ),
    _bert(
        "roberta-prelayernorm",
        "RobertaPreLayerNorm",
        "roberta_prelayernorm",
        _UNPOOLED,
        {"attn.norm": "attention.LayerNorm", "ffn.norm": "intermediate.LayerNorm"},
        {"norm": "LayerNorm"},
        **_ROBERTA,
    ),
    _bert(
        "megatron-bert",
        "MegatronBert",
        "bert",
        _POOLED,
        {"attn.norm": "attention.ln", "ffn.norm": "ln"},
        {"norm": "encoder.ln"},
        second_head="MegatronBertForPreTraining",
        only_out=(MASKED, CLASSIFIER),
    ),
)

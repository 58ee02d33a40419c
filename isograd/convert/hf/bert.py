"""BERT, RoBERTa, RoBERTa-PreLayerNorm and Megatron's BERT, masked and as classifiers."""

from collections.abc import Mapping
from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family
from isograd.convert.kinds import CLASSIFIER, MASKED, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig


class _Bert(Family):
    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        options = super().to_options(config, kind)
        options["type_vocab_size"] = config.type_vocab_size or 2  # tokenizers send types, whether it knows them or not
        return options

    def from_options(self, theirs: Any) -> dict[str, Any]:
        options = super().from_options(theirs)
        if self.head_act and options["hidden_act"] != self.head_act:
            raise InteropError(
                f"hidden_act={theirs.hidden_act!r}: RoBERTa's head has gelu, and ours the layers' activation"
            )
        return options | {"embedding_dropout": theirs.hidden_dropout_prob}


_OPTIONS = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_act": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
    "initializer_range": "initializer_range",
}
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
    **holds: Any,
) -> Family:
    """A row: Pre-LN where the norms of its layers stand elsewhere, and one after the last."""
    made = _Electra if cls == "Electra" else _Bert
    classifier = {CLASSIFIER: f"{cls}ForSequenceClassification"} if "classifier" in ends else {}
    return made(
        name=name,
        classes={MASKED: f"{cls}ForMaskedLM"} | classifier,
        norms=("pre",) if norms else ("post",),
        token_types=True,
        options=_OPTIONS,
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


class _Electra(_Bert):
    """Its generator; discriminators and classifiers have other heads."""

    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        return super().to_options(config, kind) | {"embedding_size": config.hidden_size}

    def from_options(self, theirs: Any) -> dict[str, Any]:
        if theirs.embedding_size != theirs.hidden_size:
            raise InteropError(
                f"embedding_size={theirs.embedding_size}: ELECTRA normalizes token vectors before it projects them to"
                f" hidden_size={theirs.hidden_size}, isograd after"
            )
        return super().from_options(theirs)


_READ: dict[str, Any] = {"imports": (MASKED, CLASSIFIER), "embedding_norm": True}
_ROBERTA: dict[str, Any] = {**_READ, "first": "pad", "head_act": "gelu"}
FAMILIES = (
    _bert("bert", "Bert", "bert", _POOLED, second_head="BertForPreTraining", **_READ),
    _bert("roberta", "Roberta", "roberta", _UNPOOLED, **_ROBERTA),
    _bert("xlm-roberta", "XLMRoberta", "roberta", _UNPOOLED, rank=1, **_ROBERTA),
    _bert(
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
        rank=1,
        head_act="gelu",
        imports=(MASKED,),
        embedding_norm=True,
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
    ),
)

"""Where transformers' own classes keep what isograd keeps elsewhere: one table per family.

The tables are read in both directions by `isograd.interop.renaming`. They map modules, not parameters: `weight` and
`bias` are called so everywhere. `attn.norm`, `cross.norm` and `ffn.norm` stand for `pre` or `post`, as the placement
has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Names:
    """Modules of isograd -> modules of a class of transformers.

    Args:
        towers: "model" (one tower), "encoder", "decoder" -> the prefix of that tower.
        tower: a module of a tower, outside its layers.
        layers: the list of layers in a tower.
        layer: a module of a layer.
        heads: a module outside the towers, of a language model.
        classifier: the same of a sequence classifier.
        fused: the module of a layer that holds W_Q, W_K, W_V, where one does.
        by_head: the rows of `fused` are ordered by head, then query, key, value, as in GPT-NeoX.
        transposed: modules of a layer whose matrices are stored as (in, out).
    """

    towers: Mapping[str, str]
    tower: Mapping[str, str]
    layers: str
    layer: Mapping[str, str]
    heads: Mapping[str, str]
    classifier: Mapping[str, str] = field(default_factory=dict)
    fused: str | None = None
    by_head: bool = False
    transposed: frozenset[str] = frozenset()


_BERT_TOWER = {
    "embedding.tokens": "embeddings.word_embeddings",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.types": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
}
_BERT_LAYER = {
    "attn.branch.query": "attention.self.query",
    "attn.branch.key": "attention.self.key",
    "attn.branch.value": "attention.self.value",
    "attn.branch.out": "attention.output.dense",
    "attn.norm": "attention.output.LayerNorm",
    "ffn.branch.into": "intermediate.dense",
    "ffn.branch.out": "output.dense",
    "ffn.norm": "output.LayerNorm",
}
_BERT_HEADS = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.decoder": "cls.predictions.decoder",
    "next_sentence.dense": "bert.pooler.dense",
    "next_sentence.classifier": "cls.seq_relationship",
}
_BERT_CLASSIFIER = {"dense": "bert.pooler.dense", "classifier": "classifier"}
_ROBERTA_HEADS = {
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.decoder": "lm_head.decoder",
}
_ROBERTA_CLASSIFIER = {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
_FAIRSEQ_LAYER = {  # the classes that were carried over from fairseq
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
_FAIRSEQ_TOWER = {"embedding.tokens": "embed_tokens", "embedding.positions": "embed_positions"}
_BART_TOWER = {**_FAIRSEQ_TOWER, "embedding.norm": "layernorm_embedding"}
_PAIR = {"model": "model.decoder", "encoder": "model.encoder", "decoder": "model.decoder"}
_LLAMA_LAYER = {
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
_LLAMA_TOWER = {"embedding.tokens": "embed_tokens", "norm": "norm"}
_HEAD = {"lm_head": "lm_head"}


def _bert(prefix: str, layer: Mapping[str, str], final: str | None = None) -> Names:
    """BERT and Megatron's, which pool the first place for a second head; RoBERTa's, which do not."""
    tower = {**_BERT_TOWER, "norm": final} if final else _BERT_TOWER
    heads, classifier = (_BERT_HEADS, _BERT_CLASSIFIER) if prefix == "bert" else (_ROBERTA_HEADS, _ROBERTA_CLASSIFIER)
    return Names(
        towers={"model": prefix},
        tower=tower,
        layers="encoder.layer",
        layer=layer,
        heads=heads,
        classifier=classifier,
    )


def _bart(tower: Mapping[str, str], heads: Mapping[str, str] = _HEAD) -> Names:
    return Names(towers=_PAIR, tower=tower, layers="layers", layer=_FAIRSEQ_LAYER, heads=heads)


NAMES: dict[str, Names] = {  # by transformers' model_type
    "gpt2": Names(
        towers={"model": "transformer"},
        tower={"embedding.tokens": "wte", "embedding.positions": "wpe", "norm": "ln_f"},
        layers="h",
        layer={
            "attn.norm": "ln_1",
            "attn.branch.out": "attn.c_proj",
            "ffn.norm": "ln_2",
            "ffn.branch.into": "mlp.c_fc",
            "ffn.branch.out": "mlp.c_proj",
        },
        heads=_HEAD,
        fused="attn.c_attn",
        transposed=frozenset(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
    ),
    "opt": Names(
        towers={"model": "model.decoder"},
        tower={
            **_FAIRSEQ_TOWER,
            "embedding.project": "project_in",
            "norm": "final_layer_norm",
            "project": "project_out",
        },
        layers="layers",
        layer={ours: theirs for ours, theirs in _FAIRSEQ_LAYER.items() if not ours.startswith("cross")},
        heads=_HEAD,
    ),
    "llama": Names(towers={"model": "model"}, tower=_LLAMA_TOWER, layers="layers", layer=_LLAMA_LAYER, heads=_HEAD),
    "qwen3": Names(
        towers={"model": "model"},
        tower=_LLAMA_TOWER,
        layers="layers",
        layer={
            **_LLAMA_LAYER,
            "attn.branch.query_norm": "self_attn.q_norm",
            "attn.branch.key_norm": "self_attn.k_norm",
        },
        heads=_HEAD,
    ),
    "gpt_neox": Names(
        towers={"model": "gpt_neox"},
        tower={"embedding.tokens": "embed_in", "norm": "final_layer_norm"},
        layers="layers",
        layer={
            "attn.norm": "input_layernorm",
            "attn.branch.out": "attention.dense",
            "ffn.norm": "post_attention_layernorm",
            "ffn.branch.into": "mlp.dense_h_to_4h",
            "ffn.branch.out": "mlp.dense_4h_to_h",
        },
        heads=_HEAD,
        fused="attention.query_key_value",
        by_head=True,
    ),
    "bert": _bert("bert", _BERT_LAYER),
    "roberta": _bert("roberta", _BERT_LAYER),
    "roberta-prelayernorm": _bert(
        "roberta_prelayernorm",
        {**_BERT_LAYER, "attn.norm": "attention.LayerNorm", "ffn.norm": "intermediate.LayerNorm"},
        final="LayerNorm",
    ),
    "megatron-bert": _bert(
        "bert",
        {**_BERT_LAYER, "attn.norm": "attention.ln", "ffn.norm": "ln"},
        final="encoder.ln",
    ),
    "bart": _bart(_BART_TOWER),
    "mbart": _bart({**_BART_TOWER, "norm": "layer_norm"}),
    "blenderbot": _bart({**_FAIRSEQ_TOWER, "norm": "layer_norm"}),
    "m2m_100": _bart({**_FAIRSEQ_TOWER, "norm": "layer_norm"}),
    "marian": _bart(_FAIRSEQ_TOWER),
    "fsmt": _bart(_FAIRSEQ_TOWER, {"lm_head": "model.decoder.output_projection"}),
}

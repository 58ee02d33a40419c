"""Weights of fairseq 0.12 and of Transformer-Clinic (ADMIN's code, a fork of fairseq 0.8) -> isograd models.

    model = load_fairseq(state, options)        state: their names -> tensors; options: the arguments of the training

| theirs | ours |
| --- | --- |
| `encoder.` and `decoder.` of a translator; `decoder.`, or `encoder.sentence_encoder.`, alone | `encoder.`, `decoder.`; `model.` |
| `embed_tokens`, `embed_positions`, `layernorm_embedding` | `embedding.tokens`, `.positions`, `.norm` |
| `layers.<l>.self_attn.q_proj`, `k_proj`, `v_proj`, `out_proj` | `layers.<l>.attn.branch.query`, `key`, `value`, `out` |
| `layers.<l>.encoder_attn.`, the same four | `layers.<l>.cross.branch.` |
| `in_proj_weight`, `in_proj_bias` of an attention | its `query`, `key`, `value`, on top of each other |
| `layers.<l>.fc1`, `ffn_layernorm`, `fc2` | `layers.<l>.ffn.branch.into`, `mid`, `out` |
| `self_attn_layer_norm`, `encoder_attn_layer_norm`, `final_layer_norm` of a layer | `post`, or `pre`, of attn, cross, ffn |
| `attn_ln`, `c_attn`, `w_resid` of a layer | `attn.out`, `attn.branch.heads`, `ffn.combine.skip` |
| `attention_ratio_change` (`self_`), `encoder_ratio_change`, `fc_ratio_change` | `combine.skip` of attn, cross, ffn |
| `layer_norm` of a tower | its `norm` |
| `decoder.output_projection`, `decoder.embed_out` | `lm_head` |
| `encoder.lm_head.dense`, `.layer_norm`, `.weight`, `.bias` | `head.dense`, `head.norm`, `head.decoder` |
| `version`, `embed_positions._float_tensor` | nothing: they hold no weights |
"""  # noqa: E501  (a row of a table stands on one line)

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isograd.export.fairseq_options import config_from_fairseq, kind_of, refuse
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForMaskedLM, IsogradForSeq2SeqLM
from isograd.models.base import IsogradPreTrainedModel

MODULES = {
    "embed_tokens": "embedding.tokens",
    "embed_positions": "embedding.positions",
    "layernorm_embedding": "embedding.norm",
    "layer_norm": "norm",
    "output_projection": "lm_head",
    "lm_head.dense": "head.dense",
    "lm_head.layer_norm": "head.norm",
    "lm_head": "head.decoder",
}
LAYER = {
    "self_attn.q_proj": "attn.branch.query",
    "self_attn.k_proj": "attn.branch.key",
    "self_attn.v_proj": "attn.branch.value",
    "self_attn.out_proj": "attn.branch.out",
    "encoder_attn.q_proj": "cross.branch.query",
    "encoder_attn.k_proj": "cross.branch.key",
    "encoder_attn.v_proj": "cross.branch.value",
    "encoder_attn.out_proj": "cross.branch.out",
    "attn_ln": "attn.out",
    "fc1": "ffn.branch.into",
    "ffn_layernorm": "ffn.branch.mid",
    "fc2": "ffn.branch.out",
}
NORMS = {"self_attn_layer_norm": "attn", "encoder_attn_layer_norm": "cross", "final_layer_norm": "ffn"}
VECTORS = {
    "c_attn": "attn.branch.heads.weight",
    "w_resid": "ffn.combine.skip.weight",
    "attention_ratio_change": "attn.combine.skip.weight",
    "self_ratio_change": "attn.combine.skip.weight",
    "encoder_ratio_change": "cross.combine.skip.weight",
    "fc_ratio_change": "ffn.combine.skip.weight",
}
NOT_WEIGHTS = (".version", "._float_tensor")


def load_fairseq(
    state: Mapping[str, Tensor], options: Mapping[str, Any], *, placement: str | None = None
) -> IsogradPreTrainedModel:
    """The model with these weights, in their dtype, in eval mode.

    Args:
        state: the state dict (`checkpoint["model"]`).
        options: the model's options (`checkpoint["args"]`, or `checkpoint["cfg"]["model"]`, as a mapping).
        placement: a name in the catalogue in place of what the options say.

    Raises:
        ValueError: options or names of weights that isograd has no place for, and weights that are missing.
    """
    if placement is None and any(name.endswith("_ratio_change") for name in state):
        placement = "admin"
    rows = {tower: len(table) for tower in ("encoder", "decoder") if (table := _table(state, tower)) is not None}
    if not rows:
        raise ValueError("no embed_tokens.weight among the weights: is this the state dict of a Transformer?")
    model = build(
        config_from_fairseq(
            options,
            rows.get("decoder", rows.get("encoder", 0)),
            encoder_vocab_size=rows.get("encoder") if len(rows) == 2 else None,
            placement=placement,
        )
    )
    fill(model, state, options)
    if model.config.entry().calibrate:
        model.config.calibration = {"method": "fairseq"}  # the skips came with the weights
    return model.eval()


def build(config: IsogradConfig) -> IsogradPreTrainedModel:
    """The model of a configuration that `config_from_fairseq` gave."""
    if config.encoder_layers is not None:
        return IsogradForSeq2SeqLM(config)
    return IsogradForCausalLM(config) if config.is_decoder else IsogradForMaskedLM(config)


def fill(model: IsogradPreTrainedModel, state: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
    """Load weights under their names into a model that has their shape, in their dtype.

    Raises:
        ValueError: names that isograd does not know or the model does not have, names that are missing, tables that
            should be one and differ.
    """
    ours = renamed(state, options)
    tied = dict(model._tied_weights_keys) if model.config.tie_word_embeddings else {}
    wanted = set(model.state_dict())
    refuse("weights that this model does not have", set(ours) - wanted)
    refuse("weights that are missing", wanted - set(ours) - set(tied))
    refuse(
        "tables that the options call shared, but that differ",
        {name for name, source in tied.items() if name in ours and not torch.equal(ours[name], ours[source])},
    )
    model.to(next(iter(ours.values())).dtype).load_state_dict(ours, strict=False)  # what is tied may be left out


def renamed(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Their names -> ours, for weights and for gradients alike; buffers that hold no weights are dropped.

    Raises:
        ValueError: names that are not in the table above, each of them.
    """
    out: dict[str, Tensor] = {}
    unknown = []
    for name, value in state.items():
        if name.endswith(NOT_WEIGHTS):
            continue
        try:
            out.update(_entry(name, value, options))
        except (KeyError, ValueError):
            unknown.append(name)
    refuse("weights that isograd has no place for", unknown)
    return out


def _entry(name: str, value: Tensor, options: Mapping[str, Any]) -> dict[str, Tensor]:
    tower, rest = name.removeprefix("encoder.sentence_").split(".", 1)
    prefix = f"{tower}." if kind_of(options) == "pair" else "model."
    if rest.startswith("layers."):
        _, layer, rest = rest.split(".", 2)
        return {f"{prefix}layers.{layer}.{k}": v for k, v in _in_layer(rest, value, options, tower).items()}
    if rest == "embed_out":
        return {"lm_head.weight": value}
    module, leaf = rest.rsplit(".", 1)
    ours = MODULES[module]  # heads stand outside the tower whose name the original gives them
    return {f"{'' if ours.startswith(('lm_head', 'head.')) else prefix}{ours}.{leaf}": value}


def _in_layer(rest: str, value: Tensor, options: Mapping[str, Any], tower: str) -> dict[str, Tensor]:
    if rest in VECTORS:
        return {VECTORS[rest]: value[:, None] if rest == "c_attn" else value}
    if ".in_proj_" in rest:
        attention, leaf = rest.split(".in_proj_")
        parts = zip("qkv", value.chunk(3), strict=True)
        return {f"{LAYER[f'{attention}.{letter}_proj']}.{leaf}": part for letter, part in parts}
    module, leaf = rest.rsplit(".", 1)
    if module in NORMS:
        return {f"{NORMS[module]}.{'pre' if options[f'{tower}_normalize_before'] else 'post'}.{leaf}": value}
    return {f"{LAYER[module]}.{leaf}": value}


def _table(state: Mapping[str, Tensor], tower: str) -> Tensor | None:
    names = (f"{tower}.embed_tokens.weight", f"{tower}.sentence_encoder.embed_tokens.weight")
    return next((state[name] for name in names if name in state), None)

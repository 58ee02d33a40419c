"""Weights of fairseq 0.12 and of Transformer-Clinic (ADMIN's code, a fork of fairseq 0.8) -> isograd models.

    model = from_fairseq(state, config)        state: their names -> tensors; config: the options of the training

Placements that no catalogue holds come from the options: `isograd.placement.flags`. Names are those of
`isograd.interop.fairseq_names`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isograd.interop.fairseq_names import original, renamed, tables, upgraded
from isograd.interop.fairseq_options import config_from_fairseq, kind_of, normed_before, options_of, refuse
from isograd.models import IsogradConfig, IsogradForCausalLM, IsogradForMaskedLM, IsogradForSeq2SeqLM
from isograd.models.base import IsogradPreTrainedModel
from isograd.placement import Stack
from isograd.transformer.positions import sinusoidal

FIRST_WITH_VERSION = 2.0  # older towers of fairseq end without a norm, whatever their options


def from_fairseq(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> IsogradPreTrainedModel:
    """The model with these weights, in their dtype, in eval mode.

    Sinusoidal positions are computed as fairseq computes them, in float32. A table that stands in the state
    (`sinusoidal_table`, `encoder_sinusoidal_table`, `decoder_sinusoidal_table`) is used as it is: where it differs from
    ours in any bit it becomes a learned table, frozen.

    Args:
        state: the state dict (`checkpoint["model"]`); sharing of tables is as the options say.
        config: the options by the original's names (`checkpoint["args"]`, or `checkpoint["cfg"]["model"]`, as a
            mapping), or a mapping that holds them under "config", with vocab_size, pad, bos and eos beside them.

    Raises:
        ValueError: options or weights that isograd has no place for, weights that are missing or of another shape.
    """
    options = options_of(config)
    given, stored = tables(state)
    given = _with_copies(upgraded(given), options)
    options = _of_one_tower(given, options)
    stored = {tower: table for tower, table in stored.items() if not _is_ours(table, options)}
    ours = build(_config(given, options, stored))
    fill(ours, given, options, stored)
    return ours.eval()


def build(config: IsogradConfig) -> IsogradPreTrainedModel:
    """The model of a configuration that `config_from_fairseq` gave."""
    if config.encoder_layers is not None:
        return IsogradForSeq2SeqLM(config)
    return IsogradForCausalLM(config) if config.is_decoder else IsogradForMaskedLM(config)


def fill(
    model: IsogradPreTrainedModel,
    state: Mapping[str, Tensor],
    options: Mapping[str, Any],
    stored: Mapping[Stack, Tensor] | None = None,
) -> None:
    """Load weights under their names into a model that has their shape, in their dtype.

    Raises:
        ValueError: names that isograd does not know or the model does not have, names that are missing, weights of
            another shape, tables that should be one and differ.
    """
    ours = renamed(state, options)
    for tower, table in (stored or {}).items():
        prefix = f"{tower}." if model.config.is_encoder_decoder else "model."
        ours[f"{prefix}embedding.positions.weight"] = table
    own = model.state_dict()
    tied = dict(model._tied_weights_keys) if model.config.tie_word_embeddings else {}
    refuse("weights that this model does not have", (original(name, options) for name in set(ours) - set(own)))
    refuse("weights that are missing", (original(name, options) for name in set(own) - set(ours) - set(tied)))
    refuse(
        "weights of another shape than the options say",
        (
            f"{original(name, options)} {tuple(value.shape)} in place of {tuple(own[name].shape)}"
            for name, value in ours.items()
            if value.shape != own[name].shape
        ),
    )
    refuse(
        "tables that the options call shared, but that differ",
        (original(n, options) for n, source in tied.items() if n in ours and not torch.equal(ours[n], ours[source])),
    )
    model.to(_dtype(ours)).load_state_dict(ours, strict=False)  # what is tied may be left out
    for tower in stored or {}:
        (getattr(model, tower, None) or model.model).embedding.positions.weight.requires_grad_(False)


def _config(state: Mapping[str, Tensor], options: Mapping[str, Any], stored: Mapping[Stack, Tensor]) -> IsogradConfig:
    rows = {tower: table for tower in ("encoder", "decoder") if (table := _table(state, tower)) is not None}
    main = rows["decoder"] if "decoder" in rows else rows["encoder"]
    said = options.get("vocab_size")
    if said is not None and said != len(main):
        raise ValueError(f"vocab_size={said}, but the token table has {len(main)} rows")
    widths: dict[str, int | None] = {"input_size": None, "output_size": None}
    if "decoder.project_in_dim.weight" in state:
        widths["input_size"] = main.shape[1]
    if "decoder.project_out_dim.weight" in state:
        widths["output_size"] = len(state["decoder.project_out_dim.weight"])
    return config_from_fairseq(
        options,
        len(main),
        encoder_vocab_size=len(rows["encoder"]) if len(rows) == 2 else None,
        **widths,
        admin=any(name.endswith("_ratio_change") for name in state),
        final=not _ends_bare(state, options),
        learned={tower: len(table) - int(options.get("pad", 1)) - 1 for tower, table in stored.items()},
    )


def _with_copies(state: dict[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state with both names of a shared table: a format that stores it once keeps any of them."""
    one, other = "decoder.embed_tokens.weight", "decoder.output_projection.weight"
    shared = [(one, other)] if options.get("share_decoder_input_output_embed") else []
    if options.get("share_all_embeddings"):
        shared = [(one, other), (one, "encoder.embed_tokens.weight"), ("encoder.embed_tokens.weight", one)]
    if not options.get("untie_weights_roberta"):
        shared.append(("encoder.sentence_encoder.embed_tokens.weight", "encoder.lm_head.weight"))
    for name, source in shared:
        if name not in state and source in state:
            state[name] = state[source]
    return state


def _of_one_tower(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of a tower that has no weights: fairseq's parsers leave some of both."""
    there = {tower for tower in ("encoder", "decoder") if _table(state, tower) is not None}
    if not there:
        raise ValueError("no embed_tokens.weight among the weights: is this the state dict of a Transformer?")
    refuse("options that are missing", [f"{t}_layers" for t in there if options.get(f"{t}_layers") is None])
    absent = {"encoder", "decoder"} - there
    return {name: value for name, value in options.items() if not any(name == f"{t}_layers" for t in absent)}


def _ends_bare(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> bool:
    """Whether a Pre-LN decoder of the first fairseq, which had no norm after the last layer."""
    if kind_of(options) == "masked" or not normed_before(options, "decoder") or "decoder.layer_norm.weight" in state:
        return False
    version = state.get("decoder.version")
    return version is None or float(version.flatten()[0]) < FIRST_WITH_VERSION


def _is_ours(table: Tensor, options: Mapping[str, Any]) -> bool:
    """Bit for bit, from the first position on."""
    first = int(options.get("pad", 1)) + 1
    ours = sinusoidal(torch.arange(len(table)), table.shape[1])
    return torch.equal(table[first:].float().cpu(), ours[first:])


def _table(state: Mapping[str, Tensor], tower: str) -> Tensor | None:
    names = (f"{tower}.embed_tokens.weight", f"{tower}.sentence_encoder.embed_tokens.weight")
    return next((state[name] for name in names if name in state), None)


def _dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    """The widest among them."""
    found = torch.float16 if all(w.dtype == torch.float16 for w in weights.values()) else torch.bfloat16
    for weight in weights.values():
        found = torch.promote_types(found, weight.dtype)
    return found

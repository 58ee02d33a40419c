"""Models of transformers' own classes as isograd's: GPT-2, OPT, BERT, RoBERTa, BART, mBART, Marian.

    model = from_transformers(transformers.AutoModelForCausalLM.from_pretrained("gpt2"))

The way back from `isograd.interop.native`, by the same tables of names.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from isograd.errors import ExportError
from isograd.interop.names import NAMES
from isograd.interop.pretrained_configs import OPTIONS
from isograd.interop.renaming import from_native
from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
    IsogradPreTrainedModel,
)

CLASSES: dict[str, type[IsogradPreTrainedModel]] = {
    "GPT2LMHeadModel": IsogradForCausalLM,
    "OPTForCausalLM": IsogradForCausalLM,
    "BertForMaskedLM": IsogradForMaskedLM,
    "BertForPreTraining": IsogradForMaskedLM,
    "BertForSequenceClassification": IsogradForSequenceClassification,
    "RobertaForMaskedLM": IsogradForMaskedLM,
    "RobertaForSequenceClassification": IsogradForSequenceClassification,
    "RobertaPreLayerNormForMaskedLM": IsogradForMaskedLM,
    "RobertaPreLayerNormForSequenceClassification": IsogradForSequenceClassification,
    "BartForConditionalGeneration": IsogradForSeq2SeqLM,
    "MBartForConditionalGeneration": IsogradForSeq2SeqLM,
    "MarianMTModel": IsogradForSeq2SeqLM,
}
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_COPIES = ("model.shared.weight", "cls.predictions.bias", "lm_head.bias")  # of what has another name as well
_OFFSET = "final_logits_bias"


def from_transformers(theirs: PreTrainedModel) -> IsogradPreTrainedModel:
    """The same function as an isograd model, in eval mode, in its dtype; `theirs` stays as it is.

    Marian's sinusoids become a table that is not trained (a saved model does not keep that).

    Raises:
        ExportError: a class that isograd has no counterpart for, an option or weights that it has no place for.
    """
    name = type(theirs).__name__
    if name not in CLASSES:
        raise ExportError(f"{name}: no counterpart here; expected one of {', '.join(CLASSES)}")
    state, rest = _renamed(theirs, CLASSES[name])
    offset = rest.pop(_OFFSET, None)
    if offset is not None and offset.any():
        state["lm_head.bias"] = offset[0]
    if unknown := sorted(set(rest) - set(_COPIES)):
        raise ExportError(f"{name}: weights that isograd has no place for: {', '.join(unknown)}")
    model = CLASSES[name](_config(theirs, state))
    _fill(model.to(theirs.dtype), state)
    if theirs.config.model_type == "marian":
        for tower in (model.encoder, model.decoder):
            tower.embedding.positions.weight.requires_grad_(False)
    return model.eval()


def _renamed(
    theirs: PreTrainedModel, kind: type[IsogradPreTrainedModel]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    family = theirs.config.model_type
    options = OPTIONS[family](theirs.config)
    return from_native(
        theirs.state_dict(),
        NAMES[family],
        norms="pre" if options["placement"] in ("pre-ln", "gpt2") else "post",
        heads=options["num_attention_heads"],
        pair=kind is IsogradForSeq2SeqLM,
        classifier=kind is IsogradForSequenceClassification,
    )


def _config(theirs: PreTrainedModel, state: Mapping[str, Tensor]) -> IsogradConfig:
    config: Any = theirs.config
    options = OPTIONS[config.model_type](config) | {name: getattr(config, name, None) for name in _IDS}
    pair = CLASSES[type(theirs).__name__] is IsogradForSeq2SeqLM
    table = theirs.get_input_embeddings().weight
    if pair:
        source, table = theirs.get_encoder().embed_tokens.weight, theirs.get_decoder().embed_tokens.weight
        rows = None if len(source) == len(table) else len(source)
        options |= {"encoder_vocab_size": rows, "share_encoder_embeddings": source is table}
    head: Any = theirs.get_output_embeddings()
    tied = isinstance(head, nn.Module) and head.weight is table
    if pair and not tied:
        options["share_encoder_embeddings"] = False  # one table for all three, or each its own
    if CLASSES[type(theirs).__name__] is IsogradForSequenceClassification:
        tied, labels = True, ("num_labels", "problem_type")
        options |= {name: getattr(config, name) for name in labels}
    return IsogradConfig(
        **({"scale_embedding": False} | options),
        vocab_size=len(table),
        tie_word_embeddings=tied,
        head_bias="lm_head.bias" in state,
        next_sentence="next_sentence.dense.weight" in state,
        is_decoder=CLASSES[type(theirs).__name__] is IsogradForCausalLM,
    )


def _fill(model: IsogradPreTrainedModel, state: dict[str, Tensor]) -> None:
    own = model.state_dict()
    tied = dict(model._tied_weights_keys or {}) if model.config.tie_word_embeddings else {}
    missing = sorted(set(own) - set(state) - set(tied))
    strange = sorted(set(state) - set(own))
    wrong = sorted(name for name in state.keys() & own.keys() if state[name].shape != own[name].shape)
    for what, names in (("are missing", missing), ("have no place", strange), ("have another shape", wrong)):
        if names:
            raise ExportError(f"weights that {what}: {', '.join(names)}")
    with torch.no_grad():
        model.load_state_dict(state, strict=False)  # what is tied may be left out

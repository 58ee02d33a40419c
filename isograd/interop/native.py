"""isograd models as transformers' own classes: the same function, loaded by their own `from_pretrained`.

    native = export_native(model)                   # the nearest class that can hold it exactly
    native = export_native(model, "opt")

A placement with coefficients (ADMIN, DeepNorm, HeadScale) is folded into plain weights first. What no class can hold
exactly is refused with the reason.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel

from isograd.errors import ExportError, FoldError
from isograd.interop.fold import fold
from isograd.interop.native_fit import first_row, has_coefficients, has_inner_norms, homes, kind_of, reasons
from isograd.interop.native_targets import KINDS, TARGETS, Kind, Target
from isograd.interop.native_weights import meta, native_state, positions_of, scales, unties
from isograd.models import IsogradConfig, IsogradPreTrainedModel

_ELSEWHERE = "isograd's own class (--to isograd) and ONNX (--to onnx) hold every model"
_NOT_SETTINGS = ("_from_model_config", "transformers_version")
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an export will do.

    Args:
        name: a key of `isograd.interop.native_targets.TARGETS`.
        model: what is exported: the model itself, or its plain form where coefficients were folded.
        kind: what it is.
        exact: every weight keeps its value, or parts of it its place; else some were folded or scaled, and rounded.
        notes: what its user should know, a sentence each.
    """

    name: str
    model: IsogradPreTrainedModel
    kind: Kind
    exact: bool
    notes: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        return TARGETS[self.name]

    @property
    def class_name(self) -> str:
        second = self.model.config.next_sentence and self.kind == "masked"
        return (second and self.target.second_head) or self.target.classes[self.kind]


def export_native(model: IsogradPreTrainedModel, to: str = "auto") -> PreTrainedModel:
    """The model as a class of transformers, in eval mode, in its dtype, on the CPU.

    Args:
        model: a model with a head; it stays as it is.
        to: a key of `isograd.interop.native_targets.TARGETS`, or "auto" for the nearest class that can hold it.

    Raises:
        ExportError: no class, or not this one, computes the same; the message says why, and where it can go.
    """
    return built(plan(model, to))


def plan(model: IsogradPreTrainedModel, to: str = "auto") -> Plan:
    """Fold what has to be folded, and find the class.

    Raises:
        ExportError: as `export_native`.
    """
    kind = kind_of(model)
    if kind is None:
        raise ExportError(f"{type(model).__name__} has no head: export a language model, a translator or a classifier")
    if to != "auto" and to not in TARGETS:
        raise ExportError(f"unknown class {to!r}: expected auto or one of {', '.join(TARGETS)}")
    notes: list[str] = []
    plain = model
    if has_coefficients(model.config):
        if has_inner_norms(model.config):  # what folding leaves has no home either
            raise ExportError(_no_home(model.config, kind))
        plain = _folded(_single(model), notes)
    config = plain.config
    if to == "auto":
        found = homes(config, kind)
        if not found:
            raise ExportError(_no_home(config, kind))
        to = found[0]
    elif why := reasons(config, kind, TARGETS[to]):
        raise ExportError(f"{to} cannot hold this model: {'; '.join(why)}. {_other_homes(config, kind)}")
    exact = plain is model and not scales(config, TARGETS[to])
    plain = plain if exact else _single(plain)
    if plain.dtype != model.dtype:
        notes.append(f"Weights of {_named(model.dtype)} are stored in float32, since some of them have new values.")
    notes += _notes(model.config, config, kind, TARGETS[to])
    return Plan(name=to, model=plain, kind=kind, exact=exact, notes=notes)


def built(plan: Plan) -> PreTrainedModel:
    """The class with the weights in it."""
    model, target = plan.model, plan.target
    cls = getattr(transformers, plan.class_name)
    config = _config(model.config, plan.kind, target, cls)
    shapes = {name: value.shape for name, value in meta(cls, copy.deepcopy(config)).state_dict().items()}
    state = native_state(model, plan.kind, target, shapes)
    native, info = cls.from_pretrained(
        None, config=config, state_dict=state, dtype=model.dtype, output_loading_info=True
    )
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]), info
    if plan.kind in ("causal", "pair"):
        native.generation_config = _generation(model)
    if target.positions == "permuted":  # Marian would leave out the table and compute another one, in other steps
        native._keys_to_ignore_on_save = None
    native.eval()
    assert isinstance(native, PreTrainedModel)
    return native


def _folded(model: IsogradPreTrainedModel, notes: list[str]) -> IsogradPreTrainedModel:
    try:
        plain = fold(model, untie=True)
    except FoldError as error:
        raise ExportError(f"{error}. {_ELSEWHERE}") from error
    notes.append(f"The coefficients of {model.config.placement} are folded into weights of {plain.config.placement}.")
    return plain


def _single(model: IsogradPreTrainedModel) -> IsogradPreTrainedModel:
    """In float32 at least: new values of weights in half precision would be rounded to 8 bits once more."""
    enough = torch.promote_types(model.dtype, torch.float32) == model.dtype
    return model if enough else copy.deepcopy(model).float()


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _no_home(config: IsogradConfig, kind: Kind) -> str:
    """The reasons of the class that has the fewest."""
    told = {name: reasons(config, kind, target) for name, target in TARGETS.items() if kind in target.classes}
    nearest = min(told, key=lambda name: len(told[name]))
    return (
        f"no class of transformers holds this model ({config.placement!r}, {KINDS[kind]}) exactly; of the nearest,"
        f" {nearest}: {'; '.join(told[nearest])}. {_ELSEWHERE}"
    )


def _other_homes(config: IsogradConfig, kind: Kind) -> str:
    found = homes(config, kind)
    return f"It fits into {', '.join(found)} (--to {found[0]})" if found else _ELSEWHERE


def _notes(before: IsogradConfig, config: IsogradConfig, kind: Kind, target: Target) -> list[str]:
    """What differs in use, though no number does."""
    notes = []
    if target.positions == "table" and before.position_embedding_type != "learned":
        rows = positions_of(config)
        notes.append(
            f"Its positions ({before.position_embedding_type}) are a table of {rows} rows: no longer sequences."
        )
    if _stored_apart(before, config, target):
        notes.append("Token tables that were one are stored apart: further training would let them drift.")
    if kind == "causal" and target.unused:
        notes.append(
            "Its class has a cross-attention, which never runs and is stored as zeros, and counts positions from the"
            " left edge: pad a batch of prompts on the right, or generate one by one."
        )
    if target.first == "pad":
        notes.append("It counts positions over the ids that are not pad, whatever the attention mask says.")
    elif kind == "causal" and not target.unused and target.model_type != "opt":
        notes.append("A batch padded on the left needs position_ids; generate passes them.")
    elif kind == "pair" or (kind != "causal" and target.positions == "table"):
        notes.append("It counts positions from the left edge: pad what its encoder reads on the right.")
    return notes


def _stored_apart(before: IsogradConfig, config: IsogradConfig, target: Target) -> bool:
    tied = config.tie_word_embeddings and not unties(config, target)
    return (before.tie_word_embeddings and not tied) or (
        before.share_encoder_embeddings and not config.share_encoder_embeddings
    )


def _config(config: IsogradConfig, kind: Kind, target: Target, cls: Any) -> Any:
    options = target.options(config)
    act = target.acts[config.hidden_act]
    made = cls.config_class
    fields = made.__dataclass_fields__
    for name in ("activation_function", "hidden_act"):
        if name in fields:
            options[name] = act
    if target.model_type == "opt":
        options["do_layer_norm_before"] = config.entry().final is not None
    extra = first_row(config, target) if target.first == "pad" and kind != "pair" else 0  # RoBERTa counts these too
    options |= {name: getattr(config, name) for name in _IDS}
    if kind == "pair":
        options["decoder_start_token_id"] = config.decoder_start_token_id
    options |= _vocabularies(config, target)
    options["tie_word_embeddings"] = config.tie_word_embeddings and not unties(config, target)
    options["use_cache"] = target.model_type != "fsmt"  # with it FSMT reads one token; generate asks for it
    if target.positions != "rotary":
        rows = positions_of(config)
        options["n_positions" if "n_positions" in fields else "max_position_embeddings"] = rows + extra
    if kind == "classifier":
        options |= {"id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}
        if config.classifier_dropout is None:
            options["classifier_dropout"] = config.hidden_dropout
    return made(**options)


def _vocabularies(config: IsogradConfig, target: Target) -> dict[str, int]:
    source = config.encoder_vocab_size or config.vocab_size
    if target.model_type == "fsmt":
        return {"src_vocab_size": source, "tgt_vocab_size": config.vocab_size}
    if target.model_type == "marian":
        return {"vocab_size": source, "decoder_vocab_size": config.vocab_size}
    return {"vocab_size": config.vocab_size}


def _generation(model: IsogradPreTrainedModel) -> GenerationConfig:
    """The model's own settings, with a cache."""
    assert isinstance(model.generation_config, GenerationConfig)
    own = model.generation_config.to_diff_dict()
    return GenerationConfig(**{name: own[name] for name in own if name not in _NOT_SETTINGS} | {"use_cache": True})

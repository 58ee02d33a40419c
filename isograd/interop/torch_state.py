"""Weights of torch.nn.TransformerEncoder and torch.nn.Transformer -> isograd models.

    model = from_torch(state, Plan(heads=8, tokens="embed.weight", head="out.weight"))

torch has the layers only: tables and head stand under names of your own, and `Plan` says which. Without tables the layers
alone are taken over, as an `IsogradModel` that reads `inputs_embeds`.

| theirs, behind `<prefix>` | ours |
| --- | --- |
| `self_attn.in_proj_weight`, `out_proj` of a layer | `attn.branch.query`, `key`, `value`, `out` |
| `multihead_attn.`, the same | `cross.branch.` |
| `linear1`, `linear2` | `ffn.branch.into`, `out` |
| `norm1`, `norm2` of an encoder; `norm1`, `norm2`, `norm3` of a decoder | `pre` or `post` of attn, ffn; of attn, cross, ffn |
| `norm` behind the layers | `norm` |
"""  # noqa: E501  (a row of a table stands on one line)

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from isograd.errors import ExportError
from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForSeq2SeqLM,
    IsogradModel,
    IsogradPreTrainedModel,
)
from isograd.placement import Stack
from isograd.placement.flags import flagged_name

_LAYER = re.compile(r"(?P<prefix>(?:.*\.)?)layers\.(?P<number>\d+)\.(?P<rest>.+)")
_MODULES = {
    "self_attn.out_proj": "attn.branch.out",
    "multihead_attn.out_proj": "cross.branch.out",
    "linear1": "ffn.branch.into",
    "linear2": "ffn.branch.out",
}
_NORMS: dict[Stack, tuple[str, ...]] = {"encoder": ("attn", "ffn"), "decoder": ("attn", "cross", "ffn")}
_FUSED = {"self_attn.in_proj_": "attn", "multihead_attn.in_proj_": "cross"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a state dict of torch's layers does not say.

    Args:
        heads: attention heads.
        norm_first: torch's option of that name: Pre-LN.
        activation: "relu" or "gelu".
        causal: a TransformerEncoder that reads to the left only, as a language model.
        tokens: name of the (source's) token table; None takes the layers alone.
        target_tokens: of the target's, where it has its own.
        positions: name of a learned table, "sinusoidal_interleaved" (torch's tutorial, the original's), "sinusoidal"
            (fairseq's), or "none".
        target_positions: name of the target's table, where it has its own.
        head: name of the head's matrix; None ties it to the (target's) token table.
        scale_embedding: token vectors are multiplied by sqrt(width).
        eps: layer_norm_eps.
        pad, bos, eos: ids, where there are any.
    """

    heads: int
    norm_first: bool = False
    activation: Literal["relu", "gelu"] = "relu"
    causal: bool = False
    tokens: str | None = None
    target_tokens: str | None = None
    positions: str = "none"
    target_positions: str | None = None
    head: str | None = None
    scale_embedding: bool = False
    eps: float = 1e-5
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None


def from_torch(state: Mapping[str, Tensor], plan: Plan) -> IsogradPreTrainedModel:
    """The model of these weights, in their dtype, in eval mode: a translator of nn.Transformer; of
    nn.TransformerEncoder a language model if it is causal and has tables, else the layers alone.

    Raises:
        ExportError: no layers, names that have no place, missing weights, options that do not fit them.
    """
    towers = prefixes(state)
    config = _config(state, plan, towers)
    model = _class(plan, towers)(config)
    ours, rest = _renamed(state, plan, towers)
    if rest:
        raise ExportError(
            f"weights without a place: {', '.join(sorted(rest))}; name tables and head by tokens, positions, head"
        )
    _fill(model, ours)
    return model.eval()


def prefixes(state: Mapping[str, Tensor]) -> dict[Stack, str]:
    """Stack -> what stands before its "layers."; a decoder is the one that reads a memory.

    Raises:
        ExportError: no layers of torch's, or more towers than an encoder and its decoder.
    """
    found: dict[Stack, str] = {}
    for name in state:
        said = _LAYER.fullmatch(name)
        if not said or not said["rest"].startswith(("self_attn.in_proj_weight", "multihead_attn.in_proj_weight")):
            continue
        cross = f"{said['prefix']}layers.{said['number']}.multihead_attn.in_proj_weight" in state
        tower: Stack = "decoder" if cross else "encoder"
        if found.setdefault(tower, said["prefix"]) != said["prefix"]:
            raise ExportError(f"two {tower}s: {found[tower]}layers and {said['prefix']}layers")
    if "encoder" not in found:
        raise ExportError(
            "no layers of torch.nn.TransformerEncoder among the weights (layers.0.self_attn.in_proj_weight)"
        )
    return found


def depth(state: Mapping[str, Tensor], prefix: str) -> int:
    """Layers of a tower."""
    return 1 + max(int(said["number"]) for n in state if (said := _LAYER.fullmatch(n)) and said["prefix"] == prefix)


def position_table(state: Mapping[str, Tensor], positions: str) -> Tensor | None:
    """The table of that name, (positions, width), also where it was kept with a dimension for the batch; None where
    positions are a formula or there are none.
    """
    if positions in ("none", "sinusoidal", "sinusoidal_interleaved"):
        return None
    table = _need(state, positions)
    return table.squeeze(1 if table.shape[1] == 1 else 0) if table.ndim == 3 else table


def _class(plan: Plan, towers: Mapping[Stack, str]) -> Any:
    if len(towers) == 2:
        return IsogradForSeq2SeqLM
    return IsogradForCausalLM if plan.causal and plan.tokens else IsogradModel


def _config(state: Mapping[str, Tensor], plan: Plan, towers: Mapping[Stack, str]) -> IsogradConfig:
    pair = len(towers) == 2
    if pair and not plan.tokens:
        raise ExportError("a translator needs the names of its tables: give tokens, and target_tokens where it has two")
    first = f"{towers['encoder']}layers.0."
    inner, width = _need(state, f"{first}linear1.weight").shape
    source = _need(state, plan.tokens) if plan.tokens else None
    target = _need(state, plan.target_tokens) if plan.target_tokens else source
    learned = position_table(state, plan.positions)
    return IsogradConfig(
        placement=_placement(state, plan, towers),
        vocab_size=1 if target is None else len(target),
        hidden_size=width,
        num_hidden_layers=depth(state, towers["decoder"] if pair else towers["encoder"]),
        num_attention_heads=plan.heads,
        intermediate_size=inner,
        hidden_act=plan.activation,
        norm_eps=plan.eps,
        bias=f"{first}linear1.bias" in state,
        position_embedding_type=plan.positions if learned is None else "learned",
        max_position_embeddings=1024 if learned is None else len(learned),
        scale_embedding=plan.scale_embedding,
        tie_word_embeddings=plan.head is None,
        head_bias=plan.head is not None and _bias_of(plan.head) in state,
        encoder_layers=depth(state, towers["encoder"]) if pair else None,
        encoder_vocab_size=len(source) if pair and source is not None and plan.target_tokens else None,
        share_encoder_embeddings=pair and not plan.target_tokens and plan.head is None,
        is_decoder=plan.causal,
        pad_token_id=plan.pad,
        bos_token_id=plan.bos,
        eos_token_id=plan.eos,
        decoder_start_token_id=plan.bos if pair else None,
    )


def _placement(state: Mapping[str, Tensor], plan: Plan, towers: Mapping[Stack, str]) -> str:
    """nn.Transformer ends with a norm in either form, nn.TransformerEncoder where it was given one."""
    ends = {f"{prefix}norm.weight" in state for prefix in towers.values()}
    if len(ends) > 1:
        raise ExportError("one tower ends with a norm and the other does not")
    final = ends.pop()
    if plan.norm_first == final:
        return "pre-ln" if final else "post-ln"
    return flagged_name(pre=plan.norm_first, flags="", final=final)


def _renamed(
    state: Mapping[str, Tensor], plan: Plan, towers: Mapping[Stack, str]
) -> tuple[dict[str, Tensor], set[str]]:
    """Our names -> weights, and the names that have none."""
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    model = _class(plan, towers)
    for tower, prefix in towers.items():
        own = f"{tower}." if len(towers) == 2 else "" if model is IsogradModel else "model."
        for name, value in state.items():
            if (found := _in_tower(name.removeprefix(prefix), value, tower, plan)) and name.startswith(prefix):
                ours |= {f"{own}{k}": v for k, v in found.items()}
                used.add(name)
        ours |= _embedding(state, plan, tower, own)
    if plan.head:
        ours["lm_head.weight"] = _need(state, plan.head)
        if (bias := _bias_of(plan.head)) in state:
            ours["lm_head.bias"] = state[bias]
        used |= {plan.head, bias}
    named = (plan.tokens, plan.target_tokens, plan.positions, plan.target_positions)
    return ours, set(state) - used - set(filter(None, named))


def _embedding(state: Mapping[str, Tensor], plan: Plan, tower: Stack, own: str) -> dict[str, Tensor]:
    tokens = (plan.target_tokens if tower == "decoder" else None) or plan.tokens
    positions = (plan.target_positions if tower == "decoder" else None) or plan.positions
    table = position_table(state, positions)
    ours = {} if table is None else {f"{own}embedding.positions.weight": table}
    if tokens:
        ours[f"{own}embedding.tokens.weight"] = _need(state, tokens)
    return ours


def _in_tower(name: str, value: Tensor, tower: Stack, plan: Plan) -> dict[str, Tensor]:
    """Our names inside a tower of one of its weights; empty where it has none."""
    if name in ("norm.weight", "norm.bias"):
        return {name: value}
    said = _LAYER.fullmatch(name)
    if not said or said["prefix"]:
        return {}
    return {f"layers.{said['number']}.{k}": v for k, v in _in_layer(said["rest"], value, tower, plan).items()}


def _in_layer(rest: str, value: Tensor, tower: Stack, plan: Plan) -> dict[str, Tensor]:
    for fused, sublayer in _FUSED.items():
        if rest.startswith(fused):
            parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
            return {f"{sublayer}.branch.{role}.{rest.removeprefix(fused)}": part for role, part in parts}
    module, _, leaf = rest.rpartition(".")
    if module in _MODULES:
        return {f"{_MODULES[module]}.{leaf}": value}
    if said := re.fullmatch(r"norm([1-3])", module):
        kinds = _NORMS[tower]
        if int(said[1]) <= len(kinds):
            return {f"{kinds[int(said[1]) - 1]}.{'pre' if plan.norm_first else 'post'}.{leaf}": value}
    return {}


def _fill(model: IsogradPreTrainedModel, ours: dict[str, Tensor]) -> None:
    own = model.state_dict()
    tied = dict(model._tied_weights_keys or {}) if model.config.tie_word_embeddings else {}
    for name, value in own.items():
        if name not in ours and not model.config.bias and name.endswith((".post.bias", ".pre.bias", "norm.bias")):
            ours[name] = torch.zeros_like(value)  # torch's norms have none without bias
    if "embedding.tokens.weight" in own and "embedding.tokens.weight" not in ours:
        ours["embedding.tokens.weight"] = torch.zeros_like(own["embedding.tokens.weight"])  # read by nobody
    strange, missing = set(ours) - set(own), set(own) - set(ours) - set(tied)
    wrong = {
        f"{n} {tuple(ours[n].shape)} in place of {tuple(own[n].shape)}"
        for n in ours.keys() & own.keys()
        if ours[n].shape != own[n].shape
    }
    for what, names in (("have no place", strange), ("are missing", missing), ("have another shape", wrong)):
        if names:
            raise ExportError(f"weights that {what}: {', '.join(sorted(names))}")
    widest = torch.float16
    for value in ours.values():
        widest = torch.promote_types(widest, value.dtype)
    model.to(widest).load_state_dict(ours, strict=False)  # what is tied may be left out


def _need(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        near = [other for other in state if other.endswith(name.rpartition(".")[2]) and "layers." not in other]
        raise ExportError(f"no weight {name!r}; found {', '.join(sorted(near)) or 'no table'} outside the layers")
    return state[name]


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"

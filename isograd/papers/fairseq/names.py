"""fairseq's names of weights <-> ours.

| theirs | ours |
| --- | --- |
| `encoder.` and `decoder.` of a translator | `encoder.`, `decoder.` |
| `decoder.`, or `encoder.sentence_encoder.`, alone | `model.` |
| `embed_tokens`, `embed_positions`, `layernorm_embedding` | `embedding.tokens`, `.positions`, `.norm` |
| `project_in_dim`, `project_out_dim` | `embedding.project`, `project` |
| `self_attn.q_proj`, `k_proj`, `v_proj`, `out_proj` of a layer | `attn.branch.query`, `key`, `value`, `out` |
| `encoder_attn.`, the same four | `cross.branch.` |
| `in_proj_weight`, `in_proj_bias` of an attention | its `query`, `key`, `value`, on top of each other |
| `fc1`, `ffn_layernorm`, `fc2` | `ffn.branch.into`, `mid`, `out` |
| `self_attn_layer_norm`, `encoder_attn_layer_norm`, `final_layer_norm` | `post`, or `pre`, of attn, cross, ffn |
| `attn_ln`, `c_attn`, `w_resid` | `attn.out`, `attn.branch.heads`, `ffn.combine.skip` |
| ratios of Transformer-Clinic: `isograd.papers.fairseq.clinic` | `combine.skip` of attn, cross, ffn |
| `layer_norm` of a stack | its `norm` |
| `decoder.output_projection`, `decoder.embed_out` | `lm_head` |
| `encoder.lm_head.dense`, `.layer_norm`, `.weight`, `.bias` | `head.dense`, `head.norm`, `head.decoder` |
| `version`, `embed_positions._float_tensor` | nothing: they hold no weights |
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isograd.convert.checkpoints.weights import Names, from_theirs, refuse
from isograd.convert.hf.bart import LAYER
from isograd.convert.kinds import CAUSAL, MASKED
from isograd.papers.fairseq import clinic
from isograd.papers.fairseq.options import described, normed_before
from isograd.placement import Stack

_STACK = {
    "embedding.tokens": "embed_tokens",
    "embedding.positions": "embed_positions",
    "embedding.norm": "layernorm_embedding",
    "embedding.project": "project_in_dim",
    "project": "project_out_dim",
    "norm": "layer_norm",
}
_LAYER = {**LAYER, "attn.out": "attn_ln", "attn.branch.heads": "c_attn", "ffn.branch.mid": "ffn_layernorm"}
_HEADS = {"lm_head": "decoder.output_projection"}
_MASKED_HEADS = {
    "head.dense": "encoder.lm_head.dense",
    "head.norm": "encoder.lm_head.layer_norm",
    "head.decoder": "encoder.lm_head",
}
_VECTORS = ("c_attn", "w_resid", *clinic.SKIPS)  # weights without a module of their own
_TABLE = re.compile(
    r"(?:.*[./])?(?:(?P<side>encoder|decoder)(?:\.sentence_encoder)?[._])?"
    r"(?:embed_positions[._])?(?:sinusoidal_table|_float_tensor|weights)"
)
_NUMBERED = {  # fairseq before 0.5 numbered a layer's norms
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def modules(options: Mapping[str, Any]) -> dict[str, str]:
    """Our modules -> theirs, of the model that the options describe."""
    kind = described(options)
    stacks = {"encoder": "encoder", "decoder": "decoder"}
    if kind in (CAUSAL, MASKED):
        stacks = {"model": "decoder" if kind == CAUSAL else "encoder.sentence_encoder"}
    table: dict[str, str] = {}
    for ours, prefix in stacks.items():
        side = prefix.partition(".")[0]
        skips = clinic.skips(side) | ({"ffn.combine.skip": "w_resid"} if _scales_residuals(options, side) else {})
        heads = _MASKED_HEADS if kind == MASKED else _HEADS
        names = Names(stacks={ours: prefix}, stack=_STACK, layer=_LAYER | skips, heads=heads)
        norms = "pre" if normed_before(options, side) else "post"
        table |= names.modules({ours: int(options[f"{side}_layers"])}, {ours: norms})
    return table


def renamed(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Their names -> ours, for weights and for gradients alike; buffers that hold no weights are dropped.

    Raises:
        InteropError: names that are not in the table above, each of them.
    """
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        if not (name.endswith(".version") or _TABLE.fullmatch(name) or name.startswith("omega.")):
            plain |= _in_modules(name, value)
    ours, rest = from_theirs(plain, modules(options), Names(stacks={}, stack={}, layer={}))
    refuse("unexpected keys", map(_as_stored, rest))
    return ours


def original_name(name: str, options: Mapping[str, Any]) -> str:
    """The original's name of one of our weights, for messages."""
    module, _, leaf = name.rpartition(".")
    return _as_stored(f"{modules(options).get(module, module)}.{leaf}")


def tables(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[Stack, Tensor]]:
    """The state without its tables of sinusoidal positions, and the tables, by stack."""
    rest: dict[str, Tensor] = {}
    found: dict[Stack, Tensor] = {}
    sides: tuple[Stack, ...] = ("encoder", "decoder")
    there = [side for side in sides if any(name.startswith(f"{side}.") for name in state)]
    for name, value in state.items():
        match = _TABLE.fullmatch(name)
        if not match:
            rest[name] = value
        elif value.ndim == 2 and value.numel() > 1:
            found |= {side: value for side in there if match["side"] in (None, side)}
    return rest, found


def upgraded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state under the names of fairseq 0.12, as fairseq itself upgrades what older versions wrote."""
    named: dict[str, Tensor] = {}
    roberta = any(name.startswith("decoder.sentence_encoder.") for name in state)
    for name, value in state.items():
        if name.endswith(".version") and "layer" in name:
            continue
        if roberta and name.startswith("decoder."):  # RoBERTa's encoder was called a decoder at first
            name = "encoder." + name.removeprefix("decoder.")
        name = name.replace(".emb_layer_norm.", ".layernorm_embedding.")
        if match := re.fullmatch(r"(encoder|decoder)(\.layers\.\d+\.)layer_norms\.(\d)(\.weight|\.bias)", name):
            side, layer, number, leaf = match.groups()
            if int(number) < len(_NUMBERED[side]):
                name = side + layer + _NUMBERED[side][int(number)] + leaf
        named[name] = value
    return named | clinic.named(named)


def _scales_residuals(options: Mapping[str, Any], side: str) -> bool:
    return bool(options.get("scale_resids" if side == "decoder" else "enc_scale_resids"))


def _in_modules(name: str, value: Tensor) -> dict[str, Tensor]:
    """A weight as `weight` or `bias` of a module: of one alone, or of three where it holds W_Q, W_K, W_V."""
    attention, fused, leaf = name.partition(".in_proj_")
    if fused:
        return {f"{attention}.{role}_proj.{leaf}": part for role, part in zip("qkv", value.chunk(3), strict=True)}
    if name == "decoder.embed_out":
        return {"decoder.output_projection.weight": value}
    last = name.rpartition(".")[2]
    if last in _VECTORS:
        return {f"{clinic.canonical(name)}.weight": value.reshape(-1, 1) if last == "c_attn" else value}
    return {name: value}


def _as_stored(name: str) -> str:
    bare = name.removesuffix(".weight")
    return bare if bare.rpartition(".")[2] in _VECTORS else name

"""Names of fairseq's weights <-> ours.

| theirs | ours |
| --- | --- |
| `encoder.` and `decoder.` of a translator; `decoder.`, or `encoder.sentence_encoder.`, alone | `encoder.`, `decoder.`; `model.` |
| `embed_tokens`, `embed_positions`, `layernorm_embedding` | `embedding.tokens`, `.positions`, `.norm` |
| `project_in_dim`, `project_out_dim` | `embedding.project`, `project` |
| `layers.<l>.self_attn.q_proj`, `k_proj`, `v_proj`, `out_proj` | `layers.<l>.attn.branch.query`, `key`, `value`, `out` |
| `layers.<l>.encoder_attn.`, the same four | `layers.<l>.cross.branch.` |
| `in_proj_weight`, `in_proj_bias` of an attention | its `query`, `key`, `value`, on top of each other |
| `layers.<l>.fc1`, `ffn_layernorm`, `fc2` | `layers.<l>.ffn.branch.into`, `mid`, `out` |
| `self_attn_layer_norm`, `encoder_attn_layer_norm`, `final_layer_norm` of a layer | `post`, or `pre`, of attn, cross, ffn |
| `attn_ln`, `c_attn`, `w_resid` of a layer | `attn.out`, `attn.branch.heads`, `ffn.combine.skip` |
| `attention_ratio_change` (`self_`), `encoder_ratio_change`, `fc_ratio_change` | `combine.skip` of attn, cross, ffn |
| `omega.<i>` of a model of one tower, two of a layer | the same skips in forward order |
| `layer_norm` of a tower | its `norm` |
| `decoder.output_projection`, `decoder.embed_out` | `lm_head` |
| `encoder.lm_head.dense`, `.layer_norm`, `.weight`, `.bias` | `head.dense`, `head.norm`, `head.decoder` |
| `version`, `embed_positions._float_tensor` | nothing: they hold no weights |
"""  # noqa: E501  (a row of a table stands on one line)

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isograd.interop.fairseq_options import kind_of, normed_before, refuse
from isograd.placement import Stack

MODULES = {
    "embed_tokens": "embedding.tokens",
    "embed_positions": "embedding.positions",
    "layernorm_embedding": "embedding.norm",
    "project_in_dim": "embedding.project",
    "project_out_dim": "project",
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
HEADS = ("lm_head", "head.")  # stand outside the tower whose name the original gives them
TABLE = re.compile(
    r"(?:.*[./])?(?:(?P<tower>encoder|decoder)(?:\.sentence_encoder)?[._])?"
    r"(?:embed_positions[._])?(?:sinusoidal_table|_float_tensor|weights)"
)
OLD_NORMS = {  # fairseq before 0.5 numbered a layer's norms
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def tables(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[Stack, Tensor]]:
    """The state without its tables of sinusoidal positions, and the tables, by tower."""
    rest: dict[str, Tensor] = {}
    found: dict[Stack, Tensor] = {}
    towers: tuple[Stack, ...] = ("encoder", "decoder")
    there = [t for t in towers if any(name.startswith(f"{t}.") for name in state)]
    for name, value in state.items():
        said = TABLE.fullmatch(name)
        if not said:
            rest[name] = value
        elif value.ndim == 2 and value.numel() > 1:
            found |= {tower: value for tower in there if said["tower"] in (None, tower)}
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
        named[_numbered_norm(name)] = value
    return named | _ratios(named)


def renamed(state: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Their names -> ours, for weights and for gradients alike; buffers that hold no weights are dropped.

    Raises:
        ValueError: names that are not in the table above, each of them.
    """
    out: dict[str, Tensor] = {}
    unknown = []
    for name, value in state.items():
        if name.endswith(".version") or TABLE.fullmatch(name) or name.startswith("omega."):
            continue
        try:
            out.update(_entry(name, value, options))
        except (KeyError, ValueError):
            unknown.append(name)
    refuse("weights that isograd has no place for", unknown)
    return out


def original(name: str, options: Mapping[str, Any]) -> str:
    """The original's name of one of our weights, for messages."""
    kind = kind_of(options)
    if name.startswith(HEADS):
        module, leaf = name.rsplit(".", 1)
        tower = "encoder" if kind == "masked" else "decoder"
        return f"{tower}.{_inverse(MODULES, module)}.{leaf}"
    tower, rest = name.split(".", 1)
    if tower == "model":
        tower = "encoder.sentence_encoder" if kind == "masked" else "decoder"
    if not rest.startswith("layers."):
        module, leaf = rest.rsplit(".", 1)
        return f"{tower}.{_inverse(MODULES, module)}.{leaf}"
    _, layer, rest = rest.split(".", 2)
    return f"{tower}.layers.{layer}.{_original_in_layer(rest, tower, options)}"


def _original_in_layer(rest: str, tower: str, options: Mapping[str, Any]) -> str:
    if rest in VECTORS.values():
        resscale = options.get("scale_resids" if tower == "decoder" else "enc_scale_resids")
        others = {"fc_ratio_change" if resscale else "w_resid"}
        others |= {"attention_ratio_change" if tower == "decoder" else "self_ratio_change"}
        return next(theirs for theirs, ours in VECTORS.items() if ours == rest and theirs not in others)
    module, leaf = rest.rsplit(".", 1)
    sublayer, _, slot = module.partition(".")
    if slot in ("pre", "post"):
        return f"{_inverse(NORMS, sublayer)}.{leaf}"
    return f"{_inverse(LAYER, module)}.{leaf}"


def _inverse(table: Mapping[str, str], ours: str) -> str:
    return next((theirs for theirs, value in table.items() if value == ours), ours)


def _entry(name: str, value: Tensor, options: Mapping[str, Any]) -> dict[str, Tensor]:
    tower, rest = name.removeprefix("encoder.sentence_").split(".", 1)
    prefix = f"{tower}." if kind_of(options) == "pair" else "model."
    if rest.startswith("layers."):
        _, layer, rest = rest.split(".", 2)
        return {f"{prefix}layers.{layer}.{k}": v for k, v in _in_layer(rest, value, options, tower).items()}
    if rest == "embed_out":
        return {"lm_head.weight": value}
    module, leaf = rest.rsplit(".", 1)
    ours = MODULES[module]
    return {f"{'' if ours.startswith(HEADS) else prefix}{ours}.{leaf}": value}


def _in_layer(rest: str, value: Tensor, options: Mapping[str, Any], tower: str) -> dict[str, Tensor]:
    if rest in VECTORS:
        return {VECTORS[rest]: value.reshape(-1, 1) if rest == "c_attn" else value}
    if ".in_proj_" in rest:
        attention, leaf = rest.split(".in_proj_")
        parts = zip("qkv", value.chunk(3), strict=True)
        return {f"{LAYER[f'{attention}.{letter}_proj']}.{leaf}": part for letter, part in parts}
    module, leaf = rest.rsplit(".", 1)
    if module in NORMS:
        return {f"{NORMS[module]}.{'pre' if normed_before(options, tower) else 'post'}.{leaf}": value}
    return {f"{LAYER[module]}.{leaf}": value}


def _numbered_norm(name: str) -> str:
    said = re.fullmatch(r"(encoder|decoder)(\.layers\.\d+\.)layer_norms\.(\d)\.(weight|bias)", name)
    if not said:
        return name
    tower, layer, number, leaf = said.groups()
    norms = OLD_NORMS[tower]
    return f"{tower}{layer}{norms[int(number)]}.{leaf}" if int(number) < len(norms) else name


def _ratios(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ADMIN's skips of one tower, numbered in forward order, under the names that Transformer-Clinic gives them."""
    numbers = sorted(int(said[1]) for name in state if (said := re.fullmatch(r"omega\.(\d+)", name)))
    prefix = "decoder." if any(name.startswith("decoder.") for name in state) else "encoder.sentence_encoder."
    kinds = ("attention_ratio_change", "fc_ratio_change")
    return {
        f"{prefix}layers.{place // 2}.{kinds[place % 2]}": state[f"omega.{number}"]
        for place, number in enumerate(numbers)
    }

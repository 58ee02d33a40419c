"""A small configuration of any model type of transformers: few layers, narrow, few ids, nested configurations too.

One rule per kind of setting, by its name and by its value: every width of a configuration becomes `WIDTH`, what was a
multiple of a width stays one. No family has a rule of its own.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

LAYERS, WIDTH, HEADS, HEAD, WIDE, IDS, SIDE, PATCH = 3, 64, 4, 16, 128, 160, 64, 16
IS_WIDTH = re.compile(
    r"^(hidden_size|d_model|n_embd|dim|embed_dim|embedding_size|width|model_dim|hidden_dim|.*_hidden_size|emb_dim|"
    r"decoder_dim|encoder_dim|.*_embed_dim|embedding_dim|attention_hidden_size)$"
)
IS_SIZE = re.compile(r"size|dim|width|embd|d_model|rank|inner|ffn|d_ff|channels|hidden|intermediate|_fc|latents")
NO_SIZE = re.compile(
    r"vocab|patch|image|kernel|window|^num_|^n_|^max_|^min_|chunk|pool|stride|merge|num_channels|batch|block_size|sample|"
    r"position|group|in_channels|_type|layer_norm|text_max|hash|codebook_size|_dims$|frame|crop|downsample|compress"
)
IS_HEAD = re.compile(
    r"head_dim|d_kv|head_size|dim_head|rope_dim|d_head|kv_channels|qk_nope|qk_rope|rotary_dim|head_width"
)
IS_HEADS = re.compile(r"(num|n|attention|query).*heads?$|^heads$|num_attention_heads")
IS_KV = re.compile(r"key_value|kv_head|query_group|n_head_kv|num_kv|group_num")
IS_LAYERS = re.compile(
    r"^(num_hidden_layers|n_layers?|num_layers|depth|num_blocks|(?!first|last|num_dense|cross|mtp).*_layers|.*_depth|"
    r"num_decoder_layers|n_blocks|decoder_num_.*layers)$"
)
NO_LAYERS = re.compile(
    r"shared|dense|nextn|mtp|feature|adapter|skip|conv|kv|extract|drop|predict|global|swin|scale|every"
)
IS_POSITIONS = re.compile(r"max_position|n_positions|max_seq|max_source|max_target|seq_len|n_ctx|max_text|_max_length")
IS_EXPERTS = re.compile(r"num_experts$|n_routed_experts|num_local_experts|moe_num_experts|^num_.*experts$|n_experts$")
IS_TOP = re.compile(r"^(?!index).*(experts_per_tok|topk$|moe_k$|num_selected|experts_top_k|moe_top_k|^top_k)")
IS_INDICES = re.compile(r"idx|indices|indexes|_ids_list|out_features|attn_layer|_layers$")
IS_TYPES = re.compile(r"layer_types|layers_block_type|block_types|layer_type|mlp_layer_types|_pattern$|_type_list")

UNSET = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "attn_layer_indices": [1],
}  # without which no model is built
DROPPED = frozenset((
    "transformers_version", "architectures", "dtype", "torch_dtype", "out_features", "out_indices", "stage_names",
    "per_layer_config",
))  # fmt: skip


def constructed(config_class: Any, narrow: bool) -> Any:
    """A configuration made of small settings; sections of rotary positions that its model's code sets are set here."""
    config = config_class(**shrink(config_class().to_dict(), narrow=narrow))
    code = sys.modules.get(config_class.__module__.replace("configuration_", "modeling_"))
    if code is not None and "mrope_section" in inspect.getsource(code):
        for part in (config, config.get_text_config()):
            rope = getattr(part, "rope_parameters", None)
            if isinstance(rope, dict) and "mrope_section" not in rope:
                _shorten_rope(rope | {"mrope_section": []}, rope)
    return config


def of_text(config_class: Any, narrow: bool) -> Any:
    """The part of a composite configuration that speaks of text, for a class that reads that alone."""
    return adjusted(config_class, narrow).get_text_config(decoder=True)


def adjusted(config_class: Any, narrow: bool) -> Any:
    """The default configuration with small settings set, where it cannot be made of what it says of itself."""
    config = config_class()
    _adjust(config, shrink(config.to_dict(), narrow=narrow))
    return config


def _adjust(config: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        part = getattr(config, key, None)
        if isinstance(value, Mapping) and hasattr(part, "to_dict"):
            _adjust(part, value)
        elif part is not None and part != value:
            object.__setattr__(config, key, value)


def shrink(values: Mapping[str, Any], *, narrow: bool = True) -> dict[str, Any]:
    """Settings of a configuration as `to_dict` gives them -> smaller ones.

    Args:
        narrow: widths too; else only layers, experts, ids, positions and images.
    """
    widths = {v for key, v in _numbers(values) if IS_WIDTH.match(key) and v >= 32} if narrow else set()
    return _Shrinker(widths, narrow).settings(values)


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(key, str) and isinstance(value, int) and not isinstance(value, bool):
            yield key, value


class _Shrinker:
    def __init__(self, widths: set[int], narrow: bool, ids: dict[int, int] | None = None) -> None:
        self.widths, self.narrow = widths, narrow
        self.ids: dict[int, int] = {} if ids is None else ids

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        own = {v for k, v in values.items() if IS_HEADS.search(k) and isinstance(v, int)}
        self.heads = values.get("num_attention_heads") or max(own, default=0)
        self.stages = "depths" in values  # each halves the image
        self.expands = any(key in values for key in ("expand", "mamba_expand", "ssm_expand"))
        layers = _layers(values)
        many = [v for k, v in values.items() if _counts_layers(k) and isinstance(v, int) and "depths" not in values]
        made = {}
        for key, value in values.items():
            if (key in DROPPED and not (self.stages and key.startswith("out_"))) or key.startswith("_"):
                continue
            if isinstance(value, Mapping) and not all(isinstance(k, str) for k in value):
                made[key] = value
            elif isinstance(value, Mapping):
                made[key] = dict(value) if "rope" in key else self.below(value)
                if "rope" in key:
                    _shorten_rope(made[key])
            elif isinstance(value, list) and len(value) in many and not IS_TYPES.search(key):
                made[key] = [self.setting(key, v, layers) for v in value[:layers]]
            else:
                made[key] = self.setting(key, value, layers)
        return made

    def below(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return _Shrinker(self.widths, self.narrow, self.ids).settings(values)

    def setting(self, key: str, value: Any, layers: int) -> Any:
        if value is None:
            return HEAD if key == "head_dim" and self.narrow else UNSET.get(key)
        if isinstance(value, bool | float):
            return value
        if isinstance(value, str):
            return value[:layers] if key.endswith("_pattern") and len(value) > layers else value
        if isinstance(value, list | tuple):
            return self.sequence(key, list(value), layers)
        if isinstance(value, int):
            return self.number(key, value, layers)
        return value

    def number(self, key: str, value: int, layers: int) -> int:
        if key.endswith(("_token_id", "_token_index", "_id")) and value >= 3:
            return self.ids.setdefault(value, 3 + len(self.ids))
        if "vocab" in key:
            return min(value, IDS)
        if IS_POSITIONS.search(key):
            return min(value, 64)
        if _counts_layers(key):
            return min(value, layers)
        if key in ("n_group", "topk_group", "num_expert_groups", "n_groups_experts", "moe_n_group"):
            return min(value, 1)
        if key in ("attn_layer_period", "attn_layer_offset"):
            return 2 if "period" in key else 1
        if key in ("num_kv_shared_layers", "num_nextn_predict_layers", "first_k_dense_replace"):
            return 0 if "shared" in key else min(value, 1)
        if IS_EXPERTS.search(key):
            return min(value, 4)
        if IS_TOP.search(key):
            return min(value, 2)
        if key == "image_size" or key.endswith("image_size"):
            return min(value, SIDE * 2 if self.stages else SIDE)
        if key == "patch_size" and value > 4:
            return PATCH
        return self.width(key, value) if self.narrow else value

    def width(self, key: str, value: int) -> int:
        if self.expands and ("mamba" in key or key in ("num_heads", "head_dim")):  # heads times their width: 2 WIDTH
            if key.endswith("heads"):
                return 2 * WIDTH // HEAD
            if IS_HEAD.search(key):
                return HEAD
        if IS_HEAD.search(key):
            return max(4, value // HEAD * 2) if value > HEAD else value
        if IS_KV.search(key):
            return {0: 0, 1: 1, self.heads: HEADS}.get(value, 2)
        if IS_HEADS.search(key):
            return min(value, HEADS)
        if value in self.widths and (IS_WIDTH.match(key) or not NO_SIZE.search(key)):
            return WIDTH
        if "state" in key and value > 8 and "size" in key:
            return 8
        if key in ("num_mel_bins", "feature_size"):
            return min(value, 16)
        if key in ("window_size", "sliding_window"):
            return min(value, 4)
        if IS_SIZE.search(key) and not NO_SIZE.search(key) and value > 32:
            multiples = [value // w for w in self.widths if value % w == 0 and value // w <= 4]
            return WIDTH * multiples[0] if multiples else min(value, WIDE)
        if re.search(r"num_(queries|latents|query_tokens|prompts)", key):
            return min(value, 8)
        return value

    def sequence(self, key: str, value: list[Any], layers: int) -> Any:
        if IS_TYPES.search(key):
            return _types(value, layers)
        if not value or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [self.below(v) if isinstance(v, Mapping) else v for v in value]
        if key.endswith("_token_id"):
            return [self.number(key, v, layers) for v in value]
        if key in ("depths", "layers", "num_blocks", "stage_depths"):
            return [min(v, 2) for v in value]
        if not self.narrow:
            return value
        if "image_size" in key:
            return [min(v, SIDE) for v in value]
        if IS_INDICES.search(key):
            return [v for v in value if v < layers] or [layers - 1]
        if IS_HEADS.search(key):
            return [min(2**i, 8) for i in range(len(value))]
        if re.search(r"hidden_sizes|embed_dims|dims$|channels$|embed_dim|hidden_sizes|widths", key) and min(value) > 8:
            return [32 * 2**i if len(set(value)) > 1 else 32 for i in range(len(value))]
        return [min(v, 32) for v in value] if key in ("conv_dim", "tdnn_dim") else value


def _counts_layers(key: str) -> bool:
    return bool(IS_LAYERS.match(key)) and not NO_LAYERS.search(key)


def _layers(values: Mapping[str, Any]) -> int:
    """Three; more where layers are of several types, so that each type is there."""
    kinds = [v for key, v in values.items() if IS_TYPES.search(key) and isinstance(v, list) and v]
    return max([LAYERS, *(len({str(k) for k in v}) for v in kinds)])


def _types(value: list[Any], layers: int) -> list[Any]:
    """The first of each type in their order, the rest the first type."""
    kinds = list(dict.fromkeys(str(v) for v in value))
    if len(value) <= layers:
        return value
    first = {kind: next(v for v in value if str(v) == kind) for kind in kinds}
    return sorted([*first.values(), *[value[0]] * (layers - len(kinds))], key=lambda v: kinds.index(str(v)))


def _shorten_rope(rope: dict[str, Any], into: dict[str, Any] | None = None) -> None:
    """Sections of rotary dimensions sum to half a head.

    Args:
        into: what gets the sections, where not the rope itself.
    """
    rope.setdefault("rope_theta", 10000.0)
    for part in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        if "rope_theta" in part and part["rope_theta"] is None:
            part["rope_theta"] = 10000.0
        if isinstance(part.get("mrope_section"), list):
            half = int(HEAD // 2 * (part.get("partial_rotary_factor") or 1))
            (part if into is None else into)["mrope_section"] = [
                half // 4,
                half // 8 * 3,
                half - half // 4 - half // 8 * 3,
            ]

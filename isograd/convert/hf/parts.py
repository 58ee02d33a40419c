"""Options that belong together, as several families have them: rotary positions, key-value heads, windows, biases."""

from collections.abc import Mapping
from typing import Any

from isograd.convert.hf.family import ROLES, FamilyPart, first_residual
from isograd.errors import InteropError
from isograd.models import IsogradConfig
from isograd.placement.formula import Role

_OF_THE_HEAD: tuple[Role, ...] = ("dense", "head")


def same(*names: str) -> dict[str, str]:
    """Options that have one name in both."""
    return {name: name for name in names}


SIZES = same(
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "hidden_act",
    "attention_dropout",
    "initializer_range",
)


def heads(*, own_size: bool = False) -> FamilyPart:
    """Key-value heads and their width; `own_size`: the width of a head is an option of the class."""

    def read(theirs: Any) -> dict[str, Any]:
        size, alike = getattr(theirs, "head_dim", None), theirs.hidden_size // theirs.num_attention_heads
        groups = theirs.num_key_value_heads
        return {
            "num_key_value_heads": None if groups == theirs.num_attention_heads else groups,
            "head_dim": None
            if size in (None, alike) and theirs.hidden_size % theirs.num_attention_heads == 0
            else size,
        }

    def write(config: IsogradConfig) -> dict[str, Any]:
        usual = config.head_size * config.num_attention_heads == config.hidden_size
        size = {"head_dim": config.head_size} if own_size or not usual else {}
        return {"num_key_value_heads": config.key_value_heads} | size

    return FamilyPart(read=read, write=write)


def rope(*, partial: bool = False, interleaved: bool = False) -> FamilyPart:
    """One set of rotary rules; `partial`: the class rotates a part of the features of a head where they say so."""

    def read(theirs: Any) -> dict[str, Any]:
        rules = _known_rules(theirs.rope_parameters, partial=partial)
        return _plainly(rules) | {"rope_interleaved": interleaved}

    def write(config: IsogradConfig) -> dict[str, Any]:
        kinds = list(config.rope_rules()) or ["full_attention"]
        rules = dict(config.rope_of(kinds[0]))
        if partial:
            rules.setdefault("partial_rotary_factor", 1.0)
        return {"rope_parameters": rules}

    return FamilyPart(read=read, write=write)


def rope_by_type() -> FamilyPart:
    """Rotary rules for each type of layer."""

    def read(theirs: Any) -> dict[str, Any]:
        used = dict.fromkeys(theirs.layer_types)
        rules = {kind: _known_rules(theirs.rope_parameters[kind], partial=False) for kind in used}
        return _plainly(next(iter(rules.values()))) if len(rules) == 1 else {"rope_parameters": rules}

    def write(config: IsogradConfig) -> dict[str, Any]:
        rules = config.rope_rules() or {"full_attention": config.rope_of("full_attention")}
        some = next(iter(rules.values()))
        return {
            "rope_parameters": {kind: dict(rules.get(kind, some)) for kind in ("full_attention", "sliding_attention")}
        }

    return FamilyPart(read=read, write=write)


def _plainly(rules: dict[str, Any]) -> dict[str, Any]:
    """One set of rules as options: its base alone where nothing is scaled."""
    plain = rules["rope_type"] == "default" and rules.get("partial_rotary_factor", 1.0) == 1.0
    return {"rope_theta": rules["rope_theta"]} if plain else {"rope_parameters": rules}


def _known_rules(rules: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    found = {name: value for name, value in rules.items() if name != "type"}
    if not partial and found.pop("partial_rotary_factor", 1.0) != 1.0 and found["rope_type"] != "default":
        raise InteropError(
            f"partial_rotary_factor beside rope_type={found['rope_type']!r}: its class rotates all features"
        )
    return found


def window() -> FamilyPart:
    """One window for all layers, or none."""

    def write(config: IsogradConfig) -> dict[str, Any]:
        return {"sliding_window": config.sliding_window if "sliding_attention" in config.attention_types() else None}

    return FamilyPart(read=lambda theirs: {"sliding_window": theirs.sliding_window}, write=write)


def windows(*, switch: bool = False) -> FamilyPart:
    """A window for the layers whose type says so; `switch`: behind `use_sliding_window`."""

    def read(theirs: Any) -> dict[str, Any]:
        types = list(theirs.layer_types)
        if "sliding_attention" not in types:
            return {}
        return {"layer_types": types, "sliding_window": theirs.sliding_window}

    def write(config: IsogradConfig) -> dict[str, Any]:
        types = config.attention_types()
        slides = "sliding_attention" in types
        options: dict[str, Any] = {"layer_types": types}
        if slides or switch:
            options["sliding_window"] = config.sliding_window if slides else None
        return options | ({"use_sliding_window": slides} if switch else {})

    return FamilyPart(read=read, write=write)


def biases(*, fixed: tuple[Role, ...] = (), **options: tuple[Role, ...]) -> FamilyPart:
    """Its options -> the roles whose projections have a bias; `fixed` are those that always have one."""
    known = (*ROLES, *_OF_THE_HEAD) if "head" in {role for roles in options.values() for role in roles} else ROLES

    def read(theirs: Any) -> dict[str, Any]:
        found = {*fixed, *(role for name, roles in options.items() if getattr(theirs, name) for role in roles)}
        own = [role for role in known if role in found]
        alike = len(own) == len(known) or (not own and known is ROLES)
        return {"bias": bool(own), "bias_roles": None if alike else own}

    def write(config: IsogradConfig) -> dict[str, Any]:
        return {
            name: config.head_has_bias(role) if (role := roles[0]) in _OF_THE_HEAD else config.has_bias(role)
            for name, roles in options.items()
        }

    return FamilyPart(read=read, write=write)


ATTENTION: tuple[Role, ...] = ("query", "key", "value", "attn_out")
FEEDFORWARD: tuple[Role, ...] = ("ffn_in", "ffn_out")


def scores_over(name: str) -> FamilyPart:
    """The option whose square root attention scores are divided by (Gemma 2)."""

    def read(theirs: Any) -> dict[str, Any]:
        return {"attention_multiplier": float(getattr(theirs, name) ** -0.5)}

    def write(config: IsogradConfig) -> dict[str, Any]:
        multiplier = config.attention_multiplier
        return {name: config.head_size if multiplier is None else round(multiplier**-2)}

    return FamilyPart(read=read, write=write)


def attention_cap(name: str) -> FamilyPart:
    """The cap on attention scores is a placement's: read by its `placement`."""
    return FamilyPart(write=lambda config: {name: first_residual(config).cap})

"""Families whose configuration says the whole network: rotary positions, key-value heads, windows, multipliers.

What such a class can hold is found by asking it: our configuration is written as its own, read back, and every fact of
the network in which the two differ is a reason why it cannot.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import transformers
from huggingface_hub.errors import StrictDataclassError

from isograd.convert.hf.family import Family
from isograd.convert.kinds import CAUSAL, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig
from isograd.placement import CATALOGUE, Norm, Placement, sites
from isograd.placement.formula import SLOTS, Residual, Role
from isograd.placement.stored import stored
from isograd.placement.streams import Parallel
from isograd.transformer.stack import embedding_scale

_ROLES: tuple[Role, ...] = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out")
_OF_THE_HEAD: tuple[Role, ...] = ("dense", "head")
_ACTS = {  # theirs -> ours, ungated and gated
    "silu": ("silu", "swiglu"),
    "swish": ("silu", "swiglu"),
    "relu": ("relu", None),
    "relu2": ("relu_squared", None),
    "gelu": ("gelu", "geglu"),
    "gelu_new": ("gelu_tanh", "geglu_tanh"),
    "gelu_fast": ("gelu_tanh", "geglu_tanh"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Options of a family that belong together.

    Args:
        read: its configuration -> our options.
        write: our configuration -> its options.
    """

    read: Callable[[Any], dict[str, Any]]
    write: Callable[[IsogradConfig], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Stated(Family):
    """A family that is a row of parts.

    Args:
        placement: its configuration -> the placement of its layers.
        parts: what it says beside `options`.
        gated: its feed-forwards are gated.
        head_offset: its head adds an offset to each logit.
        always: options of ours that are the same in all its models.
        scale: what its class multiplies token vectors by, where that is to hold a model of ours.
    """

    placement: Callable[[Any], Placement]
    parts: tuple[Part, ...]
    gated: bool = True
    head_offset: bool = False
    says_coefficients: bool = True
    always: Mapping[str, Any]
    scale: Callable[[IsogradConfig], float] = lambda config: 1.0

    def reasons(self, config: IsogradConfig, kind: ModelKind) -> list[str]:
        if kind not in self.classes:
            return [f"it has no class for {kind.about}"]
        said, acts = [], self.written_acts()
        if config.hidden_act not in acts:
            said = [f"its activation is one of {', '.join(acts)}, this model's is {config.hidden_act}"]
            config = copy.deepcopy(config)
            config.hidden_act = next(iter(acts))
        try:
            held = self.held(config, kind)
        except (ValueError, TypeError, KeyError, StrictDataclassError, InteropError) as error:
            return [*said, f"its configuration cannot say it ({' '.join(str(error).split())[:200]})"]
        own, its = facts(config), facts(held)
        said += [_difference(what, its.get(what), own[what]) for what in own if own[what] != its.get(what)]
        return said + list(_placed_otherwise(held, config))

    def written_acts(self) -> dict[str, str]:
        """Our activations -> what it calls them."""
        names = {ours[self.gated]: theirs for theirs, ours in _ACTS.items() if theirs not in ("gelu_fast", "swish")}
        return {ours: theirs for ours, theirs in names.items() if ours}

    def held(self, config: IsogradConfig, kind: ModelKind) -> IsogradConfig:
        """What its class makes of a configuration, in our words again."""
        cls = getattr(transformers, self.classes[kind])
        theirs = cls.config_class(**self.to_options(config, kind))
        tables = {"vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_word_embeddings}
        ids = {name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        own = {"is_decoder": kind == CAUSAL, "head_bias": self.head_offset}
        return IsogradConfig(**self.from_options(theirs) | tables | ids | own)

    def multiplied(self, config: IsogradConfig) -> bool:
        return self.table_factor(config) != 1.0

    def table_factor(self, config: IsogradConfig) -> float:
        return embedding_scale(config) / self.scale(config)

    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        options = {theirs: getattr(config, ours) for ours, theirs in self.options.items()}
        options |= {name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        options |= {"vocab_size": config.vocab_size, "use_cache": True}
        options[self.options["hidden_act"]] = self.written_acts()[config.hidden_act]
        for part in self.parts:
            options |= part.write(config)
        return options | {"tie_word_embeddings": config.tie_word_embeddings and self.table_factor(config) == 1.0}

    def from_options(self, theirs: Any) -> dict[str, Any]:
        self.check_demands(theirs)
        options = {ours: getattr(theirs, name) for ours, name in self.options.items()}
        known = {name: ours[self.gated] for name, ours in _ACTS.items() if ours[self.gated]}
        if options["hidden_act"] not in known:
            raise InteropError(f"activation {options['hidden_act']!r}: expected one of {', '.join(known)}")
        options["hidden_act"] = known[options["hidden_act"]]
        options |= {"position_embedding_type": "rotary", "scale_embedding": False} | dict(self.always)
        for part in self.parts:
            options |= part.read(theirs)
        return options | self._placed(self.placement(theirs), options["num_hidden_layers"])

    def _placed(self, placement: Placement, layers: int) -> dict[str, Any]:
        """The placement's name in the catalogue, or the formula itself."""
        for name in _NAMED:
            if CATALOGUE[name] == placement:
                return {"placement": name}
        stack: Literal["encoder", "decoder"] = "decoder" if CAUSAL in self.classes else "encoder"
        return {"placement": self.name, "formula": {stack: stored(self.name, placement, layers, stack, 0)}}


_NAMED = ("pre-ln", "qk-norm", "olmo2", "parallel", "parallel-shared", "sandwich")


# The facts of a network.


def facts(config: IsogradConfig) -> dict[str, Any]:
    """Whatever decides which function the weights compute, in words; equal functions have equal facts."""
    masked = not config.is_decoder
    scaling = config.head_size**-0.5 if config.attention_multiplier is None else config.attention_multiplier
    types, slides = config.attention_types(), "sliding_attention" in config.attention_types()
    return {
        **{name: getattr(config, name) for name in _SAME},
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "attention_multiplier": scaling,
        "biases": [role for role in _ROLES if config.has_bias(role)],
        "biases of the masked head": [r for r in ("dense", "head") if config.head_has_bias(r)] if masked else None,
        "layer_types": types if slides else "full_attention",
        "sliding_window": config.sliding_window if slides else None,
        **_rotations(config),
        "norms": sorted({norm.kind for norm in _norms(config)}),
        "norm_bias": config.norm_bias if any(norm.kind == "layernorm" for norm in _norms(config)) else None,
    }


_SAME = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "norm_eps",
    "position_embedding_type",
    "position_offset",
    "embedding_norm",
    "type_vocab_size",
    "token_width",
    "output_width",
    "logits_scale",
    "logits_cap",
    "head_bias",
    "next_sentence",
)


def _rotations(config: IsogradConfig) -> dict[str, Any]:
    """The rules of each layer that rotates, and in which order features turn."""
    if config.position_embedding_type != "rotary":
        return {}
    rules = {kind: _rules(found, config) for kind, found in config.rope_rules().items()}
    each = [
        rules[kind] if turns else None for kind, turns in zip(config.attention_types(), config.rotated(), strict=True)
    ]
    return {"rope_interleaved": config.rope_interleaved, "the rotary positions of each layer": each}


def _rules(rules: Mapping[str, Any], config: IsogradConfig) -> dict[str, Any]:
    found = {name: value for name, value in rules.items() if value is not None and name != "type"}
    if found.get("partial_rotary_factor") == 1.0:
        del found["partial_rotary_factor"]
    if found["rope_type"] == "dynamic":
        found["max_position_embeddings"] = config.max_position_embeddings
    return found


# Its placement.

_PLACES = {
    "pre": "before the branch",
    "mid": "inside the branch",
    "out": "on what the branch wrote",
    "post": "on the sum",
}
_THINGS = {
    "head_scale": "HeadScale",
    "projections": "such norms on queries, keys or values",
    "gate": "gate before W_O",
}


def _placed_otherwise(its: IsogradConfig, own: IsogradConfig) -> Iterator[str]:
    """Where a class's placement is another than the model's, a line for each field of the formula."""
    ends = (its.entry(), own.entry())
    if ends[0].stream != ends[1].stream:
        names = [type(entry.stream).__name__ for entry in ends]
        yield f"its stream is {names[0]}, this placement's is {names[1]}" + (
            " of another form" * (names[0] == names[1])
        )
    for name, where in (("first", "before the first layer"), ("final", "after the last layer")):
        one, other = (_kinded(getattr(entry, name), config) for entry, config in zip(ends, (its, own), strict=True))
        yield from _norm_otherwise(one, other, f"{where} ({name})")
    for field_name in (f.name for f in fields(Residual)):
        for first, second in zip(_residuals(its), _residuals(own), strict=True):
            if found := list(_field_otherwise(field_name, getattr(first, field_name), getattr(second, field_name))):
                yield from found
                break


def _field_otherwise(name: str, its: Any, own: Any) -> Iterator[str]:
    if its == own:
        return
    if name in SLOTS:
        yield from _norm_otherwise(its, own, f"{_PLACES[name]} ({name})")
    elif name in _THINGS:
        yield (
            f"it has no {_THINGS[name]}, and this placement has"
            if own
            else (f"it has {_THINGS[name]}, and this placement has not")
        )
    else:
        yield f"{name}: it has {its}, this placement {own}"


def _norm_otherwise(its: Norm | None, own: Norm | None, where: str) -> Iterator[str]:
    if (its is None) != (own is None):
        yield f"it has {'no' if its is None else 'a'} norm {where}, and this placement has {'one' if own else 'none'}"
    elif its != own:
        yield f"its norm {where} is {its}, this placement's {own}"


def _residuals(config: IsogradConfig) -> list[Residual]:
    """Of every sublayer, norms without their kind (a fact of its own) and where weights begin."""
    entry, every = config.entry(), sites(config.num_hidden_layers, config.stacks()[-1], 0)
    out = []
    for residual in map(entry.at, every):
        norms = {slot: _kinded(getattr(residual, slot), config) for slot in SLOTS}
        inside = residual.projections
        of = inside and replace(inside, of=tuple(sorted(inside.of)), norm=_kinded(inside.norm, config))
        out.append(replace(residual, **norms, projections=of))
    return out


def _kinded(norm: Norm | None, config: IsogradConfig) -> Any:
    return norm and replace(norm, kind="model" if norm.kind in ("model", config.norm) else norm.kind, init=1.0)


def _norms(config: IsogradConfig) -> list[Norm]:
    """All norms, the model's kind in their place."""
    entry, every = config.entry(), sites(config.num_hidden_layers, config.stacks()[-1], 0)
    found = [entry.first, entry.final, Norm() if config.embedding_norm else None]
    for residual in map(entry.at, every):
        found += [getattr(residual, slot) for slot in SLOTS]
        found.append(residual.projections.norm if residual.projections else None)
    if isinstance(entry.stream, Parallel) and entry.stream.shared_norm:
        found.append(Norm())
    return [replace(n, kind=config.norm if n.kind == "model" else n.kind) for n in found if n]  # type: ignore[arg-type]


def _difference(what: str, its: Any, own: Any) -> str:
    if what == "position_offset":
        return (
            f"its rotary positions begin at {its}, this model's at {own}: the same but for rounding, so set"
            f" position_offset to {its} in its config.json"
        )
    if what == "norms":
        return f"its norms are {' and '.join(its)}, this model's {' and '.join(own)}"
    return f"{what}: it has {_short(its)}, this model {_short(own)}"


def _short(value: Any) -> str:
    return str(value) if len(str(value)) < 80 else f"{str(value)[:77]}..."


# Parts.


def _same(*names: str) -> Part:
    return Part(read=lambda t: {n: getattr(t, n) for n in names}, write=lambda c: {n: getattr(c, n) for n in names})


def heads(*, own_size: bool = False) -> Part:
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

    return Part(read=read, write=write)


def rope(*, partial: bool = False, interleaved: bool = False) -> Part:
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

    return Part(read=read, write=write)


def rope_by_type() -> Part:
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

    return Part(read=read, write=write)


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


def window() -> Part:
    """One window for all layers, or none."""

    def write(config: IsogradConfig) -> dict[str, Any]:
        return {"sliding_window": config.sliding_window if "sliding_attention" in config.attention_types() else None}

    return Part(read=lambda theirs: {"sliding_window": theirs.sliding_window}, write=write)


def windows(*, switch: bool = False) -> Part:
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

    return Part(read=read, write=write)


def biases(*, fixed: tuple[Role, ...] = (), **options: tuple[Role, ...]) -> Part:
    """Its options -> the roles whose projections have a bias; `fixed` are those that always have one."""
    known = (*_ROLES, *_OF_THE_HEAD) if "head" in {role for roles in options.values() for role in roles} else _ROLES

    def read(theirs: Any) -> dict[str, Any]:
        found = {*fixed, *(role for name, roles in options.items() if getattr(theirs, name) for role in roles)}
        own = [role for role in known if role in found]
        alike = len(own) == len(known) or (not own and known is _ROLES)
        return {"bias": bool(own), "bias_roles": None if alike else own}

    def write(config: IsogradConfig) -> dict[str, Any]:
        return {
            name: config.head_has_bias(role) if (role := roles[0]) in _OF_THE_HEAD else config.has_bias(role)
            for name, roles in options.items()
        }

    return Part(read=read, write=write)


ATTENTION: tuple[Role, ...] = ("query", "key", "value", "attn_out")
FEEDFORWARD: tuple[Role, ...] = ("ffn_in", "ffn_out")


def scores_over(name: str) -> Part:
    """The option whose square root attention scores are divided by (Gemma 2)."""

    def read(theirs: Any) -> dict[str, Any]:
        return {"attention_multiplier": float(getattr(theirs, name) ** -0.5)}

    def write(config: IsogradConfig) -> dict[str, Any]:
        multiplier = config.attention_multiplier
        return {name: config.head_size if multiplier is None else round(multiplier**-2)}

    return Part(read=read, write=write)


def attention_cap(name: str) -> Part:
    """The cap on attention scores is a placement's: read by its `placement`."""

    def write(config: IsogradConfig) -> dict[str, Any]:
        return {name: config.entry().at(sites(config.num_hidden_layers, config.stacks()[-1], 0)[0]).cap}

    return Part(read=lambda theirs: {}, write=write)


def renamed(**names: str) -> Part:
    """Our options -> its own, with the same values."""
    return Part(
        read=lambda theirs: {ours: getattr(theirs, name) for ours, name in names.items()},
        write=lambda config: {name: getattr(config, ours) for ours, name in names.items()},
    )


def constant(**options: Any) -> Part:
    """Options of its own that are written and never read (`demands` says what they have to be)."""
    return Part(read=lambda theirs: {}, write=lambda config: options)

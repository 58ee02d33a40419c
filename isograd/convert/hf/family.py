"""What a family of transformers' classes is: its options, its weights, and what it can hold exactly.

A family is a row, read in both directions. What its class can hold is found by asking it: our configuration is written
as its own, read back, and every fact of the network in which the two differ is a reason why it cannot.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import PreTrainedModel

from isograd.convert.checkpoints.weights import Names, Norms
from isograd.convert.kinds import CAUSAL, CLASSIFIER, MASKED, PAIR, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig, IsogradPreTrainedModel
from isograd.placement import CATALOGUE, Norm, Placement, Residual, Stack, sites
from isograd.placement.formula import SLOTS, Learned, Role
from isograd.placement.stored import stored
from isograd.placement.streams import Parallel
from isograd.transformer.parameters import Embedding
from isograd.transformer.positions import ADDED
from isograd.transformer.stack import InputEmbedding, embedding_scale

LEAST = 1024  # positions of a table that is written out
ROLES: tuple[Role, ...] = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out")
_TABLE = "embedding.positions.weight"
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_PERMUTED = ("sinusoidal_interleaved", "sinusoidal_sines_first")  # the same numbers in another order
_NAMED = ("pre-ln", "qk-norm", "olmo2", "parallel", "parallel-shared", "sandwich")
_ACTS = {  # theirs -> ours, ungated and gated; of several names that they have for one function the last is written
    "swish": ("silu", "swiglu"),
    "silu": ("silu", "swiglu"),
    "relu": ("relu", None),
    "relu2": ("relu_squared", None),
    "gelu": ("gelu", "geglu"),
    "gelu_fast": ("gelu_tanh", "geglu_tanh"),
    "gelu_new": ("gelu_tanh", "geglu_tanh"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
}


@dataclass(frozen=True, kw_only=True)
class FamilyPart:
    """Options of a family that belong together.

    Args:
        read: its configuration -> our options.
        write: our configuration -> its options.
    """

    read: Callable[[Any], dict[str, Any]] = lambda theirs: {}
    write: Callable[[IsogradConfig], dict[str, Any]] = lambda config: {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of classes, read from their own code.

    Args:
        name: as `--to` takes it.
        classes: kind of model -> class.
        names: where its weights are.
        options: our options -> its own, the same value in both.
        placement: of its layers: a name in the catalogue, or a function of its configuration to such a name or to a
            placement.
        parts: what it says beside `options`.
        always: options of ours that are the same in all its models.
        gated: its feed-forwards are gated.
        fills: what it has and a model has not, biases, token types, heads beside, is filled with zeros.
        positions: "table" holds any position that is added, "fixed" keeps no table and computes it, "permuted" has one
            of the original's sinusoids with all sines first, which it may compute anew, "rotary".
        computes: the kind of positions whose rows are the class's own computation, in a table or without one.
        first: the row of the first position; "pad" is the one after the pad token's id, and positions are then
            counted over the ids that are not pad.
        scale: what it multiplies token vectors by, where that is to hold a model of ours.
        head_act: the activation of its masked head, where that is not the layers'.
        head_bias: the kind whose head adds an offset to each logit.
        two_tables: the vocabularies of encoder and decoder may differ.
        own_tables: a tied head leaves the encoder's table alone.
        second_head: the class that says whether a second segment follows the first.
        unused: modules that it has, and that such a model never runs: they are filled with zeros.
        rank: families of rank 0 are taken by `--to auto` before those of rank 1.
        only_out: kinds of models that are written and not read.
        demands: options that a model which is read must have, or leave out.
        unread: its configuration -> why a model is not read, None where it is.
    """

    name: str
    classes: Mapping[ModelKind, str]
    names: Names
    options: Mapping[str, str]
    placement: str | Callable[[Any], str | Placement] = "pre-ln"
    parts: tuple[FamilyPart, ...] = ()
    always: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = False
    fills: bool = False
    positions: Literal["table", "fixed", "permuted", "rotary"] = "table"
    computes: str | None = None
    first: int | Literal["pad"] = 0
    scale: Callable[[IsogradConfig], float] = lambda config: 1.0
    head_act: str | None = None
    head_bias: ModelKind | None = None
    two_tables: bool = False
    own_tables: bool = False
    second_head: str | None = None
    unused: str | None = None
    rank: int = 0
    only_out: tuple[ModelKind, ...] = ()
    demands: Mapping[str, Any] = field(default_factory=dict)
    unread: Callable[[Any], str | None] = lambda theirs: None

    def reasons(self, config: IsogradConfig, kind: ModelKind) -> list[str]:
        """Why it cannot hold a model of this configuration exactly; empty where it can."""
        if kind not in self.classes:
            return [f"it has no class for {kind.about}"]
        said, acts = [*self._refused(config, kind)], self._acts()
        if config.hidden_act not in acts:
            said.append(f"its activation is one of {', '.join(acts)}, this model's is {config.hidden_act}")
            config = copy.deepcopy(config)
            config.hidden_act = next(iter(acts))
        try:
            held = self._held(config, kind)
        except (ValueError, TypeError, KeyError, StrictDataclassError, InteropError) as error:
            return [*said, f"its configuration cannot say it ({' '.join(str(error).split())[:200]})"]
        return [*said, *dict.fromkeys(_differences(held, config, kind, fills=self.fills))]

    def _refused(self, config: IsogradConfig, kind: ModelKind) -> Iterator[str]:
        """What its configuration does not say."""
        if kind == CLASSIFIER and config.is_decoder:
            yield "its classifier reads the first token, and this model's the last"
        if kind == MASKED and self.head_act not in (None, config.hidden_act):
            yield f"the activation of its head is {self.head_act}, this model's is {config.hidden_act}"
        if self.first == "pad" and config.pad_token_id is None:
            yield "it counts positions by the pad token, and this model's config has no pad_token_id"
        kinds = {config.of(stack).position_embedding_type for stack in config.stacks()}
        first, offset = self.first_row(config), config.position_offset
        if self.positions == "fixed" and (kinds != {"sinusoidal"} or offset != first):
            yield (
                f"its positions are fairseq's sinusoids and begin at {first}, after the pad id, this model's are"
                f" {' and '.join(sorted(kinds))} and begin at {offset}"
            )
        if self.positions == "permuted" and (len(kinds) > 1 or not kinds <= set(_PERMUTED) or offset):
            yield (
                f"it keeps no table, its sinusoids are {' or '.join(_PERMUTED)} from 0 on, this model's positions"
                f" {' and '.join(sorted(kinds))} from {offset} on"
            )
        rows = config.encoder_vocab_size or config.vocab_size
        if kind == PAIR and rows > config.vocab_size and not self.two_tables:
            yield f"it has one vocabulary, and this model's encoder has {rows} tokens, its decoder {config.vocab_size}"
        if len({config.of(stack).max_position_embeddings for stack in config.stacks()}) > 1:
            yield "its stacks have one max_position_embeddings, and this model's have two"

    def _held(self, config: IsogradConfig, kind: ModelKind) -> IsogradConfig:
        """What its class makes of a configuration, in our words again."""
        theirs = getattr(transformers, self.classes[kind]).config_class(**self.to_options(config, kind))
        tables = {"vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_word_embeddings}
        own: dict[str, Any] = {"head_bias": self.head_bias == kind, "next_sentence": self.second_head is not None}
        own |= {"is_decoder": kind == CAUSAL} | {name: getattr(config, name) for name in _IDS}
        if kind != PAIR:  # of a decoder alone the class names an encoder nevertheless
            own |= {"encoder_layers": None, "encoder_options": None}
        return IsogradConfig(**self.from_options(theirs) | tables | own)

    def _acts(self) -> dict[str, str]:
        """Our activations -> what it calls them."""
        return {own: theirs for theirs, ours in _ACTS.items() if (own := ours[self.gated])}

    def first_row(self, config: IsogradConfig) -> int:
        """The row of its position table that the first token reads."""
        return (config.pad_token_id or 0) + 1 if self.first == "pad" else int(self.first)

    def rows(self, config: IsogradConfig) -> int:
        """Rows of its position table, but for those in front; a function of the position is written out far enough."""
        longest, kind = int(config.max_position_embeddings), config.position_embedding_type
        own = kind == self.computes and config.position_offset == self.first_row(config)
        return longest if own or kind == "learned" else max(longest, LEAST)

    def table_factor(self, config: IsogradConfig) -> float:
        """What the token table is multiplied by."""
        return embedding_scale(config) / self.scale(config)

    def unties(self, config: IsogradConfig) -> bool:
        """Whether tables that a model shares are stored apart: with one the class would not compute the same."""
        apart = config.is_encoder_decoder and not config.share_encoder_embeddings and not self.own_tables
        return self.table_factor(config) != 1.0 or apart

    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        """Our configuration as the options of its own."""
        names = self.options
        options = {theirs: getattr(config, ours) for ours, theirs in names.items()}
        options |= {name: getattr(config, name) for name in (*_IDS, "vocab_size")}
        options[names["hidden_act"]] = self._acts()[config.hidden_act]
        options["tie_word_embeddings"] = config.tie_word_embeddings and not self.unties(config)
        options["use_cache"] = True
        if self.positions != "rotary":
            options[names["max_position_embeddings"]] = self.rows(config) + self._counted(self.first_row(config))
        if kind == PAIR:
            options["decoder_start_token_id"] = config.decoder_start_token_id
        if kind == CLASSIFIER:
            dropout = config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout
            options |= {"classifier_dropout": dropout, "problem_type": config.problem_type}
            options |= {"id2label": config.id2label, "label2id": config.label2id}
        for part in self.parts:
            options |= part.write(config)
        return options

    def from_options(self, theirs: Any) -> dict[str, Any]:
        """Options of ours that its configuration says.

        Raises:
            InteropError: an option of another network, by its name.
        """
        found = {name: getattr(theirs, name, value) for name, value in self.demands.items()}
        if wrong := [f"{k}={v!r}" for k, v in sorted(found.items()) if v is not None and v != self.demands[k]]:
            raise InteropError(f"options of a network that isograd does not have: {', '.join(wrong)}")
        options: dict[str, Any] = {"embedding_norm": False, "scale_embedding": False} | dict(self.always)
        options |= {ours: getattr(theirs, name) for ours, name in self.options.items()}
        known = {name: ours[self.gated] for name, ours in _ACTS.items() if ours[self.gated]}
        if options["hidden_act"] not in known:
            raise InteropError(f"activation {options['hidden_act']!r}: expected one of {', '.join(known)}")
        options["hidden_act"] = known[options["hidden_act"]]
        if self.positions == "rotary":
            options["position_embedding_type"] = "rotary"
        else:
            first = theirs.pad_token_id + 1 if self.first == "pad" else self.first
            options["position_offset"] = first
            options["max_position_embeddings"] -= self._counted(first)
        for part in self.parts:
            options |= part.read(theirs)
        return options | self._placed(theirs, options["num_hidden_layers"])

    def _placed(self, theirs: Any, layers: int) -> dict[str, Any]:
        """The placement's name in the catalogue, or the formula itself."""
        placement = self.placement if isinstance(self.placement, str) else self.placement(theirs)
        if isinstance(placement, Placement):
            name = next((name for name in _NAMED if CATALOGUE[name] == placement), self.name)
            if name != self.name:
                return {"placement": name}
            stack: Stack = "decoder" if CAUSAL in self.classes else "encoder"
            return {"placement": name, "formula": {stack: stored(name, placement, layers, stack, 0)}}
        return {"placement": placement}

    def _counted(self, first: int) -> int:
        """Rows in front that its longest sequence counts, too: RoBERTa's does."""
        return first if self.first == "pad" and PAIR not in self.classes else 0

    def notes(self, kind: ModelKind) -> Iterator[str]:
        """How it counts positions, where that asks something of its user."""
        if kind == CAUSAL and self.unused:
            yield (
                "Its class has a cross-attention, which never runs and is stored as zeros, and counts positions from"
                " the left edge: pad a batch of prompts on the right, or generate one by one."
            )
        if self.first == "pad":
            yield "It counts positions over the ids that are not pad, whatever the attention mask says."
        elif kind == CAUSAL and not self.unused:
            yield "A batch padded on the left needs position_ids; generate passes them."
        elif kind == PAIR or (kind != CAUSAL and self.positions == "table"):
            yield "It counts positions from the left edge: pad what its encoder reads on the right."

    # Hooks of families that are peculiar.

    def arranged(self, state: dict[str, Tensor], config: IsogradConfig) -> dict[str, Tensor]:
        """Our state dict for a network whose features stand in another order."""
        return state

    def complete(self, native: PreTrainedModel) -> None:
        """After its weights are loaded."""

    def imported(self, model: IsogradPreTrainedModel) -> None:
        """After its weights came into ours: a table that the class would compute is not trained."""
        for module in model.modules():
            if self.computes and isinstance(module, InputEmbedding) and isinstance(module.positions, Embedding):
                module.positions.weight.requires_grad_(False)

    def read_positions(self, state: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
        """`options`, with the positions that the class computes where its tables hold nothing else."""
        tables = [value for name, value in state.items() if name.endswith(_TABLE)]
        kind = self.computes
        if kind is None or not all(_holds(table, kind, options["position_offset"]) for table in tables):
            return dict(options)
        return {**options, "position_embedding_type": kind}

    def head(self, theirs: Any) -> Any:
        """The module that writes logits."""
        return theirs.get_output_embeddings()

    def comparable(self, native: PreTrainedModel) -> nn.Module:
        """What reads a whole sequence, in any precision."""
        return native

    def in_fp64(self, native: PreTrainedModel) -> nn.Module:
        """What computes the same in fp64."""
        return native


def _holds(table: Tensor, kind: str, first: int) -> bool:
    """Whether the rows from the first position on are the sinusoids of this kind, in the table's precision."""
    position = torch.arange(first, len(table), device=table.device)
    return not table.is_meta and torch.equal(ADDED[kind](position, table.shape[1]).to(table.dtype), table[first:])


# What is asked of a model, whatever its family.


def residuals(config: IsogradConfig) -> list[Residual]:
    """The residual of every sublayer, in the order of the stacks."""
    return [residual for stack in config.stacks() for residual in _of(config.of(stack), stack)]


def first_residual(config: IsogradConfig) -> Residual:
    """That of the first self-attention of a model of one stack."""
    return residuals(config)[0]


def norms_at(config: IsogradConfig) -> Norms | None:
    """Where the norms of all sublayers stand; None where they stand otherwise or differ."""
    found = {(r.pre is not None, r.post is not None) for r in residuals(config)}
    return "pre" if found == {(True, False)} else "post" if found == {(False, True)} else None


def has_coefficients(config: IsogradConfig) -> bool:
    """Whether a skip, a scale or a HeadScale is left, which only `fold` can put into plain weights."""
    return any(
        residual.head_scale is not None
        or any(isinstance(c, Learned) or c != 1.0 for c in (residual.skip, residual.scale))
        for residual in residuals(config)
    )


_LATER: dict[str, Any] = {  # options that few libraries can say, with what the others compute
    "attention_multiplier": None,
    "bias_roles": None,
    "norm_bias": True,
    "rope_interleaved": False,
    "rotary_layers": None,
    "sliding_window": None,
    "logits_scale": 1.0,
    "logits_cap": None,
}


def later(config: IsogradConfig) -> dict[str, Any]:
    """Options of this model that few libraries can say."""
    found = {name: getattr(config, name) for name, usual in _LATER.items() if getattr(config, name) != usual}
    found |= {name: getattr(config, name) for name in ("head_dim", "rope_parameters") if hasattr(config, name)}
    if config.key_value_heads != config.num_attention_heads:
        found["num_key_value_heads"] = config.key_value_heads
    if not isinstance(config.scale_embedding, bool):
        found["scale_embedding"] = config.scale_embedding
    return found


def beyond(config: IsogradConfig, said: Collection[str] = ()) -> Iterator[str]:
    """What a library that knows nothing but plain residuals lacks for this model: a line each.

    Args:
        said: options of `later` that it can say.
    """
    for name, value in later(config).items():
        if name not in said:
            yield f"it has no {name}, and this model has {value}"
    entries, every = [config.of(stack).entry() for stack in config.stacks()], residuals(config)
    for kind in {type(entry.stream) for entry in entries if not entry.stream.plain}:
        yield f"its stream is one tensor that sublayers add to, and this placement's is {kind.__name__}"
    if any(entry.first for entry in entries):
        yield "it has no norm of its own before the first layer (first), and this placement has"
    for name in ("gate", "cap"):
        if any(getattr(residual, name) for residual in every):
            yield f"it has no {_THINGS[name]}, and this placement has"
    norms = [norm for stack in config.stacks() for norm in _norms(config.of(stack), stack)]
    if any(norm != Norm(kind=norm.kind, init=norm.init) for norm in norms):
        yield "its norms have a weight and nothing more; of this placement's some have none, or a factor beside it"


# The facts of a network.

_SAME = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "norm_eps",
    "embedding_norm",
    "type_vocab_size",
    "token_width",
    "output_width",
    "logits_scale",
    "logits_cap",
    "head_bias",
    "next_sentence",
)
_FILLED = ("biases", "type_vocab_size", "head_bias", "next_sentence")  # with zeros, where a model has none
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
    "cap": "cap on attention scores",
}


def _differences(its: IsogradConfig, own: IsogradConfig, kind: ModelKind, *, fills: bool) -> Iterator[str]:
    """Where a class computes another function than the model, a line each."""
    for stack in own.stacks():
        one, other = its.of(stack), own.of(stack)
        first, second = _facts(one, stack, kind), _facts(other, stack, kind)
        for what in (what for what in second if what in first):
            if first[what] != second[what] and not (fills and what in _FILLED and not second[what]):
                yield _difference(what, first[what], second[what])
        yield from _placed_otherwise(one, other, stack)


def _facts(config: IsogradConfig, stack: Stack, kind: ModelKind) -> dict[str, Any]:
    """Whatever decides which function the weights compute, in words; equal functions have equal facts."""
    rotary = config.position_embedding_type == "rotary"
    scaling = config.head_size**-0.5 if config.attention_multiplier is None else config.attention_multiplier
    types, slides = config.attention_types(), "sliding_attention" in config.attention_types()
    norms = sorted({config.norm if norm.kind == "model" else norm.kind for norm in _norms(config, stack)})
    return {
        **{name: getattr(config, name) for name in _SAME},
        "positions": "rotary" if rotary else "added",
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "attention_multiplier": scaling,
        "biases": [role for role in ROLES if config.has_bias(role)],
        "biases of the masked head": [r for r in ("dense", "head") if config.head_has_bias(r)]
        if kind == MASKED
        else None,
        "layer_types": types if slides else "full_attention",
        "sliding_window": config.sliding_window if slides else None,
        **(_rotations(config) if rotary else {}),
        "norms": norms,
        "norm_bias": config.norm_bias if "layernorm" in norms else None,
    }


def _rotations(config: IsogradConfig) -> dict[str, Any]:
    """The rules of each layer that rotates, and in which order features turn."""
    rules = {kind: _rules(found, config) for kind, found in config.rope_rules().items()}
    each = [
        rules[kind] if turns else None for kind, turns in zip(config.attention_types(), config.rotated(), strict=True)
    ]
    own = {"position_offset": config.position_offset, "rope_interleaved": config.rope_interleaved}
    return own | {"the rotary positions of each layer": each}


def _rules(rules: Mapping[str, Any], config: IsogradConfig) -> dict[str, Any]:
    found = {name: value for name, value in rules.items() if value is not None and name != "type"}
    if found.get("partial_rotary_factor") == 1.0:
        del found["partial_rotary_factor"]
    if found["rope_type"] == "dynamic":
        found["max_position_embeddings"] = config.max_position_embeddings
    return found


def _placed_otherwise(its: IsogradConfig, own: IsogradConfig, stack: Stack) -> Iterator[str]:
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
        for first, second in zip(_compared(its, stack), _compared(own, stack), strict=True):
            if found := list(_field_otherwise(field_name, getattr(first, field_name), getattr(second, field_name))):
                yield from found
                break


def _field_otherwise(name: str, its: Any, own: Any) -> Iterator[str]:
    if its == own:
        return
    if name in SLOTS:
        yield from _norm_otherwise(its, own, f"{_PLACES[name]} ({name})")
    elif name in _THINGS and not (its and own):
        thing = _THINGS[name]
        yield f"it has {thing}, and this placement has not" if its else f"it has no {thing}, and this placement has"
    else:
        yield f"{name}: it has {its}, this placement {own}"


def _norm_otherwise(its: Norm | None, own: Norm | None, where: str) -> Iterator[str]:
    if (its is None) != (own is None):
        yield f"it has {'no' if its is None else 'a'} norm {where}, and this placement has {'one' if own else 'none'}"
    elif its != own:
        yield f"its norm {where} is {its}, this placement's {own}"


def _compared(config: IsogradConfig, stack: Stack) -> list[Residual]:
    """Of every sublayer, norms without their kind (a fact of its own) and where weights begin."""
    out = []
    for residual in _of(config, stack):
        norms = {slot: _kinded(getattr(residual, slot), config) for slot in SLOTS}
        inside = residual.projections
        of = inside and replace(inside, of=tuple(sorted(inside.of)), norm=_kinded(inside.norm, config))
        out.append(replace(residual, **norms, projections=of))
    return out


def _of(config: IsogradConfig, stack: Stack) -> list[Residual]:
    """The residuals of one stack, of its own configuration."""
    layers, other = config.depths(stack)
    return [config.entry().at(site) for site in sites(layers, stack, other)]


def _kinded(norm: Norm | None, config: IsogradConfig) -> Any:
    return norm and replace(norm, kind="model" if norm.kind in ("model", config.norm) else norm.kind, init=1.0)


def _norms(config: IsogradConfig, stack: Stack) -> list[Norm]:
    """All norms of a stack."""
    entry = config.entry()
    found = [entry.first, entry.final, Norm() if config.embedding_norm else None]
    for residual in _of(config, stack):
        found += [getattr(residual, slot) for slot in SLOTS]
        found.append(residual.projections.norm if residual.projections else None)
    if isinstance(entry.stream, Parallel) and entry.stream.shared_norm:
        found.append(Norm())
    return [norm for norm in found if norm]


def _difference(what: str, its: Any, own: Any) -> str:
    if what == "position_offset":
        return (
            f"its rotary positions begin at {its}, this model's at {own}: the same but for rounding, so set"
            f" position_offset to {its} in its config.json"
        )
    if what == "embedding_norm":
        return f"it has {'a' if its else 'no'} norm on the embedding, and this model has {'one' if own else 'none'}"
    if what == "norms":
        return f"its norms are {' and '.join(its)}, this model's {' and '.join(own)}"
    return f"{what}: it has {_short(its)}, this model {_short(own)}"


def _short(value: Any) -> str:
    return str(value) if len(str(value)) < 80 else f"{str(value)[:77]}..."

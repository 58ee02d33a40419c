"""The configuration of every isograd model."""

import copy
import difflib
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from isograd.errors import UnknownPlacement
from isograd.placement import Placement, Role, Stack, get, sites
from isograd.placement.stored import parts_of, restored, stored
from isograd.transformer.feedforward import ACTIVATIONS
from isograd.transformer.init import SCHEMES
from isograd.transformer.norms import NORMS
from isograd.transformer.positions import POSITIONS

_AT_LEAST_ONE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "encoder_layers",
    "encoder_vocab_size",
    "input_size",
    "output_size",
    "loss_chunk",
    "sliding_window",
)
_OF_THE_ENCODER = (  # may differ between the stacks
    "placement",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "position_embedding_type",
    "max_position_embeddings",
)
_WITH_BIAS = ("query", "key", "value", "attn_out", "ffn_in", "ffn_out", "dense", "head")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_DROPOUTS = ("hidden_dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "classifier_dropout")
_FRAMEWORK = frozenset(vars(PretrainedConfig())) | {  # what transformers reads or writes beside our own options
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "tokenizer_class",
    "torch_dtype",
}


TERMS = {  # of a recipe -> of the configuration, where they differ
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "rope": "rope_parameters",
    "ffn": "intermediate_size",
    "act": "hidden_act",
    "positions": "position_embedding_type",
    "dropout": "hidden_dropout",
    "tie_embeddings": "tie_word_embeddings",
    "share_embeddings": "share_encoder_embeddings",
}


def _nothing() -> None:
    """A default that is no attribute of the class."""


class IsogradConfig(PretrainedConfig):
    """Shape, placement and init of a model. `encoder_layers` makes it an encoder-decoder.

    Args:
        placement: a name in the catalogue, or whatever it was called where `formula` comes from.
        vocab_size: rows of the (decoder's) token table.
        hidden_size: the width d.
        num_hidden_layers: layers of the stack; of the decoder in an encoder-decoder.
        num_attention_heads: heads, a divisor of the width unless `head_dim` is given.
        num_key_value_heads: heads of keys and values, a divisor of `num_attention_heads`: each serves that many heads
            of queries (grouped-query attention; 1: multi-query attention). None: as many as heads.
        head_dim: width of a head; None takes the width over the heads.
        attention_multiplier: factor on attention scores; None takes 1/sqrt(head_dim).
        intermediate_size: inner width of the feed-forward; None takes 4 d.
        hidden_act: "relu", "gelu" (erf), "gelu_tanh", "relu_squared", "silu"; gated "swiglu", "geglu" (erf),
            "geglu_tanh".
        norm: "layernorm" or "rmsnorm", wherever the placement does not fix the kind.
        norm_eps: added to the variance (the mean square in RMSNorm).
        norm_bias: whether LayerNorms have a bias.
        bias: whether projections have biases.
        bias_roles: the roles whose projections have one, where they are not all alike: some of "query", "key", "value",
            "attn_out", "ffn_in", "ffn_out", and of a masked head "dense" and "head". None: as `bias` says, and the
            masked head has both.
        position_embedding_type: "learned", "sinusoidal" (fairseq), "sinusoidal_interleaved" (the original),
            "sinusoidal_sines_first" (the original's numbers in Marian's order), "rotary", "none".
        position_offset: id of the first position (fairseq and BART: 2).
        max_position_embeddings: positions of the learned table, and the longest sequence.
        rope_theta: base of the rotary frequencies.
        rope_parameters: transformers' rules of rotary scaling ("rope_type", "rope_theta", "factor",
            "partial_rotary_factor", ...), or such rules for each of the `layer_types`; None: no scaling.
        rope_interleaved: rotate features 2j and 2j + 1 together (GPT-J, Cohere), else j and j + size/2 (LLaMA).
        rotary_layers: for each layer whether it rotates queries and keys; None: all do.
        sliding_window: tokens that a position sees, in layers of type "sliding_attention": itself and those before it,
            or in an encoder that many to either side; None: all.
        layer_types: "full_attention" or "sliding_attention" for each layer; None: all slide where there is a window.
        scale_embedding: multiply token vectors by sqrt(d), as the original Transformer and fairseq do: their variance
            begins at 1. GPT-2 and BERT do not. A number is the factor itself.
        embedding_norm: a norm on the sum of token and position vectors.
        type_vocab_size: rows of BERT's table of token types, which `token_type_ids` index; 0 for none.
        next_sentence: a masked model has BERT's second head, which says whether segment B continues segment A.
        hidden_dropout, attention_dropout, activation_dropout, embedding_dropout: the four usual places: on each
            branch's output, on attention weights, after the activation, on the embedding.
        init: a scheme of `isograd.transformer.init`; None takes the placement's, or "xavier-uniform".
        initializer_range: standard deviation of the scheme "normal".
        logits_scale: factor on the logits of a causal model.
        logits_cap: logits s of a causal model become cap * tanh(s / cap) (Gemma 2); None leaves them as they are.
        head_bias: a head that writes from left to right adds a bias to each logit (Marian's models have one).
        tie_word_embeddings: the head uses the (decoder's) token table.
        encoder_layers: layers of the encoder; None for a model of one stack.
        encoder_vocab_size: rows of the encoder's token table; None takes `vocab_size`.
        share_encoder_embeddings: encoder and decoder use one token table (with `tie_word_embeddings` only).
        encoder_options: options in which the encoder differs from the decoder, any of `placement`, `hidden_size`,
            `num_attention_heads`, `intermediate_size`, `position_embedding_type`, `max_position_embeddings`.
        is_decoder: a model of one stack reads to the left only.
        input_size: width of the token vectors that a decoder reads; a projection takes them to the width. None: the
            width itself.
        output_size: width of what a decoder's head reads, after a projection of the normalized stream. None likewise.
        classifier_dropout: dropout in the classification head; None takes `hidden_dropout`.
        loss_chunk: rows of logits that exist at one time while the loss is formed; None: 512 on a CPU, elsewhere as
            many as are 2^27 logits.
        formula: the placement itself, resolved, a part per stack, as `isograd.placement.stored` writes it into
            config.json; None takes the catalogue's.
        calibration: what a calibration left ("method", "encoder", "decoder"); set by `calibrate`, never by hand.

    Raises:
        ValueError: an unknown or contradictory option, with what was expected.
    """

    model_type = "isograd"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012  (transformers declares it as a plain list)

    placement: str = "pre-ln"
    vocab_size: int = 32000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = None  # type: ignore[assignment]  # until __post_init__
    hidden_act: str = "gelu"
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    bias: bool = True
    position_embedding_type: str = "learned"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    scale_embedding: bool | float = True
    embedding_norm: bool = False
    type_vocab_size: int = 0
    next_sentence: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    embedding_dropout: float = 0.0
    init: str | None = None
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    encoder_layers: int | None = None
    encoder_vocab_size: int | None = None
    share_encoder_embeddings: bool = False
    encoder_options: dict[str, Any] | None = None
    is_decoder: bool = False
    input_size: int | None = None
    output_size: int | None = None
    head_bias: bool = False
    classifier_dropout: float | None = None
    loss_chunk: int | None = None
    formula: dict[Stack, Any] | None = None
    calibration: dict[str, Any] | None = None
    num_key_value_heads: int | None = field(default_factory=_nothing)
    head_dim: int | None = field(default_factory=_nothing)
    attention_multiplier: float | None = None
    norm_bias: bool = True
    bias_roles: list[str] | None = None
    rope_parameters: Any = field(default_factory=_nothing)
    rope_interleaved: bool = False
    rotary_layers: list[bool] | None = None
    sliding_window: int | None = None
    layer_types: list[str] | None = field(default_factory=_nothing)
    logits_scale: float = 1.0
    logits_cap: float | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        rope, formula = copy.deepcopy(self.rope_parameters), self.formula
        self.rope_parameters = rope
        for name in ("num_key_value_heads", "head_dim", "layer_types", "rope_parameters"):
            if getattr(self, name) is None:  # transformers reads what is there, None or not
                delattr(self, name)
        _refuse_unknown(kwargs)
        self.is_encoder_decoder = self.encoder_layers is not None
        self._check_layers()
        try:
            super().__post_init__(**kwargs)
            self.validate()
        except KeyError as error:  # of transformers' check of rope_parameters
            raise ValueError(str(error.args[0])) from error
        if rope is not None and "rope_theta" in self.rope_parameters:
            self.rope_theta = self.rope_parameters["rope_theta"]
        self._check()
        if formula is not None:
            self.formula = None if self._from_catalogue() == formula else formula

    def __eq__(self, other: object) -> bool:  # a dataclass' own would ask for fields that are not there
        return isinstance(other, IsogradConfig) and vars(self) == vars(other)

    def entry(self) -> Placement:
        """The placement of this configuration; of a decoder that differs from its encoder, the decoder's.

        The formula in the configuration is the truth, and the catalogue the default.
        """
        parts = parts_of(self.formula or {}, self.placement)
        return restored(parts) if parts else get(self.placement)

    def to_diff_dict(self) -> dict[str, Any]:
        """What config.json holds: with the placement itself, so that a model loads without the catalogue's entry."""
        return super().to_diff_dict() | {"formula": self._stored_formula()}

    def _from_catalogue(self) -> dict[str, Any] | None:
        """The formula that the catalogue gives, None where it has no such entry."""
        plain = copy.deepcopy(self)
        plain.formula = None
        try:
            return plain._stored_formula()
        except UnknownPlacement:
            return None

    def _stored_formula(self) -> dict[str, Any]:
        own = {stack: self.of(stack) for stack in self.stacks()}
        return {
            stack: stored(config.placement, config.entry(), config.depths(stack)[0], stack, config.depths(stack)[1])
            for stack, config in own.items()
        }

    def of(self, stack: Stack) -> "IsogradConfig":
        """What one stack is built from: this configuration, or a copy in which an encoder has its own options."""
        changes = dict(self.encoder_options or {})
        if self.input_size or self.output_size:
            changes |= {"input_size": None, "output_size": None}
        if stack == "decoder" or self.encoder_layers is None or not changes:
            return self
        own = copy.deepcopy(self)
        for name, value in changes.items():
            setattr(own, name, value)
        own.encoder_options = None
        return own

    @property
    def head_size(self) -> int:
        """Width of a head."""
        given: int | None = getattr(self, "head_dim", None)
        return self.hidden_size // self.num_attention_heads if given is None else given

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        given: int | None = getattr(self, "num_key_value_heads", None)
        return self.num_attention_heads if given is None else given

    def has_bias(self, role: Role) -> bool:
        """Whether projections of this role have a bias."""
        return self.bias if self.bias_roles is None else role in self.bias_roles

    def head_has_bias(self, role: Role) -> bool:
        """Whether a masked head's "dense" or "head" has one."""
        return self.bias_roles is None or role in self.bias_roles

    def rope_of(self, layer_type: str) -> dict[str, Any]:
        """transformers' rules of the rotary positions in layers of a type."""
        rules: dict[str, Any] = getattr(self, "rope_parameters", None) or {}
        if self._rope_is_nested():
            rules = rules[layer_type]
        return rules or {"rope_type": "default", "rope_theta": self.rope_theta}

    def attention_types(self) -> list[str]:
        """The type of each layer of a model of one stack."""
        alike = "full_attention" if self.sliding_window is None else "sliding_attention"
        return getattr(self, "layer_types", None) or [alike] * self.num_hidden_layers

    def rotated(self) -> list[bool]:
        """For each layer of a model of one stack whether it rotates queries and keys."""
        if self.position_embedding_type != "rotary":
            return [False] * self.num_hidden_layers
        of = zip(self.attention_types(), self.rotary_layers or [True] * self.num_hidden_layers, strict=True)
        nested = self._rope_is_nested()
        return [bool(own) and not (nested and self.rope_parameters[kind] is None) for kind, own in of]

    def rope_rules(self) -> dict[str, dict[str, Any]]:
        """The types of layers that rotate, with their rules."""
        every = zip(self.attention_types(), self.rotated(), strict=True)
        return {kind: self.rope_of(kind) for kind in dict.fromkeys(kind for kind, rotates in every if rotates)}

    def _rope_is_nested(self) -> bool:
        rules = getattr(self, "rope_parameters", None) or {}
        return any(key in _LAYER_TYPES for key in rules)

    @property
    def memory_size(self) -> int:
        """Width of what a cross-attention reads."""
        return self.of("encoder").hidden_size

    @property
    def token_width(self) -> int:
        """Width of the token vectors."""
        return self.input_size or self.hidden_size

    @property
    def output_width(self) -> int:
        """Width of what the head over the vocabulary reads."""
        return self.output_size or self.hidden_size

    def scheme(self) -> str:
        """The base scheme of the init: the configuration's, else the placement's, else "xavier-uniform"."""
        return self.init or self.entry().init.base or "xavier-uniform"

    def table_gain(self, role: Role, stack: Stack) -> float:
        """The placement's factor on the std of a stack's token table ("embed") or of the head."""
        layers, other = self.depths(stack)
        return self.entry().init.at(sites(layers, stack, other)[0]).get(role, 1.0)

    def stacks(self) -> tuple[Stack, ...]:
        """In the order in which text runs through them."""
        if self.encoder_layers is not None:
            return "encoder", "decoder"
        return ("decoder",) if self.is_decoder else ("encoder",)

    def calibrated_stacks(self) -> tuple[Stack, ...]:
        """Those whose skips a calibration sets."""
        return tuple(stack for stack in self.stacks() if self.of(stack).entry().calibrate)

    def depths(self, stack: Stack) -> tuple[int, int]:
        """Layers of a stack, and of the other one (0 if there is none)."""
        if self.encoder_layers is None:
            return self.num_hidden_layers, 0
        pair = (self.encoder_layers, self.num_hidden_layers)
        return pair if stack == "encoder" else pair[::-1]

    def _check(self) -> None:
        self._check_names()
        self._check_ranges()
        self._check_encoder()
        self._check_attention()
        if self.tie_word_embeddings and self.token_width != self.output_width:
            raise ValueError(
                f"a tied table has one width: input_size={self.input_size}, output_size={self.output_size}"
                f" (hidden_size={self.hidden_size}) need tie_word_embeddings=False"
            )
        if self.position_embedding_type == "rotary" and self.head_size % 2:
            raise ValueError("rotary positions need an even width per head")
        if self.position_embedding_type == "sinusoidal" and self.hidden_size < 4:
            raise ValueError(f"sinusoidal positions need hidden_size of at least 4, and got {self.hidden_size}")
        self.entry()

    def _check_attention(self) -> None:
        heads, groups = self.num_attention_heads, self.key_value_heads
        if not hasattr(self, "head_dim") and self.hidden_size % heads:
            raise ValueError(f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={heads}")
        if self.head_size < 1 or groups < 1:
            raise ValueError(f"head_dim={self.head_size} and num_key_value_heads={groups} must be at least 1")
        if heads % groups:
            raise ValueError(f"num_attention_heads={heads} is not a multiple of num_key_value_heads={groups}")
        if unknown := sorted(set(self.bias_roles or ()) - set(_WITH_BIAS)):
            raise ValueError(f"bias_roles: {', '.join(unknown)}: expected some of {', '.join(_WITH_BIAS)}")
        if self.logits_cap is not None and not self.logits_cap > 0:
            raise ValueError(f"logits_cap={self.logits_cap} must be above 0")

    def _check_layers(self) -> None:
        """Options that give layers of one stack positions or a window of their own."""
        types, depth = getattr(self, "layer_types", None), self.num_hidden_layers
        one_stack = {
            "layer_types": types,
            "rotary_layers": self.rotary_layers,
            "sliding_window": self.sliding_window,
            "rope_parameters": getattr(self, "rope_parameters", None),
            "logits_cap": self.logits_cap,
            "logits_scale": None if self.logits_scale == 1.0 else self.logits_scale,
        }
        if self.encoder_layers is not None and (given := [n for n, v in one_stack.items() if v is not None]):
            raise ValueError(f"{', '.join(given)}: for a model of one stack; encoder_layers makes an encoder-decoder")
        for name, value in (("layer_types", types), ("rotary_layers", self.rotary_layers)):
            if value is not None and len(value) != depth:
                raise ValueError(f"{name} has {len(value)} entries, and num_hidden_layers is {depth}")
        if types and (unknown := sorted(set(types) - set(_LAYER_TYPES))):
            raise ValueError(f"layer_types: {', '.join(unknown)}: expected {' or '.join(_LAYER_TYPES)}")
        if types and "sliding_attention" in types and self.sliding_window is None:
            raise ValueError("layer_types has 'sliding_attention': set sliding_window")
        if self._rope_is_nested() and not types:
            raise ValueError("rope_parameters by type of layer: set layer_types")
        if self._rope_is_nested() and (missing := sorted(set(self.attention_types()) - set(self.rope_parameters))):
            raise ValueError(f"rope_parameters has no rules for {', '.join(missing)}")
        self._check_rope()

    def _check_rope(self) -> None:
        given = {name: getattr(self, name, None) for name in ("rope_parameters", "rope_interleaved", "rotary_layers")}
        if self.position_embedding_type != "rotary" and (names := [name for name, value in given.items() if value]):
            raise ValueError(f"{', '.join(names)}: set position_embedding_type='rotary'")
        for rules in self.rope_rules().values() if given["rope_parameters"] else ():
            if rules.get("rope_type", "default") not in (known := ("default", *ROPE_INIT_FUNCTIONS)):
                raise ValueError(f"rope_type {rules['rope_type']!r}: expected one of {', '.join(known)}")

    def _check_names(self) -> None:
        for name, known in (
            ("hidden_act", ACTIVATIONS),
            ("norm", NORMS),
            ("position_embedding_type", POSITIONS),
            ("init", (None, *SCHEMES)),
        ):
            if getattr(self, name) not in known:
                options = ", ".join(repr(k) for k in known if k is not None)
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; expected one of {options}")

    def _check_ranges(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for name in ("norm_eps", "initializer_range", "position_offset", "type_vocab_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        for name in _DROPOUTS:
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < 1.0:
                raise ValueError(f"{name}={value} must be in [0, 1)")
        rows = min(self.vocab_size, self.encoder_vocab_size or self.vocab_size)
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < rows:
            raise ValueError(f"pad_token_id={self.pad_token_id} must be a row of the token table, 0 to {rows - 1}")

    def _check_encoder(self) -> None:
        if self.share_encoder_embeddings and not self.tie_word_embeddings:
            raise ValueError("share_encoder_embeddings=True needs tie_word_embeddings=True: one table for all three")
        if self.encoder_layers is None and (self.share_encoder_embeddings or self.encoder_vocab_size is not None):
            raise ValueError("share_encoder_embeddings and encoder_vocab_size need encoder_layers: there is no encoder")
        if self.next_sentence and (self.is_decoder or self.encoder_layers is not None):
            raise ValueError(
                "next_sentence=True is for a masked language model: leave encoder_layers and is_decoder unset"
            )
        if self.encoder_layers is not None and self.is_decoder:
            raise ValueError("is_decoder=True is for a model of one stack; encoder_layers makes an encoder-decoder")
        self._check_encoder_options()
        if self.share_encoder_embeddings and self.encoder_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"share_encoder_embeddings=True, but encoder_vocab_size={self.encoder_vocab_size}"
                f" and vocab_size={self.vocab_size} differ"
            )

    def _check_encoder_options(self) -> None:
        if not self.encoder_options:
            return
        if self.encoder_layers is None:
            raise ValueError("encoder_options need encoder_layers: there is no encoder")
        if unknown := sorted(set(self.encoder_options) - set(_OF_THE_ENCODER)):
            raise ValueError(f"encoder_options: {', '.join(unknown)}: expected some of {', '.join(_OF_THE_ENCODER)}")
        own = self.of("encoder")
        if self.share_encoder_embeddings and own.hidden_size != self.token_width:
            raise ValueError("share_encoder_embeddings=True needs one width of the token vectors in both stacks")
        own._check()


def _refuse_unknown(names: Iterable[str]) -> None:
    """transformers would keep any keyword as an attribute that nobody reads."""
    own = list(IsogradConfig.__annotations__)
    for name in names:
        if name in _FRAMEWORK or name.startswith("_"):
            continue
        near = [TERMS[name]] if name in TERMS else difflib.get_close_matches(name, own, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "expected one of " + ", ".join(own)
        raise ValueError(f"unknown option {name!r}: {hint}")

"""What a family of transformers' classes is: its options, its weights, and what it can hold exactly."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from isograd.convert.checkpoints.weights import Names, Norms
from isograd.convert.kinds import CAUSAL, CLASSIFIER, MASKED, PAIR, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig, IsogradPreTrainedModel
from isograd.placement import Norm, Residual, sites
from isograd.placement.formula import SLOTS, Learned
from isograd.transformer.parameters import Embedding
from isograd.transformer.positions import ADDED
from isograd.transformer.stack import InputEmbedding, embedding_scale

LEAST = 1024  # positions of a table that is written out
_TABLE = "embedding.positions.weight"
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_PERMUTED = ("sinusoidal_interleaved", "sinusoidal_sines_first")  # the same numbers in another order
_SLOTS = {"out": "on what the branch wrote", "mid": "inside the branch"}
_THEIR_ACTS = {  # the same functions under further names
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu_squared",
    "relu": "relu",
    "gelu": "gelu",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of classes, read from their own code.

    Args:
        name: as `--to` takes it.
        classes: kind of model -> class.
        names: where its weights are.
        options: our options -> its own, the same value in both.
        norms: where the norms of its layers may stand.
        rms: its norms are RMSNorm, else LayerNorm.
        eps: of its norms; None where its configuration sets it.
        embedding_norm: whether it has a norm on the embedding.
        positions: "table" holds any position that is added, "fixed" keeps no table and computes it, "permuted" has one
            of the original's sinusoids with all sines first, which it may compute anew, "rotary".
        computes: the kind of positions whose rows are the class's own computation, in a table or without one.
        first: the row of the first position; "pad" is the one after the pad token's id, and positions are then
            counted over the ids that are not pad.
        scales: it can multiply token vectors by sqrt(d).
        acts: our activations -> its names of them.
        head_act: the activation of its masked head, where that is not the layers'.
        token_types: it has them.
        two_tables: the vocabularies of encoder and decoder may differ.
        own_tables: a tied head leaves the encoder's table alone.
        head_bias: as an encoder-decoder it adds an offset to each logit.
        second_head: the class that says whether a second segment follows the first.
        unused: modules that it has, and that such a model never runs: they are filled with zeros.
        rank: families of rank 0 are taken by `--to auto` before those of rank 1.
        says_coefficients: options of its own hold the placement's constants: nothing has to be folded.
        imports: kinds of models that are read, too; demands: options that these must have, or leave out.
    """

    name: str
    classes: Mapping[ModelKind, str]
    names: Names
    options: Mapping[str, str]
    norms: tuple[Norms, ...]
    rms: bool = False
    eps: float | None = None
    embedding_norm: bool = False
    positions: Literal["table", "fixed", "permuted", "rotary"] = "table"
    computes: str | None = None
    first: int | Literal["pad"] = 0
    scales: bool = False
    acts: Mapping[str, str] = field(
        default_factory=lambda: {
            "relu": "relu",
            "gelu": "gelu",
            "gelu_tanh": "gelu_pytorch_tanh",
            "relu_squared": "relu2",
        }
    )
    head_act: str | None = None
    token_types: bool = False
    two_tables: bool = False
    own_tables: bool = False
    head_bias: bool = False
    second_head: str | None = None
    unused: str | None = None
    rank: int = 0
    says_coefficients: bool = False
    imports: tuple[ModelKind, ...] = ()
    demands: Mapping[str, Any] = field(default_factory=dict)

    def reasons(self, config: IsogradConfig, kind: ModelKind) -> list[str]:
        """Why it cannot hold a model of this configuration exactly; empty where it can."""
        if kind not in self.classes:
            return [f"it has no class for {kind.about}"]
        if kind == CLASSIFIER and config.is_decoder:
            return ["its classifier reads the first token, and this model's the last"]
        return [
            *_norms(self, config),
            *_embedding(self, config),
            *_positions(self, config, kind),
            *_branches(self, config, kind),
            *_tables(self, config, kind),
            *self.widths(config),
        ]

    def widths(self, config: IsogradConfig) -> Iterator[str]:
        """What is in the way of token vectors of this width."""
        if {config.token_width, config.output_width} != {config.hidden_size}:
            yield f"its token vectors have the width of the stream, this model's have {config.token_width}"

    def first_row(self, config: IsogradConfig) -> int:
        """The row of its position table that the first token reads."""
        return (config.pad_token_id or 0) + 1 if self.first == "pad" else int(self.first)

    def rows(self, config: IsogradConfig) -> int:
        """Rows of its position table, but for those in front; a function of the position is written out far enough."""
        longest, kind = int(config.max_position_embeddings), config.position_embedding_type
        own = kind == self.computes and config.position_offset == self.first_row(config)
        return longest if own or kind == "learned" else max(longest, LEAST)

    def multiplied(self, config: IsogradConfig) -> bool:
        """Whether the factor on token vectors goes into the token table."""
        return self.table_factor(config) != 1.0

    def table_factor(self, config: IsogradConfig) -> float:
        """What the token table is multiplied by."""
        return 1.0 if self.scales else embedding_scale(config)

    def unties(self, config: IsogradConfig) -> bool:
        """Whether tables that a model shares are stored apart: with one the class would not compute the same."""
        apart = config.is_encoder_decoder and not config.share_encoder_embeddings and not self.own_tables
        return self.multiplied(config) or apart

    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        """Our configuration as the options of its own."""
        names = self.options
        options = {theirs: getattr(config, ours) for ours, theirs in names.items()}
        options |= {name: getattr(config, name) for name in _IDS} | self.vocabularies(config)
        options[names["hidden_act"]] = self.acts[config.hidden_act]
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
        return options

    def vocabularies(self, config: IsogradConfig) -> dict[str, int]:
        return {"vocab_size": config.vocab_size}

    def from_options(self, theirs: Any) -> dict[str, Any]:
        """Options of ours that its configuration says.

        Raises:
            InteropError: an option of another network, by its name.
        """
        self.check_demands(theirs)
        options = {ours: getattr(theirs, name) for ours, name in self.options.items()}
        if options["hidden_act"] not in _THEIR_ACTS:
            raise InteropError(f"activation {options['hidden_act']!r}: expected one of {', '.join(_THEIR_ACTS)}")
        options["hidden_act"] = _THEIR_ACTS[options["hidden_act"]]
        options["embedding_norm"] = self.embedding_norm
        options["placement"] = "pre-ln" if self.norms == ("pre",) else "post-ln"
        options["position_offset"] = self.first
        if self.first == "pad":
            options["position_offset"] = theirs.pad_token_id + 1
            options["max_position_embeddings"] -= self._counted(options["position_offset"])
        return options

    def _counted(self, first: int) -> int:
        """Rows in front that its longest sequence counts, too: RoBERTa's does."""
        return first if self.first == "pad" and PAIR not in self.classes else 0

    def check_demands(self, theirs: Any) -> None:
        """Raise InteropError where an option says another network."""
        found = {name: getattr(theirs, name, value) for name, value in self.demands.items()}
        if wrong := [f"{k}={v!r}" for k, v in sorted(found.items()) if v is not None and v != self.demands[k]]:
            raise InteropError(f"options of a network that isograd does not have: {', '.join(wrong)}")

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


def residuals(config: IsogradConfig) -> list[Residual]:
    """The residual of every sublayer, in the order of the stacks."""
    out = []
    for stack in config.stacks():
        own, (layers, other) = config.of(stack), config.depths(stack)
        out += [own.entry().at(site) for site in sites(layers, stack, other)]
    return out


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


def has_inner_norms(config: IsogradConfig) -> bool:
    """Whether a norm stands on what a branch wrote, or inside one, as in NormFormer."""
    return any(getattr(residual, slot) for residual in residuals(config) for slot in _SLOTS)


_LATER: dict[str, Any] = {  # options that only families have whose configuration says them, with what others compute
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
    """Options of this model that only families have whose configuration says them."""
    found = {name: getattr(config, name) for name, usual in _LATER.items() if getattr(config, name) != usual}
    found |= {name: getattr(config, name) for name in ("head_dim", "rope_parameters") if hasattr(config, name)}
    if config.key_value_heads != config.num_attention_heads:
        found["num_key_value_heads"] = config.key_value_heads
    if not isinstance(config.scale_embedding, bool):
        found["scale_embedding"] = config.scale_embedding
    return found


def beyond(config: IsogradConfig, said: Collection[str] = ()) -> Iterator[str]:
    """What no family of another library has, of those that isograd writes: a line each.

    Args:
        said: options of `later` that this library can say.
    """
    for name, value in later(config).items():
        if name in said:
            continue
        yield f"it has no {name}, and this model has {value}"
    entries, every = [config.of(stack).entry() for stack in config.stacks()], residuals(config)
    for kind in {type(entry.stream) for entry in entries if not entry.stream.plain}:
        yield f"its stream is one tensor that sublayers add to, and this placement's is {kind.__name__}"
    if any(entry.first for entry in entries):
        yield "it has no norm of its own before the first layer (first), and this placement has"
    if any(residual.gate for residual in every):
        yield "it has no gate before W_O, and this placement has"
    if any(residual.cap for residual in every):
        yield "it has no cap on attention scores, and this placement has"
    norms = [getattr(residual, slot) for residual in every for slot in SLOTS] + [entry.final for entry in entries]
    norms += [residual.projections.norm for residual in every if residual.projections]
    for norm in dict.fromkeys(norms):
        if norm is not None and norm != Norm(kind=norm.kind, init=norm.init):
            yield "its norms have a weight and nothing more; of this placement's some have none, or a factor beside it"
            break


def _norms(family: Family, config: IsogradConfig) -> Iterator[str]:
    every = residuals(config)
    yield from beyond(config)
    for slot, place in _SLOTS.items():
        if any(getattr(residual, slot) for residual in every):
            yield f"it has no norm {place} ({slot}), and this placement has"
    if any(residual.head_scale for residual in every):
        yield "it has no HeadScale"
    found = norms_at(config)
    if found is None:
        yield "the norms of this placement stand neither all before the branch nor all on the sum"
    elif found not in family.norms:
        where = {"pre": "before the branch", "post": "on the sum"}
        yield f"its norms stand {where[family.norms[0]]}, this model's {where[found]}"
    finals = {config.of(stack).entry().final is not None for stack in config.stacks()}
    if found == "pre" and False in finals:
        yield "it has a norm after the last layer, and this placement has none"
    elif found == "post" and True in finals:
        yield "it has no norm after the last layer, and this placement has one"
    wanted = "rmsnorm" if family.rms else "layernorm"
    if kinds := _kinds(config, every) - {wanted}:
        yield f"its norms are {wanted}, this model's {' and '.join(sorted(kinds))}"
    if family.eps is not None and config.norm_eps != family.eps:
        yield f"the eps of its norms is {family.eps:g} and cannot be set, this model's is {config.norm_eps:g}"


def _kinds(config: IsogradConfig, every: list[Residual]) -> set[str]:
    norms = [config.of(stack).entry().final for stack in config.stacks()]
    norms += [norm for residual in every for norm in (residual.pre, residual.post)]
    norms += [Norm() if config.embedding_norm else None]
    norms += [r.projections.norm for r in every if r.projections]
    return {config.norm if norm.kind == "model" else norm.kind for norm in norms if norm is not None}


def _embedding(family: Family, config: IsogradConfig) -> Iterator[str]:
    if family.embedding_norm and not config.embedding_norm:
        yield "it has a norm on the embedding, and this model has none (embedding_norm=False)"
    elif config.embedding_norm and not family.embedding_norm:
        yield "it has no norm on the embedding, and this model has one (embedding_norm=True)"
    if config.type_vocab_size and not family.token_types:
        yield f"it has no token types, and this model has {config.type_vocab_size}"


def _positions(family: Family, config: IsogradConfig, kind: ModelKind) -> Iterator[str]:
    kinds = {config.of(stack).position_embedding_type for stack in config.stacks()}
    for ours in sorted(kinds):
        yield from _position_kind(family, ours, config)
    if family.positions == "permuted" and len(kinds) > 1:
        yield f"its stacks have one kind of positions, this model's have {' and '.join(sorted(kinds))}"
    if family.first == "pad" and config.pad_token_id is None:
        yield "it counts positions by the pad token, and this model's config has no pad_token_id"
    elif family.first == "pad" and kind == PAIR and config.decoder_start_token_id == config.pad_token_id:
        yield "it counts positions over tokens that are not pad, and this model's decoder starts with pad"


def _position_kind(family: Family, ours: str, config: IsogradConfig) -> Iterator[str]:
    first, offset = family.first_row(config), config.position_offset
    if (ours == "rotary") != (family.positions == "rotary"):
        yield f"its positions are {'rotary' if family.positions == 'rotary' else 'added'}, this model's are {ours}"
    elif ours == "rotary" and offset:
        yield (
            f"its rotary positions begin at 0, this model's at {offset}: the same but for rounding, so set"
            " position_offset to 0 in its config.json"
        )
    elif family.positions == "fixed" and ours != "sinusoidal":
        yield f"its positions are fairseq's sinusoids, this model's are {ours}"
    elif family.positions == "fixed" and offset != first:
        yield f"its sinusoids begin at {first}, after the pad id, this model's at {offset}"
    elif family.positions == "permuted" and (ours not in _PERMUTED or offset):
        yield (
            f"it keeps no table, its sinusoids are {' or '.join(_PERMUTED)} from 0 on, this model's positions"
            f" {ours} from {offset} on"
        )


def _branches(family: Family, config: IsogradConfig, kind: ModelKind) -> Iterator[str]:
    if config.hidden_act not in family.acts:
        yield f"its activation is one of {', '.join(family.acts)}, this model's is {config.hidden_act}"
    if kind == MASKED and family.head_act not in (None, config.hidden_act):
        yield f"the activation of its head is {family.head_act}, this model's is {config.hidden_act}"
    if any(residual.projections for residual in residuals(config)):
        yield "it has no such norms on queries, keys or values, and this placement has"


def _tables(family: Family, config: IsogradConfig, kind: ModelKind) -> Iterator[str]:
    rows = config.encoder_vocab_size or config.vocab_size
    if kind == PAIR and rows > config.vocab_size and not family.two_tables:
        yield f"it has one vocabulary, and this model's encoder has {rows} tokens, its decoder {config.vocab_size}"
    if config.head_bias and not (kind == PAIR and family.head_bias):
        yield "its head has no offset, and this model's has (head_bias=True)"
    if config.next_sentence and family.second_head is None:
        yield "it has no second head, and this model has one (next_sentence=True)"
    if kind == PAIR:
        for name in ("hidden_size", "max_position_embeddings"):
            encoder, decoder = (getattr(config.of(stack), name) for stack in config.stacks())
            if encoder != decoder:
                yield f"its stacks have one {name}, and this model's have {encoder} and {decoder}"

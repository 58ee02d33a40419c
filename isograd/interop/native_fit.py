"""Whether a class of transformers can hold a model exactly, and if not, why: one line per reason."""

from collections.abc import Iterator

from isograd.interop.native_targets import KINDS, TARGETS, Kind, Target
from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
    IsogradPreTrainedModel,
)
from isograd.placement import Norm, Residual, sites
from isograd.placement.formula import Learned

_CLASSES: dict[type[IsogradPreTrainedModel], Kind] = {
    IsogradForCausalLM: "causal",
    IsogradForMaskedLM: "masked",
    IsogradForSequenceClassification: "classifier",
    IsogradForSeq2SeqLM: "pair",
}
_SLOTS = {"out": "on what the branch wrote", "mid": "inside the branch"}


def kind_of(model: IsogradPreTrainedModel) -> Kind | None:
    """What the model is to transformers' classes; None for a model without a head."""
    return next((kind for cls, kind in _CLASSES.items() if isinstance(model, cls)), None)


def reasons(config: IsogradConfig, kind: Kind, target: Target) -> list[str]:
    """Why the class cannot hold a model of this configuration exactly; empty where it can."""
    if kind not in target.classes:
        return [f"it has no class for {KINDS[kind]}"]
    if kind == "classifier" and config.is_decoder:
        return ["its classifier reads the first token, and this model's the last"]
    return [
        *_norms(config, target),
        *_embedding(config, target),
        *_positions(config, kind, target),
        *_branches(config, kind, target),
        *_tables(config, kind, target),
    ]


def homes(config: IsogradConfig, kind: Kind) -> list[str]:
    """Names of the classes that can hold it, the nearest first: those that count positions as the model does."""
    fit = [name for name, target in TARGETS.items() if not reasons(config, kind, target)]
    return sorted(fit, key=lambda name: first_row(config, TARGETS[name]) != config.position_offset)


def has_coefficients(config: IsogradConfig) -> bool:
    """Whether a skip, a gain or a HeadScale is left, which only `fold` can put into plain weights."""
    return any(
        residual.head_scale is not None
        or any(isinstance(c, Learned) or c != 1.0 for c in (residual.skip, residual.scale))
        for residual in residuals(config)
    )


def has_inner_norms(config: IsogradConfig) -> bool:
    """Whether a norm stands on what a branch wrote, or inside one, as in NormFormer."""
    return any(getattr(residual, slot) for residual in residuals(config) for slot in _SLOTS)


def first_row(config: IsogradConfig, target: Target) -> int:
    """The row of its position table that the first token reads."""
    return (config.pad_token_id or 0) + 1 if target.first == "pad" else int(target.first)


def residuals(config: IsogradConfig) -> list[Residual]:
    """The residual of every sublayer, in the order of the towers."""
    out = []
    for tower in config.stacks():
        own, (layers, other) = config.of(tower), config.depths(tower)
        out += [own.entry().at(site) for site in sites(layers, tower, other)]
    return out


def norms_at(config: IsogradConfig) -> str | None:
    """Where the norms of all sublayers stand, "pre" or "post"; None where they stand otherwise or differ."""
    found = {(r.pre is not None, r.post is not None) for r in residuals(config)}
    if len(found) > 1:
        return None
    return {(True, False): "pre", (False, True): "post"}.get(found.pop())


def _norms(config: IsogradConfig, target: Target) -> Iterator[str]:
    every = residuals(config)
    for slot, place in _SLOTS.items():
        if any(getattr(residual, slot) for residual in every):
            yield f"it has no norm {place} ({slot}), and this placement has"
    if any(residual.head_scale for residual in every):
        yield "it has no HeadScale"
    found = norms_at(config)
    if found is None:
        yield "the norms of this placement stand neither all before the branch nor all on the sum"
    elif found not in target.norms:
        where = {"pre": "before the branch", "post": "on the sum"}
        yield f"its norms stand {where[target.norms[0]]}, this model's {where[found]}"
    finals = {config.of(tower).entry().final is not None for tower in config.stacks()}
    if found == "pre" and False in finals:
        yield "it has a norm after the last layer, and this placement has none"
    elif found == "post" and True in finals:
        yield "it has no norm after the last layer, and this placement has one"
    wanted = "rmsnorm" if target.rms else "layernorm"
    if kinds := _kinds(config, every) - {wanted}:
        yield f"its norms are {wanted}, this model's {' and '.join(sorted(kinds))}"
    if target.eps is not None and config.norm_eps != target.eps:
        yield f"the eps of its norms is {target.eps:g} and cannot be set, this model's is {config.norm_eps:g}"


def _kinds(config: IsogradConfig, every: list[Residual]) -> set[str]:
    norms = [config.of(tower).entry().final for tower in config.stacks()]
    norms += [norm for residual in every for norm in (residual.pre, residual.post)]
    norms += [Norm() if config.embedding_norm else None]
    norms += [r.projections.norm for r in every if r.projections]
    return {config.norm if norm.kind == "model" else norm.kind for norm in norms if norm is not None}


def _embedding(config: IsogradConfig, target: Target) -> Iterator[str]:
    if target.embedding_norm and not config.embedding_norm:
        yield "it has a norm on the embedding, and this model has none (embedding_norm=False)"
    elif config.embedding_norm and not target.embedding_norm:
        yield "it has no norm on the embedding, and this model has one (embedding_norm=True)"
    if config.type_vocab_size and target.options.__name__ != "bert":
        yield f"it has no token types, and this model has {config.type_vocab_size}"


def _positions(config: IsogradConfig, kind: Kind, target: Target) -> Iterator[str]:
    for ours in {config.of(tower).position_embedding_type for tower in config.stacks()}:
        yield from _position_kind(ours, config, target)
    if target.by_ids and config.pad_token_id is None:
        yield "it counts positions by the pad token, and this model's config has no pad_token_id"
    elif target.by_ids and kind == "pair" and config.decoder_start_token_id == config.pad_token_id:
        yield "it counts positions over tokens that are not pad, and this model's decoder starts with pad"


def _position_kind(ours: str, config: IsogradConfig, target: Target) -> Iterator[str]:
    if (ours == "rotary") != (target.positions == "rotary"):
        yield f"its positions are {'rotary' if target.positions == 'rotary' else 'added'}, this model's are {ours}"
    elif ours == "rotary" and config.position_offset:
        yield (
            f"its rotary positions begin at 0, this model's at {config.position_offset}: the same but for rounding, so"
            " set position_offset to 0 in its config.json"
        )
    elif target.positions == "fixed" and ours != "sinusoidal":
        yield f"its positions are fairseq's sinusoids, this model's are {ours}"
    elif target.positions == "fixed" and config.position_offset != first_row(config, target):
        yield (
            f"its sinusoids begin at {first_row(config, target)}, behind the pad id, this model's at"
            f" {config.position_offset}"
        )
    elif target.positions == "permuted" and (ours != "sinusoidal_interleaved" or config.position_offset):
        given = f"{ours} from {config.position_offset} on"
        yield f"it keeps no table, its sinusoids are sinusoidal_interleaved from 0 on, this model's positions {given}"


def _branches(config: IsogradConfig, kind: Kind, target: Target) -> Iterator[str]:
    if config.hidden_act not in target.acts:
        yield f"its activation is one of {', '.join(target.acts)}, this model's is {config.hidden_act}"
    if kind == "masked" and target.head_act not in (None, config.hidden_act):
        yield f"the activation of its head is {target.head_act}, this model's is {config.hidden_act}"
    found = {residual.projections for residual in residuals(config) if residual.projections}
    normed = all(p.over == "head" and set(p.of) == {"query", "key"} for p in found)
    if found and not (target.projections and normed):
        yield "it has no such norms on queries, keys or values, and this placement has"
    elif target.projections and not found:
        yield "it has norms on queries and keys, and this placement has none"
    if target.projections and config.bias:
        yield "its feed-forward has no biases, this model's has (bias=True)"


def _tables(config: IsogradConfig, kind: Kind, target: Target) -> Iterator[str]:
    rows = config.encoder_vocab_size or config.vocab_size
    if kind == "pair" and rows > config.vocab_size and not target.two_tables:
        yield f"it has one vocabulary, and this model's encoder has {rows} tokens, its decoder {config.vocab_size}"
    if config.head_bias and not (kind == "pair" and target.head_bias):
        yield "its head has no offset, and this model's has (head_bias=True)"
    if config.next_sentence and target.second_head is None:
        yield "it has no second head, and this model has one (next_sentence=True)"
    if kind == "pair":
        for name in ("hidden_size", "max_position_embeddings"):
            encoder, decoder = (getattr(config.of(tower), name) for tower in config.stacks())
            if encoder != decoder:
                yield f"its towers have one {name}, and this model's have {encoder} and {decoder}"
    sizes = (config.token_width, config.output_width)
    if target.model_type == "opt" and sizes[0] != sizes[1]:
        yield f"the token vectors it reads and writes have one width, this model's have {sizes[0]} and {sizes[1]}"
    elif target.model_type != "opt" and set(sizes) != {config.hidden_size}:
        yield f"its token vectors have the width of the stream, this model's have {sizes[0]}"

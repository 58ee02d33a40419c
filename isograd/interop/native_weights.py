"""Our weights as a class of transformers keeps them: the values that change on the way, then the names.

token table     times sqrt(d) where ours are scaled and the class does not scale; a tied head then keeps the old one
positions       row `first + p` holds position p, whatever row ours stands in; sinusoids written out, or none as 0
stream          permuted, for Marian, whose sinusoids are the original's with all sines first
what it has and we have not: biases, token types, attention that never runs, as zeros
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isograd.interop.names import NAMES
from isograd.interop.native_fit import first_row, norms_at
from isograd.interop.native_targets import Kind, Target
from isograd.interop.renaming import to_native
from isograd.models import IsogradConfig, IsogradModel, IsogradPreTrainedModel

LEAST = 1024  # positions of a table that is written out
_READS = ("query", "key", "value", "into", "gate")  # projections whose columns are the stream, of an attention's own


def native_state(
    model: IsogradPreTrainedModel, kind: Kind, target: Target, shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """The state dict of the class, in the dtype of the model.

    Args:
        shapes: name -> shape of everything that the class wants.
    """
    config = model.config
    state = {name: value.detach() for name, value in model.state_dict().items()}
    for prefix, tower in _towers(model).items():
        tokens = f"{prefix}.embedding.tokens.weight"
        if tower.embedding.scale != 1.0 and not target.scales:
            state[tokens] = state[tokens] * tower.embedding.scale  # in another tensor than a tied head's
        if target.positions in ("table", "permuted"):
            state[f"{prefix}.embedding.positions.weight"] = _positions(tower, target)
    if target.positions == "permuted":
        state = _permuted(state, config)
    offset = state.pop("lm_head.bias", None)
    names = NAMES[target.model_type]
    norms = norms_at(config)
    assert norms is not None
    theirs = to_native(state, names, norms="pre" if norms == "pre" else "post", heads=config.num_attention_heads)
    if offset is not None:
        theirs["final_logits_bias"] = offset[None]
    return _completed(theirs, config, target, shapes)


def positions_of(config: IsogradConfig) -> int:
    """Rows of the position table, but for those in front; a function of the position is written out far enough."""
    if config.position_embedding_type == "learned":
        return int(config.max_position_embeddings)
    return max(config.max_position_embeddings, LEAST)


def scales(config: IsogradConfig, target: Target) -> bool:
    """Whether sqrt(d) goes into the token table."""
    return bool(config.scale_embedding) and not target.scales


def unties(config: IsogradConfig, target: Target) -> bool:
    """Whether tables that the model shares have to be stored apart: the class would not compute the same with one."""
    return scales(config, target) or (
        config.is_encoder_decoder and not config.share_encoder_embeddings and not _own_tables(target)
    )


def _own_tables(target: Target) -> bool:
    """Whether a tied head leaves the encoder's table alone."""
    return target.model_type == "marian"


def _towers(model: IsogradPreTrainedModel) -> dict[str, IsogradModel]:
    return {name: module for name, module in model.named_children() if isinstance(module, IsogradModel)}


def _positions(tower: IsogradModel, target: Target) -> Tensor:
    """The table, its rows where the class looks for them; rows before the first position are never read, but for pad.

    A pad token reads the row before the first one.
    """
    config: IsogradConfig = tower.config
    longest, width, tokens = positions_of(config), config.hidden_size, tower.embedding.tokens.weight
    first, ours = first_row(config, target), config.position_offset
    table = torch.zeros(first + longest, width, dtype=tokens.dtype)
    module = tower.embedding.positions
    if module is None:
        return table
    rows = module(torch.arange(ours + longest, device=tokens.device)).to(table)
    kept = min(first, ours)
    table[first - kept :] = rows[ours - kept :]
    return table


def _permuted(state: dict[str, Tensor], config: IsogradConfig) -> dict[str, Tensor]:
    """The same function with the stream's features in another order: those that begin with a sine, then the others."""
    width = config.hidden_size
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return {name: _reordered(name, value, order) for name, value in state.items()}


def _reordered(name: str, value: Tensor, order: Tensor) -> Tensor:
    module, _, _ = name.rpartition(".")
    last = module.rpartition(".")[2]
    if ".branch." in name:
        if last in _READS:
            return value[:, order] if value.ndim == 2 else value
        return value[order]  # W_O, W_2 and their biases
    return value[..., order] if value.shape[-1] == len(order) else value  # tables, heads, norms


def _completed(
    theirs: dict[str, Tensor], config: IsogradConfig, target: Target, shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """With what the class has beside: zeros that change nothing, copies of what it keeps under two names."""
    like = next(iter(theirs.values()))
    out: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        value = theirs.get(name)
        if value is None:
            value = _missing(name, shape, theirs, target, like)
        if value.shape != shape:
            value = _grown(value, shape)
        out[name] = value.clone(memory_format=torch.contiguous_format)  # what shares memory is saved once only
    lost = set(theirs) - set(shapes)
    assert not lost, lost
    return out


def _missing(name: str, shape: torch.Size, theirs: Mapping[str, Tensor], target: Target, like: Tensor) -> Tensor:
    if name == "model.shared.weight":
        return theirs["model.encoder.embed_tokens.weight"]
    if name.endswith(("predictions.bias", "lm_head.bias")):
        return theirs.get(name.replace("bias", "decoder.bias"), like.new_zeros(shape))
    unused = target.unused is not None and f".{target.unused}" in name
    silent = name.endswith(("bias", "token_type_embeddings.weight", "pooler.dense.weight"))
    assert unused or silent, name
    norm = unused and name.endswith("norm.weight")
    return like.new_ones(shape) if norm else like.new_zeros(shape)


def _grown(value: Tensor, shape: torch.Size) -> Tensor:
    """The encoder's smaller vocabulary in a table of the decoder's: the rows behind it are never read."""
    assert value.shape[1:] == shape[1:] and len(value) < shape[0], (value.shape, shape)
    return torch.cat([value, value.new_zeros(shape[0] - len(value), *shape[1:])])


def meta(cls: Any, config: Any) -> nn.Module:
    """The class without weights."""
    with torch.device("meta"):
        made = cls(config)
    assert isinstance(made, nn.Module)
    return made

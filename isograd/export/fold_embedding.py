"""The factor that a tower's first sublayer wants of the embedding: into its norm, else into the tables.

x = norm(scale * E[token] + P[position] + T[type]), so w * x is gamma and beta times w; and without the norm
E diag(w), P diag(w), T diag(w). A sinusoid becomes a table. A head that is tied to E keeps the old one, as a copy.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isograd.models import IsogradModel, IsogradPreTrainedModel
from isograd.placement import Tower
from isograd.transformer.parameters import Embedding
from isograd.transformer.positions import Sinusoidal


class FoldError(ValueError):
    """A model whose coefficients cannot be folded; the message is one line."""


def fold_embeddings(
    model: IsogradPreTrainedModel, wanted: Mapping[Tower, Tensor | None], untie: bool
) -> dict[str, Any]:
    """Scale the embeddings of an fp64 model, in place; the options of its configuration that change by that.

    Raises:
        FoldError: a table would have to be scaled that has another reader, and `untie` is False.
    """
    towers = {tower.tower: tower for tower in model.modules() if isinstance(tower, IsogradModel)}
    tables: dict[Tower, Tensor] = {}
    for name, factor in wanted.items():
        norm: nn.Module = towers[name].embedding.norm
        if factor is None or bool((factor == 1).all()):
            continue
        if isinstance(norm, nn.Identity):
            tables[name] = factor
        else:
            for parameter in norm.parameters():
                parameter.mul_(factor)
    if not tables:
        return {}
    options = _untied(model, towers, tables, untie) | _with_tables(model, towers)
    for name, factor in tables.items():
        embedding = towers[name].embedding
        for table in (embedding.tokens, embedding.positions, embedding.types):
            if isinstance(table, Embedding):
                table.weight.mul_(factor)
    return options


def _untied(
    model: IsogradPreTrainedModel,
    towers: Mapping[Tower, IsogradModel],
    tables: Mapping[Tower, Tensor],
    untie: bool,
) -> dict[str, Any]:
    """Own copies for the readers of a table that is scaled, in place; the options that say so."""
    config = model.config
    tied: dict[str, str] = dict(model._tied_weights_keys or {}) if config.tie_word_embeddings else {}
    head = next((name for name in tied if "embedding" not in name), None)
    shared = config.share_encoder_embeddings and len(towers) == 2
    split = shared or (head is not None and (len(towers) == 1 or "decoder" in tables))
    if not split:
        return {}
    if not untie:
        readers = "encoder, decoder and head" if shared else "the embedding and the head"
        raise FoldError(
            f"the skip of the first sublayer goes into the token table, which {readers} share (there is no embedding"
            " norm to take it); untie=True (--untie) gives each its own copy"
        )
    options: dict[str, Any] = {}
    if shared:
        tokens = towers["encoder"].embedding.tokens
        tokens.weight = nn.Parameter(tokens.weight.clone())
        options["share_encoder_embeddings"] = False
    if len(towers) == 1 or "decoder" in tables:
        output = model.get_output_embeddings()
        output.weight = nn.Parameter(output.weight.clone())
        options["tie_word_embeddings"] = False
    return options


def _with_tables(model: IsogradPreTrainedModel, towers: Mapping[Tower, IsogradModel]) -> dict[str, Any]:
    """Sinusoids written out, in both towers, since one option speaks for both."""
    config = model.config
    rows = torch.arange(config.max_position_embeddings + config.position_offset)
    options: dict[str, Any] = {}
    for tower in towers.values():
        sinusoid = tower.embedding.positions
        if isinstance(sinusoid, Sinusoidal):
            table = Embedding(len(rows), config.hidden_size)
            table.weight = nn.Parameter(sinusoid(rows).double())
            tower.embedding.positions = table
            options["position_embedding_type"] = "learned"
    return options

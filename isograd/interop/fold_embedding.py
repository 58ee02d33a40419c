"""The factor w that a tower's first sublayer wants of the embedding: into its norm, else into the tables.

x = norm(project(scale * E[token]) + P[position] + T[type]): gamma and beta times w; without the norm E diag(w), or the
rows of the projection where there is one, P diag(w) and T diag(w). A sinusoid becomes a table. A head, or the other
tower, that shares E keeps the old one, as a copy.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from isograd.errors import FoldError
from isograd.models import IsogradConfig, IsogradModel, IsogradPreTrainedModel
from isograd.placement import Stack
from isograd.transformer.parameters import Embedding, Linear
from isograd.transformer.positions import Sinusoidal


def fold_embeddings(
    model: IsogradPreTrainedModel, wanted: Mapping[Stack, Tensor | None], config: IsogradConfig, *, untie: bool
) -> None:
    """Scale the embeddings of an fp64 model, in place, and set in `config` the options that change by that.

    Raises:
        FoldError: a table would have to be scaled that has another reader, and `untie` is False.
    """
    towers = {tower.stack: tower for tower in model.modules() if isinstance(tower, IsogradModel)}
    tables: dict[Stack, Tensor] = {}
    for name, factor in wanted.items():
        norm: nn.Module = towers[name].embedding.norm
        if factor is None or bool((factor == 1).all()):
            continue
        if isinstance(norm, nn.Identity):
            tables[name] = factor
        else:
            for parameter in norm.parameters():
                parameter.mul_(factor)
    _untie(model, towers, tables, config, allowed=untie)
    _write_out(towers, tables, config)
    for name, factor in tables.items():
        embedding = towers[name].embedding
        if isinstance(embedding.project, Linear):
            embedding.project.weight.mul_(factor[:, None])
        else:
            embedding.tokens.weight.mul_(factor)
        for table in (embedding.positions, embedding.types):
            if isinstance(table, Embedding):
                table.weight.mul_(factor)


def _untie(
    model: IsogradPreTrainedModel,
    towers: Mapping[Stack, IsogradModel],
    tables: Mapping[Stack, Tensor],
    config: IsogradConfig,
    *,
    allowed: bool,
) -> None:
    """Own copies for the other readers of the token tables that are scaled."""
    scaled = {name for name in tables if isinstance(towers[name].embedding.project, nn.Identity)}
    tied = config.tie_word_embeddings and bool(model._tied_weights_keys)
    shared = len(towers) == 2 and config.share_encoder_embeddings and bool(scaled)
    head = tied and ("decoder" if len(towers) == 2 else next(iter(towers))) in scaled
    if not (shared or head):
        return
    if not allowed:
        readers = "encoder, decoder and head" if shared else "the embedding and the head"
        raise FoldError(
            f"the skip of the first sublayer goes into the token table, which {readers} share, as there is no embedding"
            " norm to take it; untie=True (--untie) gives each its own copy"
        )
    if shared:
        _own_copy(towers["encoder"].embedding.tokens)
        config.share_encoder_embeddings = False
    if head:
        _own_copy(model.get_output_embeddings())
        config.tie_word_embeddings = False


def _own_copy(module: nn.Module) -> None:
    assert isinstance(module.weight, Tensor)
    module.weight = nn.Parameter(module.weight.clone())


def _write_out(towers: Mapping[Stack, IsogradModel], tables: Mapping[Stack, Tensor], config: IsogradConfig) -> None:
    """Sinusoids become tables: of each tower that one option speaks for, where one of them is scaled."""
    own = dict(config.encoder_options or {})
    apart = "position_embedding_type" in own
    every = set(towers)
    groups: list[set[Stack]] = [every - {"encoder"}, {"encoder"}] if apart else [every]
    for group in groups:
        sinusoids = {name for name in group if isinstance(towers[name].embedding.positions, Sinusoidal)}
        if not sinusoids & set(tables):
            continue
        for name in sinusoids:
            towers[name].embedding.positions = _table(towers[name])
        if apart and "encoder" in group:
            config.encoder_options = own | {"position_embedding_type": "learned"}
        else:
            config.position_embedding_type = "learned"


def _table(tower: IsogradModel) -> Embedding:
    config, sinusoid = tower.config, tower.embedding.positions
    assert isinstance(sinusoid, Sinusoidal)
    rows = torch.arange(config.max_position_embeddings + config.position_offset)
    table = Embedding(len(rows), config.hidden_size)
    table.weight = nn.Parameter(sinusoid(rows).double())
    return table

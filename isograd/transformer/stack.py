"""A layer (attn, cross where there is a memory, ffn) and the embedding below the layers."""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from isograd.placement import Norm, Placement, Site, Stack, sites
from isograd.placement.streams import FirstValues
from isograd.transformer.kernels import make_dropout
from isograd.transformer.norms import make_norm
from isograd.transformer.parameters import Embedding, Linear
from isograd.transformer.positions import make_positions
from isograd.transformer.streams import State
from isograd.transformer.sublayer import (
    AttentionSublayer,
    FeedForwardSublayer,
    FirstValuesAttention,
    share_scale,
)


class Layer(GradientCheckpointingLayer):
    """attn, then cross if the sites name one, then ffn."""

    def __init__(self, config: Any, placement: Placement, here: dict[str, Site], causal: bool) -> None:
        super().__init__()
        own = FirstValuesAttention if type(placement.stream) is FirstValues else AttentionSublayer
        self.attn = own(config, placement, here["attn"], causal)
        self.cross = AttentionSublayer(config, placement, here["cross"], False) if "cross" in here else None
        self.ffn = FeedForwardSublayer(config, placement, here["ffn"])
        share_scale([one for one in (self.attn, self.cross, self.ffn) if one is not None])

    def forward(
        self,
        x: State,  # (batch, time, width) in the plain stream
        memory: Tensor | None = None,  # (batch, source, width)
        *more: Tensor,  # of a state of several tensors all but the first: checkpointing follows no tuple
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> State:
        x = self.attn((x, *more) if more else x, mask=mask, cache=past_key_values, rotary=rotary, **kwargs)
        if self.cross is not None:
            x = self.cross(x, mask=memory_mask, memory=memory, cache=past_key_values, **kwargs)
        return self.ffn(x)


def make_layers(
    config: Any, placement: Placement, stack: Stack, layers: int, other: int, causal: bool
) -> nn.ModuleList:
    """The layers of one stack, each sublayer built from the placement at its site."""
    every = sites(layers, stack, other)
    return nn.ModuleList(
        Layer(config, placement, {s.kind: s for s in every if s.layer == layer}, causal)
        for layer in range(1, layers + 1)
    )


class InputEmbedding(nn.Module):
    """dropout(norm(scale * E[token] + P[position] + T[type])): norm and types where configured.

    The scale is sqrt(d), 1 or a number.

    Token vectors of another width than d are projected after they are scaled.
    """

    def __init__(self, config: Any, vocab_size: int, init_gain: float = 1.0) -> None:
        super().__init__()
        width = config.hidden_size
        self.scale = embedding_scale(config)
        self.tokens = Embedding(vocab_size, config.token_width, padding_idx=padding_row(config))
        self.tokens.init_gain = init_gain
        self.project = make_projection(config.token_width, width)
        self.positions = make_positions(config)
        self.types = Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = make_norm(Norm() if config.embedding_norm else None, width, config)
        self.drop = make_dropout(config.embedding_dropout)

    def forward(self, vectors: Tensor, position_ids: Tensor, type_ids: Tensor | None = None) -> Tensor:
        """Token vectors (batch, time, width), unscaled, and ids (batch, time) -> what the first layer reads.

        Without `type_ids` all are of type 0.
        """
        x = self.project(vectors if self.scale == 1.0 else vectors * self.scale)
        if self.positions is not None:
            x = x + self.positions(position_ids).to(x.dtype)
        if self.types is not None:
            x = x + (self.types.weight[0] if type_ids is None else self.types(type_ids))
        return self.drop(self.norm(x))


def embedding_scale(config: Any) -> float:
    """The factor on token vectors."""
    given: bool | float = config.scale_embedding
    return float(given) if not isinstance(given, bool) else float(config.hidden_size**0.5) if given else 1.0


def padding_row(config: Any) -> int | None:
    """`pad_token_id`, whose row stays zero in look-ups; None where the same id is a token that the model reads.

    Of pad = eos (GPT-2's usual choice) the row would never learn what eos means.
    """
    ends = config.eos_token_id if isinstance(config.eos_token_id, list | tuple) else [config.eos_token_id]
    read = {config.bos_token_id, config.decoder_start_token_id, *ends}
    return None if config.pad_token_id in read else config.pad_token_id


def make_projection(size: int, width: int) -> nn.Module:
    """A matrix without bias from one width to another; `Identity` where they are the same."""
    return nn.Identity() if size == width else Linear(size, width, role="dense", bias=False)

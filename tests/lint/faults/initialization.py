"""Faults of how the parameters begin."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.lint.faults.plain import VOCABULARY, WIDTH, Attention, Decoder, PostLayer, join, pre, split, started

LAYERS = 6
ALPHA = (2 * LAYERS) ** 0.25  # DeepNorm, decoder only
BETA = (8 * LAYERS) ** -0.25


class FusedAttention(Attention):
    """W_Q, W_K, W_V as one matrix (3 width, width)."""

    def __init__(self) -> None:
        super().__init__()
        del self.query, self.key, self.value
        self.projections = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part) for part in self.projections(x).chunk(3, dim=-1))
        return self.out(join(F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(x.shape[1]))))


class DeepNormLayer(PostLayer):
    """norm(skip x + attn(x)), then norm(skip x + ffn(x))."""

    def __init__(self, skip: float = ALPHA, *, fused: bool = False) -> None:
        super().__init__()
        self.skip = skip
        if fused:
            self.attn = FusedAttention()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn_norm(self.skip * x + self.attn(x))
        return self.ffn_norm(self.skip * x + self.ffn(x))


def deepnorm(skip: float = ALPHA, start: float = BETA, *, fused: bool = False, value: float | None = None) -> Decoder:
    """A DeepNorm decoder: Xavier normal, with the gain `start` for W_V, W_O, W_1 and W_2; `value` for W_V."""
    layers: list[Any] = [DeepNormLayer(skip, fused=fused) for _ in range(LAYERS)]
    model = started(Decoder([*layers], None))
    for layer in layers:
        attn, gain = layer.attn, start if value is None else value
        query, key, values = (
            attn.projections.weight.detach().chunk(3)
            if fused
            else (attn.query.weight, attn.key.weight, attn.value.weight)
        )
        nn.init.xavier_normal_(query)
        nn.init.xavier_normal_(key)
        nn.init.xavier_normal_(values, gain=gain)
        for matrix in (attn.out.weight, layer.ffn.up.weight, layer.ffn.down.weight):
            nn.init.xavier_normal_(matrix, gain=start)
    return model


def torchs_embedding() -> Decoder:
    """A tied table left as nn.Embedding draws it, N(0, 1): logits of standard deviation sqrt(width)."""
    model = pre()
    nn.init.normal_(model.tokens.weight)
    return model


def torchs_feedforward() -> Decoder:
    """W_1 and W_2 as nn.Linear draws them, where all else is N(0, 0.02^2): replaced after the start, say."""
    model = pre()
    layer: Any
    for layer in model.layers:
        layer.ffn.up.reset_parameters()
        layer.ffn.down.reset_parameters()
    return model


def one_large_out() -> Decoder:
    """W_O of one layer ten times as large as the others'."""
    model = pre()
    layer: Any = model.layers[2]
    with torch.no_grad():
        layer.attn.out.weight.mul_(10)
    return model


def own_head(std: float) -> Decoder:
    """A head of its own, N(0, std^2)."""
    model = pre()
    model.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    nn.init.normal_(model.head.weight, std=std)
    return model

"""Faults of how the parameters begin."""

from typing import Any

import torch
from torch import nn

from tests.lint.faults.plain import VOCABULARY, WIDTH, Decoder, pre


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

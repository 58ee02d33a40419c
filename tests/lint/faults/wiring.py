"""Faults of how the parts are joined."""

import copy
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tests.lint.faults.plain import (
    HEADS,
    WIDTH,
    Attention,
    Decoder,
    PostLayer,
    PreLayer,
    RMSNorm,
    join,
    pre,
    split,
    started,
)


class NormedAttention(Attention):
    """A norm on the queries and one on the keys of each head."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.query_norm, self.key_norm = RMSNorm(WIDTH // HEADS), RMSNorm(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        q, k = self.normed(q, k)
        return self.out(join(F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(x.shape[1]))))

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.query_norm(q), self.key_norm(k)


class ForgottenNormAttention(NormedAttention):
    """The norms are there, in every checkpoint and count of parameters, and nothing calls them."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class NormedLayer(PreLayer):
    attention: type[Attention] = NormedAttention

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn = self.attention()


class ForgottenNormLayer(NormedLayer):
    attention = ForgottenNormAttention


def torch_encoder(*, norm_first: bool, final: bool, cloned: bool = False) -> nn.Module:
    """torch.nn.TransformerEncoder, which deep-copies one layer; each is drawn anew unless `cloned`."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 4, nn.LayerNorm(WIDTH) if final else None, enable_nested_tensor=False)
    return (stack if cloned else redrawn(stack)).eval()


def torch_decoder(*, final: bool) -> nn.Module:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True, norm_first=True)
    return redrawn(nn.TransformerDecoder(layer, 3, nn.LayerNorm(WIDTH) if final else None)).eval()


def redrawn(stack: nn.Module) -> nn.Module:
    """Every matrix Xavier uniform, Q, K and V each as a matrix of its own."""
    for name, parameter in stack.named_parameters():
        if parameter.ndim > 1:
            for part in parameter.detach().chunk(3) if name.endswith("in_proj_weight") else [parameter.detach()]:
                nn.init.xavier_uniform_(part)
    return stack


def without_final() -> Decoder:
    model = pre()
    model.final_norm = nn.Identity()
    return model


def deep_copied() -> Decoder:
    """`clones(layer, n)` of a well-known tutorial, with no start of the parameters afterwards."""
    model = pre()
    for i in range(1, len(model.layers)):
        model.layers[i] = copy.deepcopy(model.layers[0])
    return model


def one_post_among_pre() -> Decoder:
    return started(Decoder([PreLayer(), PreLayer(), PostLayer(), PreLayer()], nn.LayerNorm(WIDTH)))


def no_transformer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 10)).eval()

"""A decoder in plain PyTorch, as people write their own: the healthy ground on which the faults are planted.

    x = tokens(ids) + positions;  x = x + attn(norm(x));  x = x + ffn(norm(x));  head(norm(x))

Every matrix starts from N(0, 0.02^2), the head is the token table, and norms bear names that transformers' Trainer
spares from weight decay.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 101
WIDTH = 32
HEADS = 4
POSITIONS = 32

Norm = Callable[[int], nn.Module]
Visible = Callable[[int], Tensor]
M = TypeVar("M", bound=nn.Module)


def causal(time: int) -> Tensor:
    """(time, time): True where a place may look, which is at itself and to the left."""
    return torch.ones(time, time, dtype=torch.bool).tril()


class RMSNorm(nn.Module):
    """g * x / sqrt(mean x^2 + eps), computed in float32."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d_head)) V by heads, and W_O."""

    def __init__(self, visible: Visible = causal) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.visible = visible

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(x.shape[1]))
        return self.out(join(heads))


class FeedForward(nn.Module):
    """W_2 gelu(W_1 x)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class PreLayer(nn.Module):
    """x + attn(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, norm: Norm = nn.LayerNorm, visible: Visible = causal) -> None:
        super().__init__()
        self.attn_norm, self.attn = norm(WIDTH), Attention(visible)
        self.ffn_norm, self.ffn = norm(WIDTH), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class PostLayer(PreLayer):
    """norm(x + attn(x)), then norm(x + ffn(x))."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn_norm(x + self.attn(x))
        return self.ffn_norm(x + self.ffn(x))


class Decoder(nn.Module):
    """Logits (batch, time, vocabulary) of ids (batch, time)."""

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final or nn.Identity()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def pre(
    depth: int = 4, *, layer: Callable[..., nn.Module] = PreLayer, norm: Norm = nn.LayerNorm, **options: Any
) -> Decoder:
    """A Pre-LN decoder with its final norm."""
    return started(Decoder([layer(norm=norm, **options) for _ in range(depth)], norm(WIDTH)))


def post(depth: int = 4, *, layer: Callable[..., nn.Module] = PostLayer) -> Decoder:
    """A Post-LN decoder, which needs no final norm."""
    return started(Decoder([layer() for _ in range(depth)], None))


def started(model: M, std: float = 0.02) -> M:
    """Every matrix from N(0, std^2), every bias 0, in place."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    return model.eval()


def xavier(model: M) -> M:
    """Every matrix of the layers by Xavier, in place."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "layers" in name:
            nn.init.xavier_uniform_(weight)
    return model


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (batch, heads, time, width/heads)


def join(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # (batch, time, width)

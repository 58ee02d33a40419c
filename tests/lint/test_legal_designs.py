"""Negative controls: unusual designs that are right, of which `isograd check` says nothing."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import isograd
from tests.lint.faults.plain import HEADS, WIDTH, Attention, Decoder, PreLayer, causal, join, pre, split, started


class Scored(Attention):
    """Attention by hand; `scored` says what is done to q.k."""

    def scored(self, scores: Tensor) -> Tensor:
        return scores / math.sqrt(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = self.scored(q @ k.transpose(-2, -1))
        scores = scores.masked_fill(~causal(x.shape[1]), float("-inf"))
        return self.out(join(scores.softmax(dim=-1) @ v))


class Capped(Scored):
    """Gemma 2: cap tanh(s / cap)."""

    def scored(self, scores: Tensor) -> Tensor:
        return 50 * torch.tanh(super().scored(scores) / 50)


class MuP(Scored):
    """1/d, not 1/sqrt(d)."""

    def scored(self, scores: Tensor) -> Tensor:
        return scores / (WIDTH // HEADS)


class Biased(Scored):
    """ALiBi: less for what is further back, by head."""

    def scored(self, scores: Tensor) -> Tensor:
        time = scores.shape[-1]
        back = torch.arange(time)[:, None] - torch.arange(time)
        return super().scored(scores) - 2.0 ** -torch.arange(HEADS)[:, None, None] * back


class WithAttention(PreLayer):
    attention: type[Attention] = Scored

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn = self.attention()


class CappedLayer(WithAttention):
    attention = Capped


class MuPLayer(WithAttention):
    attention = MuP


class BiasedLayer(WithAttention):
    attention = Biased


class ParallelLayer(PreLayer):
    def forward(self, x: Tensor) -> Tensor:
        h = self.attn_norm(x)
        return x + self.attn(h) + self.ffn(h)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.ffn_norm


class SandwichLayer(PreLayer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn_out_norm, self.ffn_out_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_out_norm(self.attn(self.attn_norm(x)))
        return x + self.ffn_out_norm(self.ffn(self.ffn_norm(x)))


class ReZeroLayer(PreLayer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.attn_norm, self.ffn_norm
        self.gate_norm = nn.Parameter(torch.zeros(()))  # called so that transformers' Trainer does not decay it

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate_norm * self.attn(x)
        return x + self.gate_norm * self.ffn(x)


class BalancedLayer(PreLayer):
    """(x + f(x)) / sqrt(2)."""

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.attn(self.attn_norm(x))) * 0.5**0.5
        return (x + self.ffn(self.ffn_norm(x))) * 0.5**0.5


class HalvedLayer(PreLayer):
    """Macaron: half of the feed-forward."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + 0.5 * self.ffn(self.ffn_norm(x))


class Looped(Decoder):
    """One layer run four times, as in ALBERT and the universal Transformer."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for _ in range(4):
            x = self.layers[0](x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


class Unplaced(Decoder):
    """Without positions: a causal model tells order by its mask."""

    def __init__(self, layers: list[nn.Module], final: nn.Module | None) -> None:
        super().__init__(layers, final)
        del self.positions

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def zeroed(*names: str) -> Decoder:
    model = pre()
    for name, parameter in model.named_parameters():
        if any(part in name for part in names):
            nn.init.zeros_(parameter)
    return model


def padded() -> Decoder:
    """A row of zeros for the padding."""
    model = pre()
    with torch.no_grad():
        model.tokens.weight[0] = 0
    return model


def depth_scaled() -> Decoder:
    """GPT-2: W_O and W_2 from N(0, 0.02^2 / 2L)."""
    model = pre(8)
    for name, parameter in model.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            nn.init.normal_(parameter, std=0.02 / math.sqrt(16))
    return model


def bilinear() -> Decoder:
    """A gated feed-forward without an activation: (W x) * (V x) is not linear."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(self.gate(x) * self.up(x))

    model = pre()
    layer: Any
    for layer in model.layers:
        layer.ffn = Gated()
    return started(model)


LEGAL: dict[str, Callable[[], nn.Module]] = {
    "logit-cap": lambda: pre(layer=CappedLayer),
    "mup-scale": lambda: pre(layer=MuPLayer),
    "alibi": lambda: started(Unplaced([BiasedLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "parallel": lambda: pre(layer=ParallelLayer),
    "sandwich": lambda: pre(layer=SandwichLayer),
    "rezero": lambda: started(Decoder([ReZeroLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "balanced": lambda: pre(layer=BalancedLayer),
    "macaron": lambda: pre(layer=HalvedLayer),
    "looped": lambda: started(Looped([PreLayer()], nn.LayerNorm(WIDTH))),
    "no-positions": lambda: started(Unplaced([PreLayer() for _ in range(4)], nn.LayerNorm(WIDTH))),
    "zero-branches": lambda: zeroed("out.weight", "down.weight"),
    "zero-queries": lambda: zeroed("query.weight"),
    "padding-row": padded,
    "depth-scaled": depth_scaled,
    "bilinear": bilinear,
    "dropout-in-training": lambda: nn.Sequential(*[nn.Sequential(pre(2), nn.Dropout(0.1))]),
}


@pytest.mark.parametrize("name", LEGAL)
def test_nothing_is_said_of_an_unusual_design(name: str) -> None:
    torch.manual_seed(0)
    findings = isograd.check(LEGAL[name]())
    assert [str(f) for f in findings if f.severity != "info"] == []
    assert findings.missed == ()


def test_attention_by_hand_is_the_fused_one() -> None:
    """The ground on which the designs stand: the same numbers as F.scaled_dot_product_attention."""
    torch.manual_seed(0)
    x, own = torch.randn(2, 5, WIDTH), Scored()
    q, k, v = (split(project(x)) for project in (own.query, own.key, own.value))
    expected = own.out(join(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    torch.testing.assert_close(own(x), expected)

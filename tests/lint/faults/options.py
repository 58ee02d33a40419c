"""Faults of options, and of what an optimizer, a precision or a learning rate will make of a model."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from tests.lint.families import PAIR
from tests.lint.faults.plain import WIDTH, Decoder, PreLayer, RMSNorm, pre
from tests.lint.faults.pretrained import SmallConfig, SmallForCausalLM, Stack
from tests.lint.faults.wiring import Scale


class DeafTower(Stack):
    """Ends in a norm whatever `final_layer_norm` says."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.final_norm = nn.LayerNorm(WIDTH)


class DeafForCausalLM(SmallForCausalLM):
    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.tower = DeafTower(config)
        self.post_init()


def marian(**options: Any) -> nn.Module:
    """Marian has a place for neither option: both are kept in the configuration, and nothing reads them."""
    return MarianMTModel(MarianConfig(**PAIR, **options)).eval()


class UntiedForCausalLM(SmallForCausalLM):
    """Its configuration says tied; the class does not tell transformers what to tie."""

    _tied_weights_keys = {}  # noqa: RUF012


class TerseLayer(PreLayer):
    """RMSNorms under names that transformers' Trainer does not know: it looks for "norm" and for nn.LayerNorm."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ln_1, self.ln_2 = self.attn_norm, self.ffn_norm
        del self.attn_norm, self.ffn_norm

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


class ScaledLayer(PreLayer):
    """LayerScale: each branch times a learned vector that starts small."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn_scale, self.ffn_scale = Scale(WIDTH, 0.1), Scale(WIDTH, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_scale(self.attn(self.attn_norm(x)))
        return x + self.ffn_scale(self.ffn(self.ffn_norm(x)))


class SparedLayer(PreLayer):
    """The same under names that are spared."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attn_scale_norm, self.ffn_scale_norm = Scale(WIDTH, 0.1), Scale(WIDTH, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_scale_norm(self.attn(self.attn_norm(x)))
        return x + self.ffn_scale_norm(self.ffn(self.ffn_norm(x)))


def eps(value: float, dtype: torch.dtype = torch.float32) -> Decoder:
    """A Pre-LN decoder with this eps in every norm."""
    return pre(norm=lambda width: nn.LayerNorm(width, eps=value)).to(dtype)


class HalfRMSNorm(RMSNorm):
    """Squares and averages in the precision of x: in bfloat16 eight bits, in float16 no more than 65504."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def half(norm: type[nn.Module]) -> Decoder:
    return pre(norm=norm).to(torch.bfloat16)

"""Faults of options, and of what an optimizer, a precision or a learning rate will make of a model."""

import torch
from torch import nn

from tests.lint.faults.plain import Decoder, pre
from tests.lint.faults.pretrained import SmallForCausalLM


class UntiedForCausalLM(SmallForCausalLM):
    """Its configuration says tied; the class does not tell transformers what to tie."""

    _tied_weights_keys = {}  # noqa: RUF012


def eps(value: float, dtype: torch.dtype = torch.float32) -> Decoder:
    """A Pre-LN decoder with this eps in every norm."""
    return pre(norm=lambda width: nn.LayerNorm(width, eps=value)).to(dtype)

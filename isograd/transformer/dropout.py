"""Dropout: x * keep / (1 - p), where keep is 1 with probability 1 - p and else 0, for every element on its own.

On a CPU torch draws a number per element, which is most of the operation's cost and a tenth of a training step. Here 16
random bits decide about an element, four elements from one number of torch's generator: 0.4 of the time in float32, 0.3
in bfloat16, forward and backward. So p is met as a multiple of 2^-16, and what is kept is divided by the probability
that was met. It is torch's own dropout on other devices, in compiled graphs, under torch.func, forward-mode AD and
torch.jit.trace, and where nothing or everything is dropped.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.transformer.eager import plain

LEVELS = 2**16


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """x * keep / (1 - p) in training, else x; the numbers come from torch's generator (`torch.manual_seed`)."""
    if not (training and 0 < p < 1 and x.is_cpu and plain(x)):
        return F.dropout(x, p, training)
    dropped = min(round(p * LEVELS), LEVELS - 1)  # of the values that 16 bits take; some x is kept while p < 1
    keep = random_bits(x.shape).ge_(dropped - LEVELS // 2).to(x.dtype)
    return (x * keep).mul_(LEVELS / (LEVELS - dropped))


def random_bits(shape: torch.Size) -> Tensor:
    """16 random bits per element, on the CPU: int16, each of its values with the same probability."""
    count = shape.numel()
    drawn = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)  # None: all 64 bits
    return drawn.view(torch.int16)[:count].view(shape)


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def make_dropout(p: float) -> nn.Module:
    """The module for a place where dropout may be asked for; `Identity` where it is not."""
    return Dropout(p) if p else nn.Identity()

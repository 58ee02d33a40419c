"""A regression of one's own: y = sin(3 a) b + c^2 - d with noise, by a residual network.

isograd compare --model examples/tasks/regression.py:build --arm norm=pre --arm norm=none --arm norm=post --seeds 0 1 2
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

baseline = "mse"  # what predicting the mean of the targets comes to: their variance
NOISE = 0.1  # standard deviation; no model comes below its square


class Block(nn.Module):
    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.pre = nn.LayerNorm(width) if norm == "pre" else nn.Identity()
        self.post = nn.LayerNorm(width) if norm == "post" else nn.Identity()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.post(x + self.down(F.gelu(self.up(self.pre(x)))))
        return y


def build(depth: int = 6, width: int = 32, norm: str = "pre") -> nn.Module:
    """(batch, 4) -> (batch, 1)."""
    blocks = [Block(width, norm) for _ in range(depth)]
    return nn.Sequential(nn.Linear(4, width), nn.Sequential(*blocks), nn.LayerNorm(width), nn.Linear(width, 1))


def sample(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(rows, 4, generator=generator) * 2 - 1
    a, b, c, d = x.unbind(1)
    y = torch.sin(3 * a) * b + c**2 - d
    return x, y + NOISE * torch.randn(rows, generator=generator)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 64 without end, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield sample(64, generator)


def held_out() -> list[tuple[Tensor, Tensor]]:
    """The same 512 points for every run; seeds of runs are small."""
    return [sample(512, torch.Generator().manual_seed(2**31))]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.mse_loss(model(x).squeeze(1), y)

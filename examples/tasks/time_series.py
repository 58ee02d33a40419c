"""A time series of one's own: the next value of two noisy oscillations, by a small Transformer; against persistence.

isograd compare --model examples/tasks/time_series.py:build --arm depth=1 --arm depth=4 --seeds 0 1 2
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAST, NOISE = 24, 0.05


class Forecaster(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.values, self.positions = nn.Linear(1, width), nn.Parameter(0.02 * torch.randn(PAST, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, past: Tensor) -> Tensor:
        """(batch, 24) -> the next value, (batch,)."""
        x = self.values(past[..., None]) + self.positions
        for layer in self.layers:
            x = layer(x)
        change: Tensor = self.head(self.norm(x[:, -1])).squeeze(1)
        return past[:, -1] + change


def build(depth: int = 2, width: int = 32) -> nn.Module:
    return Forecaster(depth, width)


def sample(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    periods = torch.rand(rows, 2, 1, generator=generator) * 12 + 6
    phases = torch.rand(rows, 2, 1, generator=generator) * 2 * math.pi
    series = torch.sin(2 * math.pi * torch.arange(PAST + 1) / periods + phases).sum(dim=1)
    series = series + NOISE * torch.randn(rows, PAST + 1, generator=generator)
    return series[:, :-1], series[:, -1]


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 32 series without end, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield sample(32, generator)


def held_out() -> list[tuple[Tensor, Tensor]]:
    """The same 256 series for every run; seeds of runs are small."""
    return [sample(256, torch.Generator().manual_seed(2**31))]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    past, following = batch
    return F.mse_loss(model(past), following)


def baseline() -> float:
    """The mean squared error of "as the last value": what a forecast is worth is what it is better than that."""
    past, following = sample(4096, torch.Generator().manual_seed(2**31 + 1))
    return float(F.mse_loss(past[:, -1], following))

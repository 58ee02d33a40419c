"""A classification of one's own: three spirals in the plane, by a deep network with and without shortcuts.

isograd compare --model examples/tasks/classification.py:build --arm shortcut=true --arm shortcut=false --seeds 0 1 2
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

baseline = "classes"  # what answering by class frequencies comes to: their entropy, ln 3 = 1.10 nats
CLASSES = 3


class Layer(nn.Module):
    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(self.norm(x)))
        return x + y if self.shortcut else y


def build(depth: int = 12, width: int = 32, shortcut: bool = True) -> nn.Module:
    """(batch, 2) -> logits (batch, 3)."""
    layers = [Layer(width, shortcut) for _ in range(depth)]
    return nn.Sequential(nn.Linear(2, width), nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, CLASSES))


def sample(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    label = torch.randint(CLASSES, (rows,), generator=generator)
    radius = torch.rand(rows, generator=generator).sqrt()
    angle = 5 * radius + 2 * math.pi * label / CLASSES + 0.1 * torch.randn(rows, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 64 without end, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield sample(64, generator)


def held_out() -> list[tuple[Tensor, Tensor]]:
    """The same 512 points for every run; seeds of runs are small."""
    return [sample(512, torch.Generator().manual_seed(2**31))]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, label = batch
    return F.cross_entropy(model(x), label)

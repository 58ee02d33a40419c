"""A vision task of one's own: which of four shapes is in a noisy picture, by a small vision Transformer.

isograd compare --model examples/tasks/vision.py:build --arm norm_first=true --arm norm_first=false --seeds 0 1 2
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

baseline = "classes"  # ln 4 = 1.39 nats
SIZE, PATCH = 16, 4
SHAPES = torch.zeros(4, 7, 7)
SHAPES[0, [0, -1]] = SHAPES[0, :, [0, -1]] = 1  # a frame
SHAPES[1, 3] = SHAPES[1, :, 3] = 1  # a cross
SHAPES[2] = torch.eye(7)  # a diagonal
SHAPES[3, 2:5, 2:5] = 1  # a block


class VisionTransformer(nn.Module):
    def __init__(self, depth: int, width: int, norm_first: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn((SIZE // PATCH) ** 2, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=norm_first)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(SHAPES))

    def forward(self, pictures: Tensor) -> Tensor:
        """(batch, 1, 16, 16) -> logits (batch, 4)."""
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x.mean(dim=1)))
        return logits


def build(depth: int = 3, width: int = 32, norm_first: bool = True) -> nn.Module:
    return VisionTransformer(depth, width, norm_first)


def sample(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    label = torch.randint(len(SHAPES), (rows,), generator=generator)
    places = torch.randint(SIZE - 7, (rows, 2), generator=generator).tolist()
    pictures = 0.2 * torch.randn(rows, 1, SIZE, SIZE, generator=generator)
    for picture, shape, (down, right) in zip(pictures, SHAPES[label], places, strict=True):
        picture[0, down : down + 7, right : right + 7] += shape
    return pictures, label


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 32 without end, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield sample(32, generator)


def held_out() -> list[tuple[Tensor, Tensor]]:
    """The same 256 pictures for every run; seeds of runs are small."""
    return [sample(256, torch.Generator().manual_seed(2**31))]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pictures, label = batch
    return F.cross_entropy(model(pictures), label)

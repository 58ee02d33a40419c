"""Positions: learned, two sinusoidal conventions, rotary. Computed where used, so there is no buffer to lose."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from isograd.transformer.parameters import Embedding


def sinusoidal(position: Tensor, width: int) -> Tensor:
    """[sin(p w_0) .. , cos(p w_0) ..] concatenated, w_j = 10000^(-j / (width/2 - 1)): fairseq, tensor2tensor.

    Args:
        position: ids of any shape.
    Returns:
        the same shape with one more dimension, the width, in float32.
    """
    half = width // 2
    step = -math.log(10000) / (half - 1)
    frequency = torch.exp(torch.arange(half, dtype=torch.float32, device=position.device) * step)
    angle = position[..., None].float() * frequency
    table = torch.cat([angle.sin(), angle.cos()], dim=-1)
    return nn.functional.pad(table, (0, width - 2 * half))


def sinusoidal_interleaved(position: Tensor, width: int) -> Tensor:
    """PE(p, 2j) = sin(p / 10000^(2j/width)), PE(p, 2j+1) = cos(same): Vaswani et al. 2017, section 3.5."""
    frequency = _frequency(width, 10000.0, position.device)
    angle = position[..., None].float() * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :width]


ADDED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sinusoidal": sinusoidal,
    "sinusoidal_interleaved": sinusoidal_interleaved,
}
POSITIONS = ("learned", *ADDED, "rotary", "none")


class Sinusoidal(nn.Module):
    """A fixed table as a module; pad ids (below `offset`) get the zero vector, as in fairseq."""

    def __init__(self, kind: str, width: int, offset: int) -> None:
        super().__init__()
        self.table = ADDED[kind]
        self.width = width
        self.offset = offset

    def forward(self, position: Tensor) -> Tensor:
        table = self.table(position, self.width)
        return table * (position >= self.offset)[..., None] if self.offset else table


def make_positions(config: Any) -> nn.Module | None:
    """The module added to the token vectors, None for rotary and for no positions."""
    if config.position_embedding_type == "learned":
        return Embedding(config.max_position_embeddings + config.position_offset, config.hidden_size)
    if config.position_embedding_type in ADDED:
        return Sinusoidal(config.position_embedding_type, config.hidden_size, config.position_offset)
    return None


def rotary_tables(position: Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of shape (batch, 1, time, size) for `rotate` (Su et al. 2021, halves as in LLaMA)."""
    angle = position[..., None].float() * _frequency(size, theta, position.device)
    angle = torch.cat([angle, angle], dim=-1)[:, None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + (-x_2, x_1) sin, x of shape (batch, heads, time, size)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def position_ids(batch: int, time: int, past: int, offset: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Ids from `offset` on; with a (batch, past + time) mask the first token that is not padding gets `offset`.

    Pad places get offset - 1 (0 when there is no offset), so that padding on either side changes no other token.
    """
    if mask is None:
        return torch.arange(past, past + time, device=device).add(offset)[None].expand(batch, -1)
    seen = mask.long().cumsum(dim=1)[:, -time:]
    return (seen - 1 + offset).where(mask[:, -time:].bool(), max(offset - 1, 0))


def _frequency(width: int, theta: float, device: torch.device) -> Tensor:
    exponent = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return 1.0 / theta**exponent  # in LLaMA's order: theta**-exponent is one bit off in places

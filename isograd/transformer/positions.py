"""Positions: learned, three sinusoidal conventions, rotary with transformers' rules of scaling.

Computed where used, so there is no buffer to lose.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

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


def sinusoidal_sines_first(position: Tensor, width: int) -> Tensor:
    """The same numbers with all sines before all cosines, in Marian's and Pegasus's precision: angles in float64."""
    wide = torch.float32 if position.device.type == "mps" else torch.float64
    exponent = torch.arange(0, width, 2, dtype=wide, device=position.device) / width
    angle = position[..., None].to(wide) / 10000.0**exponent
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :width].float()


ADDED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sinusoidal": sinusoidal,
    "sinusoidal_interleaved": sinusoidal_interleaved,
    "sinusoidal_sines_first": sinusoidal_sines_first,
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


Rotation = Callable[[Tensor, Tensor, Tensor], Tensor]


class Rotary:
    """cos and sin of p w_j for the rotation of queries and keys (Su et al. 2021), w_j by transformers' scaling rules.

    Args:
        config: the model's configuration.
        layer_type: the type of the layers that read them.
    """

    def __init__(self, config: Any, layer_type: str = "full_attention") -> None:
        self.config = config
        self.kind, self.rules = layer_type, config.rope_of(layer_type)
        self.layer_type = layer_type if self.rules is not getattr(config, "rope_parameters", None) else None
        self.by_length = self.rules["rope_type"] in (
            "dynamic",
            "longrope",
        )  # frequencies depend on the longest sequence
        self.interleaved = config.rope_interleaved
        self.scaling = 1.0
        self.scaled: tuple[float, ...] | None = None
        if self.rules["rope_type"] != "default":
            with torch.device("cpu"):  # a model may be built on the meta device
                frequency, self.scaling = self._by_rules(None)
            self.scaled = tuple(frequency.tolist())

    def __call__(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Ids (batch, time) -> cos and sin (batch, 1, time, size), size less than a head's where a part is rotated."""
        angle = position[..., None].float() * self._frequency(position)
        angle = (angle.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat([angle, angle], dim=-1))[:, None]
        cos, sin = angle.cos(), angle.sin()
        if self.scaling != 1.0:
            cos, sin = cos * self.scaling, sin * self.scaling
        return cos.to(dtype), sin.to(dtype)

    def _frequency(self, position: Tensor) -> Tensor:
        if self.by_length:
            return self._of_length(position)
        if self.scaled is not None:
            return torch.tensor(self.scaled, dtype=torch.float32, device=position.device)
        rules = self.config.rope_of(self.kind)  # whoever changes rope_theta means it
        size = int(self.config.head_size * rules.get("partial_rotary_factor", 1.0))
        return _frequency(size, rules["rope_theta"], position.device)

    def _of_length(self, position: Tensor) -> Tensor:
        """As `dynamic_rope_update` of transformers: frequencies up to the original length, and beyond."""
        longest, dynamic = position.max() + 1, self.rules["rope_type"] == "dynamic"
        kept = self.config.max_position_embeddings if dynamic else self.rules["original_max_position_embeddings"]
        beyond = longest if dynamic else kept + 1
        short = torch.tensor(self.scaled, dtype=torch.float32, device=position.device)
        return torch.where(longest > kept, self._by_rules(beyond, position.device)[0], short)

    def _by_rules(self, length: Any, device: Any = None) -> tuple[Tensor, float]:
        words = {} if self.layer_type is None else {"layer_type": self.layer_type}
        return ROPE_INIT_FUNCTIONS[self.rules["rope_type"]](self.config, device, seq_len=length, **words)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + (-x_2, x_1) sin with the halves x_1, x_2 of x (batch, heads, time, size), as in LLaMA."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same with x_1 the even features and x_2 the odd ones, as in GPT-J."""
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cos + turned * sin


def rotate_first(rotation: Rotation, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation of as many first features as there are angles; the others stay."""
    size = cos.shape[-1]
    return torch.cat([rotation(x[..., :size], cos, sin), x[..., size:]], dim=-1)


def make_rotation(config: Any) -> Rotation:
    """What turns queries and keys, given `Rotary`'s tables."""
    whole = rotate_interleaved if config.rope_interleaved else rotate
    rules = config.rope_rules().values()
    partly = any(r["rope_type"] != "proportional" and r.get("partial_rotary_factor", 1.0) < 1.0 for r in rules)
    return partial(rotate_first, whole) if partly else whole


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

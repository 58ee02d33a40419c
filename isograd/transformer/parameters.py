"""Leaves that own parameters. Each carries its role, so that init and weight decay ask no names.

role: query, key, value, attn_out, ffn_in, ffn_out, dense, embed, head (matrices); norm, coefficient, shortcut (never
decayed)
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement.formula import Role
from isograd.transformer.kernels import joined

MATRICES: frozenset[Role] = frozenset(
    ("query", "key", "value", "attn_out", "ffn_in", "ffn_out", "dense", "embed", "head")
)


class Linear(nn.Linear):
    """y = x W^T + b with W of shape (fan_out, fan_in); `init_gain` multiplies the std of W."""

    def __init__(self, fan_in: int, fan_out: int, *, role: Role, init_gain: float = 1.0, bias: bool = True) -> None:
        super().__init__(fan_in, fan_out, bias=bias)
        self.role: Role = role
        self.init_gain = init_gain

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def bare(self) -> bool:
        """Whether a call of this module is its product and nothing else: no hook, no adapter, no other class."""
        hooks = (self._forward_hooks, self._forward_pre_hooks, self._backward_hooks, self._backward_pre_hooks)
        return type(self) is Linear and not any(hooks) and "forward" not in vars(self)


def project(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """layer(x) of each, by one product where that is faster."""
    bare = [layer for layer in layers if isinstance(layer, Linear) and layer.bare()]
    made = joined(x, [m.weight for m in bare], [m.bias for m in bare]) if len(bare) == len(layers) else None
    return [layer(x) for layer in layers] if made is None else made


class Embedding(nn.Embedding):
    """A table of vectors, one row per id; row `padding_idx` is 0 and gets no gradient from look-ups.

    `init_gain` multiplies the std of the table.
    """

    role: Role = "embed"
    init_gain = 1.0


class Coefficient(nn.Module):
    """A trainable coefficient of a residual or of the heads: `weight` of the given shape, initialized to `init`."""

    role: Role = "coefficient"

    def __init__(self, *shape: int, init: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, init))
        self.init = init

    def value(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class MappedCoefficient(Coefficient):
    """A coefficient that is a function of `weight`: "sigmoid" or "abs". Initialized so that it begins at `init`."""

    def __init__(self, *shape: int, init: float, by: str) -> None:
        super().__init__(*shape, init=math.log(init / (1 - init)) if by == "sigmoid" else init)
        self.by = torch.sigmoid if by == "sigmoid" else torch.abs

    def value(self) -> Tensor:
        return self.by(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value()


class Shared(nn.Module):
    """Another module's coefficient: it is a parameter there, and only read here."""

    def __init__(self, coefficient: Coefficient) -> None:
        super().__init__()
        self._of = (coefficient,)  # in a tuple, so that it is not registered a second time

    @property
    def weight(self) -> Tensor:
        return self._of[0].weight

    def value(self) -> Tensor:
        return self._of[0].value()

    def forward(self, x: Tensor) -> Tensor:
        return self._of[0](x)


def roles(model: nn.Module) -> dict[str, Role]:
    """Parameter name -> role, for every parameter that isograd made; biases carry the role of their module."""
    return {
        f"{address}.{name}" if address else name: module.role
        for address, module in model.named_modules()
        if hasattr(module, "role")
        for name, _ in module.named_parameters(recurse=False)
    }


def decayed(model: nn.Module) -> tuple[list[str], list[str]]:
    """Names of the parameters that weight decay acts on, and of those it does not: matrices decay, nothing else, and no
    matrix that its placement brings back to a length after each step.

    For a model that isograd did not make, parameters of two or more dimensions count as matrices.
    """
    role_of = roles(model)
    named = dict(model.named_parameters())
    scaled_back: Any = getattr(model, "scaled_back", list)
    held = set(scaled_back())
    yes = [n for n, p in named.items() if n not in held and p.ndim >= 2 and role_of.get(n, "dense") in MATRICES]
    chosen = set(yes)
    return yes, [n for n in named if n not in chosen]

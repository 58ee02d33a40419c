"""The one line: x <- post( skip * x + scale * out( f( pre(x) ) ) ).

    x ──┬────────── skip * x ──────────┐
        └─ pre ─ branch ─ out ─ drop ─ combine ─ post ──> x

Addresses are the same in every placement (`layers.3.ffn.{pre,branch,out,combine,post}`), an unused slot is
`Identity`, so that instruments attach to the same names everywhere.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isograd.placement.formula import Coupled, Learned, Placement, Residual
from isograd.placement.laws import Site
from isograd.transformer.attention import Attention
from isograd.transformer.feedforward import make_feedforward
from isograd.transformer.kernels import make_dropout
from isograd.transformer.norms import make_norm
from isograd.transformer.parameters import Coefficient, MappedCoefficient, Shared
from isograd.transformer.streams import State, make_connection
from isograd.transformer.streams.inputs import FirstValuesConnection


class Add(nn.Module):
    """x + u."""

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        return x + u


class ScaledAdd(nn.Module):
    """skip * x + scale * u with constants."""

    def __init__(self, skip: float, scale: float) -> None:
        super().__init__()
        self.skip = skip
        self.scale = scale

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.add(u if self.scale == 1.0 else u * self.scale, x, alpha=self.skip)

    def extra_repr(self) -> str:
        return f"skip={self.skip:.4g}, scale={self.scale:.4g}"


class LearnedAdd(nn.Module):
    """skip * x + scale * u, either of them a trainable vector of the width or a trainable number."""

    def __init__(self, residual: Residual, width: int) -> None:
        super().__init__()
        self.skip = _coefficient(residual.skip, width)
        self.scale = _coefficient(residual.scale, width)
        self.one_per_layer = isinstance(residual.scale, Learned) and residual.scale.shape == "layer"

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        u = self.scale(u)
        if type(self.skip) is Coefficient:
            return torch.addcmul(u, x, self.skip.weight)
        return u + self.skip(x)


class CoupledAdd(nn.Module):
    """skip(c) * x + c * u with a trained c: skip 1 - c, or sqrt(max(1 - c^2, floor))."""

    def __init__(self, residual: Residual, width: int) -> None:
        super().__init__()
        assert isinstance(residual.skip, Coupled) and isinstance(residual.scale, Learned)
        self.scale = _learned(residual.scale, width)
        self.by, self.floor = residual.skip.by, residual.skip.floor

    def values(self) -> tuple[Tensor, Tensor]:
        """The skip and the scale."""
        c = self.scale.value()
        return (1 - c if self.by == "complement" else (1 - c * c).clamp(min=self.floor).sqrt()), c

    def forward(self, x: Tensor, u: Tensor) -> Tensor:
        skip, c = self.values()
        return torch.addcmul(c * u, x, skip.to(x.dtype))


class Constant(nn.Module):
    """value * x with a number that is not trained."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value


class Sublayer(nn.Module):
    """One branch with its residual, as the placement says at this site: the stream's state goes in and comes out."""

    def __init__(self, config: Any, placement: Placement, site: Site, branch: nn.Module) -> None:
        super().__init__()
        residual, width = placement.at(site), config.hidden_size
        self.site = site
        self.pre = make_norm(residual.pre, width, config)
        self.branch = branch
        self.out = make_norm(residual.out, width, config)
        self.drop = make_dropout(config.hidden_dropout)
        self.combine = make_combine(residual, width)
        self.post = make_norm(residual.post, width, config)
        self.stream = make_connection(placement.stream, site, config)

    def add(self, x: Tensor, u: Tensor) -> Tensor:
        return self.post(self.combine(x, u))


class AttentionSublayer(Sublayer):
    def __init__(self, config: Any, placement: Placement, site: Site, causal: bool) -> None:
        super().__init__(config, placement, site, Attention(config, placement, site, causal))

    def forward(self, state: State, **kwargs: Any) -> State:
        x, held = self.stream.read(state)
        u, _ = self.branch(self.pre(x), **kwargs)
        return self.stream.write(held, self.drop(self.out(u)), self.add)


class FirstValuesAttention(AttentionSublayer):
    """A self-attention whose values the stream mixes."""

    stream: FirstValuesConnection
    branch: Attention

    def forward(self, state: State, **kwargs: Any) -> State:
        x, held = self.stream.read(state)
        x = self.pre(x)
        value, held = self.stream.values(held, self.branch.values(x))
        u, _ = self.branch(x, value=value, **kwargs)
        return self.stream.write(held, self.drop(self.out(u)), self.add)


class FeedForwardSublayer(Sublayer):
    def __init__(self, config: Any, placement: Placement, site: Site) -> None:
        super().__init__(config, placement, site, make_feedforward(config, placement, site))

    def forward(self, state: State) -> State:
        x, held = self.stream.read(state)
        return self.stream.write(held, self.drop(self.out(self.branch(self.pre(x)))), self.add)


def share_scale(sublayers: Sequence[Any]) -> None:
    """Where the scale is one number of a layer, the other sublayers' `combine` reads the first one's (ReZero)."""
    first, *others = [one.combine for one in sublayers]
    for combine in others:
        if isinstance(combine, LearnedAdd) and combine.one_per_layer and isinstance(first.scale, Coefficient):
            combine.scale = Shared(first.scale)


def make_combine(residual: Residual, width: int) -> nn.Module:
    """The module of the sum. Which one is decided here, once: constants are Python floats, 1 costs nothing."""
    if isinstance(residual.skip, Coupled):
        return CoupledAdd(residual, width)
    if isinstance(residual.skip, Learned) or isinstance(residual.scale, Learned):
        return LearnedAdd(residual, width)
    assert isinstance(residual.skip, float) and isinstance(residual.scale, float)
    if residual.skip == 1.0 and residual.scale == 1.0:
        return Add()
    return ScaledAdd(residual.skip, residual.scale)


def _coefficient(c: Any, width: int) -> nn.Module:
    if isinstance(c, Learned):
        return _learned(c, width)
    return nn.Identity() if c == 1.0 else Constant(c)


def _learned(c: Learned, width: int) -> Coefficient:
    assert isinstance(c.init, float)
    size = width if c.shape == "width" else 1
    return Coefficient(size, init=c.init) if c.by == "itself" else MappedCoefficient(size, init=c.init, by=c.by)

"""Streams that read over depth: attention and averages over all earlier outputs."""

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement.laws import Site
from isograd.placement.streams import DepthAttention, DepthAverage
from isograd.transformer.streams.base import Add, Ends, OfSeveral, State


class DepthAttentionConnection(OfSeveral):
    """State: a tuple of sources, the last one still growing where they are sums of blocks.

    a = softmax_i( q . n(v_i) ), n a division by the RMS (and a weight, unless values are normed); what is read is
    sum_i a_i v_i. q begins at 0: all sources alike. The first sublayer reads v_0, the only source, as it is.
    """

    def __init__(self, stream: DepthAttention, width: int, site: Site | None, eps: float = 1e-5) -> None:
        nn.Module.__init__(self)
        self.eps = eps
        self.norm_values = stream.norm_values
        self.scaling = width**-0.5 if stream.norm_values else 1.0
        alone = site is not None and site.slot == 1
        self.query = None if alone else nn.Parameter(torch.empty(width))
        self.weight = None if alone or stream.norm_values else nn.Parameter(torch.empty(width))
        self.joins = False
        if site is not None and stream.block:
            inside = (site.slot - 1) % (stream.block * site.slots // site.layers)
            self.joins = inside > 0
        self.draw()

    def draw(self) -> None:
        if self.query is not None:
            nn.init.zeros_(self.query)
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def read(self, state: State) -> tuple[Tensor, Any]:
        state = (state,) if isinstance(state, Tensor) else state
        if self.query is None:
            return state[0], state
        stacked = torch.stack(state, dim=-2)  # (batch, time, sources, width)
        sources = stacked.to(torch.promote_types(stacked.dtype, torch.float32))
        weight = None if self.weight is None else self.weight.to(sources.dtype)
        normed = F.rms_norm(sources, sources.shape[-1:], weight, self.eps)
        scores = (normed * self.query.to(sources.dtype)).sum(-1)  # BLAS' product rounds by where the vector lies
        if self.scaling != 1.0:
            scores = scores * self.scaling
        values = normed if self.norm_values else sources
        return (torch.softmax(scores, dim=-1)[..., None] * values).sum(-2).to(stacked.dtype), state

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        return (*held[:-1], held[-1] + u) if self.joins else (*held, u)


class DepthAttentionEnds(Ends):
    def __init__(self, stream: DepthAttention, width: int, eps: float) -> None:
        super().__init__()
        self.last = DepthAttentionConnection(stream, width, None, eps)

    def open(self, x: Tensor) -> State:
        return (x,)

    def close(self, state: State) -> Tensor:
        return self.last.read(state)[0]


class DepthAverageConnection(OfSeveral):
    """State (x, X_0, .., X_(l-1)): at the layer's end X_l = x, and x <- sum_j a_j X_j over l, l - dilation, ..."""

    def __init__(self, stream: DepthAverage, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        self.layer, self.dilation = site.layer, stream.dilation
        averages = self.ends_layer and site.layer % stream.period == 0
        self.shares = nn.Parameter(torch.empty(site.layer // stream.dilation + 1)) if averages else None
        self.draw()

    def draw(self) -> None:
        if self.shares is not None:
            with torch.no_grad():
                nn.init.zeros_(self.shares)
                self.shares[-1] = 1.0

    def read(self, state: State) -> tuple[Tensor, Any]:
        return state[0], state

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        x, *left = held
        x = add(x, u)
        if not self.ends_layer:
            return x, *left
        left.append(x)
        if self.shares is not None:
            earlier = left[self.layer % self.dilation : -1 : self.dilation]
            *others, last = self.shares.to(x.dtype).unbind()
            x = last * x
            for share, output in zip(others, earlier, strict=True):
                x = torch.addcmul(x, output, share)
        return x, *left

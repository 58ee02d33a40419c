"""Streams of n copies: hyper-connections, mHC, projected and gated ones."""

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement.laws import Site
from isograd.placement.streams import Hyper
from isograd.transformer.streams.base import Add, Connection, Ends, State


class OfCopies(Connection):
    """A state of n copies, one tensor."""

    carries = "a tensor (batch, time, n, width)"
    copies: int

    def fits(self, state: State) -> bool:
        return isinstance(state, Tensor) and state.ndim > 2 and state.shape[-2] == self.copies


class HyperConnection(OfCopies):
    """Hyper-connections: maps that are trained numbers, plus tanh of a projection of each copy where `computed`.

    State (batch, time, n, width). alpha (n, n + 1) holds the read map and the mix: what is read is sum_j alpha_j0 S_j,
    S_i becomes sum_j alpha_ji S_j + beta_i u.
    """

    def __init__(self, stream: Hyper, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        n = self.copies = stream.copies
        self.eps = eps
        self.first = (site.slot - 1) % n
        self.factor = stream.factor
        self.alpha, self.beta = nn.Parameter(torch.empty(n, n + 1)), nn.Parameter(torch.empty(n))
        self.computed = stream.maps == "computed"
        if self.computed:
            self.maps = nn.Parameter(torch.empty(n + 2, width))  # of the norm of a copy: its row of alpha, its beta
            self.norm_weight = nn.Parameter(torch.empty(width))
            self.factors = nn.Parameter(torch.empty(2))  # of alpha, of beta
        self.draw()

    def draw(self) -> None:
        with torch.no_grad():
            nn.init.zeros_(self.alpha)
            nn.init.eye_(self.alpha[:, 1:])
            nn.init.ones_(self.alpha[self.first, :1])
            nn.init.ones_(self.beta)
            if self.computed:
                nn.init.zeros_(self.maps)
                nn.init.ones_(self.norm_weight)
                nn.init.constant_(self.factors, self.factor)

    def read(self, state: State) -> tuple[Tensor, Any]:
        alpha: Tensor = self.alpha
        beta: Tensor = self.beta
        if self.computed:
            normed = F.layer_norm(state, state.shape[-1:], self.norm_weight, None, self.eps)
            with exact(state):
                rows = torch.tanh(normed @ self.maps.to(normed.dtype).T)
            alpha = alpha + self.factors[0] * rows[..., :-1]
            beta = beta + self.factors[1] * rows[..., -1]
        with exact(state):
            mixed = alpha.to(state.dtype).transpose(-1, -2) @ state
        return mixed[..., 0, :], (mixed[..., 1:, :], beta.to(state.dtype))

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        mixed, beta = held
        return mixed + beta[..., None] * u[..., None, :]


class ProjectedConnection(OfCopies):
    """mHC and HY-V4: all maps from one projection of the flattened copies divided by their RMS, in float32.

    r = sigmoid(.) + eps, w = magnitude sigmoid(.) (+ eps without a mix), C doubly stochastic by Sinkhorn and Knopp
    from softmax(.) + eps; S <- C^T S + w (x) u. At the start r is 1/n, w about 1, C about the identity.
    """

    def __init__(self, stream: Hyper, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        n = self.copies = stream.copies
        self.norm_eps, self.eps = eps, stream.eps
        self.iterations, self.factor = stream.iterations, stream.factor
        self.mixes = stream.maps == "sinkhorn"
        self.magnitude = 2.0 if self.mixes else stream.magnitude
        self.norms_after = not self.mixes  # HY-V4 divides what was projected by the RMS
        rows = (2 + n) * n if self.mixes else 2 * n
        self.projection = nn.Parameter(torch.empty(rows, n * width))
        self.base = nn.Parameter(torch.empty(rows))
        self.factors = nn.Parameter(torch.empty(3 if self.mixes else 2))
        self.draw()

    def draw(self) -> None:
        n = self.copies
        with torch.no_grad():
            nn.init.normal_(self.projection, std=0.02)
            nn.init.constant_(self.factors, self.factor)
            nn.init.zeros_(self.base)
            nn.init.constant_(self.base[:n], _logit(1 / n))
            nn.init.constant_(self.base[n : 2 * n], _logit(min(1 / self.magnitude, 1 - 1e-6)))
            if self.mixes:
                nn.init.eye_(mix := self.base[2 * n :].view(n, n))
                mix.mul_(CERTAIN)

    def read(self, state: State) -> tuple[Tensor, Any]:
        n = self.copies
        logits = projected(state, self.projection, self.norm_eps, self.norms_after)
        reads, writes, *mix = logits.split([n, n, n * n] if self.mixes else [n, n], dim=-1)
        bases = self.base.split([n, n, n * n] if self.mixes else [n, n])
        r = torch.sigmoid(reads * self.factors[0] + bases[0]) + self.eps
        w = self.magnitude * torch.sigmoid(writes * self.factors[1] + bases[1])
        x = (r[..., None] * state).sum(-2).to(state.dtype)
        if not self.mixes:
            return x, (state, w + self.eps)
        c = torch.softmax((mix[0] * self.factors[2] + bases[2]).unflatten(-1, (n, n)), dim=-1) + self.eps
        c = doubly_stochastic(c, self.iterations, self.eps)
        with exact(state):
            return x, (c.to(state.dtype).transpose(-1, -2) @ state, w)

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        mixed, w = held
        return mixed + w.to(u.dtype)[..., None] * u[..., None, :]


class GatedConnection(OfCopies):
    """Qwen4-exp: reads mean_i( sigmoid(W_up silu(W_down n(S) / n)) * n(S_i) ), writes 2 sigmoid(W n(S) / n) u, no mix.

    n(S): each copy divided by its RMS, times 1 + weight.
    """

    def __init__(self, stream: Hyper, width: int, site: Site | None, eps: float = 1e-5) -> None:
        nn.Module.__init__(self)
        n = self.copies = stream.copies
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(n, width))
        self.down = nn.Parameter(torch.empty(stream.rank, n * width))
        self.up = nn.Parameter(torch.empty(n * width, stream.rank))
        self.inject = nn.Parameter(torch.empty(n, n * width)) if site is not None else None
        self.draw()

    def draw(self) -> None:
        nn.init.zeros_(self.weight)
        for matrix in (self.down, self.up, self.inject):
            if matrix is not None:
                nn.init.normal_(matrix, std=0.02)

    def read(self, state: State) -> tuple[Tensor, Any]:
        normed = F.rms_norm(state, state.shape[-1:], eps=self.eps) * (1.0 + self.weight)
        flat = normed.flatten(-2).to(state.dtype)
        gate = torch.sigmoid(F.linear(F.silu(F.linear(flat, self.down) / self.copies), self.up))
        x = (gate * flat).unflatten(-1, normed.shape[-2:]).mean(-2)
        w = None if self.inject is None else 2 * torch.sigmoid(F.linear(flat, self.inject) / self.copies)
        return x, (state, w)

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        state, w = held
        return state + w[..., None] * u[..., None, :]


class HyperEnds(Ends):
    """n equal copies; their sum, or where the maps are computed from all of them a weighted sum of that kind."""

    def __init__(self, stream: Hyper, width: int, eps: float) -> None:
        super().__init__()
        n = self.copies = stream.copies
        self.norm_eps, self.eps, self.factor = eps, stream.eps, stream.factor
        self.norms_after = stream.maps == "independent"
        self.gated = GatedConnection(stream, width, None, eps) if stream.maps == "gated" else None
        self.weighs = stream.maps in ("sinkhorn", "independent")
        if self.weighs:
            self.projection, self.base = nn.Parameter(torch.empty(n, n * width)), nn.Parameter(torch.empty(n))
            self.factors = nn.Parameter(torch.empty(1))
            self.draw()

    def draw(self) -> None:
        if self.weighs:
            nn.init.normal_(self.projection, std=0.02)
            nn.init.constant_(self.base, _logit(1 / self.copies))
            nn.init.constant_(self.factors, self.factor)

    def open(self, x: Tensor) -> State:
        return x[..., None, :].expand(*x.shape[:-1], self.copies, x.shape[-1]).contiguous()

    def close(self, state: State) -> Tensor:
        if self.gated is not None:
            return self.gated.read(state)[0]
        if not self.weighs:
            return state.sum(-2)
        logits = projected(state, self.projection, self.norm_eps, self.norms_after)
        r = torch.sigmoid(logits * self.factors[0] + self.base) + self.eps
        return (r[..., None] * state).sum(-2).to(state.dtype)


def exact(state: Tensor) -> torch.autocast:
    """Under autocast, what is carried is mixed in its own dtype, as x + u is."""
    kind = state.device.type
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)  # "meta" has none of its own


def projected(state: Tensor, matrix: Tensor, eps: float, norms_after: bool) -> Tensor:
    """matrix times the flattened copies over their RMS, in float32 at least: (batch, time, rows)."""
    flat = state.flatten(-2).to(torch.promote_types(state.dtype, torch.float32))
    over = torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    with exact(state):
        if norms_after:
            return F.linear(flat, matrix.to(flat.dtype)) * over
        return F.linear(flat * over, matrix.to(flat.dtype))


def doubly_stochastic(c: Tensor, iterations: int, eps: float) -> Tensor:
    """Sinkhorn and Knopp on positive matrices (.., n, n): columns, then rows and columns in turn, each to sum 1."""
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


CERTAIN = 8.0  # a logit for "this one": the others weigh e^-8


def _logit(p: float) -> float:
    return math.log(p / (1 - p)) if p < 1 else CERTAIN

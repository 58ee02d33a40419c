"""The streams of `isograd.placement.streams`, each as two modules: one per sublayer, and one at the ends of a stack.

    state = ends.open(x)
    x, held = connection.read(state)             held: what `write` needs of the state
    state = connection.write(held, u, add)       add(x, u): the residual's own line
    x = ends.close(state)

The plain stream has neither: its sublayers compute the line themselves.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.placement.formula import Norm, Role
from isograd.placement.laws import Site
from isograd.placement.streams import (
    Affine,
    DepthAttention,
    DepthAverage,
    FirstInput,
    FirstValues,
    Hyper,
    LayerSkip,
    Parallel,
    Stream,
    TwoStreams,
)
from isograd.transformer.norms import make_norm
from isograd.transformer.parameters import Coefficient

State = Any  # a tensor, or a tuple of tensors
Add = Callable[[Tensor, Tensor], Tensor]
CERTAIN = 8.0  # a logit for "this one": the others weigh e^-8


class Ends(nn.Module):
    """Opens a stream of one tensor, and closes it."""

    role: Role = "coefficient"

    def draw(self) -> None:
        """Draw the parameters that this module itself owns."""

    def open(self, x: Tensor) -> State:
        return x

    def close(self, state: State) -> Tensor:
        return state if isinstance(state, Tensor) else state[0]


class Connection(nn.Module):
    """One sublayer's part in a stream. Of one of your own: `read` and `write`, and `draw` for what it initializes.

    Attributes:
        carries: the state that `read` takes, in words.

    Args:
        stream: what the placement says.
        width: of one tensor of the stream.
        site: where the sublayer stands.
        eps: of norms inside.
    """

    role: Role = "coefficient"
    carries: str = "a tensor (batch, time, width)"

    def __init__(self, stream: Stream, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__()
        self.begins_layer = site.kind == "attn"
        self.ends_layer = site.kind == "ffn"

    def draw(self) -> None:
        """Draw the parameters that this module itself owns."""

    def fits(self, state: State) -> bool:
        """Whether it can be a state of this stream: what `open` or the sublayer before gave."""
        return True

    def read(self, state: State) -> tuple[Tensor, Any]:
        """What the branch reads (batch, time, width), and what `write` needs."""
        raise NotImplementedError

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        """The state after the branch has written u (batch, time, width)."""
        raise NotImplementedError

    def forward(self, state: State, branch: Callable[[Tensor], Tensor]) -> State:
        """A whole sublayer: `branch` is f, a norm before it included."""
        x, held = self.read(state)
        return self.write(held, branch(x))


class OfSeveral(Connection):
    """A state of several tensors, the first of which is the hidden state."""

    carries = "a tuple of tensors (batch, time, width)"

    def fits(self, state: State) -> bool:
        return isinstance(state, tuple)


class ParallelConnection(OfSeveral):
    """State (x, x_in): every branch of a layer reads x_in, or all read norm(x_in) of the layer's first sublayer."""

    def __init__(self, stream: Parallel, width: int, site: Site, eps: float = 1e-5, norm: Any = None) -> None:
        super().__init__(stream, width, site, eps)
        self.norm = norm if stream.shared_norm and self.begins_layer else None

    def read(self, state: State) -> tuple[Tensor, Any]:
        x, entry = state
        if self.begins_layer:
            entry = x if self.norm is None else self.norm(x)
        return entry, (x, entry)

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        x, entry = held
        return add(x, u), entry


class LayerInputEnds(Ends):
    def open(self, x: Tensor) -> State:
        return x, x


class LayerSkipConnection(OfSeveral):
    """State (x, x_in): the layer's last sum is add(x_in + x, u), or add(x_in, u)."""

    def __init__(self, stream: LayerSkip, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        self.skips = self.ends_layer and (stream.last or site.layer < site.layers)
        self.keeps = stream.keep

    def read(self, state: State) -> tuple[Tensor, Any]:
        x, entry = state
        return x, (x, x if self.begins_layer else entry)

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        x, entry = held
        if not self.skips:
            return add(x, u), entry
        return add(entry + x if self.keeps else entry, u), entry


class TwoStreamsConnection(OfSeveral):
    """State (P, Q): P <- add(P, u), Q <- Q + u; reads P, or P + norm(Q)."""

    def __init__(self, stream: TwoStreams, width: int, site: Site, eps: float = 1e-5, norm: Any = None) -> None:
        super().__init__(stream, width, site, eps)
        self.norm = norm if stream.form == "siamese" else None

    def read(self, state: State) -> tuple[Tensor, Any]:
        post, total = state
        return post if self.norm is None else post + self.norm(total), state

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        post, total = held
        return add(post, u), total + u


class TwoStreamsEnds(Ends):
    """Opens with P = Q = x, or P = norm_post(x); closes with P + norm(Q)."""

    def __init__(self, norm: nn.Module, norm_post: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.norm_post = norm, norm_post

    def open(self, x: Tensor) -> State:
        return (x if self.norm_post is None else self.norm_post(x)), x

    def close(self, state: State) -> Tensor:
        post, total = state
        return post + self.norm(total)


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


class FirstInputConnection(OfSeveral):
    """State (x, x_0): x <- r x + z x_0 before each layer."""

    def __init__(self, stream: FirstInput, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        keep, first = (v(site) if callable(v) else v for v in (stream.keep, stream.first))
        self.keep = Coefficient(1, init=keep) if self.begins_layer else None
        self.first = Coefficient(1, init=first) if self.begins_layer else None
        if self.keep is not None:
            self.keep.role = "shortcut"  # nanochat's r learns at a rate of its own: Rates(lr={"shortcut": 0.01})

    def read(self, state: State) -> tuple[Tensor, Any]:
        x, origin = state
        if self.keep is not None and self.first is not None:
            x = self.keep(x) + self.first(origin)
        return x, (x, origin)

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        x, origin = held
        return add(x, u), origin


class FirstValuesConnection(OfSeveral):
    """State (x, v_1): from the second layer on an attention's values are (1 - mix) v + mix v_1."""

    def __init__(self, stream: FirstValues, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        self.first = site.layer == 1
        mixes = site.kind == "attn" and not self.first
        self.shares = (1 - stream.mix, stream.mix)
        self.own = Coefficient(1, init=1 - stream.mix) if mixes and stream.learned else None
        self.one = Coefficient(1, init=stream.mix) if mixes and stream.learned else None

    def read(self, state: State) -> tuple[Tensor, Any]:
        return state[0], state

    def values(self, held: Any, v: Tensor) -> tuple[Tensor, Any]:
        """What the attention mixes in place of its values v (batch, heads, time, width/heads); what is held then."""
        x, one = held
        if self.first:
            return v, (x, v)
        if self.own is not None and self.one is not None:
            return self.own(v) + self.one(one), held
        return self.shares[0] * v + self.shares[1] * one, held

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        x, one = held
        return add(x, u), one


class FirstValuesEnds(Ends):
    def open(self, x: Tensor) -> State:
        return x, x  # until the first attention has written its values


class AffineConnection(Connection):
    """x <- (x + c) * r + (u + d) * g."""

    def __init__(self, stream: Affine, width: int, site: Site, eps: float = 1e-5) -> None:
        super().__init__(stream, width, site, eps)
        self.skip, self.scale = Coefficient(width), Coefficient(width)
        self.skip_offset, self.scale_offset = Coefficient(width, init=0.0), Coefficient(width, init=0.0)

    def fits(self, state: State) -> bool:
        return isinstance(state, Tensor)

    def read(self, state: State) -> tuple[Tensor, Any]:
        return state, state

    def write(self, held: Any, u: Tensor, add: Add = operator.add) -> State:
        return self.skip(held + self.skip_offset.weight) + self.scale(u + self.scale_offset.weight)


def exact(state: Tensor) -> torch.autocast:
    """Under autocast, what is carried is mixed in its own dtype, as x + u is."""
    return torch.autocast(state.device.type, enabled=False)


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


def _logit(p: float) -> float:
    return math.log(p / (1 - p)) if p < 1 else CERTAIN


def make_connection(stream: Stream, site: Site, config: Any) -> Connection:
    """The module of one sublayer in any stream but the plain one."""
    width, eps = config.hidden_size, config.norm_eps
    match stream:
        case Parallel():
            return ParallelConnection(stream, width, site, eps, _shared_norm(stream, site, config))
        case LayerSkip():
            return LayerSkipConnection(stream, width, site, eps)
        case TwoStreams():
            return TwoStreamsConnection(stream, width, site, eps, make_norm(Norm(), width, config))
        case Hyper(maps="constant" | "computed"):
            return HyperConnection(stream, width, site, eps)
        case Hyper(maps="sinkhorn" | "independent"):
            return ProjectedConnection(stream, width, site, eps)
        case Hyper():
            return GatedConnection(stream, width, site, eps)
        case DepthAttention():
            return DepthAttentionConnection(stream, width, site, eps)
        case DepthAverage():
            return DepthAverageConnection(stream, width, site, eps)
        case FirstInput():
            return FirstInputConnection(stream, width, site, eps)
        case FirstValues():
            return FirstValuesConnection(stream, width, site, eps)
        case Affine():
            return AffineConnection(stream, width, site, eps)
    if (own := getattr(stream, "connection", None)) is None:
        raise TypeError(f"{type(stream).__name__}: a stream of your own has a method connection(site, width, eps)")
    made: Connection = own(site, width, eps)
    return made


def _shared_norm(stream: Parallel, site: Site, config: Any) -> nn.Module | None:
    return make_norm(Norm(), config.hidden_size, config) if stream.shared_norm and site.kind == "attn" else None


def make_ends(stream: Stream, config: Any) -> Ends:
    """The module at both ends of a stack in any stream but the plain one."""
    width, eps = config.hidden_size, config.norm_eps
    match stream:
        case Parallel() | LayerSkip() | FirstInput() | DepthAverage():
            return LayerInputEnds()
        case TwoStreams(form="residual"):
            return TwoStreamsEnds(make_norm(Norm(), width, config), None)
        case TwoStreams():
            return TwoStreamsEnds(make_norm(Norm(), width, config), make_norm(Norm(), width, config))
        case Hyper():
            return HyperEnds(stream, width, eps)
        case DepthAttention():
            return DepthAttentionEnds(stream, width, eps)
        case FirstValues():
            return FirstValuesEnds()
    own = getattr(stream, "ends", None)
    made: Ends = Ends() if own is None else own(width, eps)
    return made

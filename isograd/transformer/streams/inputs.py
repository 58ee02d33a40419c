"""Streams that keep an earlier tensor (the layer's input, the stack's, the first values), two streams, or factors."""

import operator
from typing import Any

from torch import Tensor, nn

from isograd.placement.laws import Site
from isograd.placement.streams import (
    Affine,
    FirstInput,
    FirstValues,
    LayerSkip,
    Parallel,
    TwoStreams,
)
from isograd.transformer.parameters import Coefficient
from isograd.transformer.streams.base import Add, Connection, Ends, OfSeveral, State


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

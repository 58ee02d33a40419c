"""What a stream keeps for the backward pass beside what its branches keep, counted on its own modules.

The connections of the first layers run on one token and on two, and autograd's hooks see what is held: the difference
is what a token costs, whatever the stream. The layers after these go on as they began: what a stream keeps in a layer
is linear in the layer's number, in steps of as many layers as the stream sums into one source.
"""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from isograd.models import IsogradConfig
from isograd.placement import Site, Stack, sites
from isograd.placement.streams import DepthAttention, DepthAverage, Stream
from isograd.transformer.streams import State, make_connection, make_ends
from isograd.transformer.streams.inputs import FirstValuesConnection

SHOWN = 6  # layers that run, or twice as many as are summed into one source and two more


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes per token.

    Attributes:
        layers: of each layer, beside what its sublayers keep in the plain stream.
        carried: of each layer, what is new in the state that it is given: what gradient checkpointing keeps of it.
        ends: where the stream opens and closes.
    """

    layers: tuple[int, ...]
    carried: tuple[int, ...]
    ends: int


def stream_kept(config: IsogradConfig, stack: Stack, narrow: torch.dtype, carried: torch.dtype) -> Kept | None:
    """What the stream of a stack keeps; None of the plain one.

    Args:
        config: of the whole model.
        narrow: dtype of the products, which is that of what a branch writes.
        carried: dtype of the stream: float32 under autocast.
    """
    own = config.of(stack)
    entry, (layers, other) = own.entry(), config.depths(stack)
    if entry.stream.plain:
        return None
    normed = entry.of(sites(layers, stack, other)[0]).pre is not None
    return _kept(
        _Shape(
            hidden_size=own.hidden_size,
            norm=own.norm,
            norm_eps=own.norm_eps,
            heads=own.num_attention_heads,
            stream=entry.stream,
            narrow=narrow,
            carried=carried,
            reads_kept=normed or narrow == carried,
        ),
        stack,
        layers,
        other,
    )


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What the modules of a stream read of a configuration, and what runs through them.

    Attributes:
        reads_kept: whether a branch keeps what it reads: under autocast one without a norm keeps casts of it alone.
    """

    hidden_size: int
    norm: str
    norm_eps: float
    heads: int
    stream: Stream
    narrow: torch.dtype
    carried: torch.dtype
    reads_kept: bool
    norm_bias: bool = True


@lru_cache(maxsize=64)
def _kept(shape: _Shape, stack: Stack, layers: int, other: int) -> Kept:
    """Once per shape: a study checks hundreds of runs."""
    period = _period(shape.stream)
    shown = min(layers, max(SHOWN, 2 * period + 2))
    ends = make_ends(shape.stream, shape).to(shape.carried)
    every = [site for site in sites(layers, stack, other) if site.layer <= shown]
    connections = [(site, make_connection(shape.stream, site, shape).to(shape.carried)) for site in every]
    one, two = (_Pass(shape, ends, connections, tokens) for tokens in (1, 2))

    def per_token(of: str) -> tuple[int, ...]:
        return _continued([b - a for a, b in zip(getattr(one, of), getattr(two, of), strict=True)], layers, period)

    return Kept(
        layers=per_token("kept"),
        carried=per_token("new"),
        ends=two.opened - one.opened + per_token("closed")[layers - 1],
    )


def _period(stream: Stream) -> int:
    """After how many layers what a stream keeps grows by the same again."""
    if isinstance(stream, DepthAttention):
        return stream.block or 1
    return stream.period * stream.dilation if isinstance(stream, DepthAverage) else 1


def _continued(found: list[int], layers: int, period: int) -> tuple[int, ...]:
    """A layer as the one `period` before it, and by as much more as that one had more than its own."""
    while len(found) < layers:
        found = [*found, 2 * found[-period] - found[-2 * period]]
    return tuple(found)


class _Pass:
    """One pass through the first layers; bytes by layer.

    Attributes:
        kept: what is held for the backward pass when the layer has run, beside what its branches read.
        new: of the state that it is given, what no earlier one had.
        closed: what closing the stream after it would keep.
        opened: what opening the stream keeps.
    """

    def __init__(self, shape: _Shape, ends: Any, connections: Sequence[tuple[Site, Any]], tokens: int) -> None:
        self.shape, self.tokens = shape, tokens
        self.own = {
            p.untyped_storage().data_ptr() for m in (ends, *(c for _, c in connections)) for p in m.parameters()
        }
        self.held: dict[int, Tensor] = {}  # by a storage's address; the tensor is held, so that no other gets it
        self.read: dict[int, Tensor] = {}  # by branches, whose account has it
        self.kept: list[int] = []
        self.new: list[int] = []
        self.closed: list[int] = []
        with self._watched():
            state = ends.open(self._ones(shape.hidden_size, dtype=shape.carried))
            self.opened, self.known = self._bytes(), dict(self.held)
            for number, (site, connection) in enumerate(connections):
                if site.kind == "attn":
                    self.new.append(self._unseen(state))
                    self.kept.append(0)
                state = self._through(site, connection, state)
                if number + 1 == len(connections) or connections[number + 1][0].kind == "attn":
                    self.closed.append(self._closed(ends, state))

    def _through(self, site: Site, connection: Any, state: State) -> State:
        before = self._bytes()
        x, held = connection.read(state)
        again = 0
        if self.shape.reads_kept:
            place = x.untyped_storage().data_ptr()
            again = x.nbytes if place in self.read and site.kind != "attn" else 0
            self.read[place] = x
        if isinstance(connection, FirstValuesConnection) and site.kind == "attn":
            heads = (self.shape.heads, self.shape.hidden_size // self.shape.heads)
            value, held = connection.values(held, self._ones(*heads).transpose(1, 2))
            if connection.first:  # its attention keeps them
                self.read[value.untyped_storage().data_ptr()] = value
        state = connection.write(held, self._ones(self.shape.hidden_size), operator.add)
        self.kept[-1] += self._bytes() - before - again
        return state

    def _ones(self, *features: int, dtype: torch.dtype | None = None) -> Tensor:
        """What a module computed: no leaf, and a storage of its own."""
        return torch.ones(1, self.tokens, *features, dtype=dtype or self.shape.narrow, requires_grad=True) + 0

    @contextmanager
    def _watched(self) -> Iterator[None]:
        def pack(x: Tensor) -> Tensor:
            x = x.detach()  # with its history an operation that keeps its own result would keep itself for ever
            if (place := x.untyped_storage().data_ptr()) not in self.own:
                self.held[place] = x
            return x

        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.shape.narrow != self.shape.carried)
        with torch.enable_grad(), autocast, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            yield

    def _closed(self, ends: Any, state: State) -> int:
        held, before = dict(self.held), self._bytes()
        ends.close(state)
        found, self.held = self._bytes() - before, held
        return found

    def _bytes(self) -> int:
        """Of all storages but the part of each that a branch reads, which may be a row of one (hyper-connections)."""
        storages = {place: x.untyped_storage().nbytes() for place, x in (self.held | self.read).items()}
        return sum(storages.values()) - sum(x.nbytes for x in self.read.values())

    def _unseen(self, state: State) -> int:
        tensors = state if isinstance(state, tuple) else (state,)
        fresh = {place: x for x in tensors if (place := x.untyped_storage().data_ptr()) not in self.known}
        self.known |= fresh
        return sum(x.untyped_storage().nbytes() for x in fresh.values())

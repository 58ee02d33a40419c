"""Which classes a stream of the catalogue is."""

from typing import Any

from torch import nn

from isograd.placement.formula import Norm
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
    Plain,
    Stream,
    TwoStreams,
)
from isograd.transformer.norms import make_norm
from isograd.transformer.streams.base import Connection, Ends
from isograd.transformer.streams.copies import GatedConnection, HyperConnection, HyperEnds, ProjectedConnection
from isograd.transformer.streams.depth import DepthAttentionConnection, DepthAttentionEnds, DepthAverageConnection
from isograd.transformer.streams.inputs import (
    AffineConnection,
    FirstInputConnection,
    FirstValuesConnection,
    FirstValuesEnds,
    LayerInputEnds,
    LayerSkipConnection,
    ParallelConnection,
    TwoStreamsConnection,
    TwoStreamsEnds,
)


def make_connection(stream: Stream, site: Site, config: Any) -> Connection:
    """The module of one sublayer."""
    width, eps = config.hidden_size, config.norm_eps
    match stream:
        case Plain():
            return Connection(stream, width, site, eps)
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
    """The module at both ends of a stack."""
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

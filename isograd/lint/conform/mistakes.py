"""What ports of the designs are known to get wrong; `equations` computes each, so that a port's own is found.

mistakes.csv has a row for each: its name, where it can be made, what the port computes, what to change.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from isograd.placement import Norm, Placement, sites
from isograd.placement.streams import DepthAttention, FirstInput, Hyper, TwoStreams


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A known mistake.

    Attributes:
        name: as `equations` asks for it.
        where: words of which a placement has one (`parts`) where it can be made.
        found: what the port computes.
        remedy: what to change.
    """

    name: str
    where: str
    found: str
    remedy: str


with Path(__file__).with_suffix(".csv").open(newline="") as file:
    MISTAKES = tuple(Mistake(**row) for row in csv.DictReader(file))


def parts(placement: Placement) -> set[str]:
    """The class of its stream, the kind of its maps; norms on sums, norm weights and coefficients where it has any."""
    stream, residuals = placement.stream, [placement.at(site) for site in sites(3)]
    found = {kind.__name__ for kind in type(stream).__mro__}
    found |= {stream.maps} if isinstance(stream, Hyper) else set()
    norms = [norm for r in residuals for norm in (r.out, r.post) if isinstance(norm, Norm) and norm.affine]
    kept = isinstance(stream, TwoStreams) or (isinstance(stream, DepthAttention) and not stream.norm_values)
    found |= {"norm-weight"} if norms or kept or found & {"computed", "gated"} else set()
    found |= {"post-norm"} if any(r.post is not None for r in residuals) else set()
    unequal = isinstance(stream, FirstInput) or any(r.skip != r.scale for r in residuals)
    return found | ({"coefficients"} if unequal else set())


def possible(placement: Placement) -> tuple[Mistake, ...]:
    """The mistakes that can be made in a placement."""
    own = parts(placement)
    return tuple(one for one in MISTAKES if not own.isdisjoint(one.where.split()))

"""Weights such that each part of a formula shows.

Random ones; reads so small that a missing eps is a large share of them; mixes so sharp that Sinkhorn has not converged.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from isograd.placement.streams import Hyper, Stream

Case = Callable[[dict[str, Tensor]], dict[str, Tensor]]  # weights -> weights
SMALL = "small reads and writes"


def cases_of(stream: Stream) -> dict[str, Case]:
    """Name -> what it makes of random weights."""
    found: dict[str, Case] = {"random weights": lambda w: w}
    if isinstance(stream, Hyper) and stream.maps in ("sinkhorn", "independent"):
        found[SMALL] = lambda w: _based(w, slice(0, 2 * stream.copies), -12.0, 0.1)
    if isinstance(stream, Hyper) and stream.maps == "sinkhorn":
        found["sharp mixes"] = lambda w: _sharp(w, 2 * stream.copies)
    return found


def _based(weights: dict[str, Tensor], rows: slice, base: float, factor: float) -> dict[str, Tensor]:
    """The maps of those rows near one number."""
    found = dict(weights)
    for name, value in weights.items():
        if name.endswith(".base"):
            value = value.clone()
            value[rows] = base
        found[name] = value * factor if name.endswith(".factors") else value
    return found


def _sharp(weights: dict[str, Tensor], start: int) -> dict[str, Tensor]:
    found = dict(weights)
    for name, value in weights.items():
        if name.endswith("stream.base"):
            found[name] = torch.cat([value[:start], 16 * value[start:]])
    return found

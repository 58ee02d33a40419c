"""Statements about a design that need no equations."""

from collections.abc import Callable

import torch
from torch import Tensor

from isograd.lint.conform.driven import Driven, difference_of
from isograd.lint.conform.setting import Setting
from isograd.placement import Coupled, sites
from isograd.placement.streams import Hyper

Statement = Callable[[Driven], float]
APART = "invariant: positions do not see one another"


def invariants_of(setting: Setting) -> dict[str, Statement]:
    """Name -> how far a statement that needs no equations is from being true."""
    stream, found = setting.stream, dict[str, Statement]()
    if isinstance(stream, Hyper) and stream.maps in ("sinkhorn", "independent"):
        found["invariant: the sum of the copies grows by what is written"] = _sum_of_copies
        found["invariant: equal copies stay equal"] = _equal_copies
    first = setting.placement.at(sites(setting.layers)[0])
    if isinstance(first.skip, Coupled) and first.post is None:
        found["invariant: skip and scale follow from one another"] = _coupled
    return found


def positions_apart(driven: Driven) -> float:
    """How far all other positions move where the input and the branches' outputs of one do: of any stream, 0."""
    weights, there = driven.usual, torch.zeros(driven.x.shape[:2], dtype=torch.bool)
    there[0, 1] = True  # of two sequences of three positions
    x, *us = (torch.where(there[..., None], t + 1, t) for t in (driven.x, *driven.us))
    before, after = driven.outputs(driven.loaded(weights)), driven.outputs(driven.loaded(weights), x, us)
    return max(difference_of(b[~there], a[~there]) for a, b in zip(before, after, strict=True))


def _even(driven: Driven) -> dict[str, Tensor]:
    """Reads of 1/2 + eps each and writes of half their magnitude, whatever the copies are."""
    n = driven.setting.stream.copies
    weights = {name: value.clone() for name, value in driven.usual.items()}
    for name, value in weights.items():
        if name.endswith(("stream.projection", "stream.base")):
            value[: 2 * n] = 0
    return weights


def _sum_of_copies(driven: Driven) -> float:
    stream = driven.setting.stream
    n, read = stream.copies, 0.5 + stream.eps
    write = 1.0 if stream.maps == "sinkhorn" else stream.magnitude / 2 + stream.eps
    got, total, worst = driven.outputs(driven.loaded(_even(driven))), driven.x, 0.0
    for k, u in enumerate(driven.us):
        worst = max(worst, difference_of(got[k], read * n * total))
        total = total + write * u
    return worst


def _equal_copies(driven: Driven) -> float:
    nothing = [torch.zeros_like(u) for u in driven.us]
    first, *others = driven.outputs(driven.loaded(_even(driven)), us=nothing)[:-1]
    return max(difference_of(other, first.detach().cpu().double()) for other in others)


def _coupled(driven: Driven) -> float:
    """skip = 1 - scale, or skip^2 + scale^2 = 1, from what x alone and the branch alone leave."""
    weights = dict(driven.usual)
    for name, value in weights.items():
        if ".out." in name:
            weights[name] = torch.ones_like(value) if name.endswith("weight") else torch.zeros_like(value)
    residual = driven.setting.placement.at(driven.every[0])
    assert isinstance(residual.skip, Coupled)
    nothing, equation = torch.zeros_like(driven.x), driven.equation(weights)
    x, u = driven.x, driven.us[0]
    zeros = [torch.zeros_like(x) for _ in driven.us]
    skip = driven.outputs(driven.loaded(weights), us=zeros)[1].cpu().double() / x
    scale = driven.outputs(driven.loaded(weights), x=nothing, us=[u, *zeros[1:]])[1].cpu().double()
    scale = scale / equation.norm("parts.0.out", residual.out, u)
    total = skip + scale if residual.skip.by == "complement" else skip**2 + scale**2
    return difference_of(total, torch.ones_like(total))

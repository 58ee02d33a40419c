"""Residual designs that carry more than one tensor, found in a recorded forward pass and named as in the catalogue.

    copies              S_i <- sum_j C_ij S_j + w_i u     a sum in which a branch is spread over an axis of copies
    attention over depth    x = sum_i a_i v_i             what a branch reads was mixed of everything written before

Both are seen at the branch: x is the first value that everything between the stream and the branch goes through.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from isograd.trace.attention import is_softmax
from isograd.trace.dataflow import PRODUCTS, Dataflow, bare
from isograd.trace.record import Operation

STOCHASTIC = 0.02  # how far rows and columns may be from a sum of one
GATHERS = ("stack", "cat")
NEAR = 24  # operations between a gathering and the softmax over it


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The sum of one sublayer in a stream of copies.

    Attributes:
        name: the entry of the catalogue.
        state: the copies that the sum continues.
        read: what the branch reads.
        branch: what the branch wrote, before it is spread over the copies.
    """

    name: str
    state: int
    read: int
    branch: int


def dominators(dataflow: Dataflow, start: int, end: int) -> list[int]:
    """The values that every way from one value to another goes through, in order, both left out."""
    region = dataflow.between(start, end)
    trace, last = dataflow.trace, {start: 0}
    for at, operation in enumerate(region):
        last.update(dict.fromkeys((v for v in operation.reads if v in last), at))
        last.update((v, len(region) if v == end else at) for v in operation.makes if v in dataflow.above(end))
    found, open_until = [], last.pop(start)
    for at, operation in enumerate(region):
        for value in operation.makes:
            if value in last and value != end:
                if open_until <= at and trace[value].is_floating_point():
                    found.append(value)
                open_until = max(open_until, last[value])
    return found


def copies_of(dataflow: Dataflow, operation: Operation, terms: list[int]) -> Copies | None:
    """What a sum of two terms says as a stream of copies; None where it is none."""
    total = operation.makes[0]
    if len(terms) != 2 or dataflow.trace[total].ndim < 3:
        return None
    for spread, kept in (terms, terms[::-1]):
        branch = _spread(dataflow, spread, total)
        if branch is None:
            continue
        state, mix = _mixed(dataflow, kept, total)
        if state not in dataflow.above(branch):
            continue
        read = _collapsed(dataflow, state, branch)
        if read is not None:
            name = _named(dataflow, state, read, mix)
            return Copies(name=name, state=state, read=read, branch=branch)
    return None


def _spread(dataflow: Dataflow, term: int, total: int) -> int | None:
    """u of w_i u: what one factor for each copy multiplies; None of any other term."""
    trace = dataflow.trace
    made = trace.made_by(dataflow.root(term))
    shape = trace[total].shape
    if made is None or bare(made) != "mul" or trace[made.makes[0]].shape != shape:
        return None
    for value in dataflow.data(made):
        own = trace[value].shape
        others = [trace[v].shape for v in made.reads if v != value]
        spread = len(own) == len(shape) and own[-1] == shape[-1] > 1 and own[-2] == 1 < shape[-2]
        if spread and all(len(o) >= 2 and o[-1] == 1 and o[-2] == shape[-2] for o in others if len(o)):
            return dataflow.root(value)
    return None


def _mixed(dataflow: Dataflow, term: int, total: int) -> tuple[int, int | None]:
    """The copies behind a term, and the matrix that mixes them where there is one."""
    trace, root = dataflow.trace, dataflow.root(term)
    made = trace.made_by(root)
    if made is None or bare(made) not in PRODUCTS:
        return root, None
    shape = trace[total].shape
    state = next((v for v in dataflow.data(made) if trace[v].numel() == trace[total].numel()), None)
    if state is None:
        return root, None
    others = [v for v in made.reads if v != state and trace[v].numel() >= shape[-2] ** 2]
    return dataflow.root(state), (others[0] if others else None)


def _collapsed(dataflow: Dataflow, state: int, branch: int) -> int | None:
    """x: the first value of the branch's shape that everything between the copies and the branch goes through."""
    shape = dataflow.trace[branch].squeeze(-2).shape if dataflow.trace[branch].ndim > 3 else None
    shapes = {dataflow.trace[branch].shape, shape}
    return next((v for v in dominators(dataflow, state, branch) if dataflow.trace[v].shape in shapes), None)


def _named(dataflow: Dataflow, state: int, read: int, mix: int | None) -> str:
    if mix is not None:
        if mix not in dataflow.live:
            return "hyper-connections-static"
        return "mhc" if _is_doubly_stochastic(dataflow.trace[mix]) else "hyper-connections"
    inside = [o for o in dataflow.between(state, read) if o.makes and dataflow.norms.get(o.makes[0])]
    gated = any(dataflow.norms[o.makes[0]].result in _factors(dataflow, read) for o in inside)
    return "gated-streams" if gated else "independent-streams"


def _factors(dataflow: Dataflow, read: int) -> set[int]:
    """What the last product of two activations before x was made of, through layout and scale."""
    made = dataflow.trace.made_by(dataflow.root(read))
    while made is not None and len(dataflow.data(made)) == 1:
        made = dataflow.trace.made_by(dataflow.data(made)[0])
    return {dataflow.root(v) for v in dataflow.data(made)} if made is not None else set()


def _is_doubly_stochastic(mix: Tensor) -> bool:
    if mix.ndim < 2 or mix.shape[-1] != mix.shape[-2] or not bool((mix > 0).all()):
        return False
    ones = torch.ones(())
    return all(bool(((mix.float().sum(axis) - ones).abs() < STOCHASTIC).all()) for axis in (-1, -2))


def gathers(dataflow: Dataflow) -> list[tuple[Operation, list[int]]]:
    """Where activations of one size are laid side by side and then weighed by a softmax over them; and which."""
    found = []
    for at, operation in enumerate(dataflow.trace.operations):
        if bare(operation) in GATHERS and operation.makes[0] in dataflow.live:
            sources = _sources(dataflow, operation)
            sizes = {dataflow.trace[v].numel() for v in sources}
            if len(sources) >= 2 and len(sizes) == 1 and len(set(sources)) == len(sources):
                near = dataflow.trace.operations[at : at + NEAR]
                if any(is_softmax(o) and len(sources) in dataflow.trace[o.makes[0]].shape for o in near):
                    found.append((operation, sources))
    return found


def averages(dataflow: Dataflow) -> dict[int, list[int]]:
    """Where activations that were laid side by side are summed with a trained weight each -> what was laid there."""
    found = {}
    for operation in dataflow.trace.operations:
        if bare(operation) in GATHERS and operation.makes and operation.makes[0] in dataflow.live:
            sources = _sources(dataflow, operation) if len(dataflow.data(operation)) > 1 else []
            value = _averaged(dataflow, operation.makes[0], sources)
            if value is not None:
                found[value] = sources
    return found


def _averaged(dataflow: Dataflow, value: int, sources: list[int]) -> int | None:
    """The weighted sum that alone is made of a gathering, within a few operations."""
    trace, weighed = dataflow.trace, False
    shapes = {trace[v].shape for v in sources}
    sizes = {name: trace[v].numel() for v, name in trace.names.items()}
    while len(shapes) == 1 and value not in dataflow.norms:
        readers = [o for o in trace.read_by(value) if bare(o) not in GATHERS]
        if len(readers) != 1 or len(dataflow.data(readers[0])) != 1 or not readers[0].makes:
            return None
        value = readers[0].makes[0]
        weighed |= any(sizes[name] == len(sources) for name in dataflow.weights(readers[0]))
        if trace[value].shape in shapes:
            return value if weighed else None
    return None


def _sources(dataflow: Dataflow, operation: Operation) -> list[int]:
    """What was laid side by side, earlier gatherings taken apart."""
    sources: list[int] = []
    for value in dataflow.data(operation):
        root = dataflow.root(value)
        made = dataflow.trace.made_by(root)
        gathered = made is not None and bare(made) in GATHERS and len(dataflow.data(made)) > 1
        sources += _sources(dataflow, made) if made is not None and gathered else [root]
    return sources


def mixed_over_depth(dataflow: Dataflow, start: int, branch: int) -> tuple[int, str] | None:
    """What a branch reads of a softmax over gathered activations, and the entry's name; None where it reads `start`."""
    trace = dataflow.trace
    for value in dominators(dataflow, start, branch):
        if trace[value].shape != trace[start].shape or dataflow.root(value) == dataflow.root(start):
            continue
        inside = dataflow.between(start, value)
        softmaxes = [o for o in inside if is_softmax(o)]
        if not softmaxes or not any(bare(o) in GATHERS and len(dataflow.data(o)) > 1 for o in inside):
            return None
        normed = any(root in dataflow.norms for root in _factors(dataflow, value))
        return value, "attention-residuals-inkling" if normed else "attention-residuals"
    return None

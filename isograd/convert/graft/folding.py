"""Norm weights into the projections that read them."""

import torch
from torch import Tensor

from isograd.convert.graft.found import GraftSubject, rebuilt
from isograd.convert.graft.moves import How, Moved, one_of
from isograd.errors import GraftError
from isograd.trace.dataflow import LAYOUT, SCALING, TracedNorm, bare
from isograd.trace.record import Operation

NEAR_ZERO = 1e-4  # of the largest entry of a norm weight: what a bias is divided by


def norm_weights(subject: GraftSubject, value: str, how: How) -> Moved:
    """weights and biases of norms into the projections after them (exact)

    W (g n + b) + c = (W diag(g)) n + (W b + c). Where a projection has no bias, g (n + b / g) keeps b / g in the norm.
    A norm that something else reads too, as the sum in Post-LN or a tied head, stays.
    """
    one_of(value, "norm-weights", "folded")
    state, kept, folded = dict(subject.state), list[str](), 0
    for norm in _norms(subject):
        try:
            state |= _folded(subject, norm, state)
            folded += 1
        except GraftError as error:
            kept.append(str(error))
    if not folded:
        raise GraftError(f"no norm can be folded: {kept[0] if kept else 'none has a weight'}")
    rest = f"; {len(kept)} stay, as {kept[0]}" if kept else ""
    return Moved(model=rebuilt(subject.model, state, {}), said=f"{folded} norm weights folded{rest}")


def _norms(subject: GraftSubject) -> list[TracedNorm]:
    """Those of the stream that have a weight, each once."""
    stack = subject.stack
    found = [n for s in stack.sublayers for slot in ("pre", "post") for n in s.norms.get(slot, [])]
    return list({norm.weight: norm for norm in [*found, *stack.final] if norm.weight}.values())


def _folded(subject: GraftSubject, norm: TracedNorm, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The new values of a norm's weight and bias, and of the matrices and biases that read it."""
    assert norm.weight is not None
    products = _products(subject, norm)
    neutral, weight = _effective(subject, norm, products[0][1])
    bias = state[norm.bias].double() if norm.bias else torch.zeros_like(weight)
    names = {m: _bias_of(subject, o) for o, _, m in products}
    out: dict[str, Tensor] = {norm.weight: torch.full_like(state[norm.weight], neutral)}
    if bias.any() and not all(names.values()):
        if float(weight.abs().min()) < NEAR_ZERO * float(weight.abs().max()):
            raise GraftError(f"{norm.weight} has entries near 0, and what reads it no bias")
        names, rest = dict.fromkeys(names), bias / weight
    else:
        rest = torch.zeros_like(bias)
    if norm.bias:
        out[norm.bias] = rest.to(state[norm.bias].dtype)
    for operation, data, matrix in products:
        wide, axis = state[matrix].double(), _input_axis(subject, operation, data, matrix)
        spread = weight if axis == 1 else weight[:, None]
        out[matrix] = (wide * spread).to(state[matrix].dtype)
        if own := names[matrix]:
            shift = wide @ bias if axis == 1 else bias @ wide
            out[own] = (state[own].double() + shift).to(state[own].dtype)
    return out


def _products(subject: GraftSubject, norm: TracedNorm) -> list[tuple[Operation, int, str]]:
    """Every product that reads a norm: the operation, what it reads, the name of its matrix."""
    dataflow, trace = subject.dataflow, subject.dataflow.trace
    own, todo = {norm.weight, norm.bias}, [norm.result]
    found: dict[str, tuple[Operation, int, str]] = {}
    while todo:
        value = todo.pop()
        for operation in trace.read_by(value):
            names = dataflow.weights(operation)
            if dataflow.is_product(operation):
                matrices = [n for n in names if trace[subject.value(n)].ndim == 2]
                if len(matrices) != 1:
                    raise GraftError(f"{norm.weight} is read by {operation.name} with no single matrix")
                found[matrices[0]] = operation, value, matrices[0]
            elif bare(operation) in LAYOUT | SCALING and set(names) <= own and len(dataflow.data(operation)) == 1:
                todo += operation.makes
            else:
                raise GraftError(f"{norm.weight} is read by {operation.module or 'the model'} ({bare(operation)}), too")
    for _, _, matrix in found.values():
        readers = _readers(subject, matrix)
        if any(matrix not in dataflow.weights(o) or not dataflow.is_product(o) for o in readers):
            raise GraftError(f"{matrix}, which reads {norm.weight}, is also a table of vectors")
    if not found:
        raise GraftError(f"{norm.weight} is read by no projection")
    return list(found.values())


def _readers(subject: GraftSubject, matrix: str) -> list[Operation]:
    """What reads a matrix, through layout."""
    trace, todo, found = subject.dataflow.trace, [subject.value(matrix)], list[Operation]()
    while todo:
        for operation in trace.read_by(todo.pop()):
            if bare(operation) in LAYOUT and not subject.dataflow.data(operation):
                todo += operation.makes
            else:
                found.append(operation)
    return found


def _effective(subject: GraftSubject, norm: TracedNorm, read: int) -> tuple[float, Tensor]:
    """What stands for a weight of 1 in the parameter, 1 or 0, and the weight itself, in float64."""
    assert norm.weight is not None
    trace = subject.dataflow.trace
    values = [subject.value(n) for n in (norm.weight, norm.bias) if n]
    silent = not trace.replay({v: torch.zeros_like(trace[v]) for v in values}, [read])[0].any()
    weight = subject.state[norm.weight].double()
    return (1.0, weight) if silent else (0.0, 1 + weight)


def _bias_of(subject: GraftSubject, operation: Operation) -> str | None:
    trace = subject.dataflow.trace
    return next((n for n in subject.dataflow.weights(operation) if trace[subject.value(n)].ndim == 1), None)


@torch.no_grad()
def _input_axis(subject: GraftSubject, operation: Operation, read: int, matrix: str) -> int:
    """The axis of a matrix along which it reads, by trying both."""
    trace = subject.dataflow.trace
    weight, x, y = (t.double() for t in (trace[subject.value(matrix)], trace[read], trace[operation.makes[0]]))
    bias = _bias_of(subject, operation)
    y = y - trace[subject.value(bias)].double() if bias else y
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    tries = [(axis, w) for axis, w in ((1, weight.T), (0, weight)) if w.shape == (x.shape[-1], y.shape[-1])]
    return min(tries, key=lambda t: float((x @ t[1] - y).abs().max()))[0]

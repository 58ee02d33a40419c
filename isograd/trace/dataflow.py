"""What a recorded forward pass does to its activations: norms, products with weights, which position moves which.

Found from the operations and from replays, not from the names of modules: a norm is what stays the same when its input
is scaled.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from isograd.trace.record import Operation, Trace, Value

NORMS = frozenset((
    "layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", "fused_rms_norm", "group_norm",
    "native_group_norm", "batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm", "instance_norm",
))  # fmt: skip
BOUNDED = frozenset(("tanh", "erf"))  # DyT and Derf: with a trained slope before and a trained weight after
LAYOUT = frozenset((
    "view", "reshape", "_reshape_alias", "transpose", "permute", "contiguous", "clone", "to", "_to_copy", "alias",
    "detach", "dropout", "expand", "unsqueeze", "squeeze", "flatten", "unflatten", "lift_fresh", "type_as",
    "native_dropout", "feature_dropout", "slice", "select", "roll", "pad", "constant_pad_nd", "movedim", "t",
    "numpy_T", "swapaxes", "expand_as", "chunk", "split", "split_with_sizes", "unbind", "tensor_split",
    "index_select", "alpha_dropout", "view_as", "reshape_as", "mT", "adjoint",
))  # fmt: skip
SCALING = frozenset(("mul", "div", "add", "sub", "rsub", "neg", "addcmul", "true_divide", "multiply", "subtract"))
SUMS = frozenset(("add", "addcmul", "sub", "lerp", "rsub"))
REJOINS = SUMS | {"cat", "stack"}
PRODUCTS = frozenset((
    "linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d", "convolution",
    "tensordot", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "_grouped_mm", "_scaled_mm",
))  # fmt: skip
DEFAULT_EPS = {"layer_norm": 1e-5}  # of torch.nn.functional, where the caller gave none
LEAST = 5  # numbers in a row that a norm is taken of: fewer are copies of a stream, or experts
FAR = 1000.0  # scales at which the eps of a norm no longer counts
SAME = 1e-3  # relative difference of two activations in float32 that count as equal
ROUNDING = 1e-6  # of the largest entry: what another order of sums may do


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedNorm:
    """A normalization: scaling `origin` leaves `result` unchanged.

    Attributes:
        address: of the module in which it was computed.
        weight, bias: names of the parameters that multiply it and are added, where there are such.
        eps: None where it could not be read from the operations.
        scales: whether scaling `origin` leaves `result` unchanged; not so with tanh in place of a norm, and with a
            BatchNorm in evaluation.
    """

    origin: int
    result: int
    address: str
    weight: str | None
    bias: str | None
    eps: float | None
    scales: bool = True


def _is_integer(value: Tensor) -> bool:
    return not value.is_floating_point() and value.dtype != torch.bool


class Dataflow:
    """A trace with the answers to the questions that are asked of it.

    Attributes:
        norms: by their results.
        joined: a sum of two values of streams -> the later of the two, which the stream goes on from.
        memo: answers of others, by name.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.norms: dict[int, TracedNorm] = {}
        self.joined: dict[int, int] = {}
        self.memo: dict[str, Any] = {}
        self._steps: dict[int, int | None] = {}
        self._above: dict[int, set[int]] = {}
        self._between: dict[tuple[int, int], list[Operation]] = {}
        self.norms = {norm.result: norm for norm in self._find_norms()}
        self._steps.clear()  # a walk stops at norms, which were not known before

    @cached_property
    def lookups(self) -> list[Operation]:
        """Where rows of a table are taken: an embedding, or a parameter that is indexed by ids that came in."""
        trace = self.trace
        given = {v for at, v in trace.inputs.items() if _is_integer(trace[v]) and "mask" not in at}
        ids = {v for v in trace.below(given) if _is_integer(trace[v])}
        tables = {v for v in self._of_parameters if trace[v].ndim >= 2}
        return [
            o
            for o in trace.operations
            if bare(o) in ("embedding", "embedding_bag")
            or (bare(o) in ("index", "index_select") and o.reads[0] in tables and not ids.isdisjoint(o.reads[1:]))
        ]

    @cached_property
    def sources(self) -> list[int]:
        """Where activations begin: looked-up vectors, and inputs that are numbers."""
        trace = self.trace
        tables = [o.makes[0] for o in self.lookups]
        numbers = [
            v
            for at, v in trace.inputs.items()
            if trace[v].is_floating_point() and "mask" not in at and trace[v].ndim > 1
        ]
        return tables + numbers

    @cached_property
    def live(self) -> set[int]:
        """All activations. Masks, positions, parameters and what comes of them alone are none."""
        return self.trace.below(self.sources)

    def data(self, operation: Operation) -> list[int]:
        """The activations that an operation reads."""
        return [v for v in operation.reads if v in self.live]

    def weights(self, operation: Operation) -> list[str]:
        """Names of the parameters that an operation reads, directly or through a change of layout."""
        return [name for v in operation.reads if v not in self.live and (name := self.parameter(v))]

    def parameter(self, value: int) -> str | None:
        """The name of the parameter that a value is, or was computed from alone: a part, a layout, 1 + it, its exp; it
        over its norm, and times another parameter, as weight normalization has it.
        """
        return self._of_parameters.get(value)

    @cached_property
    def _of_parameters(self) -> dict[int, str]:
        trace, found = self.trace, dict(self.trace.names)
        shapes = {name: trace[value].shape for value, name in trace.names.items()}
        for operation in trace.operations:
            names = [found[v] for v in operation.reads if v in found]
            if not names or len(names) < len(operation.reads):
                continue
            for value in operation.makes:
                own = names if len(names) == 1 else [n for n in names if shapes[n] == trace[value].shape]
                if own:
                    found.setdefault(value, own[0])
        return found

    def above(self, value: int) -> set[int]:
        """The value, and all that it was computed from."""
        if value not in self._above:
            self._above[value] = self.trace.above([value])
        return self._above[value]

    def through(self, value: int) -> int | None:
        """One step back where the maker only lays out, scales or shifts by what is not activation; else None."""
        if value not in self._steps:
            self._steps[value] = self._step_back(value)
        return self._steps[value]

    def join(self, total: int, stream: int) -> None:
        """From now on a walk back goes from a sum of two streams to the one given."""
        self.joined[total] = stream
        self._steps[total] = stream

    def _step_back(self, value: int) -> int | None:
        if value in self.joined:
            return self.joined[value]
        made = self.trace.made_by(value)
        if made is None or value in self.norms:
            return None
        data = self.data(made)
        if bare(made) in REJOINS and len(data) > 1 and len(roots := {self.root(v) for v in data}) == 1:
            return roots.pop()  # parts of one activation, put together in another way
        if len(data) == 2 and bare(made) in ("mul", "add"):
            return self._modulated(data, value)
        if len(data) != 1:
            return None
        if bare(made) in LAYOUT or (bare(made) in SCALING and self.trace[data[0]].shape == self.trace[value].shape):
            return data[0]
        return data[0] if bare(made) == "einsum" and self._scales(made, data[0], value) else None

    def _modulated(self, data: list[int], value: int) -> int | None:
        """x, of x times or plus one vector for all positions, computed of something that has none, as in adaLN."""
        trace = self.trace
        shape = trace[value].shape
        for x, other in (data, data[::-1]):
            even = len(shape) > 2 and sum(size > 1 for size in trace[other].shape[1:]) <= 1
            if even and trace[x].shape == shape != trace[other].shape and trace[other].ndim == len(shape):
                return x if all(trace[v].shape != shape for v in self.above(other) & self.live) else None
        return None

    def _scales(self, made: Operation, read: int, value: int) -> bool:
        """An einsum of an activation with a vector along one of its axes."""
        others = [v for v in made.reads if v != read]
        return self.trace[read].shape == self.trace[value].shape and all(self.trace[v].ndim <= 1 for v in others)

    def root(self, value: int) -> int:
        """Back through layout, scale and shift, as far as they go."""
        while (before := self.through(value)) is not None:
            value = before
        return value

    def back(self, value: int, until: int | None = None) -> tuple[int, list[TracedNorm]]:
        """Back through layout, scale, shift and norms, to `until` at most: where that ends, and the norms crossed."""
        crossed: list[TracedNorm] = []
        while value != until:
            before = self.through(value)
            if before is None:
                norm = self.norms.get(value)
                if norm is None:
                    break
                crossed.append(norm)
                before = norm.origin
            value = before
        return value, crossed

    def chain(self, value: int) -> Iterator[Operation]:
        """The operations that `root` walks through."""
        while (before := self.through(value)) is not None:
            made = self.trace.made_by(value)
            assert made is not None
            yield made
            value = before

    def product(self, value: int) -> Operation | None:
        """The product with a weight that made a value, seen through layout, scale and shift."""
        made = self.trace.made_by(self.root(value))
        return made if made is not None and self.is_product(made) else None

    def is_product(self, operation: Operation) -> bool:
        return not self._products.isdisjoint(operation.makes)

    @cached_property
    def _products(self) -> frozenset[int]:
        every = (o for o in self.trace.operations if o.makes and bare(o) in PRODUCTS)
        return frozenset(o.makes[0] for o in every if self.weights(o) and self.data(o))

    def unchanged(self, at: int, wanted: int, pinned: dict[int, Tensor] | None = None) -> bool:
        """Whether `wanted` stays the same where `at` is scaled. Two far scales are compared: no eps counts there."""
        trace = self.trace
        unit = trace[at] / trace[at].double().square().mean().sqrt().clamp_min(1e-30).to(trace[at].dtype)
        near, far = (trace.replay({at: unit * c} | (pinned or {}), [wanted])[0] for c in (FAR / 10, FAR))
        return different(near, far) < SAME

    def time_axis(self, read: int, total: int, axes: tuple[int, ...] = (1, 0)) -> int | None:
        """The axis of x along which what stands at the first place moves the result at others; None: none does."""
        for axis in axes:
            moved = self.moved_at(read, total, axis, 0)
            if moved is not None and moved[1:].any():
                return axis
        return None

    def moved_at(self, read: int, total: int, axis: int, place: int) -> Tensor | None:
        """Along an axis, where the result moves if x is another one at one place. None: shapes do not correspond."""
        x, result = self.trace[read], self.trace[total]
        if x.ndim < 2 + (axis > 0) or x.ndim <= axis or result.shape != x.shape or x.shape[axis] < 2:
            return None
        other = x.clone()
        part = other.select(axis, place)
        part.copy_(torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).to(x) * x.std())
        gap = (self.trace.replay({read: other}, [total])[0] - result).abs().transpose(0, axis).flatten(1).amax(1)
        return gap > ROUNDING * result.abs().max()

    def _find_norms(self) -> Iterator[TracedNorm]:
        for operation in self.trace.operations:
            if bare(operation) in NORMS and operation.reads[0] in self.live:
                yield self._norm(operation.reads[0], operation.makes[0], operation)
            elif bare(operation) in ("mul", "div") and (origin := self._standardised(operation)) is not None:
                norm = self._norm(origin, operation.makes[0], operation)
                if self.unchanged(norm.origin, norm.result):
                    yield norm
            elif bare(operation) in BOUNDED and (origin := self._sloped(operation)) is not None:
                yield self._norm(origin, operation.makes[0], operation)

    def _sloped(self, operation: Operation) -> int | None:
        """x of tanh(slope x + shift) with a trained slope, which a vector of trained weights multiplies; else None."""
        data = self.data(operation)
        if len(data) != 1 or self._affine(operation.makes[0])[0] is None:
            return None
        value, trained = data[0], False
        while (made := self.trace.made_by(value)) is not None and bare(made) in ("mul", "add", "to", "_to_copy"):
            inner = self.data(made)
            if len(inner) != 1:
                break
            trained |= bare(made) == "mul" and any(self._size(name) == 1 for name in self.weights(made))
            value = inner[0]
        return value if trained else None

    def _size(self, name: str) -> int:
        value = next(v for v, n in self.trace.names.items() if n == name)
        return self.trace[value].numel()

    def _standardised(self, operation: Operation) -> int | None:
        """What is divided by a number of its own row, as hand-written norms do it; the mean may have been taken off."""
        data = self.data(operation)
        if len(data) != 2:
            return None
        number, row = sorted(data, key=lambda v: self.unspread(v).numel())
        if not self._is_one_per_row(number, row):
            return None
        above = self.above(number)
        origin: int | None = row
        while origin is not None and origin not in above:  # a weight stands in front of the division
            origin = self._uncentred(origin) or self.through(origin)
        return None if origin is None else self._uncentred(self._casts(origin)) or origin

    def _uncentred(self, value: int) -> int | None:
        """x of x - mean(x); None of anything else."""
        made = self.trace.made_by(value)
        pair = self.data(made) if made is not None and bare(made) == "sub" else []
        return pair[0] if len(pair) == 2 and self._is_one_per_row(pair[1], pair[0]) else None

    def _is_one_per_row(self, number: int, row: int) -> bool:
        """Whether one is a number for each row of the other, along any axis."""
        small, large = self.unspread(number), self.trace[row].shape
        return len(small) == len(large) and any(s == 1 and n >= LEAST for s, n in zip(small, large, strict=True))

    def unspread(self, value: int) -> torch.Size:
        """The shape before it was spread over rows."""
        made = self.trace.made_by(value)
        if made is not None and bare(made) in ("expand", "expand_as"):
            value = made.reads[0]
        return self.trace[value].shape

    def _casts(self, value: int) -> int:
        while (made := self.trace.made_by(value)) is not None and bare(made) in ("to", "_to_copy", "alias", "clone"):
            value = made.reads[0]
        return value

    def _norm(self, origin: int, result: int, operation: Operation) -> TracedNorm:
        if bare(operation) in NORMS:
            names = [self.parameter(v) for v in operation.reads[1:]]
            weight, bias = (*names, None, None)[:2] if any(names) else self._affine(result)
            numbers = [a for a in operation.args if isinstance(a, float)]
            eps = numbers[-1] if numbers else DEFAULT_EPS.get(bare(operation))
        elif bare(operation) in BOUNDED:
            (weight, bias), eps = self._affine(result), None
        else:
            weight, bias = self._affine(result)
            weight = weight or self._weight_in_front(origin, result)
            eps = self._eps(origin, result)
        scales = bare(operation) not in BOUNDED and "batch_norm" not in operation.name
        return TracedNorm(
            origin=origin, result=result, address=operation.module, weight=weight, bias=bias, eps=eps, scales=scales
        )

    def _affine(self, result: int) -> tuple[str | None, str | None]:
        """Names of the weight and the bias that follow a hand-written norm."""
        weight = bias = None
        made = self.trace.made_by(result)
        home = made.module if made is not None else ""
        while len(readers := self.trace.read_by(result)) == 1 and bare(readers[0]) in SCALING | LAYOUT:
            names = self.weights(readers[0])
            if names and readers[0].module != home:  # a coefficient of the sum that reads it
                break
            if names and bare(readers[0]) in ("mul", "addcmul"):
                weight = weight or names[0]
            elif names and bare(readers[0]) == "add":
                bias = bias or names[0]
            elif names or len(self.data(readers[0])) != 1:
                break
            result = readers[0].makes[0]
        return weight, bias

    def between(self, start: int, end: int) -> list[Operation]:
        """The operations by which `end` was computed from `start`."""
        if (start, end) not in self._between:
            self._between[start, end] = self.trace.between([start], [end])
        return self._between[start, end]

    def _weight_in_front(self, origin: int, result: int) -> str | None:
        """The name of a norm weight that multiplies before the division."""
        made = [o for o in self.between(origin, result) if bare(o) in ("mul", "addcmul")]
        return next((name for o in made for name in self.weights(o)), None)

    def _eps(self, origin: int, result: int) -> float | None:
        """The small number added between the origin of a hand-written norm and its result."""
        for operation in self.between(origin, result):
            if bare(operation) in ("add", "clamp_min", "clamp") and prod(self.unspread(operation.makes[0])[-1:]) == 1:
                small = [a for a in operation.args[1:] if isinstance(a, float) and a >= 0]
                if small:
                    return small[0]
        return None


def form(trace: Trace, operations: Iterable[Operation], address: str = "") -> tuple[Any, ...]:
    """What operations do, whatever their numbers are: names, modules, parameters and shapes. Constants that differ with
    depth, as 1/sqrt(l), make no other form; 0 and inf do.

    Args:
        address: of the module that they are in; without it every index in an address counts as N.
    """
    did = []
    for operation in operations:
        leaves = tree_leaves((operation.args, operation.kwargs))
        read = [trace.names.get(leaf.index, "") for leaf in leaves if isinstance(leaf, Value)]
        places = [p.removeprefix(address) if address else numbered(p) for p in (operation.module, *read)]
        shapes = tuple(tuple(trace[v].shape) for v in operation.makes)
        told = tuple(_coarse(leaf) for leaf in leaves if not isinstance(leaf, Value))
        did.append((operation.name, tuple(places), told, shapes))
    return tuple(did)


def numbered(name: str | None) -> str:
    """The name with every index of a list as N: layers.N.ff2.N.weight."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "N", name or "")


def common_address(addresses: Iterable[str]) -> str:
    """The longest address that all of these lie in.

    >>> common_address(["layers.0.ffn.up", "layers.0.ffn.down"]), common_address(["a", "b"])
    ('layers.0.ffn', '')
    """
    levels = zip(*(address.split(".") for address in addresses), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _coarse(leaf: Any) -> Any:
    if isinstance(leaf, float):
        return "number" if 0 < abs(leaf) < float("inf") else leaf
    return leaf if isinstance(leaf, int | str | bool | None) else str(leaf)


def bare(operation: Operation) -> str:
    """The name of what is computed, whether in place or not."""
    return operation.name.rstrip("_")


def different(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|, 0 where both vanish."""
    scale = torch.linalg.vector_norm(b.double()).item()
    gap = torch.linalg.vector_norm((a - b).double()).item()
    return gap / scale if scale else float(gap > 0)

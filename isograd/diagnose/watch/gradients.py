"""Norms of a model's gradients as they stand: taken on the device, read in one transfer for several steps.

Nothing is hooked and nothing is changed: what is read are `p.grad` of the parameters, so it is the same for compiled
models. A sharded gradient (FSDP2, tensor parallelism) is read by shards: each process takes the norms of its own, and
one reduction of a few numbers, for several steps together, makes them those of the whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from isograd.diagnose.watch.layers import WatchedLayer
from isograd.diagnose.watch.probe import Row, whole

LayerNumbers = list[float | None]
TOGETHER = 10  # steps that are read in one transfer from an accelerator, and in one reduction of shards


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Numbers of one step; None where a layer has no gradient, or no matrix.

    Attributes:
        loss: as it was given.
        norm: Frobenius norm of all gradients of the model together.
        layers: of each layer, all its parameters together.
        matrices: of each layer's matrix alone.
        mean_abs: mean |gradient| of each layer's matrix.
        update_ratio: |W - W'| / |W'| of each layer's matrix, W' as it was when the reading before was taken.
    """

    loss: float
    norm: float
    layers: LayerNumbers
    matrices: LayerNumbers
    mean_abs: LayerNumbers
    update_ratio: LayerNumbers


class Gradients:
    """Takes norms of gradients step by step, and reads them later.

    A step is one vector on the device: norms of all gradients, sums |g| of the layers' matrices, how far these have
    moved, how long they were, the loss.

    Attributes:
        together: steps after which to read: on a CPU there is nothing to wait for.
    """

    def __init__(self, model: nn.Module, layers: Sequence[WatchedLayer], updates: bool = False) -> None:
        """`updates`: also measure how far each layer's matrix moves, for a copy of it."""
        self._parameters = list(model.parameters())
        place = {id(p): i for i, p in enumerate(self._parameters)}
        self._matrix_of = [place.get(id(layer.matrix)) for layer in layers]
        self._matrices = sorted({i for i in self._matrix_of if i is not None})
        self._sizes = [self._parameters[i].numel() for i in self._matrices]
        self._moving = self._matrices if updates else []
        self._before: list[Tensor] = []
        self._taken: list[tuple[Tensor, list[bool]]] = []
        self.sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self._one_place = len({(p.device, p.dtype) for p in self._parameters}) == 1
        low = any(p.dtype in (torch.float16, torch.bfloat16) for p in self._parameters)
        self._dtype = torch.float32 if low else None  # of the norms
        self._near = all(p.device.type == "cpu" for p in self._parameters)
        self.together = 1 if self._near and not self.sharded else TOGETHER
        self._layers = [sorted({place[id(p)] for p in layer.parameters if id(p) in place}) for layer in layers]

    @property
    def waiting(self) -> int:
        """Steps that are taken and not read yet."""
        return len(self._taken)

    @torch.no_grad()
    def take(self, loss: Tensor | float) -> None:
        """Keep the numbers of this step on the device.

        Raises:
            ValueError: no parameter has a gradient.
        """
        gradients = [p.grad for p in self._parameters]
        present = [g is not None for g in gradients]
        if not any(present):
            raise ValueError("no parameter has a gradient; call step() after loss.backward() and before zero_grad()")
        if self.sharded:
            gradients = [None if g is None else _shard(g, p) for g, p in zip(gradients, self._parameters, strict=True)]
        numbers = self._norms(gradients) + self._sums([gradients[i] for i in self._matrices]) + self._moved()
        vector = torch.stack(numbers if self._one_place else [n.to(numbers[0]) for n in numbers])
        value = whole(loss.detach()) if isinstance(loss, Tensor) else torch.tensor(float(loss))
        self._taken.append((torch.cat([vector, value.to(vector).reshape(1)]), present))

    @torch.no_grad()
    def read(self) -> list[Reading]:
        """The steps taken since, in one transfer; where gradients are sharded, every process has to call this."""
        if not self._taken:
            return []
        numbers = torch.stack([vector for vector, _ in self._taken])  # (steps, positions)
        rows = (self._reduced(numbers) if self.sharded else numbers).tolist()
        readings = [self._reading(row, present) for row, (_, present) in zip(rows, self._taken, strict=True)]
        self._taken.clear()
        return readings

    def _sums(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """sum |x| of each; on a CPU that norm takes twice as long as the sum that it is."""
        if self._near and all(x is not None and not x.is_sparse for x in tensors):
            return [x.abs().sum(dtype=self._dtype) for x in tensors if x is not None]
        return self._norms(tensors, 1)

    def _norms(self, tensors: Sequence[Tensor | None], order: int = 2) -> list[Tensor]:
        """(sum |x|^order)^(1 / order) of each, in float32 at least, all in one go; 0 for None."""
        some = [x for x in tensors if x is not None]
        if any(x.is_sparse for x in some):
            some = [x.coalesce().values() if x.is_sparse else x for x in some]
        norms = list(torch._foreach_norm(some, order, dtype=self._dtype)) if some else []
        if len(norms) == len(tensors):
            return norms
        zero, rest = norms[0].new_zeros(()) if norms else torch.zeros(()), iter(norms)
        return [zero if x is None else next(rest) for x in tensors]

    def _moved(self) -> list[Tensor]:
        """|W - W'| of each matrix, then |W'|; zeros in the first step."""
        now = [_local(self._parameters[i].detach()) for i in self._moving]
        before, self._before = self._before, [w.clone() for w in now]
        if not before:
            return self._norms([None] * 2 * len(now))
        return self._norms(torch._foreach_sub(now, before)) + self._norms(before)

    def _reduced(self, numbers: Tensor) -> Tensor:
        """Numbers of shards -> numbers of the whole: one sum over each group of processes that holds shards."""
        numbers = numbers.double()
        count, matrices = len(self._parameters), len(self._matrices)
        squared = [*range(count), *range(count + matrices, count + matrices + 2 * len(self._moving))]
        owners = [*range(count), *self._matrices, *self._moving, *self._moving]
        numbers[:, squared] = numbers[:, squared].square()
        groups: dict[Any, list[int]] = {}
        for position, owner in enumerate(owners):
            for group in _groups(self._parameters[owner]):
                groups.setdefault(group, []).append(position)
        for group, positions in groups.items():
            part = numbers[:, positions].contiguous()
            torch.distributed.all_reduce(part, group=group)
            numbers[:, positions] = part
        numbers[:, squared] = numbers[:, squared].sqrt()
        return numbers

    def _reading(self, row: list[float], present: list[bool]) -> Reading:
        count, matrices, moving = len(self._parameters), len(self._matrices), len(self._moving)
        norms = [norm if some else None for norm, some in zip(row[:count], present, strict=True)]
        sums, moved, lengths = (row[i:j] for i, j in pairwise(accumulate((count, matrices, moving, moving))))
        means = {i: x / size for i, x, size in zip(self._matrices, sums, self._sizes, strict=True)}
        ratios = {i: x / size for i, x, size in zip(self._moving, moved, lengths, strict=True) if size}
        graded = [i if i is not None and present[i] else None for i in self._matrix_of]
        return Reading(
            loss=row[-1],
            norm=_together(norms) or 0.0,
            layers=[_together([norms[i] for i in places]) for places in self._layers],
            matrices=[None if i is None else norms[i] for i in graded],
            mean_abs=[None if i is None else means[i] for i in graded],
            update_ratio=[None if i is None else ratios.get(i) for i in self._matrix_of],
        )


def row_of(step: int, reading: Reading, layers: Sequence[WatchedLayer], rate: float | None) -> Row:
    """A step: loss, norm of all gradients, the rate, and for each kind of matrix how far apart its layers lie.

    "max_min" is largest over smallest gradient norm, "first_last" mean |gradient| in the first layer over the last.
    """
    groups: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        if reading.matrices[index] is not None:
            groups.setdefault(layer.group, []).append(index)
    row: Row = {"step": step, "loss": reading.loss, "grad_norm": reading.norm}
    row |= {"max_min": {}, "first_last": {}} | ({} if rate is None else {"lr": rate})
    for group, indices in groups.items():
        if len(indices) > 1:
            norms = [reading.matrices[i] or 0.0 for i in indices]
            first, last = (reading.mean_abs[i] or 0.0 for i in (indices[0], indices[-1]))
            row["max_min"][group] = _ratio(max(norms), min(norms))
            row["first_last"][group] = _ratio(first, last)
    return row


def layers_of(step: int, reading: Reading, layers: Sequence[WatchedLayer]) -> list[Row]:
    """The layers of a step: gradient norm of all its parameters, mean |gradient| and movement of its matrix."""
    numbers = (reading.layers, reading.mean_abs, reading.update_ratio)
    names = ("gradient_norm", "gradient_mean_abs", "update_ratio")
    return [
        {"step": step, **layer.facts} | {n: v for n, v in zip(names, values, strict=True) if v is not None}
        for layer, *values in zip(layers, *numbers, strict=True)
    ]


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf


def _together(norms: Sequence[float | None]) -> float | None:
    """The norm of parts whose norms are given; None where no part has one. Not a number stays so."""
    some = [n for n in norms if n is not None]
    return math.hypot(*some) if some else None


def _shard(gradient: Any, parameter: Any) -> Tensor:
    """What this process holds of a gradient, sums that are still to be formed over processes formed first."""
    return _local(gradient.redistribute(placements=parameter.placements) if isinstance(gradient, DTensor) else gradient)


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _groups(parameter: Tensor) -> list[Any]:
    """The groups of processes over which a parameter is sharded: replicas are not counted twice."""
    if not isinstance(parameter, DTensor):
        return []
    mesh = parameter.device_mesh
    return [mesh.get_group(dim) for dim, placement in enumerate(parameter.placements) if placement.is_shard()]

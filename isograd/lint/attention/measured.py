"""One attention of a recorded forward pass, measured: which key each query sees, and how vectors reach the scores.

Scores and mixtures are read off the operations, so that hand-written, einsum and fused attentions are the same here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isograd.trace.anatomy import Anatomy
from isograd.trace.attention import FUSED, given, is_softmax, logits_of, product_of_two, query_key_value, scores_below
from isograd.trace.dataflow import SUMS, Dataflow, bare
from isograd.trace.record import Operation, Trace
from isograd.trace.sublayers import TracedSublayer

STILL = 1e-6  # of the largest entry: what another order of sums may do


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Letters for the axes of a product of two tensors, as in an einsum: "bhik,bhjk->bhij"."""

    first: str
    second: str
    made: str

    def only(self, own: str, *, shared: bool, kept: bool) -> int | None:
        """The one axis of an operand, counted from the end, that the other has too or not, and the result or not."""
        other = self.second if own == self.first else self.first
        axes = [a for a in own if (a in other) == shared and (a in self.made) == kept]
        return own.index(axes[0]) - len(own) if len(axes) == 1 else None


class MeasuredAttention:
    """The attention of one sublayer.

    Attributes:
        query, key, value: values of the trace, as the attention reads them.
        mix: the operation that mixes the values by the weights; None where it was not found.
    """

    def __init__(self, dataflow: Dataflow, sublayer: TracedSublayer, operation: Operation) -> None:
        self.dataflow = dataflow
        self.trace: Trace = dataflow.trace
        self.sublayer = sublayer
        self.operation = operation
        attended = query_key_value(dataflow, operation)
        assert attended is not None
        self.query, self.key, self.value = attended
        self.fused = FUSED in operation.name
        self.softmax = is_softmax(operation)
        self.mix = operation if self.fused else self._mix()

    @property
    def address(self) -> str:
        return self.sublayer.address

    @property
    def mixture(self) -> int | None:
        """What the weights make of the values."""
        return None if self.mix is None else self.mix.makes[0]

    @cached_property
    def scores(self) -> int | None:
        """The product of queries and keys; None within a fused attention."""
        read = self.operation.reads[0]
        product = (
            None if self.fused else product_of_two(self.dataflow, read)
        )  # below a mask that was made of scores, too
        return product if self.fused or product is not None else scores_below(self.dataflow, read)

    @property
    def width(self) -> int:
        """Of a head: the axis that the scores sum over."""
        labels = self._labels_of_scores()
        axis = None if labels is None else labels.only(labels.first, shared=True, kept=False)
        return self.trace[self.query].shape[-1 if axis is None else axis]

    @cached_property
    def given(self) -> dict[str, Any]:
        """Arguments of the operation by their names."""
        return given(self.trace, self.operation)

    @cached_property
    def weights(self) -> Tensor | None:
        """(heads of all sequences, queries, keys), in float64; None where the axes are ambiguous."""
        if self.fused:
            logits = logits_of(self.trace, self.operation).double()
            return logits.softmax(-1).reshape(-1, *logits.shape[-2:])
        labels, own = self._labels_of_mix(), self._own_labels()
        if labels is None or own is None or self.keys_axis is None:
            return None
        queries = labels.only(own, shared=False, kept=True)
        if queries is None:
            return None
        at = next(v for v in self.mix.reads if v in self.below_softmax)  # type: ignore[union-attr]
        moved = self.trace[at].double().movedim((queries, self.keys_axis), (-2, -1))
        return moved.reshape(-1, *moved.shape[-2:])

    @cached_property
    def below_softmax(self) -> set[int]:
        return self.trace.below([self.operation.makes[0]])

    @cached_property
    def keys_axis(self) -> int | None:
        """The axis of the weights that the mixture sums over, counted from the end."""
        labels, own = self._labels_of_mix(), self._own_labels()
        return None if labels is None or own is None else labels.only(own, shared=True, kept=False)

    @cached_property
    def visible(self) -> Tensor | None:
        """(heads of all sequences, queries, keys): whether a key has any weight."""
        return None if self.weights is None else self.weights.nan_to_num() > 0

    def places(self, value: int) -> int | None:
        """The axis of positions of query, key, value or mixture, counted from the end."""
        if self.fused:
            return -2
        labels = self._labels_of_mix() if value in (self.value, self.mixture) else self._labels_of_scores()
        made = self.mix if value in (self.value, self.mixture) else self.trace.made_by(self.scores or 0)
        if labels is None or made is None:
            return None
        data = self.dataflow.data(made)
        if value == self.mixture:
            own = self._own_labels() or labels.first
            axis = labels.only(own, shared=False, kept=True)
            return None if axis is None else labels.made.index(own[axis]) - len(labels.made)
        if value not in data:
            return None
        own = labels.first if data[0] == value else labels.second
        mixed = value == self.value  # the mixture sums over its positions
        return labels.only(own, shared=mixed, kept=not mixed)

    def projection(self, value: int) -> int | None:
        """What the last matrix made of which a query, key or value was laid out, rotated or normalized."""
        dataflow, above = self.dataflow, self.dataflow.above(value)
        made = [o.makes[0] for o in self.trace.operations if dataflow.is_product(o) and o.makes[0] in above]
        if not made:
            return None
        last = made[-1]
        for operation in dataflow.between(last, value):  # a low-rank adapter is one of the terms of its sum
            others = [v for v in dataflow.data(operation) if last not in dataflow.above(v)]
            if bare(operation) in SUMS and any(dataflow.product(v) is not None for v in others):
                last = operation.makes[0]
        return last

    def matrix(self, value: int) -> str | None:
        """The name of the weight that made the projection of a query, key or value."""
        made = self.projection(value)
        product = None if made is None else self.trace.made_by(made)
        if product is None:
            return None
        terms = [product, *(self.dataflow.product(v) for v in self.dataflow.data(product))]  # of a sum with an adapter
        products = [o for o in terms if o is not None and self.dataflow.is_product(o)]
        names = [name for o in products[:1] if o is product for name in self.dataflow.weights(o)]
        names = names or [name for o in products for name in self.dataflow.weights(o)]
        sizes = {n: self.trace[v].numel() for v, n in self.trace.names.items()}
        return max(names, key=lambda name: sizes[name], default=None)

    def moved(self, at: int, wanted: int, axis: int, place: int = 1) -> Tensor | None:
        """Where `wanted` changes if `at` is another one at one place of an axis; None where there is no such place."""
        x, result = self.trace[at], self.trace[wanted]
        if x.shape[axis] <= place:
            return None
        other = x.clone()
        part = other.select(axis, place)
        draw = torch.Generator().manual_seed(0)
        part.copy_(part + torch.randn(part.shape, generator=draw).to(x) * (x.std() + 1e-3))
        gap = (self.trace.replay({at: other}, [wanted])[0] - result).abs()
        return gap > STILL * result.abs().max().clamp_min(1e-30)

    def _mix(self) -> Operation | None:
        """The first product of the weights with other activations."""
        for operation in self.trace.operations:
            if bare(operation) in ("matmul", "bmm", "einsum", "baddbmm"):
                data = self.dataflow.data(operation)
                if len(data) == 2 and len(self.below_softmax.intersection(data)) == 1:
                    return operation
        return None

    def _labels_of_scores(self) -> Labels | None:
        made = None if self.scores is None else self.trace.made_by(self.scores)
        return None if made is None else labels_of(self.trace, made)

    def _own_labels(self) -> str | None:
        """Those of the weights in the mixture."""
        labels = self._labels_of_mix()
        if labels is None or self.mix is None:
            return None
        return labels.second if self.dataflow.data(self.mix)[0] == self.value else labels.first

    def _labels_of_mix(self) -> Labels | None:
        return None if self.fused or self.mix is None else labels_of(self.trace, self.mix)


def labels_of(trace: Trace, product: Operation) -> Labels | None:
    """Of a product of two tensors: batch axes, rows, columns; None where an einsum has more than two or an ellipsis."""
    if bare(product) == "einsum":
        equation = str(product.args[0]).replace(" ", "")
        parts, _, made = equation.partition("->")
        operands = parts.split(",")
        if len(operands) != 2 or "." in equation or not made:
            return None
        return Labels(first=operands[0], second=operands[1], made=made)
    ranks = [trace[v].ndim for v in product.reads[-2:]]
    if len(ranks) < 2 or min(ranks) < 2:
        return None
    batch = "abcdefgh"[: max(ranks) - 2]
    first, second = (batch[len(batch) - (rank - 2) :] + axes for rank, axes in zip(ranks, ("ik", "kj"), strict=True))
    return Labels(first=first, second=second, made=batch + "ij")


def measured_attentions(anatomy: Anatomy) -> list[MeasuredAttention]:
    """Of every sublayer that attends, in the order of running."""
    return [
        MeasuredAttention(anatomy.dataflow, sublayer, sublayer.attention)
        for sublayer in anatomy.sublayers
        if sublayer.attention is not None and query_key_value(anatomy.dataflow, sublayer.attention) is not None
    ]

"""The matrices of any model, a fused W_QKV as queries with keys and as values, each with its fans and site."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from isograd.placement import Role, Site, Stack
from isograd.trace.anatomy import Anatomy, TracedStack
from isograd.trace.attention import query_key_value
from isograd.trace.dataflow import Dataflow
from isograd.trace.sublayers import TracedSublayer


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightPart:
    """A matrix of a sublayer, or the part of a fused one.

    Attributes:
        name: of the parameter.
        rows: which outputs; None for all.
        axis: of the parameter, along which its outputs lie: 0 of nn.Linear, 1 of transformers' Conv1D.
        fan_out: outputs of one role: of a gated W_1 with its gate, the inner width.
    """

    name: str
    role: Role
    site: Site
    rows: Tensor | None
    axis: int
    fan_in: int
    fan_out: int
    width: int

    def of(self, weight: Tensor) -> Tensor:
        """The part itself, of the parameter's value."""
        return weight if self.rows is None else weight.index_select(self.axis, self.rows)


def parts(anatomy: Anatomy) -> list[WeightPart]:
    """Of all stacks, in the order of running; convolutions and what is no matrix are left out."""
    return [part for stack in anatomy.stacks for part in _of_stack(anatomy, stack)]


def _of_stack(anatomy: Anatomy, stack: TracedStack) -> Iterator[WeightPart]:
    sizes = {s.name.rstrip("0123456789 "): s.layers for s in reversed(anatomy.stacks)}
    which: Stack = "decoder" if stack.name.startswith("decoder") else "encoder"
    crossed = any(s.cross for s in anatomy.stacks)
    other = sizes.get("encoder" if which == "decoder" else "decoder", 0) if crossed else 0
    if not crossed:
        which = "decoder"  # of one stack: laws tell no encoder from a decoder
    values = {name: value for value, name in anatomy.trace.names.items()}
    for sublayer in stack.sublayers:
        kind = "ffn" if sublayer.kind == "mix" else sublayer.kind
        site = Site(
            kind=kind,
            layer=sublayer.layer,
            layers=stack.layers,
            slot=sublayer.index,
            slots=len(stack.sublayers),
            stack=which,
            other=other,
        )
        shapes = {name: anatomy.trace[values[name]] for name in sublayer.roles if name in values}
        yield from _of_sublayer(anatomy.dataflow, sublayer, site, {n: w for n, w in shapes.items() if w.ndim == 2})


def _of_sublayer(
    dataflow: Dataflow, sublayer: TracedSublayer, site: Site, of: dict[str, Tensor]
) -> Iterator[WeightPart]:
    width = dataflow.trace[sublayer.read].shape[-1]
    inner = next((max(w.shape) if min(w.shape) != max(w.shape) else width for n, w in of.items()
                  if sublayer.roles[n] == "ffn_out"), width)  # fmt: skip
    for name, weight in of.items():
        roles = sublayer.roles[name].split("+")
        axis = outputs_axis(dataflow, name, weight)
        fan_out, fan_in = weight.shape[axis], weight.shape[1 - axis]
        if len(roles) > 1:
            yield from _split(dataflow, sublayer, site, name, weight, roles, axis)
            continue
        role: Role = roles[0]  # type: ignore[assignment]
        own = min(fan_out, inner) if role == "ffn_in" else fan_out
        yield WeightPart(name=name, role=role, site=site, rows=None, axis=axis, fan_in=fan_in, fan_out=own, width=width)


def outputs_axis(dataflow: Dataflow, name: str, weight: Tensor) -> int:
    """Where outputs lie, by what the product made; in a square matrix both would do."""
    made = next((o for o in dataflow.trace.operations if dataflow.is_product(o) and name in dataflow.weights(o)), None)
    outputs = weight.shape[0] if made is None else dataflow.trace[made.makes[0]].shape[-1]
    return 0 if weight.shape[0] == outputs else 1


def _split(
    dataflow: Dataflow, sublayer: TracedSublayer, site: Site, name: str, weight: Tensor, roles: list[str], axis: int
) -> Iterator[WeightPart]:
    """Values apart from the others: no scheme tells queries from keys."""
    every = weight.shape[axis]
    rows = value_rows(dataflow, sublayer) if "value" in roles else torch.arange(0)
    if len(rows) and int(rows[-1]) >= every:  # a slice of the matrix makes them, as of one query for all keys
        return
    width = dataflow.trace[sublayer.read].shape[-1]
    rest = torch.tensor(sorted(set(range(every)) - set(rows.tolist())), dtype=torch.long)
    others = [role for role in roles if role != "value"]
    for role, own, count in ((others[0], rest, len(others)), ("value", rows, 1)):
        if len(own):
            named: Role = role  # type: ignore[assignment]
            yield WeightPart(
                name=name,
                role=named,
                site=site,
                rows=own,
                axis=axis,
                fan_in=weight.shape[1 - axis],
                fan_out=len(own) // count,
                width=width,
            )


def value_rows(dataflow: Dataflow, sublayer: TracedSublayer) -> Tensor:
    """The outputs of a fused matrix that arrive as values: they are numbered, and those that arrive read off."""
    trace = dataflow.trace
    assert sublayer.attention is not None
    attended = query_key_value(dataflow, sublayer.attention)
    assert attended is not None
    above = trace.above([attended[2]])
    made = next(o for o in reversed(trace.operations) if dataflow.is_product(o) and o.makes[0] in above)
    shape = trace[made.makes[0]].shape
    numbered = torch.arange(shape[-1], dtype=trace[made.makes[0]].dtype).expand(shape).clone()
    arrived = trace.replay({made.makes[0]: numbered}, [attended[2]])[0]
    return torch.unique(arrived.round().long().clamp(0, shape[-1] - 1))

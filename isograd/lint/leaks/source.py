"""Inputs that nothing depends on."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.leaks.inputs import CHANGED, as_given, named_inputs, others
from isograd.lint.rules import Phase, rule


@rule(Phase.DATA, "encoder-unused", hides=(Phase.MASKS, "norm-bypassed", "parameter-unused", "gradient-cut"))
def source(checked: CheckedModel) -> Iterator[Finding]:
    """An input that neither output nor loss depends on: an encoder that the decoder ignores."""
    named = named_inputs(checked)
    sequences = [n for n, v in named.items() if isinstance(v, Tensor) and v.ndim >= 2 and "mask" not in n]
    sequences = [n for n in sequences if not n.startswith(("labels", "position", "token_type"))]
    sequences = [n for n in sequences if named[n].dtype != torch.bool]  # a mask by another name
    if len(sequences) < 2:
        return
    base = _outputs(checked, checked.inputs)
    if any(s.scale.value == 0 for s in checked.anatomy.sublayers) and checked.reaching.issuperset(
        checked.trace.inputs.values()
    ):  # gates that begin at zero let nothing in yet
        return
    for name in sequences:
        try:
            each = [_outputs(checked, as_given(checked, named | {name: x})) for x in _different(checked, named[name])]
        except Exception:  # numbers that must be those, as the sizes of a grid
            continue
        if not base or any([t.shape for t in moved] != [t.shape for t in base] for moved in each):
            continue
        pairs = [pair for moved in each for pair in zip(moved, base, strict=True)]
        gap = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
        if gap <= CHANGED and _is_weighed(checked, name):
            yield Finding(
                address=name,
                measured=gap,
                message=f"another {name} leaves every output as it is: matrices are applied to it, and nothing reads"
                " what they make",
                remedy="give the decoder's cross-attention the encoder's output as keys and values",
            )


def _different(checked: CheckedModel, x: Tensor) -> list[Tensor]:
    """Other values; of ids also such as are equal elsewhere, for a model may ask only which are."""
    if x.is_floating_point() or x.ndim < 2:
        return [others(checked, x)]
    counted = torch.arange(x.shape[1]).view(1, -1, *[1] * (x.ndim - 2)).expand_as(x) % (x.max() + 1)
    return [others(checked, x), x.roll(x.shape[1] // 2, 1), counted.to(x)]


def _is_weighed(checked: CheckedModel, name: str) -> bool:
    """Whether a matrix, or a table, is applied to an input or what was made of it."""
    given = [v for at, v in checked.trace.inputs.items() if at.partition(".")[0] in (name, _number(checked, name))]
    below = checked.trace.below(given)
    applied = [o for o in (*checked.trace.operations,) if checked.dataflow.is_product(o)] + checked.dataflow.lookups
    return any(not below.isdisjoint(o.reads) for o in applied)


def _number(checked: CheckedModel, name: str) -> str:
    """The place of an input among those that stand in order."""
    names = list(inspect.signature(checked.model.forward).parameters)
    return str(names.index(name)) if name in names else name


def _outputs(checked: CheckedModel, inputs: Any) -> list[Tensor]:
    return [t for t in checked.outputs(inputs) if t.is_floating_point() and t.numel()]

"""Numbers that overflow, or are none, in one forward pass: the first module that makes them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import bare


@rule(
    Phase.VALUES, "output-not-finite", hides=(Phase.WIRING, Phase.POSITIONS, Phase.DATA, Phase.INIT, "gradient-cut",
    "gradient-zero", "attention-scale"), stops=("output-not-finite",),
)  # fmt: skip
def output(checked: CheckedModel) -> Iterator[Finding]:
    """An output that is NaN or infinite though all parameters are numbers."""
    trace = checked.trace
    outputs = [trace[v] for v in trace.outputs.values() if trace[v].is_floating_point()]
    if not any(_bad(t) for t in outputs):
        return
    for operation in trace.operations:
        made = [v for v in operation.makes if _bad(trace[v])]
        if made and not any(_bad(trace[v]) for v in operation.reads):
            count = int((~trace[made[0]].isfinite()).sum())
            empty = bare(operation) in ("softmax", "_softmax") and _empty_rows(trace[operation.reads[0]])
            why = f"{many(empty, 'row')} of scores masked in every place" if empty else "its inputs are all finite"
            yield Finding(
                code="output-not-finite",
                severity="error",
                address=operation.module,
                measured=float(count),
                message=f"NaN or infinite from {operation.name} on: {many(count, 'entry', 'entries')}; {why}",
                remedy="let every query see at least one key, itself for instance"
                if empty
                else "look at what this operation reads: a division by 0, the root of a negative number, an exp that"
                " overflows",
            )
            return


def _bad(x: Tensor) -> bool:
    """NaN or +inf; -inf is what masks hold."""
    return x.is_floating_point() and bool((x.isnan() | (x == torch.inf)).any())


def _empty_rows(scores: Tensor) -> int:
    return int((scores == -torch.inf).all(-1).sum())

"""What one forward pass shows: numbers that overflow, or are none; dropout where it should be off, or of nearly all."""

from collections.abc import Iterator

import torch
from torch import Tensor

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import RUN, Phase, rule
from isograd.trace.dataflow import bare
from isograd.trace.record import Operation, recorded

HIGH = 0.7  # of entries dropped, from which on a rate is likely to be the part that was to be kept
CHANGED = 1e-5  # of the largest output
RANDOM = ("bernoulli", "rand", "randn", "rand_like", "randn_like", "normal", "uniform", "multinomial", "exponential")
DROPOUTS = ("dropout", "native_dropout", "feature_dropout", "alpha_dropout")


@rule(Phase.REGISTERED, "random-in-eval", hides=(*RUN, "gradient-cut", "gradient-zero"))
def in_eval(checked: CheckedModel) -> Iterator[Finding]:
    """An output in eval mode that depends on the seed."""
    one, other = (checked.run(checked.inputs, seed=seed)[0] for seed in (0, 1))
    if one is None or other is None or one.shape != other.shape or not one.is_floating_point():
        return
    gap = ((one - other).abs().max() / one.abs().max().clamp_min(1e-30)).item()
    if not gap > CHANGED:
        return
    dropped = [o for o in checked.trace.operations if _rate(o)]
    sources = dropped + [o for o in checked.trace.operations if bare(o) in RANDOM]
    where = next(iter(sources), None)
    what = "dropout is still on" if dropped else "random numbers are drawn"
    yield Finding(
        severity="error" if dropped else "info",  # a part of the design, as masks that are drawn
        address=where.module if where is not None else "",
        measured=gap,
        message=f"in eval mode, two runs on the same input differ by {gap:.2g} of the largest output: {what}"
        f" ({many(len(dropped or sources), 'place')})",
        remedy="pass F.dropout(x, p, training=self.training), and dropout_p=p if self.training else 0.0 to"
        " F.scaled_dot_product_attention; nn.Dropout does it by itself",
    )


def _rate(operation: Operation) -> float:
    """The share of entries that an operation drops as it was called, 0 of any other."""
    name = bare(operation)
    if name == "scaled_dot_product_attention":
        return float(operation.kwargs.get("dropout_p", operation.args[4] if len(operation.args) > 4 else 0))
    off = name == "dropout" and not (len(operation.args) > 2 and operation.args[2])
    return 0.0 if off or name not in DROPOUTS else float(operation.args[1])


@rule(Phase.REGISTERED, "dropout-high")
def high(checked: CheckedModel) -> Iterator[Finding]:
    """A rate that drops most entries: often the part that was to be kept."""
    rates = [(rate, where) for rate, where in _rates(checked) if rate >= HIGH]
    if rates:
        rate, where = max(rates)
        yield Finding(
            severity="error" if rate >= 0.9 else "warning",
            address=where,
            measured=rate,
            message=f"in training, dropout zeroes {rate:.0%} of the entries here ({many(len(rates), 'place')})",
            remedy=f"p is the part that is dropped, not kept: p={1 - rate:.2g}" if rate < 1 else "p=1 leaves nothing",
        )


def _rates(checked: CheckedModel) -> list[tuple[float, str]]:
    """Rates of dropout in a training step, with the module that runs it."""
    twin = checked.few
    try:
        with torch.random.fork_rng(devices=[]):
            trace = recorded(twin.train(), checked.inputs)
    finally:
        twin.eval()
    return [(rate, operation.module) for operation in trace.operations if (rate := _rate(operation))]


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
            empty = bare(operation) in ("softmax", "_softmax") and int(
                (trace[operation.reads[0]] == -torch.inf).all(-1).sum()
            )
            why = f"{many(empty, 'row')} of scores masked in every place" if empty else "its inputs are all finite"
            yield Finding(
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

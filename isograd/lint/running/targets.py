"""What a loss scores each prediction against: the next token, or by mistake another, or one that the prediction reads.

The target of a position is read off the loss's gradient by the predictions: below 0 at the class that a cross-entropy
rewards, prediction minus target under a squared error.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Program
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import Dataflow, bare
from isograd.trace.record import Trace

MOST = 0.9  # of the positions that have a target
ALIKE = 0.999  # correlation of a squared error's gradient with prediction minus target
FEWEST = 4  # positions with a target
STILL = 1e-5  # of the largest prediction: what rounding may move
WORDS = {0: "its own token", 2: "the token after the next: labels are shifted twice", -1: "the token before it"}


@rule(Phase.DATA, "loss-shifted", "target-leaks", hides={"target-leaks": ("bidirectional-logits",)})
def targets(checked: CheckedModel) -> Iterator[Finding]:
    """Losses that reward another token than the next, or what the prediction has read: the prediction at position i is
    scored against the input at position i + shift, and reads it up to i + latest.
    """
    for name, given, made, (shift, share, places), (latest, later) in _scored(checked):
        ids = not checked.trace[given].is_floating_point()
        tokens, ahead = ids and checked.trace[made].shape[-1] in checked.vocabularies, shift - latest
        if tokens and not later and ahead in WORDS:
            yield Finding(
                code="loss-shifted",
                severity="error" if _shifts_itself(checked) else "info",
                address=checked.head or "",
                measured=share,
                message=f"at {share:.0%} of {places} positions the loss rewards {WORDS[ahead]}, where a causal model is"
                " to predict the next",
                remedy="cross_entropy(logits[:, :-1], ids[:, 1:]), once: in the model or in the data",
                at=made,
            )
            return
        several = len([x for x in _inputs(checked).values() if checked.trace[x].ndim >= 2]) > 1
        if ahead <= 0 and ((tokens and shift > 0) or (not tokens and several and not later)):
            where = f"{name} at the {'same' if not shift else 'next'} position"
            yield Finding(
                code="target-leaks",
                address=checked.head or name,
                measured=share,
                message=f"the loss scores each prediction against {where}, and changing it there moves the prediction:"
                " it reads what it is to predict",
                remedy="predict from positions before the target: a causal mask, or the output at the position before",
                at=made,
            )
            return


COMPARES = frozenset((
    "broadcast_tensors", "sub", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy_with_logits",
))  # fmt: skip


@rule(Phase.DATA, "loss-broadcast")
def broadcast(checked: CheckedModel) -> Iterator[Finding]:
    """A loss of predictions (n, 1) and targets (n): each prediction is compared with the targets of all."""
    trace = checked.loss_trace
    losses = [] if trace is None else [v for v in trace.outputs.values() if trace[v].ndim == 0]
    above = trace.above(losses) if trace is not None and losses else set()
    if trace is None:
        return
    for operation in trace.operations:
        shapes = [_before_spread(trace, v) for v in operation.reads[:2]]
        if bare(operation) not in COMPARES or len(shapes) < 2 or above.isdisjoint(operation.makes):
            continue
        n = max((shape[0] for shape in shapes if shape), default=0)
        if n > 1 and {(n,), (n, 1)} == set(shapes):
            yield Finding(
                address="",
                measured=float(n),
                message=f"the loss compares predictions and targets of the shapes {shapes[0]} and {shapes[1]}: they are"
                f" spread to ({n}, {n}), and each prediction is drawn to the mean of all targets",
                remedy="give both one shape: prediction.squeeze(-1), or target.unsqueeze(-1)",
            )
            return


@rule(Phase.DATA, "loss-of-probabilities", hides=("softmax-output", "initial-loss"))
def probabilities(checked: CheckedModel) -> Iterator[Finding]:
    """A cross-entropy, which applies a softmax, of what a softmax has made."""
    trace = checked.loss_trace
    for operation in () if trace is None else trace.operations:
        if bare(operation) not in ("cross_entropy", "cross_entropy_loss"):
            continue
        assert trace is not None
        made = trace.made_by(Dataflow(trace).root(operation.reads[0]))
        if made is not None and bare(made) in ("softmax", "_softmax"):
            classes = trace[operation.reads[0]].shape[-1]
            yield Finding(
                address=made.module or "",
                measured=float(classes),
                message=f"cross_entropy takes logits and got a softmax over {classes:,} classes: it applies another,"
                f" and the loss cannot fall below {math.log(math.e + classes - 1) - 1:.2f}",
                remedy="pass the logits, without softmax",
                at=made.makes[0],
            )
            return


def _before_spread(trace: Trace, value: int) -> tuple[int, ...]:
    """The shape of a value before it was expanded, as torch's losses do it."""
    made = trace.made_by(value)
    return tuple(trace[made.reads[0] if made is not None and bare(made) == "expand" else value].shape)


def _shifts_itself(checked: CheckedModel) -> bool:
    """Whether the model, and not the data, is to shift: it is given none but ids, or labels beside input_ids, as
    transformers' models are. Of targets by another name an example batch may hold what was at hand.
    """
    names = {at.partition(".")[0] for at in checked.trace.inputs}
    integers = [v for v in checked.trace.inputs.values() if not checked.trace[v].is_floating_point()]
    alike = [v for v in integers if checked.trace[v].ndim == 2 and checked.trace[v].dtype != torch.bool]
    return {"labels", "input_ids"} <= names or len(alike) == 1 or checked.loss is not None


def _inputs(checked: CheckedModel) -> dict[str, int]:
    return {at: v for at, v in checked.trace.inputs.items() if "mask" not in at}


def _scored(checked: CheckedModel) -> Iterator[tuple[str, int, int, tuple[int, float, int], tuple[int, bool]]]:
    """Inputs and predictions that a loss scores against them: `_shift` and `_reads` of both."""
    trace = checked.loss_trace
    losses = [] if trace is None else [v for v in trace.outputs.values() if trace[v].ndim == 0]
    losses = [v for v in losses if trace is not None and trace[v].is_floating_point()]
    if trace is None or not losses or checked.large:
        return
    for made in _predictions(checked, trace, losses[0]):
        leaf = trace[made].detach().clone().requires_grad_()
        try:
            (loss,) = Program(trace).run({made: leaf}, (losses[0],), None)
            (slope,) = torch.autograd.grad(loss, leaf)
        except RuntimeError:  # the loss does not depend on it alone
            continue
        read = trace.above([made])
        for name, given in _inputs(checked).items():
            if given not in read:  # labels, which only the loss reads
                continue
            more = trace[made].shape[1] - trace[given].shape[-1 if trace[given].ndim < 2 else 1]
            lead = more if more > 1 else 0  # positions of a prefix, as of a picture, before those of the ids
            found = _shift(trace[given], trace[made].detach()[:, lead:], slope[:, lead:])
            read_to = _reads(checked, given, made, slope[:, lead:], lead) if found is not None else None
            if found is not None and read_to is not None:
                yield name, given, made, found, read_to


def _predictions(checked: CheckedModel, trace: Trace, loss: int) -> list[int]:
    """Outputs with positions and what a head made, the last first."""
    above = trace.above([loss])
    own = [v for v in checked.trace.outputs.values() if v in above]
    products = [o.makes[0] for o in trace.operations if checked.dataflow.is_product(o) and o.makes[0] in above]
    found = [v for v in (*own, *products[-1:]) if trace[v].ndim == 3 and trace[v].is_floating_point()]
    for value in products[-1:]:  # (sequences * positions, classes) before it is laid out
        readers = trace.read_by(value)
        while readers and trace[value].ndim != 3 and trace[readers[0].makes[0]].numel() == trace[value].numel():
            value = readers[0].makes[0]
            readers = trace.read_by(value)
        found += [value] if trace[value].ndim == 3 else []
    return list(dict.fromkeys(found))


def _shift(given: Tensor, made: Tensor, slope: Tensor) -> tuple[int, float, int] | None:
    """By how many positions the target of a prediction lies after it, at how large a part of how many positions."""
    time = made.shape[1]
    best: tuple[int, float, int] | None = None
    if given.ndim < 2 or given.shape[0] != made.shape[0] or abs(given.shape[1] - time) > 1:
        return None
    for shift in (1, 0, 2, -1):
        low, high = max(0, -shift), min(time, given.shape[1] - shift)
        mine, own = slice(low, high), slice(low + shift, high + shift)
        scored = slope[:, mine].abs().amax(-1) > 0
        if int(scored.sum()) < FEWEST:
            continue
        if given.is_floating_point() and given.ndim == 3 and given.shape[-1] == made.shape[-1]:
            pair = torch.stack([slope[:, mine][scored].flatten(), (made[:, mine] - given[:, own])[scored].flatten()])
            share = torch.corrcoef(pair.double())[0, 1].item()
            hit = share > ALIKE
        elif not given.is_floating_point() and given.ndim == 2:
            lowest, at = slope[:, mine].min(-1)
            share = ((at == given[:, own]) & (lowest < 0))[scored].float().mean().item()
            hit = share >= MOST
        else:
            return None
        if hit and (best is None or share > best[1]):
            best = shift, share, int(scored.sum())
    return best


def _reads(checked: CheckedModel, given: int, made: int, slope: Tensor, lead: int) -> tuple[int, bool] | None:
    """How far after its own position a prediction reads the input, as far as the next; and whether it reads what stands
    later than that. The first one that the loss scores after `lead` is looked at: what stands before may be a prefix.
    """
    trace = checked.trace
    x = trace[given]
    size = trace[made].abs().max() * STILL
    places = (slope.abs().amax(-1) > 0)[:, 1 : min(x.shape[1], slope.shape[1]) - 2].nonzero()
    if not len(places):
        return None
    row, at = int(places[0, 0]), int(places[0, 1]) + 1

    def moves(first: int, last: int) -> bool:
        other = x.clone()
        part = other[:, first:last]
        fresh = part.roll(1, 0) if not x.is_floating_point() else part + torch.ones_like(part)
        other[:, first:last] = torch.where(fresh == part, x.flatten()[0], fresh)
        gap = (trace.replay({given: other}, [made])[0] - trace[made]).abs().amax(2)
        return bool(gap[row, lead + at] > size)

    latest = next((by for by in (1, 0, -1) if moves(at + by, at + by + 1)), None)
    return None if latest is None else (latest, moves(at + 2, x.shape[1]))

"""Rules about where norms and coefficients stand."""

import re
from collections import Counter
from collections.abc import Iterator

import torch

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Edit, normed
from isograd.lint.rules import RUN, Phase, rule
from isograd.lint.shortcuts import before_branch
from isograd.models import IsogradPreTrainedModel
from isograd.trace.anatomy import TracedStack
from isograd.trace.dataflow import numbered
from isograd.trace.sublayers import TracedSublayer

_NUMBERS = re.compile(r"\d+")


@rule(
    Phase.FINITE, "not-finite", hides=(*RUN, Phase.GRADIENTS, "output-not-finite", "random-in-eval"),
    stops=("not-finite",),
)  # fmt: skip
def finite(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that are no numbers: nothing else that is measured says anything."""
    doubtful = {n: p for n, p in checked.parameters.items() if not p.sum().isfinite()}
    trained = {n for n, p in checked.model.named_parameters() if p.requires_grad}
    doubtful = {
        n: p for n, p in doubtful.items() if n in trained or not (p.isfinite() | (p == -torch.inf)).all()
    }  # masks
    bad = {n: count for n, p in doubtful.items() if (count := int((~p.isfinite()).sum()))}
    if bad:
        others = f", and {many(len(bad) - 1, 'more parameter')}" if len(bad) > 1 else ""
        yield Finding(
            address=next(iter(bad)),
            measured=float(sum(bad.values())),
            message=f"NaN or infinite: {many(next(iter(bad.values())), 'entry', 'entries')}{others}",
            remedy="go back to a checkpoint without them, or fill what torch.empty has left",
        )


@rule(Phase.WIRING, "final-norm-missing", suspicions=True)
def final_norm(checked: CheckedModel) -> Iterator[Finding]:
    """A stack whose last sum reaches the head without a norm."""
    for stack in checked.anatomy.stacks:
        last = stack.sublayers[-1]
        alone = stack.layers < 2 or len({s.total for s in stack.sublayers}) == 1  # one sum, or one layer, is no stack
        if alone or _goes_on(checked, stack) or last.design:  # how other streams are closed is the design's business
            continue
        with_norms = [s for s in stack.sublayers if not {"pre", "out"}.isdisjoint(s.norms)]
        bare = not stack.final and "post" not in last.norms and len(with_norms) * 2 > len(stack.sublayers)
        outputs = set(checked.trace.outputs.values()) & checked.trace.below([last.total]) if bare else set()
        outputs -= {last.total}
        lost = outputs and all(checked.dataflow.unchanged(last.total, v) for v in outputs)  # by a norm further on
        if bare and not lost:
            rms = checked.trace[last.total].double().square().mean().sqrt().item()
            yield Finding(
                address=last.address,
                measured=rms,
                message=f"the sum after the last of {stack.layers} {last.placement} layers is read without a norm"
                f" (its RMS is {rms:.3g}, and grows with depth)",
                remedy="put a norm after the last layer, as TransformerEncoder(..., norm=LayerNorm(d)) does",
                edit=Edit(says="a norm after the last layer", values={last.total: normed()}),
            )


@rule(Phase.WIRING, "placement-mixed", suspicions=True)
def mixed(checked: CheckedModel) -> Iterator[Finding]:
    """Sublayers of one kind and stack whose placement is not that of most; isograd's own follow a rule with a name."""
    if isinstance(checked.model, IsogradPreTrainedModel):
        return
    for stack in checked.anatomy.stacks:
        for kind in dict.fromkeys(s.kind for s in stack.sublayers):
            peers = [s for s in stack.sublayers if s.kind == kind]
            counts = Counter(s.placement for s in peers)
            usual = counts.most_common(1)[0][0]
            names = {_NUMBERS.sub("N", s.address) for s in peers if s.placement == usual}
            odd = [s for s in peers if s.placement != usual]
            first = [s.index for s in odd] == [1] and odd[0].placement == "none"  # as FT-Transformer's, which reads x
            if first or _first_layers(stack, usual) or _in_every_layer(odd, peers):  # Mix-LN's; a macaron layer's last
                continue
            if any(_NUMBERS.sub("N", s.address) in names for s in odd):  # else every layer has both, under two names
                others = ", ".join(sorted({s.placement for s in odd}))
                edit = before_branch(checked, odd) if usual == "pre-ln" else None
                yield Finding(
                    severity="warning" if edit else "info",
                    address=odd[0].address,
                    measured=float(len(odd)),
                    message=f"{len(odd)} of {len(peers)} {kind} sublayers of the {stack.name} are {others}, the others"
                    f" {usual}: layers {_listed(odd)}",
                    remedy=f"make them {usual}, unless layers are mixed on purpose (as in Mix-LN)",
                    edit=edit,
                )


def _first_layers(stack: TracedStack, usual: str) -> bool:
    """Whether the sublayers of another placement are whole layers, two or more, the first ones and no others."""
    odd = {s.layer for s in stack.sublayers if s.placement != usual}
    same = {s.layer for s in stack.sublayers if s.placement == usual}
    others = {s.placement for s in stack.sublayers} - {usual}
    return len(odd) > 1 and len(others) == 1 and not odd & same and max(odd) == len(odd)


def _in_every_layer(odd: list[TracedSublayer], peers: list[TracedSublayer]) -> bool:
    """Whether those of another placement have a name of their own in each of several layers: layers.N.ff2."""
    names = Counter(numbered(s.address) for s in odd)
    others = {numbered(s.address) for s in peers if s not in odd}
    return min(names.values(), default=0) > 1 and names.keys().isdisjoint(others)


def _goes_on(checked: CheckedModel, stack: TracedStack) -> bool:
    """Whether another stack begins with what this one gives (a stage), other than by cross-attention."""
    below = checked.trace.below([stack.sublayers[-1].total])
    return any(other is not stack and other.first in below for other in checked.anatomy.stacks)


def _listed(sublayers: list[TracedSublayer]) -> str:
    layers = [str(s.layer) for s in sublayers]
    return ", ".join(layers if len(layers) <= 8 else [*layers[:7], "..."])

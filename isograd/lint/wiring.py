"""Rules about where norms and coefficients stand."""

import inspect
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

OTHER_KIND = re.compile(
    r"^(pixel|image|video|audio|speech|protein|vision|visual|cross_attention_states|input_features|input_values|high_res)"
)
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
            code="not-finite",
            severity="error",
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
        if bare and _bare(checked, last.total) and not _scale_is_lost(checked, last.total):
            rms = checked.trace[last.total].double().square().mean().sqrt().item()
            yield Finding(
                code="final-norm-missing",
                severity="error",
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
                    code="placement-mixed",
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


@rule(Phase.GRADIENTS, "parameter-unused", hides=("placement-mixed", "gradient-cut", "shortcut-doubled", "init-std"))
def unread(checked: CheckedModel) -> Iterator[Finding]:
    """Norm weights and coefficients that no operation reads, those whose names differ by numbers only as one.

    Vectors of tokens that these inputs do not hold (a mask's) are none, nor are biases of matrices that are unread
    themselves: such a module waits for another call.
    """
    trace = checked.trace
    alike: dict[str, list[str]] = {}
    for value, name in trace.names.items():
        tensor = trace[value]
        idle = any(name.startswith(f"{address}.") for address in checked.anatomy.idle)
        idle |= _beside_idle(checked, name) or waits(checked)
        unused = idle or any(word in name for word in ("token", "mask")) or _in_unread_module(checked, name)
        if trace.readers.get(value) or not tensor.numel() or unused or (checked.routed and _has_twins(checked, name)):
            continue
        if tensor.squeeze().ndim <= 1:
            alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    for names in alike.values():
        count = checked.parameters[names[0]].numel()
        entries = many(count, "entry", "entries")
        others = f", nor {len(names) - 1} more of this name in other layers" if len(names) > 1 else ""
        yield Finding(
            code="parameter-unused",
            severity="error",
            address=names[0],
            measured=float(count),
            message=f"nothing reads this parameter of {entries}{others}: it is created and never applied",
            remedy="apply it where it was meant to act, or remove it with the option that creates it",
        )


def _goes_on(checked: CheckedModel, stack: TracedStack) -> bool:
    """Whether another stack begins with what this one gives (a stage), other than by cross-attention."""
    below = checked.trace.below([stack.sublayers[-1].total])
    return any(other is not stack and other.first in below for other in checked.anatomy.stacks)


def _bare(checked: CheckedModel, value: int) -> bool:
    """Whether a product with weights, or the output, reads a value with no norm between."""
    outputs = set(checked.trace.outputs.values())
    todo, seen = [value], {value}
    while todo:
        at = todo.pop()
        if at in outputs:
            return True
        for operation in checked.trace.read_by(at):
            if checked.dataflow.is_product(operation):
                return True
            new = [m for m in operation.makes if m not in seen and m not in checked.dataflow.norms]
            seen.update(new)
            todo += new
    return False


def _scale_is_lost(checked: CheckedModel, value: int) -> bool:
    """Whether the outputs stay the same where a sum is scaled: a norm comes after the next product."""
    if _is_normed(checked, value):  # as by a BatchNorm, which in evaluation keeps the scale
        return True
    outputs = [v for v in checked.trace.outputs.values() if value in checked.dataflow.above(v) and v != value]
    return bool(outputs) and all(checked.dataflow.unchanged(value, v) for v in outputs)


def _is_normed(checked: CheckedModel, value: int) -> bool:
    """Whether every way from a value to an output goes through a norm, if after the next product."""
    every = set(checked.trace.outputs.values())
    outputs = {v for v in every if checked.dataflow.root(v) != checked.dataflow.root(value)}  # offered beside
    if outputs.isdisjoint(checked.trace.below([value])):
        return False
    todo, seen = [value], {value}
    for at in todo:
        if at in outputs:
            return False
        new = [m for o in checked.trace.read_by(at) for m in o.makes if m not in checked.dataflow.norms]
        todo += [m for m in new if m not in seen]
        seen.update(new)
    return True


def _in_unread_module(checked: CheckedModel, name: str) -> bool:
    owner = name.rpartition(".")[0]
    values = {n: v for v, n in checked.trace.names.items()}
    beside = [n for n in values if n.rpartition(".")[0] == owner and checked.trace[values[n]].ndim >= 2]
    return any(not checked.trace.readers.get(values[n]) for n in beside)


def _beside_idle(checked: CheckedModel, name: str) -> bool:
    """Whether the parameter's module was not run, nor one with matrices beside it: a cross-attention and its norm."""
    owner = name.rpartition(".")[0]
    around = owner.rpartition(".")[0]
    return owner not in checked.trace.ran and any(a.rpartition(".")[0] == around for a in checked.anatomy.idle)


def waits(checked: CheckedModel) -> bool:
    """Whether parts of a model wait for inputs of another kind that it takes and was not given."""
    taken = inspect.signature(checked.model.forward).parameters
    given = {at.partition(".")[0] for at in checked.trace.inputs}
    return any(OTHER_KIND.search(name) and name not in given for name in taken)


def waits_for(checked: CheckedModel, name: str) -> bool:
    """Whether a parameter's module is called after an input that forward takes and was not given, as query_global after
    global_attention_mask.
    """
    common = {"attention", "mask", "masks", "query", "key", "value", "input", "ids", "embeds", "out", "proj", "output"}
    own = set(name.split(".")[-2].split("_")) - common if "." in name else set()
    given = {at.partition(".")[0] for at in checked.trace.inputs}
    optional = [n for n in inspect.signature(checked.model.forward).parameters if n not in given]
    return any(own & set(n.split("_")) for n in optional if n.endswith(("mask", "ids", "embeds")))


def _has_twins(checked: CheckedModel, name: str) -> bool:
    """Whether the same parameter of a sister module, in a list, was read."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdecimal():
            for value, other in checked.trace.names.items():
                alike = other.split(".")
                same = len(alike) == len(parts) and alike[:i] == parts[:i] and alike[i + 1 :] == parts[i + 1 :]
                if same and alike[i] != part and checked.trace.readers.get(value):
                    return True
    return False


def _listed(sublayers: list[TracedSublayer]) -> str:
    layers = [str(s.layer) for s in sublayers]
    return ", ".join(layers if len(layers) <= 8 else [*layers[:7], "..."])

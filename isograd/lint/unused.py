"""What a model has and no output depends on: parameters that nothing reads, results that are left, idle buffers."""

import inspect
import re
from collections.abc import Iterator

from torch import nn

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import numbered

OTHER_KIND = re.compile(
    r"^(pixel|image|video|audio|speech|protein|vision|visual|cross_attention_states|input_features|input_values|high_res)"
)
COMMON = {"attention", "mask", "masks", "query", "key", "value", "input", "ids", "embeds", "out", "proj", "output"}
KEPT = re.compile(
    r"(^|[._])(running_\w+|num_batches_tracked|position_ids|\w*mask\w*|bias|inv_freq|\w*cach\w*|step\w*)$"
)


@rule(Phase.GRADIENTS, "parameter-unused", hides=("placement-mixed", "gradient-cut", "shortcut-doubled", "init-std"))
def parameters(checked: CheckedModel) -> Iterator[Finding]:
    """Parameters that nothing reads, and those whose result no output depends on.

    An error where they are vectors, or others of their module, or their likes in other layers, are used.
    """
    trace = checked.trace
    values = {name: value for value, name in trace.names.items() if trace[value].numel()}
    likes = {numbered(name) for name, value in values.items() if value in checked.reaching}
    homes = {_around(n) for s in checked.anatomy.sublayers for n in s.parameters} - {""}
    lost = [n for n, v in values.items() if v not in checked.reaching and not _waits(checked, n, likes)]
    vectors = {n for n in lost if trace[values[n]].squeeze().ndim <= 1}
    unread = [n for n in lost if not trace.readers.get(values[n]) and (n in vectors or n.endswith("weight"))]
    left = [n for n in lost if trace.readers.get(values[n]) and not checked.routed]
    left = [n for n in left if n not in vectors or numbered(n) in likes]  # a norm for a head that is elsewhere
    sure = [n for n in unread if n in vectors or numbered(n) in likes or _around(n) in homes]
    all_given = len(_given(checked)) >= len(inspect.signature(checked.model.forward).parameters)
    if not sure and (checked.config is not None or not all_given):  # others may be for other calls
        unread = []
    for found, what, remedy in (
        (
            sure or [n for n in unread if not _has_options(checked.model, n)],
            "nothing reads this parameter in a forward pass",
            "apply it where it was meant to act: each layer in the loop of forward, each projection once; or remove it",
        ),
        (
            [n for n in left if numbered(n) in likes] or left,
            "no output depends on what this parameter makes: the result is computed and left",
            "use the result, as x = layer(x) hands that of each layer to the next; or do not compute it",
        ),
    ):
        if found:
            certain = found[0] in sure or numbered(found[0]) in likes
            yield Finding(
                severity="error" if certain else "warning",
                address=found[0],
                measured=float(len(found)),
                message=f"{what} ({many(len(found), 'parameter')})",
                remedy=remedy,
            )


def _around(name: str) -> str:
    """The module around that of a parameter."""
    return name.rpartition(".")[0].rpartition(".")[0]


def _given(checked: CheckedModel) -> set[str]:
    return {at.partition(".")[0] for at in checked.trace.inputs}


def _waits(checked: CheckedModel, name: str, likes: set[str]) -> bool:
    """Whether a parameter may be for another call: an expert that no token was sent to, a part for inputs of another
    kind, or called after one that was not given, as query_global after global_attention_mask; a vector for tokens that
    are not there, or of a module that was not run.
    """
    trace, owner = checked.trace, name.rpartition(".")[0]
    missing = [n for n in inspect.signature(checked.model.forward).parameters if n not in _given(checked)]
    optional = {word for n in missing if n.endswith(("mask", "ids", "embeds")) for word in n.split("_")}
    if (checked.routed and numbered(name) in likes) or optional & set(owner.rpartition(".")[2].split("_")) - COMMON:
        return True
    if owner not in trace.ran and any(OTHER_KIND.search(n) for n in missing):
        return True
    if checked.parameters[name].squeeze().ndim > 1:
        return False
    idle = owner not in trace.ran and any(
        f"{name}.".startswith(f"{a}.") or a.rpartition(".")[0] == _around(name) for a in checked.anatomy.idle
    )
    beside = [v for v, n in trace.names.items() if n.rpartition(".")[0] == owner and trace[v].ndim >= 2]
    return idle or any(word in name for word in ("token", "mask")) or any(not trace.readers.get(v) for v in beside)


def _has_options(model: nn.Module, name: str) -> bool:
    """Whether a module inside the model and around a parameter may be called with more than it was."""
    around = name.split(".")[:-2]
    modules = [model.get_submodule(".".join(around[: i + 1])) for i in range(len(around))]
    forwards = [inspect.signature(m.forward).parameters for m in modules if type(m).forward is not nn.Module.forward]
    return any(p.default is None for taken in forwards for p in taken.values())


@rule(Phase.GRADIENTS, "buffer-unused")
def idle_buffer(checked: CheckedModel) -> Iterator[Finding]:
    """Buffers of modules that run, which nothing reads in any form."""
    if checked.config is not None or checked.large:
        return
    trace = checked.trace
    for value, name in trace.buffers.items():
        home, _, own = name.rpartition(".")
        module = checked.model.get_submodule(home)
        kind = type(module).__module__
        x = trace[value]
        filled = x.numel() > 1 and bool((x != x.flatten()[0]).any())  # not a place to write to
        unread = not trace.readers.get(value) and filled and not KEPT.search(name)
        if unread and (home in trace.ran or not home) and not kind.startswith(("torch.", "transformers.")):
            yield Finding(
                severity="warning",
                address=name,
                measured=float(trace[value].numel()),
                message=f"nothing reads the buffer {own} in a forward pass, though its module runs",
                remedy=f"use self.{own} where it was meant to act, or remove it",
            )
            return

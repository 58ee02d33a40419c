"""What is looked at of a model that is too large to be run whole dozens of times.

Every layer is recorded once. Experiments then run on `few_layers`: one layer of each kind, the first two and the last,
with what lies between handing its input on. Layers are of one kind that did the same operations with parameters that
are zero, trained and tied in the same places.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from isograd.trace.dataflow import form
from isograd.trace.record import Trace, anything, arguments, fitted

LISTS = (nn.ModuleList, nn.Sequential)


def few_layers(twin: nn.Module, trace: Trace, inputs: Any) -> int:
    """Make layers of `twin` that are like others hand on what they read; how many they are, 0 where that fails.

    Args:
        twin: a copy of the recorded model. Parameters and addresses stay as they are.
        trace: of one pass through it on `inputs`.
    """
    alike = dict(_alike(twin, trace))
    try:
        hands = _hands_on(twin, inputs, alike)
        for address, hand in hands.items():
            alike[address].forward = hand
        if hands and not _answers_alike(twin, trace, inputs):
            raise ValueError("an output of another shape")
    except Exception:  # a layer may be called in any way; then all of them run
        for module in alike.values():
            vars(module).pop("forward", None)
        return 0
    return len(hands)


def _alike(model: nn.Module, trace: Trace) -> Iterator[tuple[str, nn.Module]]:
    """Items of the outermost lists that are like an earlier one; never the first two or the last."""
    inside: tuple[str, ...] = ()
    for address, module in model.named_modules():
        if not isinstance(module, LISTS) or address.startswith(inside):
            continue
        items = {f"{address}.{name}" if address else name: item for name, item in module.named_children()}
        known: set[Any] = set()
        for at, (name, item) in enumerate(items.items()):
            kind = _kind(trace, name, item)
            if kind in known and 1 < at < len(items) - 1:
                inside += (f"{name}.",)
                yield name, item
            known.add(kind)


def _kind(trace: Trace, address: str, module: nn.Module) -> tuple[Any, ...]:
    """What a module did, which parameters it has and which of them are zero, and what its parts of torch.nn are set to,
    as a rate of dropout.
    """
    ran = [o for o in trace.operations if o.module == address or o.module.startswith(f"{address}.")]
    held = [(n, tuple(p.shape), p.requires_grad, anything(p)) for n, p in module.named_parameters()]
    parts = [m for m in module.modules() if type(m).__module__.startswith("torch.nn")]
    settings = [tuple(v for v in vars(m).values() if isinstance(v, int | float | str)) for m in parts]
    return type(module), form(trace, ran, address), tuple(held), tuple(settings)


def _hands_on(twin: nn.Module, inputs: Any, alike: dict[str, nn.Module]) -> dict[str, Callable[..., Any]]:
    """By address, of layers whose output is as their input: a function that returns the input in its place."""
    found: dict[str, Callable[..., Any]] = {}
    hooks = []
    for address, module in alike.items():

        def note(_: Any, args: Any, kwargs: Any, made: Any, address: str = address) -> None:
            hand = _hand(args, kwargs, made)
            if hand is not None:
                found[address] = hand

        hooks.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        _run(twin, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _hand(args: Any, kwargs: Any, made: Any) -> Callable[..., Any] | None:
    """What returns its arguments in the form of `made`: for each tensor the argument itself, or the first like it."""
    given = tree_flatten((args, kwargs))[0]
    leaves, form = tree_flatten(made)
    places = [_place(leaf, given) for leaf in leaves]
    known = [at for at in places if at is not None]
    if not any(isinstance(leaf, Tensor) for leaf in leaves) or len(known) < len(places):
        return None
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def hand(*args: Any, **kwargs: Any) -> Any:
        now = tree_flatten((args, kwargs))[0]
        return tree_unflatten([leaf if at == -1 else now[at] for at, leaf in zip(known, constants, strict=True)], form)

    return hand


def _place(leaf: Any, given: list[Any]) -> int | None:
    """Of the argument that a part of an output is, or is like; -1 of a constant."""
    same = next((at for at, one in enumerate(given) if one is leaf and not isinstance(leaf, int | float | None)), None)
    if same is not None or not isinstance(leaf, Tensor):
        return same if same is not None else -1 if isinstance(leaf, int | float | str | None) else None
    like = (at for at, one in enumerate(given) if isinstance(one, Tensor) and one.is_floating_point())
    return next((at for at in like if given[at].shape == leaf.shape and given[at].dtype == leaf.dtype), None)


def _answers_alike(twin: nn.Module, trace: Trace, inputs: Any) -> bool:
    made = [tuple(t.shape) for t in tree_leaves(_run(twin, inputs)) if isinstance(t, Tensor)]
    return sorted(made) == sorted(tuple(trace[v].shape) for v in trace.outputs.values())


def _run(twin: nn.Module, inputs: Any) -> Any:
    args, kwargs = arguments(fitted(twin, inputs))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        made = twin(*args, **kwargs)
    return made.to_tuple() if hasattr(made, "to_tuple") else made

"""What is looked at of a model that is too large to be run whole dozens of times.

Every layer is recorded once. Experiments then run on `few_layers`: one layer of each kind, the first two and the last,
with what lies between handing its input on. Layers are of one kind that did the same operations with parameters that
are zero, trained and tied in the same places.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from transformers import PretrainedConfig

from isograd.errors import ModelError, command
from isograd.machine import free_memory
from isograd.trace.dataflow import form
from isograd.trace.record import Trace, anything, arguments, fitted

LISTS = (nn.ModuleList, nn.Sequential)
VOCABULARY = 2048  # entries of the tables of a model of which a part is built
_DEPTH = ("layer", "depth", "block")  # in names of settings that may hold the number of layers
Build = Callable[[PretrainedConfig], nn.Module]


def must_be_held(count: int, alone: str = "") -> None:
    """Refuse a model that the memory here does not hold in float32 with what a pass through it needs.

    Args:
        alone: the configuration that can be looked at instead.

    Raises:
        ModelError: in one line.
    """
    needed, free = 1.7 * 4 * count, free_memory()
    if needed > free:
        instead = f"; its configuration alone can be checked: {command('check', alone)}" if alone else ""
        raise ModelError(
            f"{count / 1e9:,.1f}B parameters take {needed / 1e9:,.0f} GB in float32, and {free / 1e9:,.0f} GB are free"
            f" here{instead}"
        )


def without_values(build: Build, config: PretrainedConfig) -> nn.Module:
    """The model on the meta device, where it takes no memory and no time."""
    with torch.device("meta"):
        return build(copy.deepcopy(config))


def size_of(build: Build, config: PretrainedConfig) -> int:
    """How many parameters the model has."""
    return sum(p.numel() for p in without_values(build, config).parameters())


def few_of_each(build: Build, config: PretrainedConfig) -> tuple[PretrainedConfig, str]:
    """The configuration of a model with one layer of each kind at full width and a part of its vocabulary, and in words
    what it leaves out. Layers are of one kind whose parameters have the same names and shapes, and for which lists in
    the configuration say the same.

    Raises:
        ModelError: no number of layers is found in the configuration.
    """
    small, said = copy.deepcopy(config), list[str]()
    depths = {len(items): _kinds(items) for items in _stacks(without_values(build, config))}
    for part in _parts(small):
        for name, value in list(vars(part).items()):
            if isinstance(value, int | list | tuple) and (new := _fewer(name, value, depths, _parts(config))) != value:
                setattr(part, name, new)
    built = without_values(build, small)
    for before, after in zip(_stacks(without_values(build, config)), _stacks(built), strict=False):
        said += [f"{len(before) - len(after)} of {len(before)} layers"] if len(after) < len(before) else []
    words = max((getattr(part, "vocab_size", None) or 0 for part in _parts(config)), default=0)
    said += [f"{words - VOCABULARY:,} of {words:,} tokens"] if words > VOCABULARY else []
    if not said:
        raise ModelError("no setting of the configuration is the number of its layers: none can be left out")
    return small, f"{' and '.join(said)}, like those that were: a configuration alone of this size is built in part"


def _stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The outermost lists of layers."""
    found: list[tuple[str, nn.ModuleList]] = []
    for address, module in model.named_modules():
        if (
            isinstance(module, nn.ModuleList)
            and len(module) > 1
            and not any(address.startswith(f"{outer}.") for outer, _ in found)
        ):
            found.append((address, module))
    return [module for _, module in found]


def _kinds(layers: nn.ModuleList) -> list[Any]:
    return [(type(item), tuple((n, tuple(p.shape)) for n, p in item.named_parameters())) for item in layers]


def _parts(config: PretrainedConfig) -> list[PretrainedConfig]:
    return [config, *(inner for v in vars(config).values() if isinstance(v, PretrainedConfig) for inner in _parts(v))]


def _fewer(name: str, value: Any, depths: dict[int, list[Any]], every: list[PretrainedConfig]) -> Any:
    """What a setting is in the small model: a number of layers, a list with an entry a layer, or what names tokens."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list | tuple) and len(value) in depths:
        return value[: _enough(depths[len(value)], every)]
    if name.endswith("vocab_size"):
        return min(value, VOCABULARY)
    if name.endswith(("_token_id", "_token_index")):
        ids = [min(one, VOCABULARY - 1) for one in (value if isinstance(value, list | tuple) else [value])]
        return ids if isinstance(value, list | tuple) else ids[0]
    of_depth = isinstance(value, int) and value in depths and any(word in name for word in _DEPTH)
    return _enough(depths[value], every) if of_depth else value


def _enough(kinds: list[Any], every: list[PretrainedConfig]) -> int:
    """Layers from the first on that hold one of each kind, two at least."""
    lists = [v for part in every for v in vars(part).values() if isinstance(v, list | tuple) and len(v) == len(kinds)]
    marks = [repr(row) for row in zip(kinds, *lists, strict=True)]
    return max(2, *(marks.index(mark) + 1 for mark in set(marks)))


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

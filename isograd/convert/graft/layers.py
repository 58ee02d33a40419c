"""More layers: new ones that write nothing, so that the model computes what it did. Fewer: which ones, by how far the
stream turns over them and by the loss without them.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from isograd.convert.graft.found import GraftSubject, State, rebuilt
from isograd.convert.graft.moves import How, Moved, New, whole
from isograd.convert.graft.ours import ours, placed
from isograd.convert.graft.text import Text, loss_on
from isograd.errors import GraftError, many
from isograd.models import IsogradPreTrainedModel
from isograd.placement import Learned, Residual, Site
from isograd.trace.sublayers import TracedSublayer

Order = list[tuple[int, bool]]  # each layer of the result: the old one that it comes of, whether it is new
_NEW: dict[New, str] = {
    "copy": "copies of the layer before",
    "init": "as the class initializes them",
    "gate": "copies with a gate at 0",
}


def layers(subject: GraftSubject, value: str, how: How) -> Moved:
    """more, which write 0 at first (exact); or fewer, by their use (measured)"""
    count, now = whole(value, "layers"), subject.layers.count
    if count == now:
        raise GraftError(f"layers={count}: the model has {now}")
    if count < now:
        return drop(subject, count, how)
    return insert(subject, count, how)


def insert(subject: GraftSubject, count: int, how: How) -> Moved:
    """New layers among the old ones, `count` in all, which write 0.

    Raises:
        GraftError: a layer that writes nothing is no identity here, with the reason.
    """
    if how.new == "gate":
        return _gated(GraftSubject(ours(subject.model)), count, how)
    layers = subject.layers
    order = places(layers.count, count - layers.count, how.insert)
    sources = {source for source, is_new in order if is_new}
    silent = {name: value for i in sorted(sources) for s in layers.sublayers[i] for name, value in silenced(subject, s)}
    fresh = {i: _initialized(subject, i) for i in sources} if how.new == "init" else {}

    def new(name: str, source: int, rest: str, value: Tensor) -> Tensor:
        if name in silent:
            return torch.full_like(value, silent[name])
        return fresh[source][rest].clone() if source in fresh and rest in fresh[source] else value.clone()

    made = arranged(subject, order, new)
    return Moved(model=made, said=_said(order, layers.count, _NEW[how.new]))


def arranged(subject: GraftSubject, order: Order, new: Callable[[str, int, str, Tensor], Tensor]) -> PreTrainedModel:
    """The model with its layers in another order, some of them new: `new` gives a parameter of such a layer, of its
    old name, its old layer, its name in the layer and its old value.
    """
    state = rearranged(subject, order, new)
    own = [source for source, _ in order]
    if isinstance(subject.model, IsogradPreTrainedModel):
        name = subject.model.config.placement
        return placed(subject.model, name, lambda site, before: before, state, sources=own)
    return rebuilt(subject.model, state, subject.layers.changes(subject.config, own))


def rearranged(subject: GraftSubject, order: Order, new: Callable[[str, int, str, Tensor], Tensor]) -> State:
    """The weights of `arranged`."""
    layers, state = subject.layers, State()
    for name, value in subject.state.items():
        place = layers.place(name)
        if place is None:
            state[name] = value
            continue
        for at, (source, is_new) in enumerate(order):
            if source == place[0]:
                state[layers.at(at) + place[1]] = new(name, source, place[1], value) if is_new else value
    return state


def _gated(subject: GraftSubject, count: int, how: How) -> Moved:
    """Copies whose branches are multiplied by a trained number, 0 at first."""
    layers, model = subject.layers, subject.model
    assert isinstance(model, IsogradPreTrainedModel)
    order = places(layers.count, count - layers.count, how.insert)
    for reason in (_not_identity(s) for source, is_new in order if is_new for s in layers.sublayers[source]):
        if reason:
            raise GraftError(f"{reason}; a layer that writes nothing would change the function")

    def rule(site: Site, before: Residual) -> Residual:
        is_new = order[site.layer - 1][1]
        return replace(before, scale=Learned(init=0.0, shape="scalar")) if is_new else before

    state = rearranged(subject, order, lambda name, source, rest, value: value.clone())
    name = f"{model.config.placement}-gated"
    made = placed(model, name, rule, state, sources=[source for source, _ in order])
    return Moved(model=made, said=_said(order, layers.count, _NEW["gate"]))


def _said(order: Order, count: int, kind: str) -> str:
    new = [str(i + 1) for i, (_, is_new) in enumerate(order) if is_new]
    verbs = ("is", "writes") if len(new) == 1 else ("are", "write")
    return (
        f"{count} to {many(len(order), 'layer')}: {', '.join(new)} {verbs[0]} new ({kind}), and {verbs[1]} 0 at first"
    )


def places(count: int, more: int, insert: str) -> Order:
    """The layers of the result, each as (the old layer, whether it is new).

    >>> places(2, 2, "even")
    [(0, False), (0, True), (1, False), (1, True)]
    >>> [source for source, is_new in places(3, 1, "even") if is_new]
    [1]
    >>> places(3, 2, "top"), places(3, 1, "bottom")
    ([(0, False), (1, False), (2, False), (1, True), (2, True)], [(0, True), (0, False), (1, False), (2, False)])
    """
    old = [(i, False) for i in range(count)]
    if insert == "top":
        return old + [(max(0, count - more) + i % count, True) for i in range(more)]
    if insert == "bottom":
        return [(i % count, True) for i in range(more)] + old
    before = [(i * more + count // 2) // count for i in range(count + 1)]  # so many new ones before layer i
    after = [b - a for a, b in pairwise(before)]
    return [one for i in range(count) for one in [(i, False), *[(i, True)] * after[i]]]


def silenced(subject: GraftSubject, sublayer: TracedSublayer) -> list[tuple[str, float]]:
    """The parameters that make a branch write 0, and the number that each of them takes: a trained scale, else the norm
    after the last projection, else that projection itself.

    Raises:
        GraftError: x + 0 is not x here.
    """
    if reason := _not_identity(sublayer):
        raise GraftError(f"{sublayer.address}: {reason}; a layer that writes nothing would change the function")
    if sublayer.scale.learned:
        return _zero(subject, sublayer, list(sublayer.scale.learned))
    for norm in sublayer.norms.get("out", []):
        if norm.weight:
            return _zero(subject, sublayer, [norm.weight, *([norm.bias] if norm.bias else [])])
    product = subject.product(sublayer)
    after = subject.dataflow.between(product.makes[0], sublayer.total)
    names = [n for o in (product, *after) for n in subject.dataflow.weights(o)]
    return _zero(subject, sublayer, list(dict.fromkeys(names)))


def _not_identity(sublayer: TracedSublayer) -> str | None:
    if "post" in sublayer.norms:
        return "a norm is applied to the sum (Post-LN), and norm(x + 0) is not x"
    if sublayer.design or sublayer.also is not None:
        return f"its stream is {sublayer.design or sublayer.placement}, which every sublayer mixes"
    if sublayer.skip_from:
        return f"its shortcut begins at the {sublayer.skip_from}"
    if sublayer.skip.learned or abs(sublayer.skip.value - 1) > 1e-6:
        return f"its shortcut has a coefficient ({sublayer.skip.value:.3g})"
    return None


def _zero(subject: GraftSubject, sublayer: TracedSublayer, names: list[str]) -> list[tuple[str, float]]:
    """The number that stands for 0 in these parameters, tried: 0, or -1 where a weight is stored around 1."""
    trace, biases = subject.dataflow.trace, {norm.bias for norm in subject.dataflow.norms.values()}
    values = {name: subject.value(name) for name in names}
    others = [s.branch for s in subject.stack.sublayers if s.total == sublayer.total and s is not sublayer]
    alone: dict[int, Any] = {branch: torch.zeros_like(trace[branch]) for branch in others}
    for number in (0.0, -1.0):
        numbers = {n: 0.0 if trace[v].ndim > 1 or n in biases else number for n, v in values.items()}
        changes = alone | {v: torch.full_like(trace[v], numbers[name]) for name, v in values.items()}
        if torch.equal(trace.replay(changes, [sublayer.total])[0], trace[sublayer.read]):
            return list(numbers.items())
    raise GraftError(f"{sublayer.address}: what it writes does not become 0 with {', '.join(names)}")


def _initialized(subject: GraftSubject, index: int) -> State:
    """The weights of a layer as the class draws them."""
    model: Any = subject.model
    layer = copy.deepcopy(model.get_submodule(subject.layers.at(index).rstrip(".")))
    for module in layer.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty_like(value)))  # loaded ones are not drawn again
            module._is_hf_initialized = False
    layer.apply(model._init_weights)
    return {name: value.detach() for name, value in layer.state_dict().items()}


# Fewer.


def drop(subject: GraftSubject, count: int, how: How) -> Moved:
    """`count` layers are left: by "loss" those go without which the loss is lowest, each tried alone; by "angle" the
    neighbours over which the stream turns least (Gromov et al. 2024, arXiv 2403.17887); "merge" adds what these differ
    by from the layer before them to that layer (LaCo, Yang et al. 2024, arXiv 2402.11187).
    """
    text = how.needed("fewer layers")
    total, more = subject.layers.count, subject.layers.count - count
    streams = _streams(subject, text)
    rows = [
        {
            "layer": i + 1,
            "angle": _angle(streams[i], streams[i + 1]),
            "loss_without": loss_on(arranged(subject, [(j, False) for j in range(total) if j != i], _never), text.held),
        }
        for i in range(total)
    ]
    if how.drop == "loss":
        gone = sorted(sorted(range(total), key=lambda i: rows[i]["loss_without"])[:more])
    else:  # what is merged goes into a layer before it
        begins = range(1 if how.drop == "merge" else 0, total - more + 1)
        begin = min(begins, key=lambda i: _angle(streams[i], streams[i + more]))
        gone = list(range(begin, begin + more))
    base = gone[0] - 1 if how.drop == "merge" else None
    order = [(i, i == base) for i in range(total) if i not in gone]
    state = subject.state

    def merged(name: str, source: int, rest: str, value: Tensor) -> Tensor:
        others = [state[subject.layers.at(i) + rest].double() - value.double() for i in gone]
        return (value.double() + torch.stack(others).sum(0)).to(value.dtype)

    said = f"{total} to {many(count, 'layer')}: without {', '.join(str(i + 1) for i in gone)}, chosen by {how.drop}"
    return Moved(model=arranged(subject, order, merged), said=said, exact=False, found=rows)


def _never(name: str, source: int, rest: str, value: Tensor) -> Tensor:
    raise AssertionError(name)


@torch.no_grad()
def _streams(subject: GraftSubject, text: Text) -> list[Tensor]:
    """What each layer reads, and what the last one writes: (tokens, width)."""
    layers: Any = subject.model.get_submodule(subject.layers.address)
    found: list[list[Tensor]] = [[] for _ in range(len(layers) + 1)]

    def keep(at: int, value: Any) -> None:
        tensor = value if isinstance(value, Tensor) else next(v for v in value if isinstance(v, Tensor))
        found[at].append(tensor.flatten(0, -2))

    def reads(at: int) -> Any:
        return lambda module, args, kwargs: keep(at, args or list(kwargs.values()))

    hooks = [layer.register_forward_pre_hook(reads(i), with_kwargs=True) for i, layer in enumerate(layers)]
    hooks.append(layers[-1].register_forward_hook(lambda module, args, out: keep(len(layers), out)))
    try:
        for batch in text.fit:
            subject.model.eval()(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(parts) for parts in found]


def _angle(before: Tensor, after: Tensor) -> float:
    """arccos of the cosine, over pi: the mean over tokens."""
    cosine = nn.functional.cosine_similarity(before.double(), after.double(), dim=-1).clamp(-1, 1)
    return float(cosine.arccos().mean() / math.pi)

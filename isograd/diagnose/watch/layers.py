"""Which modules of a model are its layers, stack by stack, and the matrix that stands for each."""

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from isograd.transformer.sublayer import Sublayer

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")  # DDP, torch.compile, ..
WHOLE = "model"  # the address of a model that is watched as a whole


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchedLayer:
    """A layer, or a sublayer of an isograd model.

    Attributes:
        facts: address and layer (from 1), stack where the model has several; kind in isograd models.
        group: layers of one group are compared with each other: those of one stack and kind.
        parameters: all of them, each once, also where two layers share one.
        matrix: its last projection; None where it has no matrix.
    """

    module: nn.Module
    facts: Mapping[str, Any]
    group: str
    parameters: list[nn.Parameter]
    matrix: nn.Parameter | None

    @property
    def address(self) -> str:
        return str(self.facts["address"])


def find_layers(model: nn.Module, addresses: Sequence[str] | None = None) -> list[WatchedLayer]:
    """The layers of a model, in the order of their depth, stack by stack.

    An isograd model knows which sublayers it has. Of any other, a stack is a `ModuleList` or a `Sequential` of alike
    modules that does not lie inside another one: modules of which at least two, and at least half, hold a matrix of the
    same name and shape. The last such matrix stands for its layer. One layer that is run again and again is one; and
    a model that has no list of layers is watched as a whole.

    Args:
        addresses: the modules to watch instead, in the order of their depth.

    Raises:
        AttributeError: an address that the model does not have.
    """
    if addresses is not None:
        modules = modules_at(model, addresses)
        alike = _common(modules)
        found = [_layer(a, m, alike, {}, i) for i, (a, m) in enumerate(zip(addresses, modules, strict=True), start=1)]
    else:
        found = sublayers_of(model) or [layer for stack in _stacks(model) for layer in stack] or _alone(model)
    return found or [_layer(WHOLE, model, [], {}, 1)]


def _alone(model: nn.Module) -> list[WatchedLayer]:
    """The one layer of a list, which is run again and again (ALBERT, Universal Transformer)."""
    for address, module in model.named_modules():
        alone = isinstance(module, nn.ModuleList) and len({id(one) for one in module}) == 1
        if alone and sum(p.ndim >= 2 for p in module.parameters()) > 1:
            return [_layer(f"{plain(address)}.0", next(module.children()), [], {}, 1)]
    return []


def sublayers_of(model: nn.Module) -> list[WatchedLayer]:
    """The sublayers of an isograd model."""
    return [_of_sublayer(plain(name), m) for name, m in model.named_modules() if isinstance(m, Sublayer)]


def modules_at(model: nn.Module, addresses: Sequence[str]) -> list[nn.Module]:
    """The modules of a model at these addresses, with or without what wraps them.

    Raises:
        AttributeError: there is no such module.
    """
    known = {plain(name): module for name, module in model.named_modules()}
    for address in addresses:
        if plain(address) not in known:
            near = difflib.get_close_matches(address, known, n=1, cutoff=0.0)
            raise AttributeError(f"the model has no module {address!r}; did you mean {near[0]!r}?")
    return [known[plain(address)] for address in addresses]


@dataclass(frozen=True, kw_only=True)
class ByLayer:
    """Layers, where what is measured are sublayers; else the same as those.

    Attributes:
        addresses, stacks: one of each per layer.
        parts: places of its sublayers among all.
    """

    addresses: list[str]
    stacks: list[str]
    parts: list[list[int]]

    def joined(self, norms: Sequence[float | None]) -> list[float | None]:
        """The norm of each layer, of the norms of its parts; None where no part has one."""
        found = [[n for i in places if (n := norms[i]) is not None] for places in self.parts]
        return [math.hypot(*some) if some else None for some in found]


def by_layer(layers: Sequence[WatchedLayer]) -> ByLayer:
    """The layers that sublayers make up, in their order."""
    parts: dict[str, list[int]] = {}
    for place, layer in enumerate(layers):
        address = layer.address.rpartition(".")[0] if "kind" in layer.facts else layer.address
        parts.setdefault(address, []).append(place)
    stacks = [str(layers[places[0]].facts.get("stack", "")) for places in parts.values()]
    return ByLayer(addresses=list(parts), stacks=stacks, parts=list(parts.values()))


def plain(address: str) -> str:
    """An address without what DDP, torch.compile and the like add.

    >>> plain("module._orig_mod.layers.3.ffn")
    'layers.3.ffn'
    """
    for wrapper in WRAPPERS:
        address = address.replace(wrapper, "")
    return address


def _of_sublayer(address: str, sublayer: Sublayer) -> WatchedLayer:
    site = sublayer.site
    branch: Any = sublayer.branch
    return WatchedLayer(
        module=sublayer,
        facts={"address": address, "stack": site.stack, "layer": site.layer, "kind": site.kind},
        group=f"{site.stack} {site.kind}",
        parameters=list(sublayer.parameters()),
        matrix=branch.out.weight,
    )


def _stacks(model: nn.Module) -> list[list[WatchedLayer]]:
    """Stacks whose layers hold one matrix only are heads or plain networks: they count where there is nothing else."""
    lists = list(_outermost(model, ""))
    deep = [found for found in lists if len(found[2]) > 1] or lists
    several = len(deep) > 1
    return [
        [
            _layer(f"{address}.{name}" if address else name, module, kinds, {"stack": address} if several else {}, i)
            for i, (name, module) in enumerate(members, start=1)
        ]
        for address, members, kinds in deep
    ]


Matrix = tuple[str, tuple[int, ...]]  # its name inside its layer, and its shape


def _outermost(module: nn.Module, address: str) -> Iterator[tuple[str, list[tuple[str, nn.Module]], list[Matrix]]]:
    """Lists of alike modules that lie in no other such list: address, members by name, their common matrices."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        if len(module) > 1 and len({id(one) for one in module}) == 1:
            return  # one layer, run again and again
        members = [(name, m) for name, m in module.named_children() if next(m.parameters(), None) is not None]
        kinds = _common([m for _, m in members])
        if kinds:
            yield plain(f"{address}.")[:-1], members, kinds
            return
    for name, child in module.named_children():
        yield from _outermost(child, f"{address}.{name}" if address else name)


def _common(members: Sequence[nn.Module]) -> list[Matrix]:
    """Matrices that at least two and at least half of the members hold, in their order."""
    counts: Counter[Matrix] = Counter()
    for member in members:
        counts.update({(plain(n), tuple(p.shape)): None for n, p in member.named_parameters() if p.ndim >= 2}.keys())
    return [kind for kind, count in counts.items() if count >= 2 and 2 * count >= len(members)]


def _layer(address: str, module: nn.Module, alike: list[Matrix], facts: Mapping[str, Any], depth: int) -> WatchedLayer:
    parameters = {plain(name): p for name, p in module.named_parameters()}
    matrices = [name for name, p in parameters.items() if p.ndim >= 2]
    common = [name for name in matrices if (name, tuple(parameters[name].shape)) in alike]
    name = (common or matrices or [""])[-1]
    stack = facts.get("stack", "")
    return WatchedLayer(
        module=module,
        facts={"address": address, **facts, "layer": depth},
        group=f"{stack} {name}".strip() if common else address,  # no other is like it
        parameters=list(parameters.values()),
        matrix=parameters.get(name),
    )

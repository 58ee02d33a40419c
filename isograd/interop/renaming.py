"""State dicts of isograd <-> state dicts of transformers' own classes, by the tables of `isograd.interop.names`.

    theirs = to_native(ours, NAMES["gpt2"], norms="pre")
    ours, rest = from_native(theirs, NAMES["gpt2"], norms="pre")

Values change in two ways only, and back: queries, keys and values that share one matrix are put on top of each other,
and GPT-2's matrices are transposed. What has another meaning in the other class (the rows of a position table, a scaled
token table) is the caller's business.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from isograd.interop.names import Names

FUSED = ("attn.branch.query", "attn.branch.key", "attn.branch.value")
Norms = Literal["pre", "post"]


def to_native(state: Mapping[str, Tensor], names: Names, *, norms: Norms, heads: int = 1) -> dict[str, Tensor]:
    """Our state dict under their names.

    Args:
        norms: where the norms of the layers stand.
        heads: attention heads, for `Names.by_head`.

    Raises:
        ValueError: parameters that the table has no place for, each of them.
    """
    out: dict[str, Tensor] = {}
    unknown = []
    parts: dict[str, dict[int, Tensor]] = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        theirs = _their_module(module, names, norms)
        if theirs is None:
            unknown.append(name)
        elif isinstance(theirs, tuple):
            parts.setdefault(f"{theirs[0]}.{leaf}", {})[theirs[1]] = value
        else:
            out[f"{theirs}.{leaf}"] = _turned(value, theirs, leaf, names)
    if unknown:
        raise ValueError(f"no place there for {', '.join(sorted(unknown))}")
    for name, found in parts.items():
        whole = _joined([found[i] for i in range(3)], names.by_head, heads)
        module, _, leaf = name.rpartition(".")
        out[name] = _turned(whole, module, leaf, names)
    return out


def from_native(
    state: Mapping[str, Tensor],
    names: Names,
    *,
    norms: Norms,
    heads: int = 1,
    pair: bool = False,
    classifier: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Their state dict under our names, and what the table has no place for, under theirs.

    Args:
        norms, heads: as in `to_native`.
        pair: the model is an encoder-decoder.
        classifier: it is a sequence classifier.
    """
    towers = {k: v for k, v in names.towers.items() if (k != "model") == pair}
    ends = names.classifier if classifier else names.heads
    out: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        ours = _our_modules(module, names, norms, towers, ends)
        if not ours:
            rest[name] = value
            continue
        turned = _turned(value, module, leaf, names)
        values = _split(turned, names.by_head, heads) if len(ours) > 1 else [turned]
        out.update({f"{own}.{leaf}": part for own, part in zip(ours, values, strict=True)})
    return out, rest


def _their_module(module: str, names: Names, norms: Norms) -> str | tuple[str, int] | None:
    """Their name of a module; of a part of a fused one its name and its place."""
    for ends in (names.heads, names.classifier):
        if module in ends:
            return ends[module]
    tower, _, rest = module.partition(".")
    if tower not in names.towers:
        return None
    prefix = names.towers[tower]
    if rest in names.tower:
        return _dotted(prefix, names.tower[rest])
    if not rest.startswith("layers."):
        return None
    _, layer, rest = rest.split(".", 2)
    at = _dotted(prefix, f"{names.layers}.{layer}")
    if names.fused and rest in FUSED:
        return f"{at}.{names.fused}", FUSED.index(rest)
    slot = f".{norms}"
    inner = names.layer.get(rest.removesuffix(slot) + ".norm" if rest.endswith(slot) else rest)
    return None if inner is None else f"{at}.{inner}"


def _our_modules(
    module: str, names: Names, norms: Norms, towers: Mapping[str, str], ends: Mapping[str, str]
) -> tuple[str, ...]:
    """Our names of a module; three of a fused one, none of one that the table does not know."""
    for ours, theirs in ends.items():
        if module == theirs:
            return (ours,)
    for tower, prefix in towers.items():
        for ours, theirs in names.tower.items():
            if module == _dotted(prefix, theirs):
                return (f"{tower}.{ours}",)
        layers = _dotted(prefix, names.layers) + "."
        if not module.startswith(layers):
            continue
        layer, _, inner = module.removeprefix(layers).partition(".")
        if inner == names.fused:
            return tuple(f"{tower}.layers.{layer}.{part}" for part in FUSED)
        for ours, theirs in names.layer.items():
            if inner == theirs:
                own = ours.removesuffix("norm") + norms if ours.endswith(".norm") else ours
                return (f"{tower}.layers.{layer}.{own}",)
    return ()


def _turned(value: Tensor, module: str, leaf: str, names: Names) -> Tensor:
    return value.t() if leaf == "weight" and any(module.endswith(f".{t}") for t in names.transposed) else value


def _joined(parts: list[Tensor], by_head: bool, heads: int) -> Tensor:
    if not by_head:
        return torch.cat(parts)
    split = [part.unflatten(0, (heads, -1)) for part in parts]  # (heads, width/heads, ...)
    return torch.stack(split, dim=1).flatten(0, 2)


def _split(whole: Tensor, by_head: bool, heads: int) -> list[Tensor]:
    if not by_head:
        return list(whole.chunk(3))
    return [part.flatten(0, 1) for part in whole.unflatten(0, (heads, 3, -1)).unbind(1)]


def _dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name

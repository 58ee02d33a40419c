"""Fewer layers: which ones, by how far the stream turns over them and by the loss without them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from isograd.convert.graft.found import Subject
from isograd.convert.graft.moves import How, Moved
from isograd.convert.graft.text import Text, loss_on
from isograd.errors import many


def drop(subject: Subject, count: int, how: How) -> Moved:
    """`count` layers are left: by "loss" those go without which the loss is lowest, each tried alone; by "angle" the
    neighbours over which the stream turns least (Gromov et al. 2024, arXiv 2403.17887); "merge" adds what these differ
    by from the layer before them to that layer (LaCo, Yang et al. 2024, arXiv 2402.11187).
    """
    from isograd.convert.graft.layers import arranged

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
def _streams(subject: Subject, text: Text) -> list[Tensor]:
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

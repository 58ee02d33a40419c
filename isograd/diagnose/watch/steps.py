"""How far the weights go in a step, by a few entries of a few matrices; and how the optimizer is set that moves them.

The entries are those with the largest gradients in the first reading. On an accelerator they stay there until the
readings are read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

MATRICES, ENTRIES = 8, 8


@dataclass(frozen=True, kw_only=True)
class WeightsMoved:
    """Of the step before a reading, medians over the matrices.

    Attributes:
        by: how far, over the size.
        size: over that in the first reading.
        rate: how far, over the gradient: the rate, of plain gradient descent.
        gradient: root mean square.
    """

    by: float
    size: float
    rate: float
    gradient: float


class Steps:
    """Takes some weights and their gradients at every reading; sharded ones, and those in half precision, it leaves."""

    def __init__(self, parameters: Sequence[nn.Parameter], every: int) -> None:
        self._parameters = parameters
        self._every = every
        self._places: list[tuple[nn.Parameter, Tensor]] | None = None
        self._first: Tensor | None = None
        self._last: tuple[Tensor, Tensor] | None = None
        self._taken: list[Tensor] = []

    @torch.no_grad()
    def take(self) -> None:
        """After backward, before the optimizer's step."""
        if self._places is None:
            self._places = self._chosen()
        if self._places:
            values = [x.take(at) for p, at in self._places for x in (p, p.grad if p.grad is not None else p * 0)]
            self._taken.append(torch.cat(values))

    def read(self) -> list[WeightsMoved | None]:
        """Of each reading since; None of the first, and where there are no such weights."""
        if not self._taken:
            return []
        numbers = torch.stack(self._taken).double().cpu().unflatten(1, (-1, 2, ENTRIES))
        self._taken.clear()
        rows = [(weights, gradients) for weights, gradients in zip(numbers[:, :, 0], numbers[:, :, 1], strict=True)]
        if self._first is None:
            self._first = rows[0][0].norm(dim=1)
        before = [self._last, *rows] if self._last is not None else [None, *rows]
        self._last = rows[-1]
        return [self._moved(old, new) for old, new in pairwise(before)]

    def _moved(self, old: tuple[Tensor, Tensor] | None, new: tuple[Tensor, Tensor] | None) -> WeightsMoved | None:
        if old is None or new is None or self._first is None:
            return None
        far, size = (new[0] - old[0]).norm(dim=1), old[0].norm(dim=1)
        gradient = old[1].norm(dim=1)
        sizes = (new[0].norm(dim=1) / self._first).nan_to_num(1.0)
        ratios = (far / size, sizes, far / gradient, gradient / math.sqrt(ENTRIES))
        by, grown, rate, slope = (median(x.nan_to_num(0.0).tolist()) for x in ratios)
        return WeightsMoved(by=by / self._every, size=grown, rate=rate / self._every, gradient=slope)

    def _chosen(self) -> list[tuple[nn.Parameter, Tensor]]:
        some = [
            p for p in self._parameters
            if type(p.data) is Tensor and p.ndim > 1 and p.numel() >= ENTRIES
            and p.dtype in (torch.float32, torch.float64) and p.grad is not None and not p.grad.is_sparse
        ]  # fmt: skip
        some = [p for p in some if p.device == some[0].device]
        picked = [some[i * len(some) // MATRICES] for i in range(MATRICES)] if len(some) > MATRICES else some
        return [(p, p.grad.abs().flatten().topk(ENTRIES).indices) for p in picked if p.grad is not None]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What an optimizer is set to, and what it holds.

    Attributes:
        rate, decay, eps: the largest of the groups; eps is 0 where it has none.
        decoupled: the decay is of the weights themselves (AdamW), rate times decay a step.
        second: the usual root of Adam's second moment; None of others, and before the first step.
        descends: plain gradient descent (SGD).
        holds: parameters of the model that it holds, as a share.
    """

    rate: float
    decay: float
    eps: float
    decoupled: bool
    maximizes: bool
    second: float | None
    descends: bool
    holds: float


class TrainedBy:
    """The optimizer of a model, where it is known; called, it gives what that is set to."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.optimizer: Optimizer | None = None
        self.earlier: set[int] = set()  # ids of parameters that an optimizer of before held

    @property
    def rate(self) -> float | None:
        """The largest of the groups, as it stands now."""
        if self.optimizer is None:
            return None
        return max((float(group.get("lr") or 0.0) for group in self.optimizer.param_groups), default=None)

    @property
    def asked(self) -> float:
        """The peak of the schedule, else the rate that the optimizer was made with: the largest of the groups."""
        if self.optimizer is None:
            return 0.0
        given = self.optimizer.defaults.get("lr") or 0.0
        return max(float(g.get("max_lr") or g.get("initial_lr") or given) for g in self.optimizer.param_groups)

    def described(self) -> dict[str, Any]:
        """What is trained, and by what: keys as a run's settings are called."""
        parameters, said = list(self._model.parameters()), self()
        row = {"model class": type(self._model).__name__, "parameters": sum(p.numel() for p in parameters)}
        row["trained parameters"] = sum(p.numel() for p in parameters if p.requires_grad)
        row["dtype"] = ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters}))
        if said is not None:
            row |= {"training.optimizer": type(self.optimizer).__name__, "training.weight_decay": said.decay}
        return row

    def __call__(self) -> OptimizerSettings | None:
        return None if self.optimizer is None else settings_of(self.optimizer, list(self._model.parameters()))


def settings_of(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> OptimizerSettings:
    """As it stands now."""
    groups = optimizer.param_groups

    def most(name: str) -> float:
        return max((float(group.get(name) or 0.0) for group in groups), default=0.0)

    held = {id(p) for group in groups for p in group["params"]}
    return OptimizerSettings(
        rate=most("lr"),
        decay=most("weight_decay"),
        eps=most("eps"),
        decoupled=bool(groups[0].get("decoupled_weight_decay", "AdamW" in type(optimizer).__name__)),
        maximizes=any(group.get("maximize") for group in groups),
        second=_second(optimizer, parameters),
        descends=isinstance(optimizer, SGD),
        holds=sum(id(p) in held for p in parameters) / max(1, len(parameters)),
    )


@torch.no_grad()
def _second(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> float | None:
    roots = []
    for p in parameters:
        state: dict[str, Any] = optimizer.state.get(p, {})
        v = state.get("exp_avg_sq")
        if v is not None and p.ndim > 1 and type(p.data) is Tensor:
            roots.append(float(v.sqrt().mean()))
    return median(roots) if roots else None

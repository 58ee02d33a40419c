"""Gradients of every parameter from one backward pass, as norms by name; the model stays as it is."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isograd.diagnose.quantities import mean_abs, norm
from isograd.trace.record import arguments


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Of one parameter: Frobenius norm and mean |g|."""

    norm: float
    mean_abs: float


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """By the names of parameters; those that the loss does not depend on are missing."""

    loss: float
    of: Mapping[str, Gradient]

    def norm(self, names: Iterable[str]) -> float | None:
        """Of several parameters together; None where none of them has a gradient."""
        found = [self.of[name].norm for name in names if name in self.of]
        return math.sqrt(math.fsum(n * n for n in found)) if found else None

    def mean_abs(self, name: str | None) -> float | None:
        return self.of[name].mean_abs if name is not None and name in self.of else None


def gradients(model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor], device: str = "cpu") -> Gradients:
    """One forward and backward pass in float32 without dropout (evaluation mode); all parameters take part.

    Each gradient is measured and dropped as soon as it is complete, so that they are never there all at once.

    Raises:
        RuntimeError: autograd cannot pass through the model.
    """
    twin = _twin(model).to(device)
    names: dict[Tensor, str] = {p: name for name, p in twin.named_parameters() if p.is_floating_point()}
    found: dict[str, Gradient] = {}

    def take(parameter: Tensor) -> None:
        assert parameter.grad is not None
        grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        found[names[parameter]] = Gradient(norm=norm(grad).item(), mean_abs=mean_abs(grad).item())
        parameter.grad = None

    for parameter in names:
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(take)
    args, kwargs = arguments(_moved(inputs, device))
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        value = loss(twin(*args, **kwargs))
        value.backward()
    return Gradients(loss=value.item(), of=found)


def _twin(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose parameters share the memory of the model's where they are float32."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    twin = copy.deepcopy(model, memo)
    twin.eval()
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in twin.parameters())
    return twin.float() if half else twin


def _moved(tree: Any, device: str) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, Mapping):
        return {name: _moved(part, device) for name, part in tree.items()}
    return tuple(_moved(part, device) for part in tree) if isinstance(tree, tuple | list) else tree

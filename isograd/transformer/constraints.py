"""What a placement asks of weights after each optimizer step (`Placement.constrain`)."""

from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from isograd.placement.formula import ClipLogits, Constraint, UnitNorm
from isograd.transformer.attention import Attention
from isograd.transformer.parameters import Embedding, Linear


@torch.no_grad()
def constrain(modules: Iterable[nn.Module], constraints: Iterable[Constraint]) -> None:
    """Act on the weights of these modules, in place."""
    every = list(modules)
    for constraint in constraints:
        for module in every:
            if isinstance(constraint, UnitNorm) and isinstance(module, Linear | Embedding):
                _unit(module, constraint)
            elif isinstance(constraint, ClipLogits) and isinstance(module, Attention):
                _clip(module, constraint.threshold)


def _unit(leaf: Linear | Embedding, constraint: UnitNorm) -> None:
    """A row of zeros, such as padding's, stays one."""
    for dim, of in ((1, constraint.rows), (0, constraint.columns)):
        if leaf.role in of:
            leaf.weight.copy_(F.normalize(leaf.weight, dim=dim))


def _clip(attention: Attention, threshold: float) -> None:
    """A head's rows of W_Q and W_K times sqrt(threshold / S) where its largest logit S is more."""
    largest = attention.take_largest_logits()
    if largest is None:
        return
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    factor = torch.where(largest > threshold, (threshold / largest).sqrt(), torch.ones_like(largest))
    for projection in (attention.query, attention.key):
        for parameter in projection.parameters(recurse=False):
            _times_heads(parameter, factor)


def _times_heads(parameter: Tensor, factor: Tensor) -> None:
    rows = factor.repeat_interleave(parameter.shape[0] // len(factor)).to(parameter)
    parameter.mul_(rows if parameter.ndim == 1 else rows[:, None])

"""Adam for K models of one shape, each with a rate of its own: what `batched.py` compares.

A stack is a parameter of all models, (models, *shape of one).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

Stacks = Mapping[str, Tensor]
Update = Callable[[Sequence[float]], None]  # a step, with the rate of each model; gradients are dropped


def adam_apart(models: Iterable[Iterable[Tensor]]) -> Update:
    """One fused Adam for each model."""
    optimizers = [torch.optim.Adam(list(parameters), fused=True) for parameters in models]

    def update(rates: Sequence[float]) -> None:
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()

    return update


def adam_on_stacks(stacks: Stacks) -> Update:
    """One fused Adam on the stacks; it has one rate, so all models must have the same."""
    optimizer = torch.optim.Adam(stacks.values(), fused=True)

    def update(rates: Sequence[float]) -> None:
        (optimizer.param_groups[0]["lr"],) = set(rates)
        optimizer.step()
        optimizer.zero_grad()

    return update


def adam_on_views(stacks: Stacks) -> Update:
    """One fused Adam with a group of parameters for each model: views of the stacks, in which each has its own rate."""
    count = len(next(iter(stacks.values())))
    views = [[stack.detach()[k].requires_grad_() for stack in stacks.values()] for k in range(count)]
    optimizer = torch.optim.Adam([{"params": own} for own in views], fused=True)

    def update(rates: Sequence[float]) -> None:
        for k, (own, rate) in enumerate(zip(views, rates, strict=True)):
            optimizer.param_groups[k]["lr"] = rate
            for view, stack in zip(own, stacks.values(), strict=True):
                assert stack.grad is not None
                view.grad = stack.grad[k]
        optimizer.step()
        for stack in stacks.values():
            stack.grad = None

    return update


def adam_scaled(stacks: Stacks) -> Update:
    """One fused Adam at rate 1 on zeros that are as large as the stacks: p += rate * what it made of them.

    Neither weight decay nor other constants than the rate can differ between models.
    """
    steps = [torch.zeros_like(stack) for stack in stacks.values()]
    optimizer = torch.optim.Adam(steps, lr=1.0, fused=True)

    @torch.no_grad()
    def update(rates: Sequence[float]) -> None:
        rate = torch.tensor(rates)
        for step, stack in zip(steps, stacks.values(), strict=True):
            step.grad, stack.grad = stack.grad, None
        optimizer.step()
        for step, stack in zip(steps, stacks.values(), strict=True):
            stack.addcmul_(step, rate.view(-1, *[1] * (stack.ndim - 1)).to(stack))
        torch._foreach_zero_(steps)

    return update

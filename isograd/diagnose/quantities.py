"""What is measured, as functions of tensors. Each returns a tensor of no dimensions, in float32 or better."""

import torch
from torch import Tensor, nn

from isograd.transformer.sublayer import Add, CoupledAdd, LearnedAdd, ScaledAdd


def norm(x: Tensor) -> Tensor:
    """sqrt(sum x^2), the Frobenius norm."""
    return torch.linalg.vector_norm(exact(x))


def mean_abs(x: Tensor) -> Tensor:
    """mean |x|; of a gradient, what NormFormer calls its L1 norm."""
    return exact(x).abs().mean()


def rms(x: Tensor) -> Tensor:
    """sqrt(mean x^2)."""
    return exact(x).square().mean().sqrt()


def variance(x: Tensor) -> Tensor:
    """Population variance over all elements together, as ADMIN's profile takes it."""
    return exact(x).var(unbiased=False)


def terms(combine: nn.Module, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms of a sum, skip * x and scale * u."""
    if isinstance(combine, LearnedAdd):
        return combine.skip(x), combine.scale(u)
    if isinstance(combine, CoupledAdd):
        skip, scale = combine.values()
        return skip * x, scale * u
    if isinstance(combine, ScaledAdd):
        return x * combine.skip, u * combine.scale
    if isinstance(combine, Add):
        return x, u
    raise TypeError(f"{type(combine).__name__} is not a sum of isograd's; expected Add, ScaledAdd or LearnedAdd")


def exact(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))

"""y = x W^T + b, by the faster of the two libraries that torch carries.

On a CPU torch hands float32 products to MKL, which on AMD processors runs at less than half the speed of oneDNN (100
against 235 GFLOP/s on one core of an EPYC with AVX-512; the same float32 arithmetic, the same rounding error). torch
offers no switch for that, so large float32 products on a CPU go to oneDNN by name here. Everything else is
`torch.nn.functional.linear`: other devices and dtypes, autocast, compiled graphs, small products.
`torch.backends.mkldnn.set_flags(False)` sends everything there.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WORTHWHILE = 2**20  # multiplications from which on oneDNN's higher cost per call is repaid, measured


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with x of shape (..., fan_in), W of shape (fan_out, fan_in)."""
    if large_float32_on_cpu(x, weight):
        return _OneDNNLinear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def add_gradient(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """total += grad^T x, the gradient of W; a sum of many such products is kept in the dtype of `total`."""
    if total.dtype != grad.dtype or large_float32_on_cpu(grad.t(), x.t()):
        total += _gradient(grad, x)
    else:
        total.addmm_(grad.t(), x)


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    """grad^T x. oneDNN copies its first operand when it is transposed: let that be the narrower one."""
    if grad.shape[1] <= x.shape[1]:
        return linear(grad.t(), x.t())
    return linear(x.t(), grad.t()).t()


def large_float32_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN does x W^T at a gain."""
    return (
        not torch.compiler.is_compiling()  # a compiler chooses its own products
        and x.is_cpu
        and x.ndim > 1
        and x.dtype == weight.dtype == torch.float32
        and x.numel() * weight.shape[0] >= WORTHWHILE
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
        and torch.backends.mkldnn.is_available()
    )


class _OneDNNLinear(torch.autograd.Function):
    """The product; its gradients are products again, so it can be differentiated any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        rows = grads[0].flatten(0, -2)  # (rows, fan_out)
        return (
            linear(grads[0], weight.t()) if need_x else None,
            _gradient(rows, x.flatten(0, -2)) if need_weight else None,
            rows.sum(dim=0) if need_bias else None,
        )

"""Kernels of our own for a CPU: products and dropout, and when they apply.

**Products** y = x W^T + b go to the faster of the two libraries that torch carries.

On a CPU torch hands float32 products to MKL, which on some AMD processors runs at less than half the speed of oneDNN
(100 against 235 GFLOP/s on a core with AVX512-BF16; the same float32 arithmetic, the same rounding error), on others
not. torch offers no switch for that, so where `products` has measured a gain, float32 products on a CPU of that size
go to oneDNN by name here. Everything else is
`torch.nn.functional.linear`: other devices and dtypes, autocast, compiled graphs, small products, torch.func,
forward-mode AD, tracers, counters of operations. `torch.backends.mkldnn.set_flags(False)` sends everything there.

**Dropout** is x * keep / (1 - p), where keep is 1 with probability 1 - p and else 0, for every element on its own.

On a CPU torch draws a number per element, which is most of the operation's cost and a tenth of a training step. Here 16
random bits decide about an element, four elements from one number of torch's generator: 0.4 of the time in float32, 0.3
in bfloat16, forward and backward. So p is met as a multiple of 2^-16, and what is kept is divided by the probability
that was met. It is torch's own dropout on other devices, in compiled graphs, under torch.func, forward-mode AD and
torch.jit.trace, and where nothing or everything is dropped.

Kernels of our own (here, in `loss` and in `attention`) serve plain eager autograd. Where a transform or a tracer asks
more of them than values and first gradients, torch's own operations do the work: slower, the same numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn import functional as F

PLAIN = {Tensor, Parameter, type(None)}
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
WORTHWHILE = math.inf  # multiplications from which on oneDNN is the faster one: `products.use` sets it
ROWS_TO_JOIN = 512  # from which on one product of stacked matrices is no slower than one after another, measured


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with x of shape (..., fan_in), W of shape (fan_out, fan_in)."""
    if large_float32_on_cpu(x, weight, bias):
        return _OneDNNLinear.apply(x, weight, bias) if torch.is_grad_enabled() else _onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def joined(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Sequence[Tensor] | None:
    """Every x W^T + b by one product of the stacked matrices; None where one after another is as fast or wanted.

    Saves calls and sums of gradients where the products are small: on a CPU 0.82 of an attention's time at width 64 and
    512 rows, 0.92 at width 128, 0.96 to 1.02 at 256 and 512. With fewer rows the copy of the matrices costs more. On a
    GPU, and in its compiled graphs, always from as many rows on: fewer kernels, and no gradients of x to be summed.
    """
    first, rows = weights[0], x.numel() // max(1, x.shape[-1])
    known = [bias for bias in biases if bias is not None]
    if rows < ROWS_TO_JOIN or counted() or len(known) not in (0, len(biases)):
        return None
    if first.is_cuda:
        wanted = _alike([*weights, *known]) and not transformed()
    else:
        wanted = large_float32_on_cpu(x, first, biases[0])
        wanted = wanted and all(plain(one) and _is_float32_on_cpu(one) for one in (*weights[1:], *known))
    return join(x, weights, known) if wanted else None


def join(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Sequence[Tensor]:
    """x W^T + b of each by one product; biases of all or of none."""
    y = linear(x, torch.cat(list(weights)), torch.cat(list(biases)) if biases else None)
    return y.split([len(weight) for weight in weights], dim=-1)


def _alike(tensors: Sequence[Tensor]) -> bool:
    """Whether these are tensors and nothing else (no shard, no other number format), of one dtype."""
    return PLAIN.issuperset(map(type, tensors)) and len({tensor.dtype for tensor in tensors}) == 1


def add_gradient(total: Tensor | None, grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """total + grad^T x, the gradient of W, in place; a sum of many such is kept in `dtype`, None is that of none.

    It lies in memory as the first product does, which may be transposed: a sum across layouts takes longer.
    """
    if dtype != grad.dtype or large_float32_on_cpu(grad.t(), x.t()) or counted():  # addmm_ is not counted
        product = gradient_of_weight(grad, x)
        return product.to(dtype) if total is None else total.add_(product)
    if total is None:
        return grad.new_zeros(grad.shape[1], x.shape[1]).addmm_(grad.t(), x)
    return total.contiguous().addmm_(grad.t(), x)


def gradient_of_weight(grad: Tensor, x: Tensor, product: Product = linear) -> Tensor:
    """grad^T x. oneDNN copies its first operand when it is transposed: let that be the narrower one."""
    if grad.shape[1] <= x.shape[1]:
        return product(grad.t(), x.t(), None)
    return product(x.t(), grad.t(), None).t()


def large_float32_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether oneDNN does x W^T + b at a gain. What torch would refuse or broadcast is left to torch."""
    return (
        plain(x, weight, bias)
        and x.ndim > 1
        and x.numel() * weight.shape[0] >= WORTHWHILE
        and _is_float32_on_cpu(x)
        and _is_float32_on_cpu(weight)
        and (bias is None or _is_float32_on_cpu(bias))
        and weight.shape[1:] == x.shape[-1:]
        and (bias is None or bias.shape == weight.shape[:1])
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
        and torch.backends.mkldnn.is_available()
    )


def _is_float32_on_cpu(t: Tensor) -> bool:
    return t.is_cpu and t.dtype == torch.float32 and t.layout == torch.strided


class _OneDNNLinear(torch.autograd.Function):
    """The product; its gradients are products again, so it can be differentiated any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        rows = grads[0].flatten(0, -2)  # (rows, fan_out)
        # both products have as many multiplications as the forward one: no need to ask again
        product = linear if torch.is_grad_enabled() or not plain(rows) else _onednn
        return (
            product(grads[0], weight.t(), None) if need_x else None,
            gradient_of_weight(rows, x.flatten(0, -2), product) if need_weight else None,
            rows.sum(dim=0) if need_bias else None,
        )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The operator itself. It reads a bias as if its entries were adjacent, and refuses a weight that overlaps itself,
    as a sliding window does (the gradient of W has x in that place)."""
    if counted():
        return F.linear(x, weight, bias)
    bias = bias if bias is None else bias.contiguous()
    weight = weight.contiguous() if _overlaps(weight) else weight
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _overlaps(matrix: Tensor) -> bool:
    """Whether rows (or columns, where these are the farther apart) share memory."""
    (by_row, by_column), (rows, columns) = matrix.stride(), matrix.shape
    return by_column * columns > by_row if by_row >= by_column else by_row * rows > by_column


LEVELS = 2**16


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """x * keep / (1 - p) in training, else x; the numbers come from torch's generator (`torch.manual_seed`)."""
    if not (training and 0 < p < 1 and x.is_cpu and plain(x)):
        return F.dropout(x, p, training)
    dropped = min(round(p * LEVELS), LEVELS - 1)  # of the values that 16 bits take; some x is kept while p < 1
    keep = random_bits(x.shape).ge_(dropped - LEVELS // 2).to(x.dtype)
    return (x * keep).mul_(LEVELS / (LEVELS - dropped))


def random_bits(shape: torch.Size) -> Tensor:
    """16 random bits per element, on the CPU: int16, each of its values with the same probability."""
    count = shape.numel()
    drawn = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)  # None: all 64 bits
    return drawn.view(torch.int16)[:count].view(shape)


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def make_dropout(p: float) -> nn.Module:
    """The module for a place where dropout may be asked for; `Identity` where it is not."""
    return Dropout(p) if p else nn.Identity()


def transformed() -> bool:
    """Whether torch.func (grad, vmap, jvp, ...), forward-mode AD or torch.jit.trace is at work."""
    return (
        torch._C._are_functorch_transforms_active()  # what torch.autograd.Function itself asks
        or forward_ad._current_level >= 0
        or torch.jit.is_tracing()
    )


def beyond_gradients() -> bool:
    """Whether one of these wants more than first gradients, which is all that torch's fused attention has."""
    if not torch._C._are_functorch_transforms_active():
        return forward_ad._current_level >= 0
    if torch.compiler.is_compiling():  # which cannot look at the stack
        return True
    kinds = [transform.key() for transform in torch._C._functorch.get_interpreter_stack() or []]
    return kinds != [torch._C._functorch.TransformType.Grad]


def plain(*tensors: Tensor | None) -> bool:
    """Whether eager autograd alone reads these tensors: no compiler, no transform, no subclass of Tensor."""
    return not torch.compiler.is_compiling() and PLAIN.issuperset(map(type, tensors)) and not transformed()


def counted() -> bool:
    """Whether a mode (FlopCounterMode, make_fx, a recorder) sees every operation, and should know its name."""
    return not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0

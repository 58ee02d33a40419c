"""Kernels of our own: dropout on a CPU, projections of one x by one product on a GPU, and when they apply.

**Dropout** is x * keep / (1 - p), where keep is 1 with probability 1 - p and else 0, for every element on its own.

On a CPU torch draws a number per element, which is most of the operation's cost and a tenth of a training step. Here 16
random bits decide about an element, four elements from one number of torch's generator: 0.4 of the time in float32, 0.3
in bfloat16, forward and backward. So p is met as a multiple of 2^-16, and what is kept is divided by the probability
that was met. It is torch's own dropout on other devices, in compiled graphs, under torch.func, forward-mode AD and
torch.jit.trace, and where nothing or everything is dropped.

Kernels of our own (here, in `loss` and in `attention`) serve plain eager autograd. Where a transform or a tracer asks
more of them than values and first gradients, torch's own operations do the work: slower, the same numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn import functional as F

PLAIN = {Tensor, Parameter, type(None)}
ROWS_TO_JOIN = 512  # from which on one product of stacked matrices is no slower than one after another, measured


def joined(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Sequence[Tensor] | None:
    """Every x W^T + b by one product of the stacked matrices; None where one after another is as fast or wanted.

    On a GPU, and in its compiled graphs, from as many rows on: fewer kernels, and no gradients of x to be summed.
    """
    rows = x.numel() // max(1, x.shape[-1])
    known = [bias for bias in biases if bias is not None]
    if not weights[0].is_cuda or rows < ROWS_TO_JOIN or counted() or len(known) not in (0, len(biases)):
        return None
    return join(x, weights, known) if _alike([*weights, *known]) and not transformed() else None


def join(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Sequence[Tensor]:
    """x W^T + b of each by one product; biases of all or of none."""
    y = F.linear(x, torch.cat(list(weights)), torch.cat(list(biases)) if biases else None)
    return y.split([len(weight) for weight in weights], dim=-1)


def _alike(tensors: Sequence[Tensor]) -> bool:
    """Whether these are tensors and nothing else (no shard, no other number format), of one dtype."""
    return PLAIN.issuperset(map(type, tensors)) and len({tensor.dtype for tensor in tensors}) == 1


def add_gradient(total: Tensor | None, grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """total + grad^T x, the gradient of W, in place; a sum of many such is kept in `dtype`, None is that of none."""
    if dtype != grad.dtype or counted():  # addmm_ is not counted
        product = F.linear(grad.t(), x.t()) if grad.shape[1] <= x.shape[1] else F.linear(x.t(), grad.t()).t()
        return product.to(dtype) if total is None else total.add_(product)
    if total is None:
        return grad.new_zeros(grad.shape[1], x.shape[1]).addmm_(grad.t(), x)
    return total.addmm_(grad.t(), x)


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

"""Who else looks at an operation.

Kernels of our own (`product`, `loss`, `dropout`, `attention`) serve plain eager autograd. Where a transform or a tracer
asks more of them than values and first gradients, torch's own operations do the work: slower, the same numbers.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


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
    return (
        not torch.compiler.is_compiling()
        and all(type(t) in (Tensor, Parameter) for t in tensors if t is not None)
        and not transformed()
    )


def counted() -> bool:
    """Whether a mode (FlopCounterMode, make_fx, a recorder) sees every operation, and should know its name."""
    return not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0

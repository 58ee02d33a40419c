"""Cross-entropy of a linear head without the whole matrix of logits.

    loss = - 1/n sum_i [ (1 - eps) log p(target_i) + eps/V sum_v log p(v) ],   p = softmax(W h_i + b)

Rows are taken in chunks; the gradient of a chunk is formed while its logits are still there, so the backward pass
multiplies three stored gradients by one number, and at most `chunk` x V logits exist at any time. Measured on CPU,
chunks of 512 rows cost 0.74 of the plain head at V 8192 and 0.93 at V 50257. Elsewhere a chunk has 2^27 logits: every
chunk reads and writes the gradient of W once, which is 1 % of the traffic then. Second derivatives, torch.func,
forward-mode AD and torch.jit.trace take the whole matrix.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isograd.transformer.kernels import add_gradient, plain, transformed

IGNORE = -100
ROWS = 512  # of a chunk on a CPU, where they stay in its caches
LOGITS = 2**27  # of a chunk elsewhere


def smoothing_of(eps: float, definition: str, classes: int) -> float:
    """The eps of `linear_cross_entropy` that stands for `eps` in one of the two definitions in use, V = `classes`.

    "torch"    1 - eps on the target and eps/V on every class, the target too: eps (Szegedy et al. 2016; torch;
               fairseq 0.8 and with it Transformer-Clinic)
    "fairseq"  1 - eps on the target and eps/(V - 1) on every other class: eps V / (V - 1) (fairseq 0.12)

    >>> smoothing_of(0.1, "torch", 5), smoothing_of(0.1, "fairseq", 5)
    (0.1, 0.125)

    Raises:
        ValueError: an unknown definition.
    """
    match definition:
        case "torch":
            return eps
        case "fairseq":
            return eps * classes / (classes - 1)
        case _:
            raise ValueError(f"label smoothing is 'torch' or 'fairseq', not {definition!r}")


def linear_cross_entropy(
    hidden: Tensor,  # (rows, width)
    weight: Tensor,  # (vocabulary, width)
    target: Tensor,  # (rows,), IGNORE where there is nothing to predict
    *,
    bias: Tensor | None = None,  # (vocabulary,)
    label_smoothing: float = 0.0,
    items: Tensor | int | None = None,
    chunk: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """The loss in nats, in float32 or better.

    Args:
        label_smoothing: eps of the formula, spread over all V classes; `smoothing_of` gives it for fairseq's
            definition, too.
        items: what the sum is divided by; None counts the targets that are not IGNORE.
        chunk: rows taken at a time; None: what suits the device (`rows_at_once`).
        cap: logits s are cap * tanh(s / cap); None leaves them as they are.
    """
    if items is None:
        items = (target != IGNORE).sum()
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    items = torch.as_tensor(items, dtype=torch.promote_types(dtype, torch.float32), device=hidden.device)
    if transformed():
        return _whole(hidden, weight, bias, target, items, label_smoothing, dtype, cap)
    if hidden.is_cpu and plain(hidden, target):  # elsewhere the count of rows would have to be waited for
        hidden, target = labelled(hidden, target)
    if (
        not torch.is_grad_enabled()
    ):  # a Function's needs_input_grad does not know: gradients would be formed for nothing
        hidden, weight, bias = hidden.detach(), weight.detach(), bias if bias is None else bias.detach()
    # a product rounds its operands, so 1/n belongs into them, but float16 has no exponents to hold it
    divisor = torch.ones_like(items) if dtype == torch.float16 else items
    chunk = rows_at_once(len(weight), device) if chunk is None else chunk
    loss = _LinearCrossEntropy.apply(hidden, weight, bias, target, divisor, label_smoothing, chunk, dtype, cap)
    return loss if divisor is items else loss / items


def rows_at_once(vocabulary: int, device: str) -> int:
    """Of a chunk, where none is asked for."""
    return ROWS if device == "cpu" else max(1, LOGITS // vocabulary // ROWS) * ROWS


def capped(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(s / cap) (Gemma 2)."""
    return torch.tanh(logits / cap) * cap


def labelled(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a target, unless nearly all have one; the head costs its share of a step by row."""
    rows = (target != IGNORE).nonzero().squeeze(1)
    if len(rows) > 0.98 * len(target):  # copying the others would cost as much
        return hidden, target
    return hidden.index_select(0, rows), target[rows]


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum over rows, divided by `items`; gradients are formed chunk by chunk in the forward pass.

    Those of weight and bias are sums over chunks, kept in float32 or better whatever the dtype of their owners.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        items: Tensor,
        smoothing: float,
        chunk: int,
        dtype: torch.dtype,
        cap: float | None,
    ) -> Tensor:
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        total, share, exact = torch.zeros_like(items), 1 / items, torch.promote_types(weight.dtype, torch.float32)
        d_hidden = torch.empty_like(hidden) if need_hidden else None
        d_weight = None
        d_bias = _exact_zeros(bias) if need_bias and bias is not None else None
        h_all, w, b = hidden.to(dtype), weight.to(dtype), bias if bias is None else bias.to(dtype)
        narrow = not (smoothing or cap or need_bias) and _in_few_passes(h_all, items.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, hidden.shape[0], chunk):
                rows = slice(begin, begin + chunk)
                ignored = (target[rows] == IGNORE)[:, None]
                h = h_all[rows].masked_fill(ignored, 0)  # whatever stands there, as padding that is not a number
                logits = F.linear(h, w, b)
                if narrow:
                    loss, d_logits = _narrow_chunk(logits, target[rows][:, None], ignored)
                else:
                    logits, slope = logits.to(items.dtype), None
                    if cap is not None:
                        logits = capped(logits, cap)
                        slope = 1 - (logits / cap).square()
                    loss, d_logits = _chunk(logits, target[rows][:, None], ignored, smoothing)
                    if slope is not None:
                        d_logits *= slope
                    d_logits *= share.masked_fill(ignored, 0)
                    if d_bias is not None:
                        d_bias += d_logits.sum(dim=0)
                    d_logits = d_logits.to(dtype)
                total += loss
                if d_hidden is not None:
                    d_hidden[rows] = F.linear(d_logits, w.t())
                if need_weight:
                    d_weight = add_gradient(d_weight, d_logits, h, exact)
        if need_weight and d_weight is None:  # of no rows
            d_weight = _exact_zeros(weight)
        if narrow and d_hidden is not None:
            d_hidden *= share.masked_fill(target == IGNORE, 0)[:, None]
        if narrow and d_weight is not None:
            d_weight *= share
        ctx.save_for_backward(d_hidden, d_weight, d_bias, hidden, weight, bias, target, items)
        ctx.smoothing, ctx.dtype, ctx.cap = smoothing, dtype, cap
        return total / items

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            return *_differentiable_gradients(ctx, grads[0]), None, None, None, None, None, None
        saved = ctx.saved_tensors  # once: what is checkpointed is computed again for it
        scaled = (
            None if d is None else _scaled(d.to(grads[0].dtype), grads[0], owner).to(owner.dtype)
            for d, owner in zip(saved[:3], saved[3:6], strict=True)
        )
        return *scaled, None, None, None, None, None, None


def _scaled(gradient: Tensor, factor: Tensor, owner: Tensor) -> Tensor:
    """gradient * factor; what lies transposed in memory is turned on the way, as its owner lies."""
    if gradient.is_contiguous() or not owner.is_contiguous() or torch.compiler.is_compiling():
        return gradient * factor
    return torch.mul(gradient, factor, out=torch.empty_like(owner, dtype=gradient.dtype))


def _exact_zeros(owner: Tensor) -> Tensor:
    return torch.zeros_like(owner, dtype=torch.promote_types(owner.dtype, torch.float32))


def _differentiable_gradients(ctx: Any, upstream: Tensor) -> list[Tensor | None]:
    """The gradients once more, with a graph of their own: the stored ones are constants."""
    hidden, weight, bias, target, items = ctx.saved_tensors[3:]
    # views, since the hidden states may have been computed from the same weight
    hidden, weight, bias = hidden.view_as(hidden), weight.view_as(weight), bias if bias is None else bias.view_as(bias)
    loss = _whole(hidden, weight, bias, target, items, ctx.smoothing, ctx.dtype, ctx.cap)
    asked = [t for t, need in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True) if need]
    found = iter(torch.autograd.grad(loss, asked, upstream, create_graph=True))
    return [next(found) if need else None for need in ctx.needs_input_grad[:3]]


def _whole(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    items: Tensor,
    smoothing: float,
    dtype: torch.dtype,
    cap: float | None,
) -> Tensor:
    """The same from the whole matrix of logits, by operations that torch can transform."""
    ignored = (target == IGNORE)[:, None]
    with torch.autocast(hidden.device.type, enabled=False):
        h = hidden.to(dtype).masked_fill(ignored, 0)
        logits = F.linear(h, weight.to(dtype), bias if bias is None else bias.to(dtype))
        logits = logits if cap is None else capped(logits.to(items.dtype), cap)
        log_p = logits.log_softmax(dim=-1, dtype=items.dtype)
    loss = -(1 - smoothing) * log_p.gather(1, target[:, None].masked_fill(ignored, 0))
    if smoothing:
        loss = loss - smoothing * log_p.mean(dim=-1, keepdim=True)
    return loss.masked_fill(ignored, 0).sum() / items


def _in_few_passes(hidden: Tensor, exact: torch.dtype) -> bool:
    """Whether logits of 16 bits are read and written as seldom as can be: where memory is what the loss waits for."""
    return not hidden.is_cpu and hidden.dtype != exact and not torch.compiler.is_compiling()


def _narrow_chunk(logits: Tensor, target: Tensor, ignored: Tensor) -> tuple[Tensor, Tensor]:
    """As `_chunk`, of logits in 16 bits: three passes over them, 20 bytes a logit instead of 36.

    In the place of the logits is softmax minus one-hot, the target's own rounded once, of ignored rows too, and not yet
    divided by n.
    """
    index = target.masked_fill(ignored, 0)
    log_p = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    own = log_p.gather(1, index)
    d_logits = torch.exp(log_p, out=logits)
    d_logits.scatter_(1, index, own.expm1().to(logits.dtype))
    return -own.masked_fill(ignored, 0).sum(), d_logits


def _chunk(logits: Tensor, target: Tensor, ignored: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Loss of the rows that are not ignored, and softmax minus the smoothed one-hot of every row, which takes the place
    of the logits in memory; `target` and `ignored` of shape (rows, 1).
    """
    index, fused = target.masked_fill(ignored, 0), torch.compiler.is_compiling()
    log_p = logits.log_softmax(dim=-1) if fused else torch.log_softmax(logits, dim=-1, out=logits)
    loss = -(1 - smoothing) * log_p.gather(1, index)
    if smoothing:
        loss = loss - smoothing * log_p.mean(dim=-1, keepdim=True)
    if fused:  # a compiler makes one kernel of it, where it would write all logits for a scatter
        own = torch.arange(logits.shape[1], device=logits.device) == index
        d_logits = torch.where(own, log_p.exp() + (smoothing - 1), log_p.exp())
    else:
        d_logits = log_p.exp_()
        d_logits.scatter_add_(1, index, d_logits.new_full(index.shape, smoothing - 1))
    if smoothing:
        d_logits -= smoothing / logits.shape[1]
    return loss.masked_fill(ignored, 0).sum(), d_logits

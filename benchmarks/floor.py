"""How low could a step of the study shape go on this CPU: a plain loop, and what can be done to it by hand.

    python benchmarks/floor.py                  two minutes; `--compile` adds torch.compile of both, two more
    python benchmarks/floor.py --placement normformer

Pre-LN, 12 layers, width 64, 16 x 32 tokens, one thread; a step is forward, loss, backward, clipping and fused AdamW.
All start from the same weights. *plain*: nn.LayerNorm, F.linear, F.scaled_dot_product_attention, F.gelu, one W_QKV.
*by hand*: each sublayer (norm, branch, residual) one
autograd function with a backward pass written out on torch's kernels: no graph inside, no copy too many. They take
turns in one process; the ratio is the median over the steps of the ratio to *plain* of the same turn, with quartiles.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from contestants import BUILDERS, Shape
from torch import Tensor, nn
from torch.nn import functional as F

from isograd.machine import keep_freed_memory

SHAPE = Shape(width=64, layers=12, heads=4, vocabulary=175, time=32, batch=16)
HEAD = SHAPE.width // SHAPE.heads
aten = torch.ops.aten


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def heads(z: Tensor) -> tuple[Tensor, ...]:
    """(batch, time, 3 width) -> query, key, value of (batch, heads, time, head size)."""
    return z.view(SHAPE.batch, SHAPE.time, 3, SHAPE.heads, HEAD).permute(2, 0, 3, 1, 4).unbind(0)


class Block(nn.Module):
    """x + W_O attention(W_QKV norm(x)), then x + W_2 gelu(W_1 norm(x))."""

    def __init__(self, linear: Callable[..., Tensor] = F.linear) -> None:
        super().__init__()
        d = SHAPE.width
        self.linear = linear
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
        )

    def forward(self, x: Tensor) -> Tensor:
        def by(layer: nn.Linear, x: Tensor) -> Tensor:
            return self.linear(x, layer.weight, layer.bias)

        h = F.scaled_dot_product_attention(*heads(by(self.qkv, self.norm_1(x))), is_causal=True)
        x = x + by(self.out, h.transpose(1, 2).reshape(x.shape))
        return x + by(self.down, F.gelu(by(self.up, self.norm_2(x))))


def norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    return aten.native_layer_norm_backward(grad.view_as(x), x, [SHAPE.width], mean, rstd, weight, bias, [True] * 3)


class FeedForward(torch.autograd.Function):
    """x + W_2 gelu(W_1 norm(x))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *w: Tensor) -> Tensor:
        scale, shift, up, up_bias, down, down_bias = w
        n, mean, rstd = aten.native_layer_norm(x, [SHAPE.width], scale, shift, 1e-5)
        u = product(n, up, up_bias)
        h = F.gelu(u)
        ctx.save_for_backward(x, *w, n, mean, rstd, u, h)
        return product(h, down, down_bias).add_(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, scale, shift, up, _, down, _, n, mean, rstd, u, h = ctx.saved_tensors
        rows = grads[0].reshape(-1, SHAPE.width)
        into = aten.gelu_backward(product(rows, down.t()), u.flatten(0, 1))
        d_up = product(n.flatten(0, 1).t(), into.t()).t()
        d_down = product(rows.t(), h.flatten(0, 1).t())
        dx, d_scale, d_shift = norm_backward(product(into, up.t()), x, mean, rstd, scale, shift)
        return dx.add_(grads[0]), d_scale, d_shift, d_up, into.sum(0), d_down, rows.sum(0)


class Attention(torch.autograd.Function):
    """x + W_O attention(W_QKV norm(x)), causal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *w: Tensor) -> Tensor:
        scale, shift, qkv, qkv_bias, out, out_bias = w
        n, mean, rstd = aten.native_layer_norm(x, [SHAPE.width], scale, shift, 1e-5)
        z = product(n, qkv, qkv_bias)
        h, lse = aten._scaled_dot_product_flash_attention_for_cpu(*heads(z), 0.0, True)
        rows = h.transpose(1, 2).reshape(-1, SHAPE.width)
        ctx.save_for_backward(x, *w, n, mean, rstd, z, h, lse, rows)
        return product(rows, out, out_bias).view(x.shape).add_(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, scale, shift, qkv, _, out, _, n, mean, rstd, z, h, lse, rows = ctx.saved_tensors
        grad = grads[0].reshape(-1, SHAPE.width)
        dh = product(grad, out.t()).view(SHAPE.batch, SHAPE.time, SHAPE.heads, HEAD).transpose(1, 2)
        parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(dh, *heads(z), h, lse, 0.0, True)
        dz = torch.stack([part.transpose(1, 2) for part in parts], 2).view(-1, 3 * SHAPE.width)
        d_qkv = product(n.flatten(0, 1).t(), dz.t()).t()
        d_out = product(grad.t(), rows.t())
        dx, d_scale, d_shift = norm_backward(product(dz, qkv.t()), x, mean, rstd, scale, shift)
        return dx.add_(grads[0]), d_scale, d_shift, d_qkv, dz.sum(0), d_out, grad.sum(0)


class ByHand(Block):
    def forward(self, x: Tensor) -> Tensor:
        a, f = (self.norm_1, self.qkv, self.out), (self.norm_2, self.up, self.down)
        x = Attention.apply(x, *(p for layer in a for p in (layer.weight, layer.bias)))
        return FeedForward.apply(x, *(p for layer in f for p in (layer.weight, layer.bias)))


class Plain(nn.Module):
    """A causal language model with one table for tokens and head."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SHAPE.vocabulary, SHAPE.width), nn.Embedding(SHAPE.time, SHAPE.width)
        nn.init.normal_(self.tokens.weight, std=SHAPE.width**-0.5)
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(SHAPE.width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x)[:, :-1].flatten(0, 1) @ self.tokens.weight.t()
        return F.cross_entropy(logits, ids[:, 1:].flatten())


def contestants(placement: str, compiled: bool) -> dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Name -> model and loss of token ids."""
    torch.manual_seed(0)
    plain = Plain([Block() for _ in range(SHAPE.layers)])
    found: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {"plain": (plain, plain)}
    for name, make in {"by hand": ByHand}.items():
        model = Plain([make() for _ in range(SHAPE.layers)])
        model.load_state_dict(plain.state_dict())
        found[name] = model, model
    ours, loss = BUILDERS["isograd"](SHAPE, placement)
    found["isograd"] = ours, lambda ids: loss({"input_ids": ids, "labels": ids})
    if compiled:
        again = Plain([Block() for _ in range(SHAPE.layers)])
        found["plain, compiled"] = again, torch.compile(again)
        ours, loss = BUILDERS["isograd"](SHAPE, placement)
        found["isograd, compiled"] = ours, torch.compile(lambda ids: loss({"input_ids": ids, "labels": ids}))
    return found


def same_gradients(models: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]], ids: Tensor) -> float:
    """The largest difference of a gradient written by hand to autograd's, of that gradient's largest entry."""
    for name in ("plain", "by hand"):
        models[name][1](ids).backward()
    pairs = zip(models["plain"][0].parameters(), models["by hand"][0].parameters(), strict=True)
    worst = max(float((a.grad - b.grad).abs().max() / a.grad.abs().max()) for a, b in pairs)
    for name in ("plain", "by hand"):
        models[name][0].zero_grad()
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placement", default="pre-ln")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the plain loop and of isograd too")
    parser.add_argument("-n", type=int, default=100, help="steps (default 100)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    ids = torch.randint(4, SHAPE.vocabulary, (SHAPE.batch, SHAPE.time))
    models = contestants(options.placement, options.compile)
    print(f"largest difference of a gradient by hand: {same_gradients(models, ids):.1e}")
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True) for name, (m, _) in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for step in range(options.n + 8):
        for name, (model, loss) in models.items():
            began = time.process_time()
            loss(ids).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad()
            if step >= 8:
                times[name].append(time.process_time() - began)
    for name, took in times.items():
        ratios = sorted(a / b for a, b in zip(took, times["plain"], strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name:18s} {1e3 * statistics.median(took):6.1f} ms  {middle:.3f} ({low:.3f}..{high:.3f})  n = {options.n}"
        )


if __name__ == "__main__":
    main()

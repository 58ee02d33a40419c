"""Gradients summed over chunks of rows, and projections of one x by one product: the numbers of one after another."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from isograd.transformer import kernels
from isograd.transformer.parameters import Linear


def test_accumulation_is_counted() -> None:
    for rows in (10, 2000):
        with FlopCounterMode(display=False) as counter:
            kernels.add_gradient(None, torch.randn(rows, 64), torch.randn(rows, 96), torch.float32)
        assert counter.get_total_flops() == 2 * rows * 64 * 96


@pytest.mark.parametrize("rows", [8, 4096])
def test_accumulates(rows: int) -> None:
    torch.manual_seed(0)
    expected, total = torch.zeros(64, 32, dtype=torch.float64), None
    for some in (rows, rows, 3):  # the last chunk is a small one
        grad, x = torch.randn(some, 64), torch.randn(some, 32)
        expected += grad.double().t() @ x.double()
        total = kernels.add_gradient(total, grad, x, torch.float32)
    assert total is not None and (total - expected).abs().max() <= 3e-6 * expected.abs().max()
    wide = kernels.add_gradient(None, torch.randn(8, 64).bfloat16(), torch.randn(8, 32).bfloat16(), torch.float32)
    assert wide.dtype == torch.float32 and wide.shape == (64, 32)


def agree(ours: list[Tensor], exact: list[Tensor]) -> None:
    for a, b in zip(ours, exact, strict=True):
        assert (a - b).abs().max() <= 3e-6 * b.abs().max()


@pytest.mark.parametrize("bias", [True, False])
def test_what_a_gpu_joins(bias: bool) -> None:
    """In any dtype and under autocast, where the product is torch's: values and gradients of one after another."""
    layers = [Linear(64, to, role="query", bias=bias).double() for to in (64, 32, 32)]
    x = torch.randn(640, 64, dtype=torch.float64, requires_grad=True)
    parameters = [p for layer in layers for p in layer.parameters()]

    def grads(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum((n + y).sin().sum() for n, y in enumerate(outputs)), [x, *parameters])

    made = kernels.join(x, [m.weight for m in layers], [m.bias for m in layers] if bias else [])
    agree([*made, *grads(made)], [*(apart := [layer(x) for layer in layers]), *grads(apart)])

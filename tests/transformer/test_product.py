"""Products by oneDNN: the same numbers as torch's own in float64, at every shape and through two derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isograd.transformer import product


def gradients(x: Tensor, weight: Tensor, bias: Tensor, linear: Callable[..., Tensor]) -> list[Tensor]:
    """The product, its gradients, and a gradient of those."""
    x, weight, bias = (t.detach().clone().requires_grad_() for t in (x, weight, bias))
    y = linear(x, weight, bias)
    first = torch.autograd.grad(y.square().sum(), (x, weight, bias), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum() + first[1].sum(), (x, weight))
    return [y, *first, *second]


@pytest.mark.parametrize("shape", [(300, 48), (3, 100, 48), (2, 3, 50, 48)])
def test_equals_torch_in_float64(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "WORTHWHILE", 1)
    torch.manual_seed(0)
    given = torch.randn(shape), torch.randn(80, 48), torch.randn(80)
    assert product.large_float32_on_cpu(*given[:2])
    ours = gradients(*given, product.linear)
    exact = gradients(*(t.double() for t in given), F.linear)
    for a, b in zip(ours, exact, strict=True):
        assert (a - b).abs().max() <= 3e-6 * b.abs().max()


def test_others_take_torch_own_product() -> None:
    x, weight = torch.randn(2048, 64), torch.randn(64, 64)
    assert product.large_float32_on_cpu(x, weight)
    assert not product.large_float32_on_cpu(x.double(), weight.double())
    assert not product.large_float32_on_cpu(x[:10], weight)
    assert not product.large_float32_on_cpu(x.to("meta"), weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not product.large_float32_on_cpu(x, weight)
        assert product.linear(x, weight).dtype == torch.bfloat16
    torch.backends.mkldnn.set_flags(False)
    try:
        assert not product.large_float32_on_cpu(x, weight)
    finally:
        torch.backends.mkldnn.set_flags(True)


@pytest.mark.parametrize("rows", [8, 4096])
def test_accumulates(rows: int) -> None:
    torch.manual_seed(0)
    total, grad, x = torch.randn(64, 32), torch.randn(rows, 64), torch.randn(rows, 32)
    expected = total.double() + grad.double().t() @ x.double()
    product.add_gradient(total, grad, x)
    assert (total - expected).abs().max() <= 3e-6 * expected.abs().max()

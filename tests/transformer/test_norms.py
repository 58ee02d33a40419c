"""RMSNorm in every mixture of dtypes, against torch's own module and the equation by hand."""

import itertools

import pytest
import torch
from torch import Tensor

from isograd.transformer.norms import RMSNorm

WIDTH = 48
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# torch's own computes in float32 what is not float64, also where the weight is
MIXED = [(x, w) for x, w in itertools.product(DTYPES, DTYPES) if w != torch.float64 or x == w]


def by_hand(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """v / sqrt(mean(v^2) + eps) * weight in float64."""
    v = x.double()
    return v / (v.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def forward_and_back(norm: torch.nn.RMSNorm, x: Tensor, autocast: torch.dtype | None) -> list[Tensor]:
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        y = norm(x)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *norm.parameters()], upstream)]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's own, of its own norm
@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("of_x", "of_weight"), MIXED)
def test_is_torchs(of_x: torch.dtype, of_weight: torch.dtype, autocast: torch.dtype | None, eps: float | None) -> None:
    """Values, gradients and their dtypes; a float32 weight was rounded to bfloat16 under autocast."""
    torch.manual_seed(0)
    ours, theirs = (kind(WIDTH, eps=eps, dtype=of_weight) for kind in (RMSNorm, torch.nn.RMSNorm))
    for norm in (ours, theirs):
        norm.load_state_dict({"weight": torch.rand(WIDTH, generator=torch.Generator().manual_seed(1)) + 0.5})
    x = torch.randn(5, 7, WIDTH).to(of_x)
    found, expected = forward_and_back(ours, x, autocast), forward_and_back(theirs, x, autocast)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(a.dtype).eps, atol=4 * torch.finfo(a.dtype).eps)
    if eps is not None:
        exact = by_hand(x, ours.weight.detach(), eps)
        rounding = torch.finfo(found[0].dtype).eps / 2 + 4 * torch.finfo(torch.float32).eps
        assert ((found[0].double() - exact).abs() <= rounding * exact.abs()).all()


def test_without_a_weight() -> None:
    x = torch.randn(5, WIDTH)
    assert RMSNorm(WIDTH, elementwise_affine=False)(x).equal(torch.nn.RMSNorm(WIDTH, elementwise_affine=False)(x))


@pytest.mark.parametrize("of_x", [torch.float32, torch.bfloat16])
def test_a_weight_that_differs_in_its_last_bits(of_x: torch.dtype) -> None:
    """Weights that bfloat16 cannot tell apart give gradients that float32 can: the weight's own is not rounded."""
    norm, x = RMSNorm(WIDTH, eps=1e-5), torch.randn(200, WIDTH).to(of_x)
    with torch.no_grad():
        norm.weight.add_(torch.linspace(-1e-3, 1e-3, WIDTH))
    found = forward_and_back(norm, x, torch.bfloat16)[2]
    leaf = norm.weight.detach().double().requires_grad_()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(of_x)
    (exact,) = torch.autograd.grad(by_hand(x, leaf, 1e-5), leaf, upstream.double())
    assert (found - exact).norm() < 1e-5 * exact.norm()

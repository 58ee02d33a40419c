"""Dropout by 16 bits: p is met, elements are independent, gradients see the same mask, a seed decides."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isograd.transformer.kernels import Dropout, dropout, make_dropout, random_bits

COUNT = 2**22


def kept(p: float, count: int = COUNT) -> Tensor:
    return dropout(torch.ones(count), p) != 0


def correlation(a: Tensor, b: Tensor) -> float:
    """In standard deviations of what independent elements show."""
    return float(torch.corrcoef(torch.stack([a, b]).double())[0, 1]) * len(a) ** 0.5


@pytest.mark.parametrize("p", [0.0003, 0.1, 0.3, 0.5])
def test_drops_with_probability_p(p: float) -> None:
    torch.manual_seed(0)
    deviation = (p * (1 - p) / COUNT) ** 0.5
    share = 1 - float(kept(p).double().mean())
    assert abs(share - p) < 4 * deviation + 2**-17
    assert p > 0.2 or abs(share - round(p * 256) / 256) > 8 * deviation  # what 8 bits would give


def test_every_value_of_16_bits_is_as_likely() -> None:
    torch.manual_seed(0)
    counts = torch.bincount(random_bits(torch.Size([COUNT])).int() + 2**15, minlength=2**16).double()
    expected = COUNT / 2**16
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert len(counts) == 2**16
    assert abs(chi_square - (2**16 - 1)) < 4 * (2 * (2**16 - 1)) ** 0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 8, 256])
def test_elements_are_independent(lag: int) -> None:
    torch.manual_seed(0)
    mask = kept(0.3, 2**20).float()
    assert abs(correlation(mask[:-lag], mask[lag:])) < 4
    again = mask.view(-1, 4)[:, :1].expand(-1, 4).flatten()  # one number for four elements
    assert lag > 3 or abs(correlation(again[:-lag], again[lag:])) > 100


def test_two_draws_are_independent() -> None:
    torch.manual_seed(0)
    assert abs(correlation(kept(0.3, 2**20).float(), kept(0.3, 2**20).float())) < 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4), (8, 16)])
def test_value_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """x / (1 - p) or 0, the expectation kept to 1e-5; the gradient passes where the value did."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    upstream = torch.randn(shape, dtype=dtype)
    y = dropout(x, 0.3)
    (grad,) = torch.autograd.grad(y, x, upstream)
    mask = (y != 0).to(dtype)
    assert y.dtype == grad.dtype == dtype
    for found, given in ((y, x), (grad, upstream)):
        torch.testing.assert_close(found, (given.double() * mask / 0.7).to(dtype), rtol=max(2e-5, eps(dtype)), atol=0)


def eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def test_expectation_is_that_of_the_probability_met() -> None:
    """Also where 1 - p is a few of the 2^16 levels, and where p rounds to 1 or to 0."""
    met = round(0.9999 * 2**16) / 2**16
    values = dropout(torch.ones(COUNT, dtype=torch.float64), 0.9999).unique()
    assert values.tolist() == [0.0, 1 / (1 - met)]
    assert dropout(torch.ones(COUNT), 1 - 1e-9).mean() == pytest.approx(1, abs=4 * (2**16 / COUNT) ** 0.5)
    assert dropout(torch.ones(COUNT), 1e-9).eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.0, 1.0, 0, 1])
def test_nothing_or_everything_is_torchs(p: float, dtype: torch.dtype) -> None:
    """Values, gradients and the generator: p = 1 gave 65,536 here and there."""
    for shape in ((3, 50_000), (0, 4), ()):
        x = torch.randn(shape).to(dtype).requires_grad_()
        upstream = torch.randn(shape).to(dtype)
        for apply in (dropout, lambda v, p: Dropout(p)(v)):
            torch.manual_seed(0)
            ours, after = apply(x, p), torch.get_rng_state()
            torch.manual_seed(0)
            exact = F.dropout(x, p)
            assert ours.dtype == exact.dtype and ours.equal(exact)
            assert after.equal(torch.get_rng_state())
            found, expected = (torch.autograd.grad(y.clone(), x, upstream)[0] for y in (ours, exact))
            assert found.dtype == expected.dtype and found.equal(expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_no_probability(p: float, training: bool) -> None:
    """torch refuses it in the same words; -1 was half of x before."""
    for apply in (F.dropout, dropout):
        with pytest.raises((ValueError, RuntimeError), match="between 0 and 1"):
            apply(torch.ones(3), p, training)


@pytest.mark.parametrize("p", [2**-16, 2**-17, 1e-4, 0.5, 0.999])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_mean_over_many(p: float, dtype: torch.dtype) -> None:
    """The mean of dropped ones is 1 within four standard deviations, as torch's own is."""
    torch.manual_seed(0)
    deviation = (p / (1 - p) / COUNT) ** 0.5
    for apply in (dropout, F.dropout):
        mean = float(apply(torch.ones(COUNT, dtype=dtype), p).double().mean())
        assert abs(mean - 1) < 4 * deviation + eps(dtype)


def test_seed_decides() -> None:
    x = torch.ones(1000)
    drawn = [dropout(x, 0.5) for seed in (1, 1, 2) if torch.manual_seed(seed)]
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])
    assert not dropout(x, 0.5).equal(drawn[2])  # the generator moves on


def test_torch_own_dropout_elsewhere() -> None:
    x = torch.ones(1000)
    assert dropout(x, 0.5, training=False) is x
    assert Dropout(0.5).eval()(x) is x
    assert dropout(x.to("meta"), 0.5).is_meta
    compiled = torch.compile(lambda v: dropout(v, 0.5), backend="eager", fullgraph=True)
    found, expected, control = (f(x) for f in (compiled, F.dropout, lambda v: dropout(v, 0.5)) if torch.manual_seed(0))
    assert found.equal(expected)
    assert not found.equal(control)


def test_no_module_where_nothing_is_dropped() -> None:
    assert isinstance(make_dropout(0.0), torch.nn.Identity)
    made = make_dropout(0.25)
    assert isinstance(made, torch.nn.Dropout)
    assert made.p == 0.25

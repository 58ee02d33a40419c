"""Optimizers against their rules written by hand in fp64, schedules against their formulas."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.train.optim import optimizer_of, schedule_of
from isograd.train.recipe import load_run
from isograd.train.run import RecipeError, Training
from isograd.train.trainer import check_machine

B1, B2, EPS, LR = 0.9, 0.98, 1e-8, 0.05
START = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.1, -0.7]], dtype=torch.float64)


def gradient(p: Tensor) -> Tensor:
    """Of sum(c p^2 / 2 + sin p): nothing about it is symmetric."""
    c = torch.arange(1.0, 7.0, dtype=p.dtype).view(2, 3)
    return c * p + p.cos()


def trajectory(name: str, updates: int, decay: float = 0.0, betas: tuple[float, float] = (B1, B2)) -> list[Tensor]:
    """The parameter after 0, 1, .. updates of the optimizer that a recipe names."""
    cls, options = optimizer_of(Training(optimizer=name, lr=LR, betas=betas, eps=EPS))  # type: ignore[arg-type]
    p = torch.nn.Parameter(START.clone())
    optimizer = cls([{"params": [p], "weight_decay": decay}], **options)
    seen = [p.detach().clone()]
    for _ in range(updates):
        p.grad = gradient(p.detach())
        optimizer.step()
        seen.append(p.detach().clone())
    return seen


def radam(p: Tensor, m: Tensor, v: Tensor, t: int, decay: float, b2: float = B2) -> Tensor:
    """Liu et al. 2019, their code: nothing moves while the length of the moving average is below 5."""
    longest = 2 / (1 - b2) - 1
    length = longest - 2 * t * b2**t / (1 - b2**t)
    if length < 5:
        return p
    r = math.sqrt(
        (1 - b2**t) * (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )  # with sqrt(1 - b2^t) inside, v needs no correction
    return p - LR * decay * p - LR * r / (1 - B1**t) * m / (v.sqrt() + EPS)


def adamw(p: Tensor, m: Tensor, v: Tensor, t: int, decay: float, b2: float = B2) -> Tensor:
    """Loshchilov & Hutter 2019."""
    return p - LR * decay * p - LR * (m / (1 - B1**t)) / ((v / (1 - b2**t)).sqrt() + EPS)


def lamb(p: Tensor, m: Tensor, v: Tensor, t: int, decay: float, b2: float = B2) -> Tensor:
    """You et al. 2019: p -= lr phi(|p|) / |u| u, u = m / (sqrt(v) + eps) + decay p, phi(z) = min(z, 10)."""
    u = m / (v.sqrt() + EPS) + decay * p
    return p - LR * p.norm().clamp(max=10) / u.norm() * u


def by_hand(rule: Callable[..., Tensor], updates: int, decay: float, b2: float = B2) -> list[Tensor]:
    p, m, v = START.clone(), torch.zeros_like(START), torch.zeros_like(START)
    seen = [p]
    for t in range(1, updates + 1):
        g = gradient(p)
        m, v = B1 * m + (1 - B1) * g, b2 * v + (1 - b2) * g * g
        p = rule(p, m, v, t, decay, b2)
        seen.append(p)
    return seen


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("name", "rule"), [("radam-original", radam), ("adamw", adamw), ("lamb", lamb)])
def test_twenty_updates_by_hand(name: str, rule: Callable[..., Tensor], decay: float) -> None:
    if name in ("lamb", "radam-original"):
        pytest.importorskip("pytorch_optimizer")
    for got, expected in zip(trajectory(name, 20, decay), by_hand(rule, 20, decay), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-7 if name == "lamb" else 1e-12)  # it adds eps to |u|


@pytest.mark.parametrize("b2", [0.98, 0.999])
def test_radam_stands_still_for_five_updates(b2: float) -> None:
    """Its moments gather meanwhile; torch's RAdam makes large momentum steps instead."""
    pytest.importorskip("pytorch_optimizer")
    seen = trajectory("radam-original", 7, betas=(B1, b2))
    assert all(torch.equal(p, START) for p in seen[:6])
    for got, expected in zip(seen, by_hand(radam, 7, 0.0, b2), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    assert not torch.equal(seen[6], START)
    torchs = trajectory("radam", 7, betas=(B1, b2))
    torch.testing.assert_close(torchs[1], START - LR * gradient(START), rtol=0, atol=1e-12)
    assert (torchs[1] - START).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "cls", "options"),
    [
        ("adam", torch.optim.Adam, {"betas": (B1, B2), "eps": EPS}),
        ("adamw", torch.optim.AdamW, {"betas": (B1, B2), "eps": EPS}),
        ("sgd", torch.optim.SGD, {"momentum": B1}),
        ("radam", torch.optim.RAdam, {"betas": (B1, B2), "eps": EPS, "decoupled_weight_decay": True}),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_torchs_own(name: str, cls: type[torch.optim.Optimizer], options: dict[str, Any], decay: float) -> None:
    assert optimizer_of(Training(optimizer=name))[0] is cls  # type: ignore[arg-type]
    p = torch.nn.Parameter(START.clone())
    optimizer = cls([p], lr=LR, weight_decay=decay, **options)  # type: ignore[call-arg]
    for got in trajectory(name, 10, decay)[1:]:
        p.grad = gradient(p.detach())
        optimizer.step()
        torch.testing.assert_close(got, p.detach(), rtol=0, atol=1e-12)


FORMULAS: dict[str, Callable[[int, int, int], float]] = {
    "constant": lambda t, w, total: 1.0,
    "linear": lambda t, w, total: 1 - (t - 1 - w) / (total - w),
    "cosine": lambda t, w, total: math.cos(math.pi / 2 * (t - 1 - w) / (total - w)) ** 2,
    "inverse-sqrt": lambda t, w, total: w**0.5 * t**-0.5 if w else (1e4 / (1e4 + t)) ** 0.5,
}


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("decay", FORMULAS)
def test_schedules_by_hand(decay: str, warmup: int) -> None:
    total = 20
    rate = schedule_of(Training(steps=total, warmup=warmup, decay=decay))  # type: ignore[arg-type]
    for t in range(1, total + 1):
        expected = t / warmup if t <= warmup else FORMULAS[decay](t, warmup, total)
        assert math.isclose(rate(t), expected, rel_tol=1e-12), t
    assert rate(1) > 0 and rate(total) > 0  # no update stands still
    assert max(rate(t) for t in range(1, total + 1)) <= 1
    assert rate(total + 1) >= 0 and rate(10 * total) >= 0


def test_linear_goes_down_to_one_step_above_zero() -> None:
    rate = schedule_of(Training(steps=10, warmup=0, decay="linear"))
    assert [round(rate(t), 12) for t in (1, 2, 10, 11)] == [1.0, 0.9, 0.1, 0.0]


def test_an_absent_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(RecipeError, match=r"Lamb comes from pytorch_optimizer; pip install 'isograd\[optim\]'"):
        check_machine(load_run(overrides=["training.optimizer=lamb"]))

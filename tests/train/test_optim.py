"""Optimizers against their rules written by hand in fp64, schedules against their formulas."""

import functools
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.optimization import (
    get_cosine_with_min_lr_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_polynomial_decay_schedule_with_warmup,
)

from isograd import IsogradConfig, IsogradForCausalLM
from isograd.errors import RecipeError
from isograd.lab.train.optim import optimizer_of, schedule_of
from isograd.lab.train.recipe import load_run
from isograd.lab.train.run import Training
from isograd.lab.train.tasks.classification import FineTuning
from isograd.lab.train.trainer import IsogradTrainer, check_machine
from isograd.transformer.parameters import decayed, roles

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


def radam_of_torch(p: Tensor, m: Tensor, v: Tensor, t: int, decay: float, b2: float = B2) -> Tensor:
    """Liu et al. 2019, algorithm 2: momentum alone while the length is 5 or less, then rectified."""
    longest = 2 / (1 - b2) - 1
    length = longest - 2 * t * b2**t / (1 - b2**t)
    step = m / (1 - B1**t)
    if length > 5:
        r = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        step = r * step * math.sqrt(1 - b2**t) / (v.sqrt() + EPS)
    return p - LR * decay * p - LR * step


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
@pytest.mark.parametrize(
    ("name", "rule"),
    [("radam-original", radam), ("radam", radam_of_torch), ("adamw", adamw), ("lamb", lamb)],
)
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
OLD: dict[str, Callable[[int, int, int], float]] = {  # in this very order of operations
    "constant": lambda t, w, total: 1.0,
    "linear": lambda t, w, total: (total + 1 - t) / (total - w),
    "cosine": lambda t, w, total: (1 + math.cos(math.pi * (t - 1 - w) / (total - w))) / 2,
    "inverse-sqrt": lambda t, w, total: math.sqrt((w or 10_000) / ((w or 10_000) + t - w)),
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


def rates(updates: int, updates_per_epoch: int | None = None, **options: Any) -> list[float]:
    """Of updates 1, 2, ..: what the optimizer steps with."""
    training = (FineTuning if "epochs" in options else Training)(**options)
    rate = schedule_of(training, updates_per_epoch)
    return [training.lr * rate(t) for t in range(1, updates + 1)]


def same(got: list[float], expected: list[float]) -> bool:
    return len(got) == len(expected) and all(map(functools.partial(math.isclose, rel_tol=1e-9), got, expected))


def inverse_sqrt(n: int, lr: float, init: float, w: int) -> float:
    return init + n * (lr - init) / w if n < w else lr * math.sqrt(w / n)


def polynomial_decay(n: int, lr: float, end: float, w: int, total: int, power: float) -> float:
    if w > 0 and n <= w:
        return lr * n / w
    return end if n >= total else end + (lr - end) * (1 - (n - w) / (total - w)) ** power


def one_cosine(n: int, lr: float, low: float, init: float, w: int, total: int) -> float:
    if n < w:
        return init + n * (lr - init) / w
    return low + (lr - low) * (1 + math.cos(math.pi * (n - w) / (total - w))) / 2


def clinic_linear(n: int, lr: float, low: float, init: float, w: int, total: int) -> float:
    return init + n * (lr - init) / w if n < w else lr - (n - w) * (lr - low) / (total - w)


FAIRSEQ: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {  # our recipe, and the rate after n updates
    "inverse_sqrt": (
        {"decay": "inverse-sqrt", "lr": 5e-4, "warmup": 40, "steps": 200},
        lambda n: inverse_sqrt(n, 5e-4, 0.0, 40),
    ),
    "inverse_sqrt of ADMIN": (
        {"decay": "inverse-sqrt", "lr": 7e-4, "warmup": 60, "warmup_from": 1e-7, "steps": 200},
        lambda n: inverse_sqrt(n, 7e-4, 1e-7, 60),
    ),
    "polynomial_decay of NormFormer": (
        {"decay": "polynomial", "lr": 3e-3, "warmup": 7, "steps": 200},
        lambda n: polynomial_decay(n, 3e-3, 0.0, 7, 200, 1.0),
    ),
    "polynomial_decay, squared": (
        {"decay": "polynomial", "lr": 1e-3, "warmup": 9, "steps": 190, "decay_to": 1e-5, "power": 2.0},
        lambda n: polynomial_decay(n, 1e-3, 1e-5, 9, 190, 2.0),
    ),
    "polynomial_decay as linear": (
        {"decay": "linear", "lr": 1e-3, "steps": 150, "decay_to": 1e-4},
        lambda n: polynomial_decay(n, 1e-3, 1e-4, 0, 150, 1.0),
    ),
    "cosine": (
        {"decay": "cosine", "lr": 1e-3, "warmup": 20, "steps": 200, "decay_to": 1e-5, "warmup_from": 1e-6},
        lambda n: one_cosine(n, 1e-3, 1e-5, 1e-6, 20, 200),
    ),
    "clinic_linear": (
        {"decay": "linear", "lr": 5e-4, "steps": 200, "decay_to": 1e-9},
        lambda n: clinic_linear(n, 5e-4, 1e-9, 0.0, 0, 200),
    ),
    "clinic_linear of ADMIN": (
        {"decay": "linear", "lr": 5e-4, "warmup": 1, "warmup_from": 1e-7, "steps": 200, "decay_to": 1e-9},
        lambda n: clinic_linear(n, 5e-4, 1e-9, 1e-7, 1, 200),
    ),
}


@pytest.mark.parametrize("name", FAIRSEQ)
def test_fairseqs_update_runs_at_the_rate_after_the_one_before(name: str) -> None:
    options, rule = FAIRSEQ[name]
    total = options["steps"]
    got = rates(total, first="fairseq", **options)
    assert same(got, [rule(n) for n in range(total)])
    assert not same(got, [rule(n) for n in range(1, total + 1)])  # negative control: one update off
    if options.get("warmup"):
        assert got[0] == pytest.approx(options.get("warmup_from", 0.0), rel=1e-12)
        assert not same(got, rates(total, **options))


def test_values_worked_out_on_paper() -> None:
    """ADMIN's IWSLT14: 7e-4, 6000 updates from 1e-7; at 4 W a half. Xiong's: 5e-4 in update 4000 itself."""
    rate = schedule_of(
        Training(steps=100_000, lr=7e-4, warmup=6000, warmup_from=1e-7, decay="inverse-sqrt", first="fairseq")
    )
    for t, expected in ((1, 1e-7), (3001, 3.5005e-4), (6001, 7e-4), (24001, 3.5e-4)):
        assert math.isclose(7e-4 * rate(t), expected, rel_tol=1e-9), t
    rate = schedule_of(Training(steps=100_000, lr=5e-4, warmup=4000, decay="inverse-sqrt"))
    for t, expected in ((1, 1.25e-7), (2000, 2.5e-4), (4000, 5e-4), (16000, 2.5e-4)):
        assert math.isclose(5e-4 * rate(t), expected, rel_tol=1e-9), t


def test_xiongs_rate_is_vaswanis() -> None:
    """lr(t) = d^-1/2 min(t^-1/2, t W^-3/2), its peak (d W)^-1/2; t from 1."""
    d, w = 512, 40
    noam = [d**-0.5 * min(t**-0.5, t * w**-1.5) for t in range(1, 301)]
    options: dict[str, Any] = {"steps": 300, "lr": (d * w) ** -0.5, "warmup": w, "decay": "inverse-sqrt"}
    assert same(rates(300, **options), noam)
    assert not same(rates(300, first="fairseq", **options), noam)


TRANSFORMERS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "linear": (get_polynomial_decay_schedule_with_warmup, {"lr_end": 1e-5}, {"decay_to": 1e-5}),
    "polynomial": (
        get_polynomial_decay_schedule_with_warmup,
        {"lr_end": 1e-5, "power": 1.5},
        {"decay_to": 1e-5, "power": 1.5},
    ),
    "cosine": (get_cosine_with_min_lr_schedule_with_warmup, {"min_lr": 1e-5}, {"decay_to": 1e-5}),
    "inverse-sqrt": (get_inverse_sqrt_schedule, {}, {}),
}


@pytest.mark.parametrize("decay", TRANSFORMERS)
def test_transformers_counts_as_fairseq_does(decay: str) -> None:
    """Its schedulers, stepped beside an optimizer."""
    made, theirs, ours = TRANSFORMERS[decay]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    length = {} if decay == "inverse-sqrt" else {"num_training_steps": 50}
    scheduler = made(optimizer, num_warmup_steps=8, **length, **theirs)
    seen = []
    for _ in range(50):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    options: dict[str, Any] = {"steps": 50, "lr": 1e-3, "warmup": 8, "decay": decay, **ours}
    assert same(rates(50, first="fairseq", **options), seen)
    assert not same(rates(50, **options), seen)
    if decay != "inverse-sqrt":  # the conventions differ in the warm-up only
        assert same(rates(50, **options)[8:], seen[8:])


@pytest.mark.parametrize("first", ["xiong", "fairseq"])
@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("decay", ["linear", "polynomial", "cosine"])
def test_decays_arrive_where_they_are_sent_and_stay(decay: str, warmup: int, first: str) -> None:
    power = {"power": 2.0} if decay == "polynomial" else {}
    seen = rates(60, steps=30, lr=1e-3, warmup=warmup, decay=decay, decay_to=2e-4, first=first, **power)
    assert math.isclose(seen[warmup], 1e-3) and min(seen[warmup:30]) > 2e-4
    assert seen[warmup:31] == sorted(seen[warmup:31], reverse=True)
    assert same(seen[30:], [2e-4] * 30)


def test_power_one_is_linear_to_the_bit() -> None:
    options: dict[str, Any] = {"steps": 97, "warmup": 10, "decay_to": 1e-5}
    assert rates(97, decay="polynomial", **options) == rates(97, decay="linear", **options)
    assert rates(97, decay="polynomial", power=2.0, **options) != rates(97, decay="linear", **options)


@pytest.mark.parametrize("first", ["xiong", "fairseq"])
def test_step_falls_to_a_tenth(first: str) -> None:
    """At an update, or where an epoch begins (Xiong et al. 2020: IWSLT14, epoch 8); the warm-up comes before."""
    options: dict[str, Any] = {"lr": 5e-4, "decay": "step", "steps": 30, "first": first}
    assert same(rates(30, decay_at=12, **options), [5e-4] * 11 + [5e-5] * 19)
    assert same(rates(30, 3, decay_at=8, epochs=10, **options), [5e-4] * 21 + [5e-5] * 9)
    assert same(rates(30, 3, decay_at=12, **options), [5e-4] * 11 + [5e-5] * 19)  # without epochs it counts updates
    warm = rates(30, decay_at=12, warmup=4, **options)
    assert same(warm[:4], rates(4, lr=5e-4, warmup=4, first=first)) and same(warm[4:], [5e-4] * 7 + [5e-5] * 19)


def test_steps_that_cannot_be_placed() -> None:
    with pytest.raises(ValueError, match="counts epochs here; pass updates_per_epoch"):
        schedule_of(FineTuning(decay="step", decay_at=8, epochs=10))
    with pytest.raises(RecipeError, match=r"decay_at=3 \(update 9\) falls inside training.warmup=9"):
        schedule_of(FineTuning(decay="step", decay_at=3, epochs=10, warmup=9), updates_per_epoch=4)
    schedule_of(FineTuning(decay="step", decay_at=3, epochs=10, warmup=8), updates_per_epoch=4)


def test_bits_of_old_recipes() -> None:
    """A run that was begun before there were other conventions goes on with the same bits."""
    for decay, old in OLD.items():
        for total, warmup in ((20, 0), (97, 7), (300, 150)):
            rate = schedule_of(Training(steps=total, warmup=warmup, decay=decay))  # type: ignore[arg-type]
            expected = [t / warmup if t <= warmup else old(t, warmup, total) for t in range(1, total + 2)]
            assert [rate(t) for t in range(1, total + 2)] == expected


def test_an_absent_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(RecipeError, match=r"Lamb comes from pytorch_optimizer; pip install 'isograd\[optim\]'"):
        check_machine(load_run(overrides=["training.optimizer=lamb"]))


def two_halves() -> tuple[torch.nn.Module, list[dict[str, Any]]]:
    """A model with two hidden matrices, in the groups that transformers' Trainer makes."""
    torch.manual_seed(3)
    model = IsogradForCausalLM(IsogradConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    decayed_ = set(decayed(model)[0])
    named = [(n in decayed_, p) for n, p in model.named_parameters()]
    groups = [{"params": [p for d, p in named if d is w], "weight_decay": 0.1 if w else 0.0} for w in (True, False)]
    for i, (_, p) in enumerate(named):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
    return model, groups


@pytest.mark.parametrize("every", [True, False])
def test_decay_of_every_parameter_where_it_is_asked_for(every: bool) -> None:
    model, _ = two_halves()
    trainer: Any = SimpleNamespace(recipe=SimpleNamespace(training=Training(decay_all=every)))
    found = set(IsogradTrainer.get_decay_parameter_names(trainer, model))
    assert found == ({n for n, _ in model.named_parameters()} if every else set(decayed(model)[0]))


def test_muon_moves_hidden_matrices_by_all_directions_alike_and_adamw_the_rest() -> None:
    model, groups = two_halves()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    cls, options = optimizer_of(Training(optimizer="muon", lr=LR), model)
    cls(groups, **options).step()
    role_of = roles(model)
    moved_by_muon = set()
    for name, p in model.named_parameters():
        decay = 0.1 if name in decayed(model)[0] else 0.0
        moved = (before[name] * (1 - LR * decay) - p.detach()) / LR
        if p.ndim == 2 and role_of[name] not in ("embed", "head"):
            moved_by_muon.add(name)
            sizes = torch.linalg.svdvals(moved) / (0.2 * math.sqrt(max(p.shape)))
            assert sizes.min() > 0.5 and sizes.max() < 1.4, name  # five steps of Newton and Schulz come so near to 1
        else:  # Adam's first update is the sign of the gradient
            torch.testing.assert_close(moved, p.grad.sign(), atol=1e-3, rtol=0)
    assert len(moved_by_muon) == 6


def test_muons_state_is_saved_and_goes_on_to_the_same_bits() -> None:
    def updated(model: torch.nn.Module, optimizer: torch.optim.Optimizer, times: int) -> None:
        for _ in range(times):
            optimizer.step()

    whole, groups = two_halves()
    cls, options = optimizer_of(Training(optimizer="muon", lr=LR), whole)
    updated(whole, cls(groups, **options), 4)

    first, groups = two_halves()
    cls, options = optimizer_of(Training(optimizer="muon", lr=LR), first)
    optimizer = cls(groups, **options)
    updated(first, optimizer, 2)
    second, groups = two_halves()
    second.load_state_dict(first.state_dict())
    cls, options = optimizer_of(Training(optimizer="muon", lr=LR), second)
    resumed = cls(groups, **options)
    resumed.load_state_dict(optimizer.state_dict())
    updated(second, resumed, 2)
    for p, q in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_schedule_reaches_both_parts_of_muon() -> None:
    model, groups = two_halves()
    cls, options = optimizer_of(Training(optimizer="muon", lr=LR), model)
    optimizer = cls(groups, **options)
    before = [p.detach().clone() for p in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_muon_is_refused_on_shards() -> None:
    with pytest.raises(RecipeError, match="muon cannot run on shards"):
        Training(optimizer="muon", fsdp=True)


def test_stable_then_down() -> None:
    rate = schedule_of(Training(steps=10, lr=1.0, warmup=2, decay="stable", decay_at=7, decay_to=0.2))
    by_hand = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2 + 0.8 * 0.75, 0.2 + 0.8 * 0.5, 0.2 + 0.8 * 0.25]
    assert [rate(t) for t in range(1, 11)] == pytest.approx(by_hand, rel=1e-12)
    last_fifth = schedule_of(Training(steps=100, decay="stable"))
    assert [last_fifth(t) for t in (80, 81, 82)] == pytest.approx([1.0, 1.0, 0.95])

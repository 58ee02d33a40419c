"""What a loss is measured against: recognized by the loss itself, and equal to the best constant's."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import isograd
from isograd.diagnose.watch.baseline import Baseline, Targets
from isograd.diagnose.watch.collapse import CollapseWatch

Loss = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Three layers with dropout and batch norm, for numbers or classes."""

    def __init__(self, out: int, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.noise, self.norm, self.head = nn.Dropout(0.1), nn.BatchNorm1d(8), nn.Linear(8, out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.noise(torch.relu(layer(x)))
        return self.head(self.norm(x))


def baseline_of(loss: Loss, target: Callable[[Tensor], Tensor], out: int = 1, steps: int = 20) -> Baseline | None:
    """After some steps of a loop with this loss."""
    model, draw = Net(out), torch.Generator().manual_seed(1)
    watch = isograd.watch(model)
    for _ in range(steps):
        x = torch.randn(64, 8, generator=draw)
        y = target(x)
        value = loss(model(x), y)
        value.backward()
        watch.step(value, batch=(x, y))
        model.zero_grad()
    found: Baseline | None = watch.baseline
    return found


def numbers(x: Tensor) -> Tensor:
    return 300 + 40 * x[:, 0]


REGRESSIONS: dict[str, tuple[Loss, Callable[[Tensor], Tensor], float]] = {
    "mse": (lambda p, y: functional.mse_loss(p[:, 0], y), numbers, 1600.0),
    "l1": (lambda p, y: functional.l1_loss(p[:, 0], y), numbers, 40 * math.sqrt(2 / math.pi)),
    "rmse": (lambda p, y: functional.mse_loss(p[:, 0], y).sqrt(), numbers, 40.0),
    "huber": (lambda p, y: functional.smooth_l1_loss(p[:, 0], y), lambda x: 0.1 * x[:, 0], 0.005),
    "binary": (lambda p, y: functional.binary_cross_entropy_with_logits(p[:, 0], y), lambda x: (x[:, 0] > 0).float(),
               math.log(2)),
    "classes": (functional.cross_entropy, lambda x: (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), 1.5 * math.log(2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_the_loss_is_recognized_and_its_best_constant_known(kind: str) -> None:
    loss, target, value = REGRESSIONS[kind]
    found = baseline_of(loss, target, out=3 if kind == "classes" else 1)
    assert found is not None and found.value == pytest.approx(value, rel=0.1)
    assert found.kind == kind or (kind, found.kind) == ("huber", "half-mse")  # equal, of errors below 1
    assert found.scale == pytest.approx(found.value if kind not in ("binary", "classes") else min(1, found.value))


def test_a_loss_that_is_none_of_these_is_not_known() -> None:
    """The negative control: a loss of pairs, labels that are identities, numbers of another loss."""

    def contrastive(p: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(p @ p.T / 0.05, torch.arange(len(p)))

    classes = REGRESSIONS["classes"][1]
    assert baseline_of(contrastive, classes, out=3) is None
    assert baseline_of(contrastive, numbers) is None
    assert baseline_of(lambda p, y: (p[:, 0] - y).pow(4).mean(), numbers) is None


def test_looking_at_the_loss_changes_nothing() -> None:
    model, x = Net(1), torch.randn(16, 8)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state, targets = torch.get_rng_state(), Targets()
    targets.recognize(model, (x, x[:, :1]), functional.mse_loss(model.head(x * 0), x[:, :1]).item())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())  # statistics of the batch norm
    assert torch.equal(torch.get_rng_state(), state) and model.training


def test_what_is_given_is_taken() -> None:
    targets = Targets(3.5)
    targets.add({"labels": torch.zeros(4, 4, dtype=torch.int64)})
    assert targets.baseline() == Baseline(kind="tokens", value=3.5)


def test_targets_of_a_constant_have_no_baseline() -> None:
    found: Any = baseline_of(lambda p, y: functional.mse_loss(p[:, 0], y), lambda x: torch.full((64,), 7.0))
    assert found is None


def warnings_of(
    loss: Loss, target: Callable[[Tensor], Tensor], out: int, *, shuffled: bool, steps: int = 260, frozen: int = 0
) -> Any:
    """What a loop that trains such a model is told; `frozen` layers keep the head alone for training."""
    model, draw = Net(out, frozen or 3), torch.Generator().manual_seed(1)
    model.layers.requires_grad_(not frozen)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    watch = isograd.watch(model, optimizer=optimizer)
    for _ in range(steps):
        x = torch.randn(32, 8, generator=draw)
        y = target(x)
        y = y[torch.randperm(len(y), generator=draw)] if shuffled else y
        value = loss(model(x), y)
        value.backward()
        watch.step(value, batch=(x, y))
        optimizer.step()
        optimizer.zero_grad()
    return watch.warnings


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("l1", "stays at the mean absolute deviation of its targets (1.", marks=pytest.mark.slow),
        pytest.param("mse", "stays at the variance of its targets (", marks=pytest.mark.slow),
        ("classes", "stays at the entropy of the class frequencies (1.04 nats)"),
    ],
)
def test_targets_of_other_samples(kind: str, words: str) -> None:
    """Shuffled targets of numbers and classes are found as those of tokens are, and nothing is said of tokens."""
    loss, target, _ = REGRESSIONS[kind]
    target = target if kind == "classes" else lambda x: 2 * x[:, 0]
    (row,) = warnings_of(loss, target, 3 if kind == "classes" else 1, shuffled=True)
    assert row["signal"] == "labels" and words in row["message"], row["message"]
    assert "token" not in row["message"] and "one is shuffled" in row["cause"]
    assert warnings_of(loss, target, 3 if kind == "classes" else 1, shuffled=False) == []


def test_a_head_that_finds_nothing_in_frozen_layers_is_no_alarm() -> None:
    """As before a trunk is unfrozen: its features may hold nothing of the classes."""
    loss, target, _ = REGRESSIONS["classes"]
    assert warnings_of(loss, target, 3, shuffled=True, frozen=12, steps=300) == []


def test_a_regression_that_stays_at_its_variance_for_long() -> None:
    watch = CollapseWatch([], [])
    watch.baseline = Baseline(kind="mse", value=250.0)
    for step in range(1, 300):
        watch.follow(step, 400.0 if step < 10 else 251.0, [])
    (row,) = watch.warnings
    assert "(251) has not gone below the variance of its targets (250): the model predicts no better" in row["message"]
    assert "token" not in row["message"] + row["cause"]

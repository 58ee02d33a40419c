"""Back to the last good state: after injected breaks, and never in runs that are well."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import isograd
from isograd.errors import RecipeError
from isograd.files import read_rows
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.train import train
from tests.build import in_turn
from tests.train.recipes import losses, outcome, small

STEPS, BREAK_AT = 80, 41
Inject = Callable[[nn.Module, int, dict[str, Tensor]], None]


class Regression(nn.Module):
    """A few layers that learn y = 3 x."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3))
        self.step = 0
        self.inject: Inject = lambda model, step, batch: None

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.step += 1
            batch = {"x": x, "labels": labels}
            self.inject(self, self.step, batch)
            x, labels = batch["x"], batch["labels"]
        for layer in self.layers:
            x = x + layer(x)
        return {"loss": (x - labels).square().mean()}


def bad_batch(model: nn.Module, step: int, batch: dict[str, Tensor]) -> None:
    if step == BREAK_AT:
        batch["labels"] = batch["labels"] * 1e4


def overflow(model: nn.Module, step: int, batch: dict[str, Tensor]) -> None:
    if step == BREAK_AT:
        batch["x"] = batch["x"] * math.inf


class Burst(TrainerCallback):
    """A rate ten thousand times as high, for four steps."""

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if BREAK_AT <= state.global_step < BREAK_AT + 4:
            for group in optimizer.param_groups:
                group["lr"] = 100.0


def trained(
    folder: Path, inject: Inject | None = None, burst: bool = False, **settings: Any
) -> tuple[list[dict[str, Any]], float, list[Tensor]]:
    """The warnings, the mean of the last losses, and the weights."""
    torch.manual_seed(0)
    model = Regression()
    if inject is not None:
        model.inject = inject
    draw = torch.Generator().manual_seed(1)
    xs = [torch.randn(8, generator=draw) for _ in range(8 * STEPS)]
    args = TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=1e-2,
        lr_scheduler_type="constant", optim="sgd" if burst or inject is bad_batch else "adamw_torch",
        max_grad_norm=0.0, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, seed=0,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=[{"x": x, "labels": 3 * x} for x in xs])
    if burst:
        trainer.add_callback(Burst())
    watch = isograd.WatchCallback(trainer, folder=folder, **settings)
    trainer.add_callback(watch)
    trainer.train()
    assert watch.watch is not None
    final = [row["loss"] for row in read_rows(folder / "metrics.jsonl")][-10:]
    last = math.nan if None in final else sum(final) / 10
    return watch.watch.warnings, last, [p.detach().clone() for p in model.parameters()]


BROKEN: dict[str, dict[str, Any]] = {
    "bad-batch": {"inject": bad_batch},
    "overflow": {"inject": overflow},
    "rate-burst": {"burst": True},
}


@in_turn("how, name", ["rollback", "lower-rate"], [*BROKEN])
def test_an_injected_break_is_undone(name: str, how: str, tmp_path: Path) -> None:
    _, broken, _ = trained(tmp_path / "broken", **BROKEN[name])
    assert not broken < 4.0  # off by default: the break stays, or is not a number
    rows, last, weights = trained(tmp_path / "back", recover=how, **BROKEN[name])
    back = [row for row in rows if row["signal"] == "recovered"]
    assert 1 <= len(back) <= (2 if name == "rate-burst" else 1)  # the rate is too high for four steps
    assert BREAK_AT <= back[0]["step"] <= BREAK_AT + 12 and back[0]["went_back"] < BREAK_AT
    assert ("0.5 times" in back[0]["message"]) == (how == "lower-rate")
    assert last < 4.0 and all(torch.isfinite(w).all() for w in weights)
    assert "recovered" in [row["signal"] for row in read_rows(tmp_path / "back/warnings.jsonl")]


def test_no_more_often_than_allowed(tmp_path: Path) -> None:
    def always(model: nn.Module, step: int, batch: dict[str, Tensor]) -> None:
        if step >= BREAK_AT:
            overflow(model, BREAK_AT, batch)

    rows, _, _ = trained(tmp_path / "run", inject=always, recover="rollback", recoveries=2)
    assert [row["signal"] for row in rows if "recovered" in row["signal"]] == [
        "recovered",
        "recovered",
        "not-recovered",
    ]


def test_a_healthy_run_is_not_touched(tmp_path: Path) -> None:
    plain, _, weights = trained(tmp_path / "plain")
    rows, _, watched = trained(tmp_path / "recover", recover="rollback")
    assert rows == plain == []
    assert all(torch.equal(a, b) for a, b in zip(weights, watched, strict=True))


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 'rollback'"):
        trained(tmp_path, recover="back")
    with pytest.raises(ValueError, match="needs every=1"):
        trained(tmp_path, recover="rollback", every=5)
    with pytest.raises(RecipeError, match="contradict each other"):
        run_from_dict({"training": {"recover": "rollback", "stop_when_broken": True}})


HIGH = {"steps": 120, "checkpoint_every": 10, "probe_every": 0, "warmup": 120, "lr": 3.0, "valid_sequences": 4}


def test_a_run_of_ours_goes_on_at_lower_rates(tmp_path: Path) -> None:
    """A rate that rises to 3 throws the small model far up; halved again and again it stays where it is."""
    train(small(training=HIGH), tmp_path / "as-it-was")
    run = small(training=HIGH | {"recover": "lower-rate", "recoveries": 4})
    done = train(run, tmp_path / "back")
    rows = [row for row in read_rows(tmp_path / "back/warnings.jsonl") if row["signal"] == "recovered"]
    assert rows and done["final_loss"] < 4.0 < 20.0 < outcome(tmp_path / "as-it-was")["final_loss"]
    skipped = {row["step"] for row in read_rows(tmp_path / "back/skipped.jsonl")}
    kept = {row["step"] for row in read_rows(tmp_path / "back/metrics.jsonl")}
    assert skipped and skipped | kept == set(range(1, 121)) and not kept & skipped


@pytest.mark.slow
def test_a_healthy_run_of_ours_keeps_its_numbers(tmp_path: Path) -> None:
    well = HIGH | {"lr": 0.05}
    train(small(training=well), tmp_path / "plain")
    train(small(training=well | {"recover": "rollback"}), tmp_path / "recover")
    assert losses(tmp_path / "plain") == losses(tmp_path / "recover")
    assert not (tmp_path / "recover/skipped.jsonl").exists()


@pytest.mark.slow
def test_killed_after_a_recovery_and_started_again(tmp_path: Path) -> None:
    run = small(model={"dropout": 0.1}, training=HIGH | {"recover": "lower-rate", "recoveries": 4})
    train(run, tmp_path / "whole")
    recovered = [row["step"] for row in read_rows(tmp_path / "whole/warnings.jsonl") if row["signal"] == "recovered"]

    class KilledError(BaseException):
        pass

    def killed(step: int, loss: float) -> None:
        if step == recovered[0] + 10:
            raise KilledError

    with pytest.raises(KilledError):
        train(run, tmp_path / "again", progress=killed)
    train(run, tmp_path / "again")
    for name in ("metrics.jsonl", "skipped.jsonl", "warnings.jsonl"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "whole" / name).read_text(), name

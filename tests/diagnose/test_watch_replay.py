"""A loop of one's own, taken back to before its break: the same numbers again, and others with a change.

Kinds of loss x kinds of break; the loop as it was is the negative control of every row.
"""

import math
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import isograd
from isograd.diagnose.watch.loops.replay import KeptStep, Replays
from isograd.files import read_json
from isograd.outcome import Course
from tests.build import few, in_turn

BREAKS_AT, STEPS = 60, 160


def regression(n: int, model: nn.Module) -> tuple[Tensor, Any]:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(n))
    y = x.roll(1, dims=1) * 0.1  # losses of a hundredth
    return F.mse_loss(model(x), y), (x, y)


def classes(n: int, model: nn.Module) -> tuple[Tensor, Any]:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(n))
    y = x[:, :4].argmax(1)
    return F.cross_entropy(model(x), y), (x, y)


def contrastive(n: int, model: nn.Module) -> tuple[Tensor, Any]:
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(16, 8, generator=draw)
    a, b = (F.normalize(model(x + 0.1 * torch.randn(16, 8, generator=draw)), dim=1) for _ in range(2))
    return F.cross_entropy(a @ b.T * 5, torch.arange(16)), x


def tokens(n: int, model: nn.Module) -> tuple[Tensor, Any]:
    x = torch.randint(6, (16, 9), generator=torch.Generator().manual_seed(n)).cumsum(1) % 8
    x[:, 1:] = (x[:, :1] + torch.arange(1, 9)) % 8
    logits = model(F.one_hot(x[:, :-1], 8).float())
    batch = {"input_ids": x[:, :-1], "labels": x[:, 1:]}
    return F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()), batch


LOSSES = {"regression": regression, "classes": classes, "contrastive": contrastive, "tokens": tokens}
RATE = 1e-2
BREAKS: dict[str, Callable[[int], float]] = {
    "spike for good": lambda n: 300 * RATE if n >= BREAKS_AT else RATE,
    "slow drift": lambda n: RATE * 1.12 ** max(0, n - BREAKS_AT),
    "from step 0": lambda n: 300 * RATE,
}


class Loop:
    """A small network under Adam with dropout, whose rate is `rates(n)` unless a change says otherwise."""

    def __init__(self, kind: str, rates: Callable[[int], float], folder: Path | None = None, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.loss, self.rates, self.seed = LOSSES[kind], rates, seed
        block = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.02)) for _ in range(2)]
        self.model = nn.Sequential(*block, nn.Linear(8, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE)
        self.change: Callable[[float], float] = lambda rate: rate
        self.loop = isograd.OwnLoop(step=self.step, state=self.state, load=self.load)
        self.watch = isograd.watch(self.model, folder=folder, replay=self.loop, optimizer=self.optimizer)

    def step(self, n: int) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = self.change(self.rates(n))
        loss, batch = self.loss(self.drawn(n), self.model)
        loss.backward()
        self.watch.step(loss, batch=batch, step=n)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def drawn(self, n: int) -> int:
        return n + 1000 * self.seed

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Any) -> None:
        self.change = lambda rate: rate
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def trained(self, steps: int = STEPS) -> "Loop":
        for n in range(1, steps + 1):
            self.loop(n)
        return self

    def to(self, change: Callable[[float], float]) -> Callable[[], None]:
        return lambda: setattr(self, "change", change)

    def replayed(self) -> dict[str, dict[str, Any]]:
        changes = {
            "the rate of before": self.to(lambda _: RATE),
            "nothing": lambda: None,
            "a rate of 1e-9": self.to(lambda _: 1e-9),
            "a rate of 0": self.to(lambda _: 0.0),
        }
        return {row["change"]: row for row in self.watch.replay(changes)}


CELLS = [(kind, broken) for kind in LOSSES for broken in BREAKS]
CELLS.remove(("contrastive", "from step 0"))  # normalized outputs learn at any rate


@pytest.mark.parametrize("cell", few(CELLS, 4), ids=str)
def test_what_cures_is_what_broke_it(cell: tuple[str, str]) -> None:
    """The rate that rose; neither nothing at all nor a rate that trains nothing."""
    kind, broken = cell
    rows = Loop(kind, BREAKS[broken]).trained().replayed()
    assert rows["as it was"]["bit_equal"] and rows["as it was"]["verdict"] == "fails"
    assert rows["as it was"]["from"] <= {"spike for good": BREAKS_AT, "slow drift": 81, "from step 0": 1}[broken]
    assert {name for name, row in rows.items() if row["cures"]} == {"the rate of before"}


@in_turn("kind, spike", [*LOSSES], [True, False], every=2)
def test_where_the_loop_as_it_was_finishes_there_is_no_verdict(kind: str, spike: bool) -> None:
    """A healthy run, and one whose rate was high for one step."""
    rows = Loop(kind, lambda n: (30 if spike and n == BREAKS_AT else 1) * RATE).trained().replayed()
    assert rows.pop("as it was")["verdict"] == "finishes: no verdict"
    assert not any(row["cures"] for row in rows.values())
    assert {row["verdict"] for row in rows.values()} == {"no verdict: the loop as it was finishes too"}


def test_the_page_and_the_file_have_the_verdicts(tmp_path: Path) -> None:
    loop = Loop("regression", BREAKS["spike for good"], tmp_path).trained()
    written = (tmp_path / "metrics.jsonl").read_text()
    loop.replayed()
    changes = read_json(tmp_path / "replayed.json")["changes"]
    assert [one["change"] for one in changes][:2] == ["as it was", "the rate of before"] and changes[1]["cures"]
    loop.watch.close()
    assert (tmp_path / "metrics.jsonl").read_text().startswith(written)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == STEPS  # the replay is none of the run


class WithData(Loop):
    """Batches of an iterator that workers fill, whose place is a part of the state, or is not."""

    def __init__(self, kept: bool) -> None:
        super().__init__("regression", BREAKS["spike for good"])
        self.kept, self.place = kept, 0
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(7))
        self.data = TensorDataset(x, x * 0.1)
        self.loss = self.next_loss
        self.batches: Any = None

    def next_loss(self, n: int, model: nn.Module) -> tuple[Tensor, Any]:
        if self.batches is None:
            self.batches = iter(DataLoader(self.data, batch_size=8, num_workers=2))
            for _ in range(self.place % 8):
                next(self.batches)
        x, y = next(self.batches)
        self.place += 1
        if self.place % 8 == 0:
            self.batches = None
        return F.mse_loss(model(x), y), (x, y)

    def state(self) -> dict[str, Any]:
        return super().state() | ({"place": self.place} if self.kept else {})

    def load(self, state: Any) -> None:
        super().load(state)
        if self.kept:
            self.place, self.batches = state["place"], None


@pytest.mark.slow
def test_a_loader_with_workers() -> None:
    """With its place in the state bit-equal; without it the row says what is missing."""
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    rows = WithData(kept=True).trained().replayed()
    assert rows["as it was"]["bit_equal"] and rows["the rate of before"]["cures"] and not rows["nothing"]["cures"]
    row = WithData(kept=False).trained(STEPS + 3).watch.replay({}, steps=20)[0]
    assert not row["bit_equal"] and "its data" in row["why"]


class Counted(Loop):
    """Batches by a counter that is a part of the state, and random numbers of all three generators."""

    count = 0

    def state(self) -> dict[str, Any]:
        return super().state() | {"count": self.count}

    def load(self, state: Any) -> None:
        super().load(state)
        self.count = state["count"]

    def drawn(self, n: int) -> int:
        self.count += 1
        return self.count + 100 * int(random.random() * 9 + np.random.rand() * 9 + 9 * torch.rand(()))


def test_a_loop_that_calls_its_step_itself_is_told_to_call_the_loop() -> None:
    """Its state is taken after the counter went on; called as `loop(n)` it repeats itself bit by bit."""
    rates = BREAKS["spike for good"]
    assert Counted("regression", rates).trained(50).watch.replay({}, steps=30)[0]["bit_equal"]
    loop = Counted("regression", rates)
    for n in range(1, 51):
        loop.step(n)
    row = loop.watch.replay({}, steps=30)[0]
    assert not row["bit_equal"] and "call loop(n) in place of train_step(n)" in row["why"]


def test_states_are_thinned_as_they_age() -> None:
    """The first, one before a suspicious rise, and of the others the fewer the older; within the memory."""
    state = {"weights": torch.zeros(1000)}
    loop = isograd.OwnLoop(step=lambda n: 0.0, state=lambda: state, load=lambda _: None, memory=6 * 4000 / 2**30)
    kept = Replays(loop=loop, model=nn.Linear(2, 2))
    for n in range(1, 2001):
        kept.before_step(n)
        kept.follow(n, 9.0 if n == 500 else 1.0 + 0.01 * (n % 3), None)
    steps = [one.step for one in kept.kept]
    assert len(steps) == 6 and steps[0] == 1 and 481 in steps and steps[-1] == 1981
    gaps = np.diff([one for one in steps[1:] if one > 481])
    assert list(gaps) == sorted(gaps, reverse=True)


def test_a_state_larger_than_the_memory_keeps_two() -> None:
    loop = isograd.OwnLoop(step=lambda n: 0.0, state=lambda: {"w": torch.zeros(10)}, load=lambda _: None, memory=0.0)
    kept = Replays(loop=loop, model=nn.Linear(2, 2))
    for n in range(1, 101):
        kept.before_step(n)
    assert [one.step for one in kept.kept] == [1, 81] and isinstance(kept.kept[0], KeptStep)


def test_a_course_knows_its_scale() -> None:
    """The same run in other units has the same break; a loss without noise, and one of few steps."""
    for scale in (1e-4, 1.0, 1e4):
        losses = {n: scale * (1.0 / n if n < 50 else 3.0) for n in range(1, 101)}
        course = Course.of(losses)
        assert course.since == 50 and not course.finished([scale * 3.0] * 20) and course.finished([scale * 0.03] * 20)
    assert Course.of({}).since is None and Course.of({1: math.nan}).since == 1
    assert Course.of({n: 2.0 + 0.1 * (n % 2) for n in range(1, 200)}, level=2.0).since == 1
    fine = {n: 4.4 - 0.001 * n for n in range(1, 20)} | dict.fromkeys(range(20, 80), 9.0)
    assert Course.of(fine).since == 20 and not Course.of(fine).finished([4.6] * 20)


def test_without_a_loop() -> None:
    watch = isograd.watch(Loop("regression", BREAKS["from step 0"]).model)
    with pytest.raises(ValueError, match="keeps no states"):
        watch.replay({})

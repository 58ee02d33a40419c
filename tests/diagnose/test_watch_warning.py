"""The early warning: what it reads is known here, so what it must report is."""

import json
import math
from collections.abc import Callable, Iterable

import pytest
import torch

from isograd.diagnose.watch.baseline import TokenCounts, labels_of
from isograd.diagnose.watch.collapse import APART, HOLD, READINGS, CollapseWatch
from isograd.outcome import PATIENCE

LAYERS = [f"layers.{i}" for i in range(6)]
Norms = Callable[[int], list[float | None]]


def watched(norms: Norms, steps: int = 60, stacks: Iterable[str] = ["decoder"] * 6) -> CollapseWatch:
    watch = CollapseWatch(LAYERS, list(stacks))
    for step in range(1, steps + 1):
        watch.follow(step, 3.0, norms(step))
    return watch


def collapsing(step: int) -> list[float | None]:
    """A factor per layer and step, as Post-LN's: the layers at the input fall first."""
    return [0.5 * 0.9 ** (step * (5 - i) / 2) for i in range(6)]


def test_layers_that_come_apart() -> None:
    (row,) = watched(collapsing).warnings
    fall = 0.9 ** (-(1 + 1.5) / 2)  # per step, between the two layers in the middle, measured by the last one's 1
    first = math.ceil(math.log(APART) / math.log(fall)) + READINGS // 2 + 1  # the first step is a start, not a fall
    first += HOLD - 1
    assert row["step"] == first and row["signal"] == "gradients"
    assert row["layer"] == "layers.0" and row["left_at"] < row["step"]
    assert row["apart"] >= APART
    assert (
        f"step {first}: gradients vanish towards the input: since step 1 the gradient of layers.0 has" in row["message"]
    )


@pytest.mark.parametrize(
    "healthy",
    [
        lambda t: [0.8**t * 3.0**i for i in range(6)],  # all fall alike, from far apart
        lambda t: [10.0 ** (-i) for i in range(6)],  # far apart and staying there
        lambda t: [0.5 * (0.7**t if i == 0 else 1.0) for i in range(6)],  # one layer alone
        lambda t: [1.2**t * 0.9 ** (i * t) for i in range(6)],  # layers at the input grow, as with GPT-2's start
        lambda t: [1e-4 if (t + 5) % 7 == i else 1.0 for i in range(6)],  # a step of one layer
        lambda t: [None] * 6,
        lambda t: [math.nan] * 6,
        lambda t: [0.0] * 6,
    ],
)
def test_what_is_no_collapse(healthy: Norms) -> None:
    assert watched(healthy).warnings == []


def test_gradients_apart_in_a_model_that_learns() -> None:
    """Deep stacks that train can lie far apart for a while: their loss says so."""

    def warned(loss: float) -> list[str]:
        watch = CollapseWatch(LAYERS, ["decoder"] * 6, unigram_entropy=3.0)
        for step in range(1, 61):
            watch.follow(step, loss, collapsing(step))
        return [row["signal"] for row in watch.warnings]

    assert warned(2.8) == [] and warned(2.95) == ["gradients"]


def test_gradients_that_come_together_again_in_time() -> None:
    def apart_for(readings: int) -> Norms:
        return lambda t: [0.5 * (0.001 if 10 <= t < 10 + readings and i < 4 else 1.0) for i in range(6)]

    assert watched(apart_for(HOLD - 1)).warnings == []
    assert len(watched(apart_for(HOLD)).warnings) == 1


def test_layers_behind_branches_that_start_at_zero() -> None:
    """ReZero: no gradient in the first step, then all grow."""
    assert watched(lambda t: [0.0 if t == 1 else 1e-5 * t**3] * 6).warnings == []
    assert len(watched(lambda t: [0.0] * 6 if t == 1 else collapsing(t)).warnings) == 1


def test_stacks_are_judged_alone() -> None:
    apart = ["encoder"] * 3 + ["decoder"] * 3
    assert watched(lambda t: [0.8**t] * 3 + [1.0] * 3, stacks=apart).warnings == []
    assert len(watched(lambda t: [0.8**t] * 4 + [1.0] * 2).warnings) == 1  # negative control: one stack
    decoder = watched(lambda t: [1.0] * 3 + [0.5**t, 0.7**t, 1.0], stacks=apart)
    assert [row["layer"] for row in decoder.warnings] == ["layers.3"]


def test_loss_that_stays_at_the_unigram_entropy() -> None:
    def losses(until: int) -> list[float]:
        return [4.0] * 20 + [3.05] * (until - 20) + [2.5] * 400

    for until, warned in ((PATIENCE, False), (PATIENCE + 100, True)):
        watch = CollapseWatch([], [], unigram_entropy=3.0)
        for step, loss in enumerate(losses(until), start=1):
            watch.follow(step, loss, [])
        assert [row["signal"] for row in watch.warnings] == ["unigram"] * warned
    row = watch.warnings[0]
    assert row["step"] == PATIENCE + 39 and row["layer"] is None  # the mean of 20 is near from step 39 on
    assert "has not gone below the entropy of the token frequencies (3.00 nats)" in row["message"]


def test_a_slow_warm_up_passes_slowly() -> None:
    watch = CollapseWatch([], [], unigram_entropy=3.0)
    for step in range(1, 1200):
        watch.follow(step, max(2.8, 4.0 - step / 500), [])
    assert watch.warnings == []  # near from step 470 to 560, and 150 steps more


def test_it_goes_on_where_it_was() -> None:
    whole, half = watched(collapsing), watched(collapsing, steps=12)
    assert half.warnings == []
    again = CollapseWatch(LAYERS, ["decoder"] * 6)
    again.restore(json.loads(json.dumps(half.state())))
    for step in range(13, 61):
        again.follow(step, 3.0, collapsing(step))
    assert again.warnings == whole.warnings and again.state() == whole.state()


def test_entropy_of_labels() -> None:
    counts, weights = TokenCounts(), torch.tensor([0.5, 0.25, 0.125, 0.125])
    draw = torch.Generator().manual_seed(0)
    assert counts.entropy() is None
    estimates = []
    for _ in range(200):
        few = TokenCounts()
        ids = torch.multinomial(weights, 48, replacement=True, generator=draw)
        few.add(ids)
        counts.add(ids.view(6, 8))
        estimates.append(few.entropy())
    expected = 1.75 * math.log(2)
    assert counts.entropy() == pytest.approx(expected, abs=0.01)
    assert sum(estimates) / 200 == pytest.approx(expected, abs=0.01)  # also on average of few, by the second term
    counts.add(torch.full((9, 9), -100))  # what losses ignore
    assert counts.entropy() == pytest.approx(expected, abs=0.01)


def test_labels_are_tokens() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    assert labels_of({"labels": tokens})[0] is tokens
    assert len(labels_of([{"labels": tokens}, {"labels": tokens}])) == 2
    others = [None, tokens, {"input_ids": tokens}, {"labels": tokens[0]}, {"labels": tokens.float()}, {"labels": 3}]
    for other in others:
        assert labels_of(other) == []

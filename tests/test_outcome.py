"""How a run ended: curves whose outcome is known, and what must hold of any curve."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isograd.outcome import LAST, NEAR, PATIENCE, SOON, VANISHED, LossWatch, judge

ENTROPY = 3.0
WORSE = {"finished": 0, "undecided": 1, "collapsed": 2, "diverged": 2}


def falling(begin: float, end: float, steps: int) -> list[float]:
    return [begin + (end - begin) * i / (steps - 1) for i in range(steps)]


def noisy(losses: list[float], size: float = 0.05, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [loss + draw.gauss(0, size) for loss in losses]


def stays(nats: float, steps: int) -> list[float]:
    return [ENTROPY + nats] * steps


CURVES = {  # the table of docs/training.md; each once as it is and once with the noise of batches
    "learned": (falling(4.2, 2.0, 300), "finished"),
    "forty steps, below already": (falling(4.2, 2.4, 30) + [2.4] * 10, "finished"),
    "forty steps, just at the entropy": (falling(4.2, 3.0, 20) + stays(0, 20), "undecided"),
    "forty steps, still falling": (falling(4.2, 3.2, 40), "undecided"),
    "at the entropy for 270 of 300 steps": (falling(4.2, 3.0, 30) + stays(0.02, 270), "collapsed"),
    "at the entropy for 150 steps, then down": (falling(4.2, 3.0, 30) + stays(0, 150) + falling(3, 2, 60), "finished"),
    "at the entropy for 150 steps, and stopped": (falling(4.2, 3.0, 30) + stays(0, 150), "undecided"),
    "slow to the entropy, there for as long": (falling(4.2, 3.1, 400) + stays(0.05, 400), "undecided"),
    "slowly falling, never there": (falling(4.2, 3.4, 300), "undecided"),
    "slowly falling through the entropy": (falling(3.2, 2.95, 1000), "undecided"),
    "never moved, in 100 steps": ([5.0] * 100, "undecided"),
    "never moved, in 300": ([5.0] * 300, "collapsed"),
    "thrown up by the first updates": ([4.2, 4.1] + [8.0] * 298, "diverged"),
    "thrown up, and coming down": ([4.2, 4.1, *falling(9.0, 4.9, 200)], "undecided"),
    "learned, thrown up": (falling(4.2, 2.0, 150) + [6.0] * 300, "diverged"),
    "learned, thrown up just now": (falling(4.2, 2.0, 150) + [6.0] * 60, "undecided"),
    "a spike": (falling(4.2, 2.0, 150) + [6.0] * 10 + [2.0] * 60, "finished"),
    "learned a little, back to the entropy": (falling(4.2, 2.7, 150) + stays(0.02, 300), "collapsed"),
    "back to the entropy just now": (falling(4.2, 2.7, 150) + stays(0.02, 60), "undecided"),
    "not a number": ([4.0, 3.0, math.nan, 2.0], "diverged"),
    "infinite": ([4.0] * 100 + [math.inf], "diverged"),
}


def test_gradients_that_have_vanished_decide_sooner() -> None:
    lying = noisy(falling(4.2, 3.0, 30) + stays(0, 60), 0.02)
    assert judge(lying, ENTROPY).outcome == judge(lying, ENTROPY, apart=VANISHED / 1.01).outcome == "undecided"
    found = judge(lying, ENTROPY, apart=VANISHED)
    assert found.outcome == "collapsed" and found.reason.endswith("gradients vanish towards the input")
    assert judge(lying[: 30 + SOON // 2], ENTROPY, apart=VANISHED).outcome == "undecided"
    for trains in (falling(4.2, 2.0, 300), falling(4.2, 3.2, 60)):  # below, or on its way: gradients change nothing
        assert judge(trains, ENTROPY, apart=1e6).outcome == judge(trains, ENTROPY).outcome != "collapsed"


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("name", CURVES)
def test_the_table_of_curves(name: str, noise: float) -> None:
    losses, outcome = CURVES[name]
    found = judge(noisy(losses, noise), ENTROPY)
    assert found.outcome == outcome, found.reason
    assert found.reason and ("more steps" in found.reason) == (found.outcome == "undecided")


def test_what_an_undecided_run_misses() -> None:
    """So many steps more, at the same level, decide; one fewer do not."""
    losses = falling(4.2, 3.0, 30) + stays(0.0, 100)
    found = judge(losses, ENTROPY)
    needed = found.numbers.needed
    assert needed is not None and needed > 0 and f"about {needed} more steps" in found.reason
    assert judge(losses + stays(0.0, needed), ENTROPY).outcome == "collapsed"
    assert judge(losses + stays(0.0, needed - 1), ENTROPY).outcome == "undecided"


def test_batches_that_are_easy_or_hard() -> None:
    """Where the unigram loss goes up and down by 0.3 nat from batch to batch, that of the same batches decides."""
    draw = random.Random(1)
    levels = [ENTROPY + draw.gauss(0, 0.3) for _ in range(400)]
    easy = [level - 0.2 * (i >= 380) for i, level in enumerate(levels)]  # the last ones are of the easier part
    assert judge(easy, easy).outcome == "collapsed"
    assert judge([level - 0.3 for level in levels], levels).outcome == "finished"
    assert judge(easy, ENTROPY).outcome == "finished"  # the negative control: held against the mean of all batches


def test_a_warm_up_counts_for_what_it_is() -> None:
    """A loss that has barely moved since the rate is not there yet says nothing; the same at the full rate does."""
    losses = noisy(falling(4.2, 4.1, 400), 0.02)
    rates = [1e-3 * step / 4000 for step in range(1, 401)]
    assert judge(stays(1.0, 400), ENTROPY).outcome == "collapsed"
    assert judge(losses, ENTROPY, rates=rates).outcome == "undecided"
    slow = [1e-3 * min(1.0, step / 380) for step in range(1, 401)]
    assert judge(stays(1.0, 400), ENTROPY, rates=slow).outcome == "undecided"


def test_held_out_loss() -> None:
    """It proves that context is read; it is no collapse where the training loss is far below."""
    short = falling(4.2, 3.0, 40)
    assert judge(short, 3.16).outcome == "undecided"
    assert judge(short, 3.16, held_out=2.88).outcome == "finished"
    memorized = judge([0.5] * 300, ENTROPY, held_out=4.0)
    assert memorized.outcome == "finished" and "overfitting" in memorized.reason
    assert judge(stays(0.02, 400), ENTROPY, held_out=3.5, held_out_unigram=3.45).outcome == "collapsed"
    assert judge(stays(0.02, 400), ENTROPY, held_out=2.95, held_out_unigram=2.93).outcome == "collapsed"  # easier text
    assert judge([2.0] * 300, ENTROPY, held_out=math.nan).outcome == "diverged"
    kept = judge(falling(4.2, 2.7, 150) + stays(0.02, 300), ENTROPY, held_out=2.75)  # of weights that were chosen
    assert kept.outcome == "collapsed"


def test_a_smoothed_training_loss_only_says_how_it_moves() -> None:
    """With label smoothing it lies above the cross-entropy: the held-out loss says where the model is."""
    flat, down = [4.4] * 400, falling(6.0, 4.0, 100)
    assert judge(flat, ENTROPY, comparable=False, held_out=2.2).outcome == "finished"
    assert judge(flat, ENTROPY, comparable=False, held_out=3.05).outcome == "collapsed"
    assert judge(down, ENTROPY, comparable=False, held_out=3.05).outcome == "undecided"
    assert judge(flat, ENTROPY, comparable=False).outcome == "undecided"
    assert judge([2.0] * 300, ENTROPY, comparable=False).outcome == "finished"  # it can only be too high


@pytest.mark.parametrize(("entropy", "below"), [(0.5, 0.42), (10.0, 9.8), (0.0, -0.02)])
def test_other_entropies(entropy: float, below: float) -> None:
    """A tenth of a nat is much of half a nat: below one nat the margin shrinks with the entropy."""
    assert judge([below] * 300, entropy).outcome == "finished"
    assert judge([entropy] * 300, entropy).outcome == "collapsed"


def test_a_rise_is_told_in_parts_of_a_small_entropy() -> None:
    assert judge([0.5] + [0.1] * 20 + [0.45] * 300, 0.5).outcome == "diverged"
    assert judge([3.0] + [2.6] * 20 + [2.95] * 300, 3.0).outcome == "collapsed"


def test_a_run_that_was_stopped() -> None:
    up, back = falling(4.2, 2.0, 100) + [5.0] * 10, falling(4.2, 2.7, 100) + stays(0.0, 20)
    assert judge(up, ENTROPY).outcome == judge(back, ENTROPY).outcome == "undecided"
    assert judge(up, ENTROPY, broke_at=106).outcome == "diverged"
    assert judge(back, ENTROPY, broke_at=112).outcome == "collapsed"
    wild = [3.6, 3.4, 3.2, 3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 8.0, 6.0, 9.0, 7.0, 8.0, 8.5, 7.5, 9.0, 8.0, 8.1]
    assert judge(wild, ENTROPY, broke_at=11).outcome == "diverged"  # however noisy it has become


def test_few_rows_and_none() -> None:
    assert judge([], ENTROPY).outcome == "undecided"
    assert judge([2.0], ENTROPY).outcome == "undecided"  # one batch may be easy
    assert judge([3.0, math.nan], ENTROPY).outcome == "diverged"


@pytest.mark.parametrize("every", [2, 5, 10])
@pytest.mark.parametrize("name", ["learned", "at the entropy for 270 of 300 steps", "never moved, in 300"])
def test_every_few_steps(name: str, every: int) -> None:
    """Steps are counted, not rows; fewer rows are noisier, and may leave it open."""
    losses, outcome = CURVES[name]
    losses = losses + [losses[-1]] * 500  # a mean of ten rows comes later
    steps = range(every, len(losses) + 1, every)
    thin = [noisy(losses)[step - 1] for step in steps]
    assert judge(thin, ENTROPY, steps=steps).outcome in (outcome, "undecided" if every > 2 else outcome)


shapes = st.sampled_from([name for name, (losses, _) in CURVES.items() if all(map(math.isfinite, losses))])
seeds = st.integers(0, 10_000)


@settings(max_examples=150, deadline=None)
@given(name=shapes, more=st.floats(0.0, 3.0), seed=seeds)
def test_a_higher_loss_is_no_better(name: str, more: float, seed: int) -> None:
    losses = noisy(CURVES[name][0], 0.03, seed)
    before, after = judge(losses, ENTROPY).outcome, judge([loss + more for loss in losses], ENTROPY).outcome
    assert WORSE[after] >= WORSE[before]


@settings(max_examples=100, deadline=None)
@given(name=shapes, steps=st.integers(1, 400), seed=seeds)
def test_a_healthy_run_that_goes_on(name: str, steps: int, seed: int) -> None:
    """What finished stays finished with more steps at its last loss."""
    losses = noisy(CURVES[name][0], 0.03, seed)
    if judge(losses, ENTROPY).outcome == "finished":
        more = noisy([sum(losses[-LAST:]) / LAST - 0.1] * steps, 0.03, seed + 1)
        assert judge(losses + more, ENTROPY).outcome == "finished"


@settings(max_examples=100, deadline=None)
@given(name=shapes, place=st.floats(0, 1), bad=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_loss_that_is_not_finite(name: str, place: float, bad: float) -> None:
    losses = list(CURVES[name][0])
    losses.insert(round(place * len(losses)), bad)
    assert judge(losses, ENTROPY).outcome == "diverged"


@settings(max_examples=60, deadline=None)
@given(nats=st.sampled_from([-1.0, -0.3, 0.02, 2.0]), steps=st.integers(340, 900), seed=seeds)
def test_the_order_of_the_noise(nats: float, steps: int, seed: int) -> None:
    noise = noisy([0.0] * steps, 0.03, seed)
    shuffled = random.Random(seed + 1).sample(noise, steps)
    both = [judge([ENTROPY + nats + one for one in order], ENTROPY).outcome for order in (noise, shuffled)]
    assert both == ["finished" if nats < -NEAR else "collapsed"] * 2


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 240), seed=seeds)
def test_a_healthy_run_is_never_collapsed_on_its_way(cut: int, seed: int) -> None:
    """Down to the entropy, there for as long as healthy stacks were seen to stay, and below: at no step collapsed."""
    losses = noisy(falling(4.2, 3.0, 30) + stays(0.0, PATIENCE - 20) + falling(3.0, 2.0, 100), 0.03, seed)
    assert judge(losses[:cut], ENTROPY).outcome == "undecided"
    assert judge(losses, ENTROPY).outcome == "finished"


def test_a_run_is_stopped_where_its_loss_breaks() -> None:
    watch = LossWatch(ENTROPY).follow(falling(4.2, 2.0, 100) + [2.3] * 50)
    assert watch.broke_at is None and watch.learnt
    assert watch.follow([5.0] * 10).broke_at == 152  # means of ten: 2.3 + 0.27 a step
    easy = [ENTROPY - 0.3] * 10 + [ENTROPY] * 20  # batches, not learning
    assert LossWatch(ENTROPY).follow(easy).broke_at is not None
    assert LossWatch(ENTROPY).follow(easy, easy).broke_at is None

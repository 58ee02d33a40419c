"""The search for the boundary against boundaries that are known, and what the losses of a training say."""

import math
import random
from collections.abc import Callable
from typing import get_args

import pytest

from isograd.errors import RecipeError
from isograd.lab.study.boundary import (
    PATIENCE,
    Boundary,
    RateSearch,
    RateVerdict,
    log_middle,
    next_rate,
    over_seeds,
    rounded,
    verdict_of,
)
from isograd.outcome import LossWatch, OutcomeName, judge

Oracle = Callable[[float], RateVerdict]
ENTROPY = 3.0


def searched(oracle: Oracle, search: RateSearch) -> tuple[Boundary, dict[float, RateVerdict]]:
    """Until the search knows; no rate is asked for twice."""
    seen: dict[float, RateVerdict] = {}
    while not isinstance(wanted := next_rate(seen, search), Boundary):
        assert wanted not in seen and search.low <= wanted <= search.high and rounded(wanted) == wanted
        seen[wanted] = oracle(wanted)
        assert len(seen) < 40
    return wanted, seen


def trains_between(slow: float, edge: float, above: RateVerdict = "diverged") -> Oracle:
    return lambda rate: "slow" if rate < slow else "finished" if rate <= edge else above


@pytest.mark.parametrize("above", ["diverged", "collapsed", "undecided", "slow"])
@pytest.mark.parametrize("precision", [1.05, 1.25, 2.0])
def test_a_boundary_anywhere(precision: float, above: RateVerdict) -> None:
    """Found within the precision from any start, in as many trials as the factors and halvings add up to."""
    draw = random.Random(1)
    halvings = math.ceil(math.log2(math.log(4) / math.log(precision)))
    for _ in range(200):
        edge, start = (10 ** draw.uniform(-4.5, -0.3) for _ in range(2))
        search = RateSearch(start=start, precision=precision)
        slow = min(edge / 20, 3e-5)
        found, seen = searched(trains_between(slow, edge, above), search)
        if above == "slow" and start > edge:
            continue  # it looks too small: see the next test
        assert found.kind == "between" and found.low is not None and found.high is not None
        assert found.low <= edge < found.high <= found.low * precision * 1.01
        assert seen[found.low] == "finished" and seen[found.high] == above
        assert found.again == found.under == ()
        factors = math.ceil(abs(math.log(edge / rounded(start), 4))) + 1
        assert len(seen) <= factors + halvings + 2


def test_a_start_that_looks_slow_and_is_too_large() -> None:
    """Up first, as it looks; but where nothing trains there, a rate below it is tried, too."""

    def oracle(rate: float) -> RateVerdict:
        return "slow" if rate < 1e-4 else "finished" if rate < 2e-3 else "slow" if rate < 1e-2 else "diverged"

    found, _ = searched(oracle, RateSearch(start=4e-3))
    assert found.kind == "between" and found.low is not None and 2e-3 / 1.26 <= found.low <= 2e-3


def test_too_coarse_a_bracket_would_be_seen() -> None:
    """Negative control: a search told to stop at a factor of four misses the same precision."""
    found, _ = searched(trains_between(1e-5, 2.3e-3), RateSearch(start=1e-3, precision=4))
    assert found.low is not None and found.high is not None and found.high / found.low > 1.25


def test_every_rate_trains() -> None:
    found, seen = searched(lambda _: "finished", RateSearch(start=1e-3, high=0.1))
    assert found == Boundary(kind="above", low=0.1)
    assert sorted(seen) == [1e-3, 4e-3, 0.016, 0.064, 0.1]


def test_no_rate_trains() -> None:
    found, seen = searched(lambda _: "diverged", RateSearch(start=1e-3, low=1e-5))
    assert found == Boundary(kind="none", low=None, high=1e-5)
    assert sorted(seen) == [1e-5, 1.56e-5, 6.25e-5, 2.5e-4, 1e-3] and over_seeds([found])


def test_every_rate_is_too_slow() -> None:
    """Unlike a rate that is too large at the lowest one, that says nothing of a boundary."""
    found, _ = searched(lambda _: "slow", RateSearch(start=1e-3))
    assert found == Boundary(kind="none", low=1.0) and over_seeds([found]) is None


@pytest.mark.parametrize("above", ["diverged", "collapsed", "undecided"])
def test_too_slow_below_and_too_large_above(above: RateVerdict) -> None:
    """Nothing trains: the gap is closed before that is said. A window in it, as narrow as the precision, is found."""
    none, seen = searched(trains_between(3e-4, 2e-4, above), RateSearch(start=1e-3))
    assert none.kind == "none" and none.low is not None and none.high is not None
    assert none.low < 3e-4 <= none.high <= none.low * 1.25 * 1.01 and "finished" not in seen.values()
    found, _ = searched(trains_between(3e-4, 3.9e-4, above), RateSearch(start=1e-3))
    assert found.kind == "between" and found.low is not None and 3e-4 <= found.low <= 3.9e-4


def test_a_start_that_only_looks_collapsed() -> None:
    """Too slow in truth, which its losses do not show: a rate above it is tried before none is said to train."""

    def oracle(rate: float) -> RateVerdict:
        return "slow" if rate < 1e-4 else "collapsed" if rate < 5e-4 else "finished" if rate < 5e-3 else "diverged"

    found, _ = searched(oracle, RateSearch(start=2e-4))
    assert found.kind == "between" and found.low is not None and 4e-3 / 1.01 <= found.low <= 5e-3


def test_trained_again_above() -> None:
    """A rate far above the bracket is tried once, and what trains there is told; the boundary stays below."""

    def oracle(rate: float) -> RateVerdict:
        return "diverged" if 3.7e-3 < rate < 8e-3 or rate > 1.7e-2 else "finished"

    found, _ = searched(oracle, RateSearch(start=1e-3))
    assert found.low is not None and found.low <= 3.7e-3 < (found.high or 0) and found.again
    assert all(8e-3 <= rate <= 1.7e-2 for rate in found.again)
    monotone, _ = searched(lambda rate: "diverged" if rate > 3.7e-3 else "finished", RateSearch(start=1e-3))
    assert monotone.again == () and (monotone.low, monotone.high) == (found.low, found.high)


def test_broke_below() -> None:
    found, _ = searched(lambda r: "diverged" if r < 3e-4 or r > 3e-3 else "finished", RateSearch(start=1e-4, low=5e-5))
    assert found.kind == "none"  # it went down, where it was told that the rate was too large
    seen: dict[float, RateVerdict] = {
        1e-4: "diverged",
        4e-4: "finished",
        1e-3: "finished",
        1.2e-3: "diverged",
        4e-3: "collapsed",
    }
    told = next_rate(seen, RateSearch(start=1e-4))
    assert told == Boundary(kind="between", low=1e-3, high=1.2e-3, under=(1e-4,))


def test_a_failed_run_stops_the_chain() -> None:
    found, seen = searched(lambda rate: "failed" if rate > 3e-3 else "finished", RateSearch(start=1e-3))
    assert found == Boundary(kind="stopped") and len(seen) == 2 and over_seeds([found]) is None


def test_the_start_is_brought_into_range() -> None:
    assert next_rate({}, RateSearch(start=5.0)) == 1.0 and next_rate({}, RateSearch(start=1e-9)) == 1e-5


def test_the_same_search_from_any_point() -> None:
    """Stopped anywhere, what was seen so far leads to the same rates: nothing else is kept."""
    oracle, search = trains_between(1e-5, 2.3e-3), RateSearch(start=4e-2, precision=1.1)
    whole, seen = searched(oracle, search)
    order = list(seen)
    for kept in range(len(order)):
        replayed: dict[float, RateVerdict] = {rate: seen[rate] for rate in reversed(order[:kept])}
        assert next_rate(replayed, search) == order[kept]
    assert next_rate(dict(sorted(seen.items())), search) == whole


@pytest.mark.parametrize(
    "wrong", [{"low": 0.0}, {"low": 2.0}, {"high": math.inf}, {"precision": 1.0}, {"precision": 5.0}]
)
def test_settings_that_no_search_has(wrong: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        RateSearch(**{"start": 1e-3} | wrong)


def falling(to: float, steps: int, start: float = 5.0) -> list[float]:
    return [start + (to - start) * i / (steps - 1) for i in range(steps)]


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        (falling(2.5, 50) + [2.4] * 50, "finished"),
        (falling(2.5, 50) + [3.1] * 60, "diverged"),  # it has learnt, and come back
        (falling(2.5, 50) + [2.85] * 50, "finished"),
        ([*falling(2.5, 20), math.nan], "diverged"),
        (falling(3.5, 100), "slow"),
        (falling(3.0, 60) + [3.0] * 40, "slow"),  # it may still leave
        (falling(3.0, 20) + [3.0] * 180, "undecided"),  # it may, too
        (falling(3.0, 20) + [3.0] * 280, "collapsed"),
        ([5.0] + [9.0] * 20 + falling(4.0, 80, 9.0), "undecided"),  # thrown up at once, and coming down
        ([5.0] * 100, "slow"),
    ],
)
def test_verdicts(losses: list[float], verdict: RateVerdict) -> None:
    """As in a search: the run stops where it breaks, is judged, and the verdict is of that outcome."""
    broke_at = LossWatch(ENTROPY).follow(losses).broke_at
    outcome = judge(losses, ENTROPY, broke_at=broke_at).outcome
    assert verdict_of(outcome, losses, [1e-3] * len(losses), ENTROPY, broke_at is not None) == verdict


@pytest.mark.parametrize("outcome", get_args(OutcomeName))
def test_only_what_finished_has_trained(outcome: OutcomeName) -> None:
    """An undecided rate is none that trains, whatever its losses look like."""
    found = verdict_of(outcome, falling(2.0, 300), [1e-3] * 300, ENTROPY)
    assert (found == "finished") == (outcome == "finished")


def test_slow_and_undecided_are_told_apart_by_time() -> None:
    """At the entropy for as long as it took to come there: slow. Three times as long: it may have collapsed."""
    losses = falling(3.0, 21) + [3.0] * 60
    came = next(i for i in range(10, 40) if sum(losses[i - 10 : i]) / 10 <= ENTROPY + 0.1)
    cases: list[tuple[int, RateVerdict]] = [(2 * came, "slow"), (int(PATIENCE * came) + 1, "undecided")]
    for steps, verdict in cases:
        assert verdict_of("undecided", losses[:steps], [1e-3] * steps, ENTROPY) == verdict


def test_a_warm_up_counts_for_what_it_is() -> None:
    """The same losses: by steps it came late, by rate x steps at once. The negative control is the constant rate."""
    losses = falling(3.0, 50) + [3.0] * 50
    warm = [1e-3 * min(1.0, step / 50) ** 2 for step in range(1, 101)]
    assert verdict_of("undecided", losses, [1e-3] * 100, ENTROPY) == "slow"
    assert verdict_of("undecided", losses, warm, ENTROPY) == "undecided"


def between(low: float, high: float) -> Boundary:
    return Boundary(kind="between", low=low, high=high)


def test_levels_over_seeds() -> None:
    """By hand: the middle one of three, from the lowest end to the highest."""
    level = over_seeds([between(4e-3, 5e-3), between(1e-3, 1.2e-3), between(2e-3, 2.5e-3)])
    assert level is not None and level.n == 3 and level.coverage == pytest.approx(0.75)
    assert level.middle == pytest.approx(math.sqrt(2e-3 * 2.5e-3))
    assert (level.low, level.high) == (pytest.approx(1e-3), pytest.approx(5e-3))
    alone = over_seeds([between(1e-3, 1.2e-3)])
    assert alone is not None and (alone.low, alone.high) == (pytest.approx(1e-3), pytest.approx(1.2e-3))
    assert alone.coverage is None


def test_the_boundary_of_a_seed_as_a_logarithm() -> None:
    """Ends of the range stand beyond every rate; a search that found no boundary has none."""
    assert log_middle(between(2e-3, 2.5e-3)) == pytest.approx(math.log(math.sqrt(5e-6)))
    assert log_middle(Boundary(kind="none", high=2e-5)) == -math.inf
    assert log_middle(Boundary(kind="above", low=1.0)) == math.inf
    assert log_middle(Boundary(kind="stopped")) is None


def test_levels_with_open_ends() -> None:
    none, above = Boundary(kind="none", low=1e-5, high=2e-5), Boundary(kind="above", low=1.0)
    level = over_seeds([none, between(1e-3, 1.2e-3), above])
    assert level is not None and (level.low, level.high) == (0, math.inf)
    assert level.middle == pytest.approx(math.sqrt(1.2e-6))
    most = over_seeds([above, above, between(1e-3, 1.2e-3)])
    assert most is not None and most.middle == math.inf and most.low == pytest.approx(1e-3)
    assert over_seeds([none, none, none]) is not None and over_seeds([none] * 3).middle == 0  # type: ignore[union-attr]
    counted = over_seeds([between(1e-3, 1.2e-3), Boundary(kind="stopped")])
    assert counted is not None and counted.n == 1

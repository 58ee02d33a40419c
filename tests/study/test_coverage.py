"""By simulation: how often intervals hold what they should, and how often like arms are told apart."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from isograd.study.paired import Paired, apart_by_chance, paired
from isograd.study.statistics import Interval, median_coverage, median_interval, wilson

SAMPLES = 4000  # of intervals
PAIRS = 2000
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
DISTRIBUTIONS: dict[str, tuple[Draw, float]] = {  # and its median
    "normal": (lambda random, shape: random.normal(size=shape), 0.0),
    "skewed": (lambda random, shape: random.exponential(size=shape), math.log(2)),
}


def intervals(name: str, n: int) -> list[Interval]:
    samples = DISTRIBUTIONS[name][0](np.random.default_rng(n), (SAMPLES, n))
    found = [median_interval(sample) for sample in samples.tolist()]
    return [interval for interval in found if interval]


def holding(found: list[Interval], value: float, width: float = 1.0) -> float:
    """The share of intervals, narrowed to this part of their width, that hold a value."""
    middles = np.array([(interval.low + interval.high) / 2 for interval in found])
    halves = np.array([(interval.high - interval.low) / 2 for interval in found])
    return float((np.abs(value - middles) <= width * halves * (1 + 1e-12)).mean())


def error(share: float, samples: int = SAMPLES) -> float:
    """Four standard deviations of a simulated share."""
    return 4 * math.sqrt(share * (1 - share) / samples)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 10, 20])
def test_intervals_hold_the_median_as_often_as_they_say(n: int, name: str) -> None:
    """And intervals of half the width do not."""
    found = intervals(name, n)
    claimed = found[0].coverage
    assert len(found) == SAMPLES
    assert holding(found, DISTRIBUTIONS[name][1]) == pytest.approx(claimed, abs=error(claimed))
    assert holding(found, DISTRIBUTIONS[name][1], width=0.5) < claimed - 2 * error(claimed)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_twenty_seeds_are_near_the_nominal_level_and_three_are_not(name: str) -> None:
    value = DISTRIBUTIONS[name][1]
    assert holding(intervals(name, 20), value) == pytest.approx(0.95, abs=0.02)
    assert holding(intervals(name, 3), value) < 0.8


@pytest.mark.parametrize("n", [3, 5, 15, 45])
def test_wilson_holds_the_rate_at_its_level_on_average(n: int) -> None:
    """Summed over all outcomes, not simulated, and meant over rates; Wald's does not come near."""
    rates = np.linspace(0.005, 0.995, 199)
    chances = stats.binom.pmf(np.arange(n + 1)[:, None], n, rates)  # (outcome, rate)
    ours = [wilson(successes, n) for successes in range(n + 1)]
    held = np.array([[interval.holds(rate) for rate in rates] for interval in ours])
    assert (chances * held).sum(axis=0).mean() == pytest.approx(0.95, abs=0.015)
    seen = np.arange(n + 1)[:, None] / n
    walds = np.abs(rates - seen) <= 1.96 * np.sqrt(seen * (1 - seen) / n)
    assert (chances * walds).sum(axis=0).mean() < 0.92


def comparisons(n: int, *, difference: float = 0.0, shared: float = 0.0, samples: int = PAIRS) -> list[Paired]:
    """Of two normal arms of standard deviation 1, `shared` of the variance the seed's own."""
    random = np.random.default_rng(n)
    seed = math.sqrt(shared) * random.normal(size=(samples, 1, n))
    both = seed + math.sqrt(1 - shared) * random.normal(size=(samples, 2, n))
    return [
        paired(dict(enumerate(one)), dict(enumerate(other))) for one, other in (both - [[difference], [0]]).tolist()
    ]


def named(found: list[Paired]) -> float:
    return sum(pair.verdict is not None for pair in found) / len(found)


@pytest.mark.parametrize("n", [3, 5, 7])
def test_like_arms_are_told_apart_no_more_often_than_said(n: int) -> None:
    found = comparisons(n)
    claimed = found[0].chance
    assert named(found) <= claimed + error(claimed, PAIRS)
    assert named(comparisons(n, shared=0.8)) < 0.5 * claimed
    by_difference = sum(pair.interval is not None and not pair.interval.holds(0) for pair in found) / PAIRS
    assert by_difference > claimed + error(claimed, PAIRS)  # the foil: the paired interval alone


def test_three_independent_seeds_tell_like_arms_apart_in_a_tenth_of_cases() -> None:
    assert named(comparisons(3)) == pytest.approx(0.1, abs=error(0.1, PAIRS))


def test_arms_that_differ_are_told_apart() -> None:
    found = comparisons(5, difference=4.0, samples=1000)
    assert named(found) > 0.8
    assert all(pair.verdict in ("lower", None) for pair in found)


PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
ROWS = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("n", "cells"), ROWS, ids=[n for n, _ in ROWS])
def test_the_table_of_the_page(n: str, cells: str) -> None:
    """What is computed to the last digit, what is simulated within its error."""
    seeds = int(n)
    _, claimed, *measured, p, apart, named_apart, seen_from = cells.split(" | ")
    coverage, chance = median_coverage(seeds), apart_by_chance(seeds, seeds)
    assert claimed == f"{100 * coverage:.1f} %"
    assert float(p) == pytest.approx(2 / 2**seeds, rel=0.1)
    assert float(apart.removesuffix(" %")) == pytest.approx(100 * chance, abs=0.005)
    samples = 40_000 if seeds < 10 else 20_000
    assert len(measured) == 2
    for share in measured:
        assert float(share.removesuffix(" %")) == pytest.approx(
            100 * coverage, abs=100 * error(coverage, samples) + 0.05
        )
    assert float(named_apart.removesuffix(" %")) <= 100 * (chance + error(chance, samples))
    seen = named(comparisons(seeds, difference=float(seen_from.removesuffix(" sd")), samples=500))
    assert seen == pytest.approx(0.8, abs=error(0.8, 500))


def test_the_page_has_the_table() -> None:
    assert [n for n, _ in ROWS] == ["3", "5", "6", "10", "20"]

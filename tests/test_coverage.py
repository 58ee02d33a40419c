"""By simulation: how often intervals hold what they should, and how often like arms are told apart."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from isograd.lab.statistics import (
    Comparison,
    Interval,
    compare,
    lowest_p,
    median_coverage,
    median_interval,
    side_by_side,
    wilson,
)

SAMPLES = 4000  # of intervals
PAIRS = 600  # of arms
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


def comparisons(n: int, *, difference: float = 0.0, samples: int = PAIRS) -> list[Comparison]:
    """Of two independent normal arms of standard deviation 1."""
    both = np.random.default_rng(n).normal(size=(samples, 2, n)) - [[difference], [0]]
    return [compare(dict(enumerate(one)), dict(enumerate(other))) for one, other in both.tolist()]


def found(pairs: list[Comparison]) -> float:
    return sum(pair.differs for pair in pairs) / len(pairs)


PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
ROWS = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("n", "cells"), ROWS, ids=[n for n, _ in ROWS])
def test_the_table_of_the_page(n: str, cells: str) -> None:
    """What is computed to the last digit, what is simulated within its error."""
    seeds = int(n)
    _, claimed, *measured, p, family, like, apart = cells.split(" | ")
    coverage = median_coverage(seeds)
    assert claimed == f"{100 * coverage:.1f} %"
    assert float(p) == pytest.approx(lowest_p(seeds), rel=0.1)
    most = max((m for m in range(1, 27) if m * lowest_p(seeds) <= 0.05), default=0)
    assert family == {0: "none", 26: "26 and more"}.get(most, str(most))
    samples = 40_000 if seeds < 10 else 20_000
    assert len(measured) == 2
    for share in measured:
        assert float(share.removesuffix(" %")) == pytest.approx(
            100 * coverage, abs=100 * error(coverage, samples) + 0.05
        )
    share = found(comparisons(seeds))
    assert float(like.removesuffix(" %")) == pytest.approx(100 * share, abs=100 * error(0.05, PAIRS))
    if seeds < 6:
        assert share == 0 and apart == "–"
        return
    assert 0 < share <= 0.05 + error(0.05, PAIRS)
    often = found(comparisons(seeds, difference=float(apart.removesuffix(" sd")), samples=300))
    assert often == pytest.approx(0.8, abs=error(0.8, 300))


def test_the_page_has_the_table() -> None:
    assert [n for n, _ in ROWS] == ["3", "5", "6", "8", "10", "20"]


def test_four_comparisons_of_eight_seeds_as_the_page_says() -> None:
    pairs = comparisons(8, samples=1200)
    studies = [side_by_side(pairs[i : i + 4]) for i in range(0, 1200, 4)]
    assert sum(any(one.differs for one in study) for study in studies) / 300 <= 0.05 + error(0.05, 300)

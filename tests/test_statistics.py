"""Medians, their intervals and rates, against scipy, against all redraws of a small sample, and from a textbook."""

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from scipy import stats

from isograd.lab.statistics import Interval, mean_interval, median, median_coverage, median_interval, wilson

LOSSES = [2.31, 2.27, 2.44, 2.29, 2.35, 2.52, 2.26, 2.30, 2.38, 2.41, 2.33]


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


@pytest.mark.parametrize("n", range(1, 12))
def test_median_is_numpys(n: int) -> None:
    assert median(LOSSES[:n]) == pytest.approx(np.median(LOSSES[:n]), abs=1e-15)


def test_a_divergence_is_worst_and_never_averaged_away() -> None:
    assert median([2.3, math.inf, 2.2]) == 2.3
    assert median([2.3, math.inf]) == math.inf
    assert median([math.inf, math.inf]) == math.inf
    assert median([math.inf, -math.inf]) == 0


@pytest.mark.parametrize("n", [3, 5, 7, 9, 11])
def test_interval_is_scipys_percentile_bootstrap(n: int) -> None:
    found = stats.bootstrap((LOSSES[:n],), np.median, n_resamples=20_000, method="percentile", rng=1)
    assert ends(median_interval(LOSSES[:n])) == pytest.approx(tuple(found.confidence_interval))
    assert ends(median_interval(LOSSES[:n], 0.6)) != pytest.approx(tuple(found.confidence_interval)) or n == 3


@pytest.mark.parametrize("n", [4, 6, 8, 10])
def test_of_an_even_number_from_the_lower_to_the_upper_middle(n: int) -> None:
    """scipy's interval of the lower middle begins where ours does, that of the upper one ends there."""

    def redrawn(middle: int) -> tuple[float, float]:
        def statistic(x: np.ndarray, axis: int) -> np.ndarray:
            return np.take(np.sort(x, axis=axis), middle, axis=axis)

        drawn = stats.bootstrap((LOSSES[:n],), statistic, n_resamples=20_000, method="percentile", rng=1)
        return tuple(drawn.confidence_interval)

    low, high = ends(median_interval(LOSSES[:n]))
    assert low == pytest.approx(redrawn(n // 2 - 1)[0])
    assert high == pytest.approx(redrawn(n // 2)[1])
    mean = stats.bootstrap((LOSSES[:n],), np.median, n_resamples=20_000, method="percentile", rng=1)
    assert low <= mean.confidence_interval.low
    assert mean.confidence_interval.high <= high


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", range(2, 7))
def test_interval_is_that_of_all_redraws(n: int, level: float) -> None:
    """All n^n of them, each as likely: nothing random."""
    redraws = [*itertools.product(LOSSES[:n], repeat=n)]
    lower = np.sort([statistics.median_low(redraw) for redraw in redraws])
    upper = np.sort([statistics.median_high(redraw) for redraw in redraws])
    skipped = math.ceil((1 - level) / 2 * len(redraws) - 1e-6) - 1
    assert ends(median_interval(LOSSES[:n], level)) == (lower[skipped], upper[-1 - skipped])


def test_one_value_has_no_interval() -> None:
    assert median_interval([2.3]) is None
    assert median_interval([]) is None


@pytest.mark.parametrize("n", [3, 6, 7, 10])
@pytest.mark.parametrize("broken", [1, 2, 3])
def test_infinite_losses_rank_as_huge_ones(n: int, broken: int) -> None:
    """No NaN, no warning: as losses beyond all others have it."""
    whole = LOSSES[: n - broken]
    found, huge = (median_interval([*whole, *[value] * broken]) for value in (math.inf, 1e300))
    assert ends(found) == tuple(math.inf if end == 1e300 else end for end in ends(huge))
    with np.errstate(invalid="ignore"):  # negative control: an interpolated quantile
        assert np.isnan(np.quantile([*whole, math.inf, math.inf], 0.99))


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="a diverged run counts as infinite"):
        median_interval([2.0, math.nan, 2.1])


def test_interval_moves_with_the_values() -> None:
    """Shifted, mirrored, in another order: the same interval, shifted, mirrored."""
    low, high = ends(median_interval(LOSSES))
    shuffled = random.Random(1).sample(LOSSES, len(LOSSES))
    assert ends(median_interval(shuffled)) == (low, high)
    assert ends(median_interval([-loss for loss in LOSSES])) == (-high, -low)
    assert ends(median_interval([2 * loss + 1 for loss in LOSSES])) == (2 * low + 1, 2 * high + 1)


@pytest.mark.parametrize("n", range(2, 30))
def test_coverage_is_at_most_that_of_the_whole_range(n: int) -> None:
    """scipy's binomial has the chance of so many of n values on one side of the median."""
    interval = median_interval(list(range(n)))
    assert interval
    assert interval.coverage == median_coverage(n)
    assert interval.coverage == pytest.approx(1 - 2 * stats.binom.cdf(int(interval.low), n, 0.5))
    assert interval.coverage <= 1 - 2 ** (1 - n)
    assert interval.coverage < interval.level or n >= 6
    assert interval.coverage > 0.9 or n in (2, 3, 4, 7)
    assert median_coverage(n, 0.999) >= interval.coverage


@pytest.mark.parametrize("n", [3, 5, 11])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_students_interval_is_scipys(n: int, level: float) -> None:
    """And the negative control: the normal quantile in place of Student's."""
    sample = LOSSES[:n]
    spread = statistics.stdev(sample) / math.sqrt(n)
    theirs = stats.t.interval(level, n - 1, loc=statistics.fmean(sample), scale=spread)
    assert mean_interval(sample, level) == pytest.approx(theirs, rel=1e-12)
    normal = stats.norm.interval(level, loc=statistics.fmean(sample), scale=spread)
    assert mean_interval(sample, level) != pytest.approx(normal, rel=1e-5)
    assert mean_interval(sample[:2]) is None


def test_ends_are_inside() -> None:
    interval = Interval(low=1, high=2, level=0.95, coverage=0.75)
    assert interval.holds(1) and interval.holds(2)
    assert not interval.holds(0.99) and not interval.holds(2.01)
    assert interval.coverage < interval.level


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 3), (1, 3), (3, 3), (2, 5), (7, 45), (200, 1000)])
def test_wilson_is_scipys(successes: int, n: int, level: float) -> None:
    theirs = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert ends(wilson(successes, n, level)) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_from_the_textbook(successes: int, n: int, low: float, high: float) -> None:
    """Newcombe 1998, Statistics in Medicine 17, table I, the score method without continuity correction."""
    assert ends(wilson(successes, n)) == pytest.approx((low, high), abs=5e-5)
    rate = successes / n  # negative control: Wald's, as most reports have it
    half = 1.96 * math.sqrt(rate * (1 - rate) / n)
    assert (rate - half, rate + half) != pytest.approx((low, high), abs=5e-4)


def test_wilson_at_its_ends() -> None:
    assert wilson(0, 3).low == 0
    assert wilson(3, 3).high == 1
    assert ends(wilson(0, 0)) == (0, 1)
    for successes, n in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match=f"{successes} of 3 is no rate"):
            wilson(successes, n)

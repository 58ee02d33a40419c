"""What n seeds say together: median, interval, rate. numpy and the standard library only.

A diverged run counts as an infinite loss: worse than every other one, and never averaged away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
_ROUNDING = 1e-12  # two probabilities nearer than this are equal


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval for a median or a rate, and how often such an interval is right.

    Attributes:
        low, high: infinite where diverged runs reach so far.
        level: what was asked for, 0.95.
        coverage: how often an interval made so from n values holds the true value, at most: of three values, 0.75.
    """

    low: float
    high: float
    level: float
    coverage: float

    @property
    def falls_short(self) -> bool:
        """Whether n values are too few for what was asked for."""
        return self.coverage < self.level

    def overlaps(self, other: "Interval") -> bool:
        """Whether there is a value in both, their ends included."""
        return max(self.low, other.low) <= min(self.high, other.high)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number, the mean of the two in the middle.

    >>> median([2.1, math.inf, 2.0]), median([2.1, math.inf]), median([-math.inf, math.inf])
    (2.1, inf, 0.0)
    """
    ranked = _ranked(values)
    return _middle(ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2])


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The percentile bootstrap interval of the median, from the exact distribution of the bootstrap.

    The median of n values drawn from n values with replacement takes few values, of known probabilities (see
    `_redrawn`): no random numbers, the same interval every time. It lies between the smallest value m at which
    P(median <= m) and the largest at which P(median >= m) is (1 - level) / 2 or more. No quantile is interpolated, so
    infinite values are fine.

    Returns:
        None for fewer than two values.
    """
    ranked = _ranked(values)
    n = len(ranked)
    if n < 2:
        return None
    tail = (1 - level) / 2
    lower, upper, probability = _redrawn(n)
    medians = np.array([_middle(ranked[i], ranked[j]) for i, j in zip(lower, upper, strict=True)])
    order = np.argsort(medians, kind="stable")
    medians, probability = medians[order], probability[order]
    low = medians[np.argmax(np.cumsum(probability) >= tail - _ROUNDING)]
    high = medians[::-1][np.argmax(np.cumsum(probability[::-1]) >= tail - _ROUNDING)]
    return Interval(low=float(low), high=float(high), level=level, coverage=median_coverage(n, level))


def median_coverage(n: int, level: float = LEVEL) -> float:
    """How often `median_interval` of n values holds the median, whatever their distribution, if it is continuous.

    For odd n it reaches from the k-th lowest value to the k-th highest, and misses where fewer than k values are on
    one side of the median: 1 - 2 P(Binomial(n, 1/2) < k), which is never above 1 - 2^(1-n). For even n its ends may be
    means of two values, and lie no further out than that: there it is an upper bound.

    >>> [round(median_coverage(n), 3) for n in (2, 3, 5, 6, 10)]
    [0.5, 0.75, 0.938, 0.969, 0.979]
    """
    tail = (1 - level) / 2
    k = next(k for k in range(1, n + 1) if _reaches((n + 1) // 2, n, k / n) >= tail - _ROUNDING)
    return 1 - 2 * (1 - _reaches(k, n, 0.5))


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Of a rate, by the score test (Wilson 1927): all rates p with |successes/n - p| <= z sqrt(p (1 - p) / n).

    It stays within 0 to 1, and is no point where nothing, or everything, was a success.

    >>> found = wilson(0, 3)
    >>> round(found.low, 3), round(found.high, 3)
    (0.0, 0.561)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no rate")
    if n == 0:
        return Interval(low=0.0, high=1.0, level=level, coverage=level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate = successes / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    low = 0.0 if successes == 0 else middle - half  # as the formula has it, but for rounding
    high = 1.0 if successes == n else middle + half
    return Interval(low=low, high=high, level=level, coverage=level)


def _ranked(values: Sequence[float]) -> list[float]:
    if any(map(math.isnan, values)):
        raise ValueError("NaN is no loss: a diverged run counts as infinite")
    return sorted(map(float, values))


def _middle(low: float, high: float) -> float:
    """Between -inf and inf 0, the one middle that changes its sign with them."""
    return 0.0 if low == -math.inf and high == math.inf else (low + high) / 2


@lru_cache
def _redrawn(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two middle ranks of n draws with replacement from n ranked values, and their probabilities.

    Of odd n both are the same rank i, and P(rank <= i) = P(Binomial(n, i/n) > n/2). Of even n, with m = n/2, ranks
    i < j are in the middle where m draws are at most i, one of them i, and the others at least j, one of them j.
    """
    m = (n + 1) // 2
    below = [_reaches(m, n, i / n) for i in range(n + 1)]
    single = np.diff(below)  # of the m-th lowest draw
    ranks = np.arange(n)
    if n % 2:
        return ranks, ranks, single
    exactly = np.diff((np.arange(n + 1) / n) ** m)  # of the highest of m draws; of the lowest, from the other end
    pairs = np.triu(math.comb(n, m) * np.outer(exactly, exactly[::-1]), k=1)
    pairs[ranks, ranks] = single - pairs.sum(axis=1)
    lower, upper = np.nonzero(np.triu(np.ones((n, n))))
    return lower, upper, pairs[lower, upper]


def _reaches(m: int, n: int, p: float) -> float:
    """P(Binomial(n, p) >= m)."""
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(m, n + 1))

"""What n seeds say together: median, interval, rate.

A diverged run counts as an infinite loss: worse than every other one, and never averaged away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

LEVEL = 0.95
_ROUNDING = 1e-12  # of sums of probabilities


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval for a median or a rate, and how often such an interval is right.

    Attributes:
        low, high: infinite where diverged runs reach so far.
        level: what was asked for, 0.95.
        coverage: how often an interval made so from n values holds the true value: of three values, 0.75.
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
    """The percentile bootstrap interval of the median, exactly: no random numbers, the same interval every time.

    Redrawn with replacement, n values have one of them as their median, the i-th lowest or a lower one with
    probability P(Binomial(n, i/n) > n/2). The interval reaches from the first of them at which this is (1 - level) / 2
    or more, to the same one from above. Of an even number of values two are in the middle: then it begins at this
    quantile of the lower one and ends at that of the upper one. So both ends are values that were seen: no infinity is
    interpolated, and its coverage is known.

    Returns:
        None for fewer than two values.
    """
    ranked = _ranked(values)
    n = len(ranked)
    if n < 2:
        return None
    k = rank_of_end(n, level)
    return Interval(low=ranked[k - 1], high=ranked[n - k], level=level, coverage=median_coverage(n, level))


@lru_cache
def rank_of_end(n: int, level: float = LEVEL) -> int:
    """The k for which the interval reaches from the k-th lowest of n values to the k-th highest.

    >>> [rank_of_end(n) for n in (3, 5, 6, 7, 10, 20)]
    [1, 1, 1, 2, 2, 6]
    """
    tail = (1 - level) / 2
    return next(k for k in range(1, n + 1) if _at_least((n + 1) // 2, n, k / n) >= tail - _ROUNDING)


@lru_cache
def median_coverage(n: int, level: float = LEVEL) -> float:
    """How often `median_interval` of n values holds the true median, whatever their (continuous) distribution is.

    It misses where fewer than k of them are on one side of it: 1 - 2 P(Binomial(n, 1/2) < k). That is 1 - 2^(1-n) at
    the most, from the lowest to the highest. Equal values make it larger, never smaller.

    >>> [median_coverage(n) for n in (2, 3, 4, 5, 6, 7)]
    [0.5, 0.75, 0.875, 0.9375, 0.96875, 0.875]
    """
    return 2 * _at_least(rank_of_end(n, level), n, 0.5) - 1


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


def _at_least(m: int, n: int, p: float) -> float:
    """P(Binomial(n, p) >= m)."""
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(m, n + 1))

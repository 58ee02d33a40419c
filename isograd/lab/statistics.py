"""What n seeds say together, and the one rule by which two arms are said to differ.

    two arms differ  <=>  p <= 0.05,   p of the exact sign-flip test over the seeds in common, corrected by Holm

The correction is for all comparisons that stand side by side. A diverged run has an infinite loss: it ranks behind
every other one and is never averaged away.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Literal

LEVEL = 0.95  # of intervals
ALPHA = 0.05  # of the rule: the chance that among arms that are alike any two are said to differ
_ROUNDING = 1e-12  # of sums of probabilities

Verdict = Literal["lower", "higher", "no difference seen", "too few seeds"]


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

    def holds(self, value: float) -> bool:
        """Whether the value is inside, the ends included."""
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
    quantile of the lower one and ends at that of the upper one. So both ends are values that were measured: no infinity
    is interpolated, and its coverage is known.

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

    >>> [round(median_coverage(n), 5) for n in (2, 3, 4, 5, 6, 7)]
    [0.5, 0.75, 0.875, 0.9375, 0.96875, 0.875]
    """
    return 2 * _at_least(rank_of_end(n, level), n, 0.5) - 1


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Student's interval mean +- t s / sqrt(n), t the quantile at n - 1 degrees of freedom; None below three values.

    >>> [round(end, 3) for end in mean_interval([0.71, 0.72, 0.73, 0.74, 0.75])]
    [0.71, 0.75]
    """
    from scipy import special

    n = len(values)
    if n < 3:
        return None
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(special.stdtrit(n - 1, (1 + level) / 2)) * spread / math.sqrt(n)
    return mean - half, mean + half


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Of a rate, by the score test (Wilson 1927): all rates p with |successes/n - p| <= z sqrt(p (1 - p) / n).

    It stays within 0 to 1, and is no point where nothing, or everything, was a success.

    >>> found = wilson(0, 3)
    >>> round(found.low, 3), round(found.high, 3)
    (0.0, 0.561)
    """
    from scipy import special

    if not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no rate")
    if n == 0:
        return Interval(low=0.0, high=1.0, level=level, coverage=level)
    z = float(special.ndtri((1 + level) / 2))
    rate = successes / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    low = 0.0 if successes == 0 else middle - half  # as the formula has it, but for rounding
    high = 1.0 if successes == n else middle + half
    return Interval(low=low, high=high, level=level, coverage=level)


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p of the exact paired permutation test on signed ranks (Wilcoxon 1945, zeros as Pratt 1959 has them).

    If the two arms were alike, each difference could as well have the other sign. The share of all 2^n choices of the
    signs whose sum of signed ranks of |difference| is as far from 0 as here. Ranks, so that infinite differences have
    a place; equal ones share theirs. Exact for every n, with ties, where scipy's `wilcoxon` is exact without ties.

    >>> sign_flip([-0.1, -0.3, -math.inf]), sign_flip([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6])
    (0.25, 0.03125)
    """
    ranks = _signed_ranks(differences)
    sums = Counter({0: 1})  # in how many ways each sum of signed ranks comes about
    for rank in map(abs, filter(None, ranks)):
        flipped: Counter[int] = Counter()
        for total, ways in sums.items():
            flipped[total + rank] += ways
            flipped[total - rank] += ways
        sums = flipped
    here = abs(sum(ranks))
    return sum(ways for total, ways in sums.items() if abs(total) >= here) / sums.total()


def lowest_p(n: int) -> float:
    """The lowest p that the sign-flip test of n differences can give, all of one sign: 2 / 2^n.

    >>> [lowest_p(n) for n in (0, 1, 3, 5, 6)]
    [1.0, 1.0, 0.25, 0.0625, 0.03125]
    """
    return min(1.0, 2.0 ** (1 - n))


def fewest(comparisons: int = 1) -> int:
    """From how many seeds on the rule can find a difference, if it is one of so many comparisons.

    >>> [fewest(m) for m in (1, 2, 4, 10, 15)]
    [6, 7, 8, 9, 10]
    """
    return next(n for n in range(1, 64) if comparisons * lowest_p(n) <= ALPHA)


def holm(p: Sequence[float]) -> list[float]:
    """p corrected for their number, by Holm's step-down method (1979): max over j <= i of (m - j + 1) p_(j).

    Whatever their dependence: among comparisons of arms that are alike, one or more of the corrected p are at 0.05 or
    below in 5 % of cases at most.

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(p), 0.0
    for passed, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - passed) * p[i]))
        corrected[i] = highest
    return corrected


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two arms, seed by seed: the same seed means the same data in the same order, so a lucky order does both good.

    Attributes:
        seeds: those that both arms have.
        differences: mine - theirs for each of them; without those with which both diverged, which say nothing.
        median, interval: of the differences; None where there is none, and of fewer than two.
        p: of the exact sign-flip test, two-sided (see `sign_flip`).
        of: with how many comparisons this one stands side by side, itself included.
        corrected: p, corrected for them by Holm.
        lowest: the lowest corrected p that so many seeds could have given.
        lower, higher: with how many seeds mine is lower, and higher.
        sign: of the sum of signed ranks, which says who is lower where the two differ.
    """

    seeds: tuple[int, ...]
    differences: Mapping[int, float]
    median: float | None
    interval: Interval | None
    p: float
    of: int = 1
    corrected: float
    lowest: float
    lower: int
    higher: int
    sign: int

    @property
    def n(self) -> int:
        """How many seeds say something."""
        return len(self.differences)

    @property
    def verdict(self) -> Verdict:
        """The one rule: see the module."""
        if self.lowest > ALPHA:
            return "too few seeds"
        if self.corrected > ALPHA:
            return "no difference seen"
        return "lower" if self.sign < 0 else "higher"

    @property
    def differs(self) -> bool:
        return self.verdict in ("lower", "higher")

    def count_said(self) -> str:
        """ "lower with 3 of 3 seeds", of the more frequent sign; "" where there is none."""
        word, many = ("lower", self.lower) if self.lower >= self.higher else ("higher", self.higher)
        return f"{word} with {many} of {self.n} seeds" if many else ""


def compare(mine: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL) -> Comparison:
    """Two arms, seed by seed.

    Args:
        mine, theirs: the loss of each seed, infinite where the run diverged.
    """
    seeds = tuple(seed for seed in mine if seed in theirs)
    compared = [seed for seed in seeds if mine[seed] != theirs[seed] or math.isfinite(mine[seed])]
    differences = {seed: mine[seed] - theirs[seed] for seed in compared}
    found = [*differences.values()]
    p = sign_flip(found)
    return Comparison(
        seeds=seeds,
        differences=differences,
        median=median(found) if found else None,
        interval=median_interval(found, level),
        p=p,
        corrected=p,
        lowest=lowest_p(len(found)),
        lower=sum(difference < 0 for difference in found),
        higher=sum(difference > 0 for difference in found),
        sign=sum(_signed_ranks(found)),
    )


def compare_ratios(ratios: Mapping[int, float]) -> Comparison:
    """Ratios seed by seed, against 1: the differences are their logarithms."""
    logarithms = {seed: math.log(ratio) if ratio else -math.inf for seed, ratio in ratios.items()}
    return compare(logarithms, dict.fromkeys(ratios, 0.0))


def side_by_side(found: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons, each corrected for all of them; those without a seed in common count for none."""
    counted = [one for one in found if one.n]
    corrected, lowest = holm([one.p for one in counted]), holm([lowest_p(one.n) for one in counted])
    ends = iter(zip(corrected, lowest, strict=True))
    return [
        replace(one, of=len(counted), corrected=(end := next(ends))[0], lowest=end[1]) if one.n else one
        for one in found
    ]


def caution(found: Sequence[Comparison]) -> str:
    """What holds of all these comparisons, in a sentence or two: the correction, and what so few seeds cannot show."""
    many = sum(one.n > 0 for one in found)
    few = [one.n for one in found if one.n and one.verdict == "too few seeds"]
    said = [f"p is corrected for {many} comparisons by Holm's method."] if many > 1 else []
    if few:
        n = max(few)
        corrected = f" ({min(1.0, many * lowest_p(n)):.2g} corrected)" if many > 1 else ""
        said.append(
            f"An exact test of {n} seed{'s' * (n > 1)} cannot give p below {lowest_p(n):.2g}{corrected}, whatever the"
            f" difference: it takes {fewest(many)} seeds."
        )
    return " ".join(said)


def _ranked(values: Sequence[float]) -> list[float]:
    if any(map(math.isnan, values)):
        raise ValueError("NaN is not a loss: a diverged run counts as infinite")
    return sorted(map(float, values))


def _middle(low: float, high: float) -> float:
    """Between -inf and inf 0, the one middle that changes its sign with them."""
    return 0.0 if low == -math.inf and high == math.inf else (low + high) / 2


def _at_least(m: int, n: int, p: float) -> float:
    """P(Binomial(n, p) >= m)."""
    from scipy import special  # a third of a second, which a command line that only asks for help need not pay

    return float(special.bdtrc(m - 1, n, p))


def _signed_ranks(differences: Sequence[float]) -> list[int]:
    """Twice the rank of |difference|, so that shared ranks are whole numbers, with its sign; a 0 has none."""
    sizes = [abs(difference) for difference in differences]
    ranks = [2 * sum(other < size for other in sizes) + sizes.count(size) + 1 for size in sizes]
    return [(x > 0) * rank - (x < 0) * rank for x, rank in zip(differences, ranks, strict=True)]


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """p of the least-squares line log y = p log x + c.

    >>> round(exponent([1, 2, 4, 8], [3, 6, 12, 24]), 12)
    1.0
    """
    log_x, log_y = [math.log(v) for v in x], [math.log(v) if v > 0 else math.nan for v in y]
    middle_x, middle_y = fmean(log_x), fmean(log_y)
    across = sum((a - middle_x) ** 2 for a in log_x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(log_x, log_y, strict=True)) / across

"""Two arms seed by seed, and when one of them may be called the lower one."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Literal

from isograd.study.statistics import LEVEL, Interval, median, median_interval, rank_of_end

FEWEST = 3  # seeds in common for a verdict


@dataclass(frozen=True, kw_only=True)
class Paired:
    """What two arms differ in that were trained with the same seeds, and so on the same data in the same order.

    Attributes:
        seeds: those that both arms have.
        differences: mine - theirs for each of them; without those with which both diverged, which say nothing.
        median, interval: of the differences; None where there is none, and of fewer than two.
        p: of the exact sign-flip test, two-sided (see `sign_flip`).
        lower: with how many seeds mine is lower.
        diverged: with how many of `seeds` mine and theirs diverged.
        mine, theirs: the interval of the median of each arm, over all its seeds.
        chance: how often two like arms have intervals that do not overlap (see `apart_by_chance`).
    """

    seeds: tuple[int, ...]
    differences: Mapping[int, float]
    median: float | None
    interval: Interval | None
    p: float
    lower: int
    diverged: tuple[int, int]
    mine: Interval | None
    theirs: Interval | None
    chance: float

    @property
    def n(self) -> int:
        """How many seeds say something."""
        return len(self.differences)

    @property
    def verdict(self) -> Literal["lower", "higher"] | None:
        """Where mine is, if three things hold; None: no difference seen.

        The intervals of the two arms do not overlap; the interval of the differences leaves 0 out; n >= 3.
        """
        if self.n < FEWEST or not (self.mine and self.theirs and self.interval):
            return None
        if self.mine.overlaps(self.theirs) or self.interval.holds(0.0):
            return None
        return "lower" if self.interval.high < 0 else "higher"

    def said(self, mine: str, theirs: str, what: str = "validation loss", comparisons: int = 1) -> str:
        """What was found, in a few short sentences.

        Args:
            mine, theirs: the labels of the arms.
            comparisons: how many such comparisons stand beside each other; the more, the more often one of them finds
                a difference by chance.
        """
        if not self.seeds:
            return f"{mine} and {theirs} have no seed in common: not compared."
        if not self.n:
            return f"{mine} and {theirs} diverge with every seed in common (n = {len(self.seeds)})."
        if self.n < FEWEST or self.median is None or self.interval is None:
            found = [f"No verdict (n = {self.n}): it takes {FEWEST} seeds in common."]
        else:
            size = f"edian difference {_amount(self.median)}{_between(self.interval)}"
            found = [f"No difference seen (n = {self.n}).", f"M{size}."]
            if self.verdict:
                found = [f"The {what} of {mine} is {self.verdict} than that of {theirs} (n = {self.n}):"]
                found += [f"m{size}, p = {self.p:.2g}."]
            found += [_coverage(self.interval, self.n), self._chance(comparisons, 1 - self.interval.level)]
        return " ".join(filter(None, [*found, self._divergence(mine, theirs)]))

    def _chance(self, comparisons: int, allowed: float) -> str:
        """How often arms that are alike get a verdict, where that is more than 5 %; at most the sum (Bonferroni)."""
        often = min(1.0, comparisons * self.chance)
        if not self.verdict or often <= allowed:
            return ""
        if comparisons == 1:
            return f"Two arms that are alike come out so in up to {_percent(often)} of cases."
        return (
            f"Of {comparisons} comparisons of arms that are alike, one or more come out so in up to {_percent(often)}."
        )

    def _divergence(self, mine: str, theirs: str) -> str:
        if not any(self.diverged):
            return ""
        of = f"of {len(self.seeds)} seeds"
        return f"Diverged: {mine} with {self.diverged[0]}, {theirs} with {self.diverged[1]} {of}."


def paired(mine: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL) -> Paired:
    """Two arms, seed by seed.

    Args:
        mine, theirs: the loss for each seed, infinite where the run diverged.
    """
    seeds = tuple(seed for seed in mine if seed in theirs)
    told = [seed for seed in seeds if math.isfinite(mine[seed]) or math.isfinite(theirs[seed])]
    differences = {seed: mine[seed] - theirs[seed] for seed in told}
    found = [*differences.values()]
    return Paired(
        seeds=seeds,
        differences=differences,
        median=median(found) if found else None,
        interval=median_interval(found, level),
        p=sign_flip(found),
        lower=sum(difference < 0 for difference in found),
        diverged=(_diverged(mine, seeds), _diverged(theirs, seeds)),
        mine=median_interval([*mine.values()], level),
        theirs=median_interval([*theirs.values()], level),
        chance=apart_by_chance(len(mine), len(theirs), level),
    )


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p of the exact paired permutation test on signed ranks (Wilcoxon 1945, zeros as Pratt 1959 has them).

    If the two arms were alike, each difference could as well have the other sign. The share of all 2^n choices of the
    signs whose sum of signed ranks of |difference| is as far from 0 as here. Ranks, so that infinite differences have
    a place; equal ones share theirs. It is 2 / 2^n at least: 0.25 of three seeds, and below 0.05 only from six on.

    >>> sign_flip([-0.1, -0.3, -math.inf]), sign_flip([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6])
    (0.25, 0.03125)
    """
    sizes = [abs(difference) for difference in differences]
    # twice the rank, so that shared ranks are whole numbers; a 0 has a rank, and no sign
    ranks = [2 * sum(other < size for other in sizes) + sizes.count(size) + 1 for size in sizes]
    here = sum(
        (difference > 0) * rank - (difference < 0) * rank for difference, rank in zip(differences, ranks, strict=True)
    )
    sums = Counter({0: 1})  # in how many ways each sum of signed ranks comes about
    for rank in (rank for size, rank in zip(sizes, ranks, strict=True) if size):
        flipped: Counter[int] = Counter()
        for total, ways in sums.items():
            flipped[total + rank] += ways
            flipped[total - rank] += ways
        sums = flipped
    return sum(ways for total, ways in sums.items() if abs(total) >= abs(here)) / sums.total()


@lru_cache
def apart_by_chance(n: int, others: int, level: float = LEVEL) -> float:
    """How often the intervals of two samples of one distribution do not overlap: 2 / C(2n, n) up to n = 6.

    Every order of the n + others values is as likely as any other. Those count in which the upper end of one interval
    comes before the lower end of the other. Two like arms are apart so often if their losses are independent, and less
    often if a seed does the same to both.

    >>> [round(apart_by_chance(n, n), 4) for n in (2, 3, 4, 5)]
    [0.3333, 0.1, 0.0286, 0.0079]
    """
    if min(n, others) < 2:
        return 1.0
    ends = rank_of_end(n, level), rank_of_end(others, level)
    return (_orders(n, others, n + 1 - ends[0], ends[1]) + _orders(others, n, others + 1 - ends[1], ends[0])) / comb(
        n + others, n
    )


def _orders(n: int, others: int, i: int, j: int) -> int:
    """Of n values among others: the orders in which the i-th lowest of them is below the j-th lowest of the others.

    By how many of them, a >= i, are below that one: a of them and j - 1 others in any order before it.
    """
    return sum(comb(a + j - 1, a) * comb(n - a + others - j, n - a) for a in range(i, n + 1))


def _diverged(losses: Mapping[int, float], seeds: Sequence[int]) -> int:
    return sum(not math.isfinite(losses[seed]) for seed in seeds)


def _coverage(interval: Interval, n: int) -> str:
    """What a reader must know of so few seeds."""
    if not interval.falls_short:
        return ""
    said = f"Intervals of {n} seeds hold the true median in {_percent(interval.coverage)} of cases"
    return f"{said}, not in {_percent(interval.level)}."


def _between(interval: Interval) -> str:
    """ ", between -0.3 and -0.1"; where diverged runs reach into it, ", -0.1 or lower"."""
    low, high = math.isfinite(interval.low), math.isfinite(interval.high)
    if low and high:
        return f", between {_amount(interval.low)} and {_amount(interval.high)}"
    if low or high:
        return f", {_amount(interval.low)} or higher" if low else f", {_amount(interval.high)} or lower"
    return "" if interval.low == interval.high else ", of either sign"


def _amount(difference: float) -> str:
    return f"{difference:+.3g}" if math.isfinite(difference) else "infinite"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"

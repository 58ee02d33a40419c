"""Two arms seed by seed, and when one of them may be called the winner."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from isograd.study.statistics import LEVEL, Interval, median, median_interval

FEWEST = 3  # seeds in common for a verdict


@dataclass(frozen=True, kw_only=True)
class Paired:
    """What two arms trained with the same seeds, and so on the same data in the same order, differ in.

    Attributes:
        seeds: those that both arms have.
        differences: mine - theirs for each of them; without those with which both diverged, which say nothing.
        median, interval: of the differences; None where there is none, and of fewer than two.
        p: of the exact sign-flip test, two-sided (see `sign_flip`).
        lower: with how many seeds mine is lower.
        mine, theirs: the interval of the median of each arm, over all its seeds.
    """

    seeds: tuple[int, ...]
    differences: Mapping[int, float]
    median: float | None
    interval: Interval | None
    p: float
    lower: int
    mine: Interval | None
    theirs: Interval | None

    @property
    def n(self) -> int:
        """How many seeds say something."""
        return len(self.differences)

    @property
    def verdict(self) -> Literal["lower", "higher"] | None:
        """Where mine is, by all of three rules; None: no difference seen.

        The intervals of the two arms do not overlap; the interval of the differences leaves 0 out; n >= 3.
        """
        if self.n < FEWEST or not (self.mine and self.theirs and self.interval):
            return None
        if self.mine.overlaps(self.theirs) or self.interval.holds(0.0):
            return None
        return "lower" if self.interval.high < 0 else "higher"

    def said(self, mine: str, theirs: str, what: str = "validation loss") -> str:
        """What was found, in a sentence or two.

        Args:
            mine, theirs: the labels of the arms.
        """
        if not self.seeds:
            return f"{mine} and {theirs} have no seed in common: not compared."
        if not self.n:
            return f"{mine} and {theirs} diverge with every seed in common (n = {len(self.seeds)})."
        if self.n < FEWEST:
            return f"No verdict (n = {self.n}): a difference takes at least {FEWEST} seeds in common.{self._left_out()}"
        assert self.interval
        if self.verdict is None:
            short = f" {_coverage(self.interval)}" if self.interval.falls_short else ""
            return f"No difference seen (n = {self.n}).{short}{self._left_out()}"
        ends = f"between {_amount(self.interval.low)} and {_amount(self.interval.high)}"
        found = f"The {what} of {mine} is {self.verdict} than that of {theirs}: median difference "
        found += f"{_amount(self.median or 0.0)}, {ends} (n = {self.n}, p = {self.p:.2g})."
        return found + (f" {_coverage(self.interval)}" if self.interval.falls_short else "") + self._left_out()

    def _left_out(self) -> str:
        both = len(self.seeds) - self.n
        return f" With {both} more both diverge." if both else ""


def paired(mine: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL) -> Paired:
    """Two arms, seed by seed.

    Args:
        mine, theirs: the loss for each seed, infinite where the run diverged.
    """
    seeds = tuple(seed for seed in mine if seed in theirs)
    pairs = {seed: (mine[seed], theirs[seed]) for seed in seeds}
    differences = {
        seed: one - other for seed, (one, other) in pairs.items() if math.isfinite(one) or math.isfinite(other)
    }
    found = [*differences.values()]
    return Paired(
        seeds=seeds,
        differences=differences,
        median=median(found) if found else None,
        interval=median_interval(found, level),
        p=sign_flip(found),
        lower=sum(difference < 0 for difference in found),
        mine=median_interval([*mine.values()], level),
        theirs=median_interval([*theirs.values()], level),
    )


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p of the exact paired permutation test on signed ranks (Wilcoxon 1945, zeros as Pratt 1959 has them).

    If the two arms were alike, each difference could as well have the other sign. The share of all 2^n choices of the
    signs whose sum of signed ranks of |difference| is as far from 0 as here. Ranks, so that infinite differences have
    a place; equal ones share theirs. It is 2 / 2^n at least: 0.25 of three seeds, and 0.05 is out of reach below six.

    >>> sign_flip([-0.1, -0.3, -math.inf]), sign_flip([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6])
    (0.25, 0.03125)
    """
    sizes = [abs(difference) for difference in differences]
    # twice the rank, so that shared ranks are whole numbers; a 0 has a rank, and no sign
    ranks = [2 * sum(s < size for s in sizes) + sizes.count(size) + 1 for size in sizes]
    here = abs(sum(int(math.copysign(r, d)) for r, d in zip(ranks, differences, strict=True) if d))
    sums = Counter({0: 1})  # in how many ways each sum of signed ranks comes about
    for rank, size in zip(ranks, sizes, strict=True):
        if size:
            flipped: Counter[int] = Counter()
            for total, ways in sums.items():
                flipped[total + rank] += ways
                flipped[total - rank] += ways
            sums = flipped
    return sum(ways for total, ways in sums.items() if abs(total) >= here) / sums.total()


def _coverage(interval: Interval) -> str:
    return (
        f"So few seeds hold the true median in {100 * interval.coverage:.3g} % of cases at most,"
        f" not in {100 * interval.level:.3g} %."
    )


def _amount(difference: float) -> str:
    return f"{difference:+.3f}" if math.isfinite(difference) else "a divergence"

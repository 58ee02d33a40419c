"""The largest learning rate that still trains: a bisection on the log scale, as a function of what was seen so far.

Nothing is trained here. `next_rate` names the rate to train next, or the boundary, so that a search can be stopped and
replayed at any point, and tested against a boundary that is known.

Short runs fail at both ends: a rate that is too large breaks the loss or lays the stack at the unigram entropy, a
rate that is too small has not come below it yet. The upper end is looked for. A rate above one that trained is too
large, whatever it looked like; only where none has trained yet do the looks of its losses (`verdict_of`) decide
whether to go down or up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from isograd.errors import RecipeError
from isograd.lab.statistics import median, median_interval
from isograd.outcome import NEAR, WINDOW, OutcomeName

RateVerdict = Literal["finished", "diverged", "collapsed", "slow", "undecided", "failed"]  # of a rate

STEP = 4.0  # from rate to rate, as long as no end of the bracket is known
# measured at 12 layers: at small rates a stack leaves the entropy within 1.9 times of what took it there
PATIENCE = 3.0


def verdict_of(
    outcome: OutcomeName, losses: Sequence[float], rates: Sequence[float], unigram_entropy: float, broke: bool = False
) -> RateVerdict:
    """What the outcome of a run (`isograd.outcome.judge`) says of its peak rate, and which way to go on from there.

    The outcome's own word, "diverged" also where the run was stopped because the loss rose. An undecided run has not
    trained either, and only a longer one would tell; its losses say where to look next. "slow": it has not come down
    to the entropy yet, or so late that a run which learns might lie there still; time is counted in rate x steps, so
    that a warm-up counts for what it is. Else "undecided".

    >>> falling = [5 - 0.02 * step for step in range(90)]
    >>> [verdict_of("undecided", x, [1e-3] * len(x), 3.0) for x in (falling, [5.0, *[3.0] * 149])]
    ['slow', 'undecided']
    """
    if outcome == "failed" or outcome == "interrupted":
        return "failed"
    if broke:
        return "diverged"
    if outcome != "undecided":
        return outcome
    means = [math.fsum(losses[i : i + WINDOW]) / WINDOW for i in range(len(losses) - WINDOW + 1)]
    times = list(accumulate(rates))
    came = next((times[i + WINDOW - 1] for i, mean in enumerate(means) if mean <= unigram_entropy + NEAR), math.inf)
    rose = any(mean > losses[0] + NEAR for mean in means)  # thrown up by the first updates: no sign of a small rate
    return "slow" if not rose and PATIENCE * came > times[-1] else "undecided"


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """Where a chain begins and how far it goes; rates are peak learning rates.

    Attributes:
        start: the first rate, the user's own.
        low, high: no rate is tried beyond them.
        precision: the bracket's ends are this factor apart at most.
    """

    start: float
    low: float = 1e-5
    high: float = 1.0
    precision: float = 1.25

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise RecipeError(f"the lowest rate {self.low:g} must be above 0 and below the highest, {self.high:g}")
        if not 1.02 <= self.precision <= STEP:
            raise RecipeError(f"a precision of {self.precision:g} must be a factor from 1.02 to {STEP:g}")


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """What a chain found.

    Attributes:
        kind: "between" two rates; "above" the highest one, which trained; "none" trained; "stopped" by a failed run.
        low: the largest rate up to which every one trained; where none did, the largest that was too slow to tell.
        high: the smallest rate above `low` that did not train, or of which that is undecided.
        again: rates above `high` that trained all the same.
        under: rates that broke below those that trained.
    """

    kind: Literal["between", "above", "none", "stopped"]
    low: float | None = None
    high: float | None = None
    again: tuple[float, ...] = ()
    under: tuple[float, ...] = ()


def next_rate(seen: Mapping[float, RateVerdict], search: RateSearch) -> float | Boundary:
    """The rate that is to be tried next, or the boundary when nothing more needs to be tried.

    Up or down by factors of four from the start until one rate trains and a larger one does not; then their geometric
    middle, until they are close enough; then, unless larger ones were tried on the way, one rate four times above: a
    training that holds there is not hidden.

    >>> search = RateSearch(start=1e-3, precision=2)
    >>> next_rate({}, search), next_rate({1e-3: "finished"}, search), next_rate({1e-3: "diverged"}, search)
    (0.001, 0.004, 0.00025)
    >>> next_rate({1e-3: "finished", 4e-3: "diverged"}, search)
    0.002
    """
    if "failed" in seen.values():
        return Boundary(kind="stopped")
    if not seen:
        return first_rate(search)
    if "finished" in seen.values():
        return _above_a_trained(seen, search)
    return _none_trained(seen, search)


def first_rate(search: RateSearch) -> float:
    """The user's own, where it lies in the range."""
    return rounded(min(max(search.start, search.low), search.high))


def _above_a_trained(seen: Mapping[float, RateVerdict], search: RateSearch) -> float | Boundary:
    rates = _without_slow(seen)
    first = next(i for i, rate in enumerate(rates) if seen[rate] == "finished")
    end = next((i for i in range(first, len(rates)) if seen[rates[i]] != "finished"), len(rates))
    low, under = rates[end - 1], tuple(rate for rate in rates[:first] if seen[rate] == "diverged")
    if end == len(rates):
        if low >= search.high:
            return Boundary(kind="above", low=low, under=under)
        return min(rounded(low * STEP), search.high)
    high = rates[end]
    wanted = _between(low, high, search.precision) or _look_above(seen, low, high, search.high)
    if wanted is not None:
        return wanted
    again = tuple(rate for rate in rates[end:] if seen[rate] == "finished")
    return Boundary(kind="between", low=low, high=high, again=again, under=under)


def _without_slow(seen: Mapping[float, RateVerdict]) -> list[float]:
    """In order; a rate that was too slow, below one that trained, is no part of the upper end."""
    largest = max(rate for rate, verdict in seen.items() if verdict == "finished")
    return sorted(rate for rate, verdict in seen.items() if verdict != "slow" or rate > largest)


def _none_trained(seen: Mapping[float, RateVerdict], search: RateSearch) -> float | Boundary:
    """Down from what is too large, up from what is too slow, and into the gap between them.

    Looks may deceive: before none is said to train, a rate has been tried below whatever looked slow, and one above
    whatever looked collapsed.
    """
    lowest = min((rate for rate, verdict in seen.items() if verdict != "slow"), default=None)
    if lowest is None:
        top = max(seen)
        return Boundary(kind="none", low=top) if top >= search.high else min(rounded(top * STEP), search.high)
    slow = max((rate for rate in seen if rate < lowest), default=None)
    wanted = _look_below(seen, lowest if slow is None else slow, search.low)
    if wanted is None and "diverged" not in seen.values():
        wanted = _look_above(seen, lowest, lowest, search.high)
    if wanted is None and slow is not None:
        wanted = _between(slow, lowest, search.precision)
    return Boundary(kind="none", low=slow, high=lowest) if wanted is None else wanted


def _between(low: float, high: float, precision: float) -> float | None:
    middle = rounded(math.sqrt(low * high))
    return middle if high / low > precision * (1 + 1e-9) and low < middle < high else None


def _look_above(seen: Mapping[float, RateVerdict], low: float, high: float, highest: float) -> float | None:
    """Four times above the bracket; None where twice above it has been tried, or is out of reach."""
    wanted = min(rounded(low * STEP), highest)
    return None if max(seen) >= 2 * high or wanted < 2 * high else wanted


def _look_below(seen: Mapping[float, RateVerdict], rate: float, lowest: float) -> float | None:
    """Four times below; None where twice below it has been tried, or is out of reach."""
    wanted = max(rounded(rate / STEP), lowest)
    return None if min(seen) <= rate / 2 or wanted >= rate else wanted


def rounded(rate: float) -> float:
    """To three digits: the names of cells are the same on every machine.

    >>> rounded(1 / 3), rounded(0.00012345)
    (0.333, 0.000123)
    """
    return float(f"{rate:.3g}")


@dataclass(frozen=True, kw_only=True)
class BoundaryInterval:
    """The boundary over seeds: the median, and an interval for it.

    Attributes:
        middle, low, high: 0 where no rate trained, infinite where the highest one did. The interval is the bootstrap's
            for the median, from the lower ends of the brackets to the upper ones: of up to five seeds all of them.
        n: seeds whose chain found a boundary.
        coverage: how often such an interval holds the median, at most; None of one seed, whose bracket it is.
    """

    middle: float
    low: float
    high: float
    n: int
    coverage: float | None


def over_seeds(boundaries: Sequence[Boundary]) -> BoundaryInterval | None:
    """None where no chain found a boundary: a run failed, or every rate was too slow to tell.

    >>> found = over_seeds([Boundary(kind="between", low=1e-3, high=4e-3), Boundary(kind="above", low=1.0)])
    >>> found.middle, found.low, found.high
    (inf, 0.001, inf)
    """
    ends = [found for one in boundaries if (found := _ends(one)) is not None]
    if not ends:
        return None
    lows, highs = ([pair[i] for pair in ends] for i in (0, 1))
    below, above = median_interval(lows), median_interval(highs)
    return BoundaryInterval(
        middle=math.exp(median([_middle(pair) for pair in ends])),
        low=lows[0] if below is None else below.low,
        high=highs[0] if above is None else above.high,
        n=len(ends),
        coverage=None if below is None else below.coverage,
    )


def log_middle(boundary: Boundary) -> float | None:
    """The logarithm of the bracket's geometric middle; -inf where no rate trained, inf where the highest one did.

    None where no boundary was found.
    """
    ends = _ends(boundary)
    return None if ends is None else _middle(ends)


def _middle(ends: tuple[float, float]) -> float:
    return (_log(ends[0]) + _log(ends[1])) / 2


def _ends(boundary: Boundary) -> tuple[float, float] | None:
    if boundary.kind == "above":
        return boundary.low or 0.0, math.inf
    if boundary.kind == "none" and boundary.high is not None:
        return 0.0, boundary.high
    if boundary.kind == "between" and boundary.low is not None and boundary.high is not None:
        return boundary.low, boundary.high
    return None


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf

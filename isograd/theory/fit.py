"""Numbers from curves: an exponent, how much a fit explains, the point that lies farthest out, means."""

import math
from collections.abc import Sequence
from statistics import correlation, fmean

from isograd.statistics import mean_interval
from isograd.theory.claim import Curve, Measured


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """p of the least-squares line log y = p log x + c.

    >>> round(exponent([1, 2, 4, 8], [3, 6, 12, 24]), 12)
    1.0
    """
    log_x, log_y = [math.log(v) for v in x], [math.log(v) if v > 0 else math.nan for v in y]
    middle_x, middle_y = fmean(log_x), fmean(log_y)
    across = sum((a - middle_x) ** 2 for a in log_x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(log_x, log_y, strict=True)) / across


def r_squared(x: Sequence[float], y: Sequence[float]) -> float:
    """1 - residual over total sum of squares of the least-squares line y = a + b x.

    >>> round(r_squared([1, 2, 3], [2, 4, 6]), 12), round(r_squared([1, 2, 3], [1, 2, 1]), 12)
    (1.0, 0.0)
    """
    return correlation(x, y) ** 2


def over_interval(values: Sequence[float], curve: Curve) -> Measured:
    """A number per seed: their mean and Student's 95 % interval; none below three seeds."""
    return Measured(value=fmean(values), interval=mean_interval(values), curve=curve)


def farthest(values: Sequence[float], low: float, high: float) -> float:
    """The value that lies farthest from the middle of [low, high]: if it is inside, all are.

    >>> farthest([1.4, 1.5, 1.9], 1.0, 2.0)
    1.9
    """
    return max(values, key=lambda value: abs(value - (low + high) / 2))


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean log v); 0 where a value is 0.

    >>> round(geometric_mean([1, 4]), 12)
    2.0
    """
    return math.exp(fmean(map(math.log, values))) if min(values) > 0 else 0.0


def over_seeds(x: Sequence[float], curves: Sequence[Sequence[float]]) -> Curve:
    """The mean over seeds at each x, with the lowest and the highest."""
    columns = list(zip(*curves, strict=True))
    return Curve(
        x=tuple(map(float, x)),
        y=tuple(map(fmean, columns)),
        low=tuple(map(min, columns)),
        high=tuple(map(max, columns)),
    )

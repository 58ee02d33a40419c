"""Scores of a task of GLUE, as GLUE defines them, and what several seeds say together."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Scores = dict[str, float]


def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """The share of rows that are right."""
    return float((predicted == true).mean())


def f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN) of class 1; 0 where there is none of it on either side."""
    right = int(((predicted == 1) & (true == 1)).sum())
    count = int((predicted == 1).sum() + (true == 1).sum())
    return 2 * right / count if count else 0.0


def matthews(predicted: np.ndarray, true: np.ndarray) -> float:
    """The correlation of two binary variables; 0 where one of them is constant."""
    return pearson(predicted, true)


def pearson(predicted: np.ndarray, true: np.ndarray) -> float:
    """cov / (std std) in float64; 0 where one side is constant, NaN where a number is not finite."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (predicted, true))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return math.nan
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / math.sqrt(float((x * x).sum()) * float((y * y).sum())))


def spearman(predicted: np.ndarray, true: np.ndarray) -> float:
    """Pearson's correlation of the ranks, equal values at the mean of theirs."""
    finite = bool(np.isfinite(predicted).all() and np.isfinite(true).all())
    return pearson(_ranks(predicted), _ranks(true)) if finite else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


METRICS: dict[str, dict[str, Callable[[np.ndarray, np.ndarray], float]]] = {  # the first one is the task's score
    "mrpc": {"accuracy": accuracy, "f1": f1},
    "rte": {"accuracy": accuracy},
    "cola": {"matthews": matthews, "accuracy": accuracy},
    "sst-2": {"accuracy": accuracy},
    "sts-b": {"pearson": pearson, "spearman": spearman},
}


def scores(task: str, predicted: np.ndarray, true: np.ndarray) -> Scores:
    """Every metric of a task, from -1 or 0 to 1.

    Args:
        predicted, true: class ids, or scores.
    """
    return {name: metric(predicted, true) for name, metric in METRICS[task].items()}


def constant_scores(task: str, value: float, true: np.ndarray) -> Scores:
    """Of a model that says `value` of every row: the majority line. Correlations are 0."""
    return scores(task, np.full(len(true), value), true)


def has_failed(score: float | None, majority: float) -> bool:
    """Whether a fine-tuning is no better than the majority line, as Mosbach et al. 2021 count failed runs."""
    return score is None or not score > majority


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Scores of one arm over its seeds.

    Attributes:
        median: a run without a score, which has diverged, counts below all others; None where it is the median.
        mean, interval: None where a run has no score; the 95 % confidence interval by Student's t, from three on.
        failed: the share of runs that failed or diverged.
    """

    n: int
    median: float | None
    lowest: float | None
    highest: float | None
    mean: float | None
    interval: tuple[float, float] | None
    failed: float


def spread(found: Sequence[float | None], failed: Sequence[bool]) -> Spread:
    """What is said of an arm.

    Args:
        found: the score of each run, None where there is none.
        failed: whether it failed.
    """
    there = [score for score in found if score is not None]
    median = statistics.median(ranked(found))
    whole = len(there) == len(found)
    return Spread(
        n=len(found),
        median=median if math.isfinite(median) else None,
        lowest=min(there, default=None),
        highest=max(there, default=None),
        mean=statistics.fmean(there) if whole else None,
        interval=interval(there) if whole else None,
        failed=sum(failed) / len(failed),
    )


def ranked(found: Sequence[float | None]) -> list[float]:
    """What has no score is below all others."""
    return [-math.inf if score is None else score for score in found]


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """mean +- t s / sqrt(n), 95 %; None below three values."""
    if len(values) < 3:
        return None
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def t_quantile(freedom: int, level: float = 0.95) -> float:
    """The x with P(|T| < x) = level: with x = sqrt(v) tan a, P grows as the integral of cos(a)^(v - 1).

    >>> round(t_quantile(4), 3)
    2.776
    """
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (freedom - 1)
    total = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(float(np.interp(level, total / total[-1], angle)))


def rank_sum(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided p of the exact Wilcoxon-Mann-Whitney test, ties at their mean ranks.

    The share of all ways to deal these values into two such groups whose rank sum is as far from its mean as here. It
    is 2 / C(n + m, n) at least: three against three cannot fall below 0.1.

    >>> round(rank_sum([4, 5, 6, 7, 8], [0, 1, 2, 3, 3.5]), 4)
    0.0079
    """
    ranks = (2 * _ranks(np.array([*one, *other], dtype=np.float64))).astype(int)  # twice, so that ties are whole
    ways = np.zeros((len(one) + 1, int(ranks.sum()) + 1))  # of taking so many values, by the sum of their ranks
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    far = np.abs(np.arange(ways.shape[1]) * len(ranks) - len(one) * int(ranks.sum()))  # times the number of values
    here = far[ranks[: len(one)].sum()]
    return float(ways[-1, far >= here].sum() / ways[-1].sum())

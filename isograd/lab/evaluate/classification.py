"""Scores of a task of GLUE, as GLUE defines them, and what several seeds say together."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isograd.lab.statistics import mean_interval

Metrics = dict[str, float]


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
    "mnli": {"accuracy": accuracy},
    "qnli": {"accuracy": accuracy},
    "qqp": {"accuracy": accuracy, "f1": f1},
}


def scores(task: str, predicted: np.ndarray, true: np.ndarray) -> Metrics:
    """Every metric of a task, from -1 or 0 to 1.

    Args:
        predicted, true: class ids, or scores.
    """
    return {name: metric(predicted, true) for name, metric in METRICS[task].items()}


def constant_scores(task: str, value: float, true: np.ndarray) -> Metrics:
    """Of a model that predicts `value` for every row: the majority-class baseline. Correlations are 0."""
    return scores(task, np.full(len(true), value), true)


def has_failed(score: float | None, majority: float) -> bool:
    """Whether a fine-tuning is no better than the majority-class baseline, as Mosbach et al. 2021 count failed runs."""
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
        interval=mean_interval(there) if whole else None,
        failed=sum(failed) / len(failed),
    )


def ranked(found: Sequence[float | None]) -> list[float]:
    """What has no score is below all others."""
    return [-math.inf if score is None else score for score in found]

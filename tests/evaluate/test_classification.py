"""GLUE's metrics against scikit-learn and scipy, and what is said of several seeds."""

import math

import numpy as np
import pytest

from isograd.lab.evaluate.classification import (
    METRICS,
    accuracy,
    constant_scores,
    f1,
    has_failed,
    matthews,
    pearson,
    scores,
    spearman,
    spread,
)

RANDOM = np.random.default_rng(0)
TRUE = RANDOM.integers(0, 2, 60)
PREDICTED = np.where(RANDOM.random(60) < 0.7, TRUE, 1 - TRUE)
X = RANDOM.integers(0, 8, 80) / 2  # with ties
Y = X + RANDOM.normal(size=80).astype(np.float32)


def test_against_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    for predicted, true in ((PREDICTED, TRUE), (TRUE, PREDICTED)):
        assert accuracy(predicted, true) == pytest.approx(metrics.accuracy_score(true, predicted), abs=1e-12)
        assert f1(predicted, true) == pytest.approx(metrics.f1_score(true, predicted), abs=1e-12)
        assert matthews(predicted, true) == pytest.approx(metrics.matthews_corrcoef(true, predicted), abs=1e-12)
    assert f1(1 - PREDICTED, 1 - TRUE) != pytest.approx(f1(PREDICTED, TRUE))  # class 1 is the positive one


def test_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    assert pearson(Y, X) == pytest.approx(stats.pearsonr(X, Y).statistic, abs=1e-12)
    assert spearman(Y, X) == pytest.approx(stats.spearmanr(X, Y).statistic, abs=1e-12)
    assert spearman(np.exp(Y), X) == pytest.approx(spearman(Y, X)) != pytest.approx(pearson(np.exp(Y), X))


def test_a_constant_answer() -> None:
    """The majority line: F1 of all-positive is 2p / (1 + p); correlations are 0, not undefined."""
    p = TRUE.mean()
    mrpc = constant_scores("mrpc", 1, TRUE)
    assert mrpc == {"accuracy": pytest.approx(p), "f1": pytest.approx(2 * p / (1 + p))}
    assert constant_scores("mrpc", 0, TRUE) == {"accuracy": pytest.approx(1 - p), "f1": 0}
    assert constant_scores("cola", 1, TRUE) == {"matthews": 0, "accuracy": pytest.approx(p)}
    assert constant_scores("sts-b", 2.7, X) == {"pearson": 0, "spearman": 0}
    assert pearson(X, np.full(80, 1.0)) == 0


def test_what_is_no_number_has_no_correlation() -> None:
    broken = np.where(np.arange(80) == 3, np.nan, Y)
    assert math.isnan(pearson(broken, X)) and math.isnan(spearman(broken, X))
    assert has_failed(math.nan, 0.0) and has_failed(None, 0.0)


def test_every_task_has_its_score_first() -> None:
    assert {task: next(iter(of)) for task, of in METRICS.items()} == {
        "mrpc": "accuracy",
        "rte": "accuracy",
        "cola": "matthews",
        "sst-2": "accuracy",
        "sts-b": "pearson",
        "mnli": "accuracy",
        "qnli": "accuracy",
        "qqp": "accuracy",
    }
    assert list(scores("mrpc", PREDICTED, TRUE)) == ["accuracy", "f1"]


def test_a_failed_run_is_one_that_is_not_above_the_line() -> None:
    assert has_failed(0.68, 0.684) and has_failed(0.684, 0.684) and not has_failed(0.685, 0.684)


def test_the_spread_of_seeds() -> None:
    of = spread([0.7, 0.6, 0.9, 0.8], [False, True, False, False])
    assert (of.n, of.median, of.lowest, of.highest, of.failed) == (4, pytest.approx(0.75), 0.6, 0.9, 0.25)
    assert of.mean == pytest.approx(0.75) and of.interval and of.interval[0] < 0.75 < of.interval[1]


def test_a_run_that_diverged_is_never_averaged_away() -> None:
    """It counts below all others in the median, and there is no mean."""
    of = spread([0.7, None, 0.9], [False, True, False])
    assert (of.median, of.lowest, of.mean, of.interval) == (0.7, 0.7, None, None)
    of = spread([0.7, None, None], [False, True, True])
    assert (of.median, of.lowest, of.failed) == (None, 0.7, pytest.approx(2 / 3))
    assert spread([None], [True]).median is None

"""The best rate of a sweep and its sensitivity, by hand."""

import math

import pytest

from isograd.lab.report.study.arms import best_rate, sensitivity

CURVE = {1e-2: math.inf, 3e-4: 2.4, 1e-3: 2.0, 3e-3: 2.1}


def test_best_rate_inside_the_sweep() -> None:
    assert best_rate(CURVE) == (1e-3, None)


def test_best_rate_at_an_end_says_so() -> None:
    """By the rate, not by the order in which they were trained."""
    assert best_rate(CURVE | {3e-4: 1.9}) == (3e-4, "lowest")
    assert best_rate(CURVE | {1e-2: 1.9}) == (1e-2, "highest")
    assert best_rate({1e-3: 2.0}) == (1e-3, "only")


def test_best_rate_of_equal_losses_is_the_lower_one() -> None:
    assert best_rate({3e-3: 2.0, 1e-3: 2.0, 1e-4: 2.5}) == (1e-3, None)


def test_no_best_rate_where_all_diverged() -> None:
    assert best_rate({1e-3: math.inf, 1e-2: math.inf}) is None
    assert best_rate({}) is None


def test_sensitivity_by_hand() -> None:
    """(0.4 + 0 + 0.1 + (4.2 - 2.0)) / 4."""
    assert sensitivity(CURVE, start=4.2) == pytest.approx(0.675, abs=1e-15)


def test_a_divergence_counts_as_the_start_and_so_does_what_is_worse() -> None:
    assert sensitivity(CURVE | {1e-2: 4.2}, start=4.2) == sensitivity(CURVE, start=4.2)
    assert sensitivity(CURVE | {1e-2: 17.0}, start=4.2) == sensitivity(CURVE, start=4.2)
    dropped = {rate: loss for rate, loss in CURVE.items() if math.isfinite(loss)}  # negative control
    assert sensitivity(dropped, start=4.2) < sensitivity(CURVE, start=4.2)


def test_a_flat_curve_is_not_sensitive() -> None:
    assert sensitivity({1e-4: 2.0, 1e-3: 2.0}, start=4.2) == 0
    assert sensitivity({1e-4: 2.0}, start=4.2) == 0


def test_no_sensitivity_where_nothing_trained() -> None:
    """Else an arm that diverges everywhere had the best score of all, 0."""
    assert sensitivity({1e-3: math.inf, 1e-2: math.inf}, start=4.2) is None
    assert sensitivity({1e-3: 4.3}, start=4.2) is None
    assert sensitivity({}, start=4.2) is None

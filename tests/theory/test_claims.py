"""Claims: their tolerances, their foils, and all of them measured."""

import math

import numpy as np
import pytest

from isograd.placement import CATALOGUE
from isograd.report.theory_page import interval, number
from isograd.theory import CLAIMS, Case, Claim, UnknownClaim, chosen, foils, verdicts
from isograd.theory.fit import exponent, farthest, geometric_mean, over_seeds

CASES = [(claim, case) for claim in CLAIMS.values() for case in claim.cases]
QUICK = {  # with these seeds the verdict is the same as with all, in a second or two
    "lemma-1": 1,
    "lemma-3": 1,
    "theorem-1": 4,
    "theorem-1-attention": 3,
    "hidden-state-growth": 1,
    "mismatch-12": 3,
    "admin-skip": 2,
}


@pytest.mark.parametrize("name", QUICK)
def test_quick_claims_hold_and_refuse_their_foils(name: str) -> None:
    for one in verdicts([CLAIMS[name]], QUICK[name]):
        assert one.holds, one.row()
    for one in foils([CLAIMS[name]], QUICK[name]):
        assert not one.holds, one.row()


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_all_claims_hold_and_refuse_their_foils(name: str) -> None:
    for one in verdicts([CLAIMS[name]]):
        assert one.holds, one.row()
    for one in foils([CLAIMS[name]]):
        assert not one.holds, one.row()


@pytest.mark.parametrize(("placement", "low", "high"), [("pre-ln", -0.68, -0.42), ("post-ln", -0.05, 0.05)])
def test_the_tolerances_of_the_theorem(placement: str, low: float, high: float) -> None:
    (case,) = [case for case in CLAIMS["theorem-1"].cases if case.placement == placement]
    assert (case.low, case.high) == (low, high)


@pytest.mark.parametrize(("claim", "case"), CASES, ids=lambda x: getattr(x, "name", "") or getattr(x, "placement", ""))
def test_a_claim_is_told_whole(claim: Claim, case: Case) -> None:
    assert case.placement in {*CATALOGUE, "any"} and case.foil and case.foil != (case.subject or case.placement)
    assert (case.low, case.high) != (None, None)
    assert claim.statement.endswith(".") and "arXiv" in claim.source and claim.number and claim.how
    bounds = case.predicted if isinstance(case.predicted, tuple) else (case.predicted,)
    assert all(case.accepts(bound) for bound in bounds), "what is predicted must be accepted"


def test_the_theorem_says_what_it_does_not_say() -> None:
    for name in ("theorem-1", "theorem-1-attention"):
        assert "upper bound" in CLAIMS[name].statement and "last layer only" in CLAIMS[name].statement


@pytest.mark.parametrize(
    ("low", "high", "inside", "outside"),
    [
        (-0.05, 0.05, [-0.05, 0, 0.05], [-0.051, 0.06, math.nan, math.inf]),
        (1.0, None, [1.0, 9], [0.99, math.nan, math.inf]),
        (None, 0.75, [0.75, -3], [0.76, math.nan, -math.inf]),
    ],
)
def test_tolerances(low: float | None, high: float | None, inside: list[float], outside: list[float]) -> None:
    case = Case(placement="post-ln", predicted=0.0, low=low, high=high, foil="pre-ln")
    assert all(map(case.accepts, inside)) and not any(map(case.accepts, outside))


def test_the_exponent_is_a_least_squares_fit() -> None:
    x, y = [2, 3, 5, 9], [1.0, 0.7, 0.71, 0.2]
    assert exponent(x, y) == pytest.approx(np.polyfit(np.log(x), np.log(y), 1)[0], rel=1e-12)
    assert math.isnan(exponent([1, 2], [1.0, math.nan])) and math.isnan(exponent([1, 2], [1.0, 0.0]))


def test_of_all_layers_the_one_that_lies_farthest_out() -> None:
    assert farthest([0.9, 1.0, 1.2], 0.5, 1.5) == 1.2
    assert farthest([0.4, 1.0, 1.2], 0.5, 1.5) == 0.4
    assert geometric_mean([2, 8]) == pytest.approx(4) and geometric_mean([0, 3]) == 0


def test_a_curve_over_seeds() -> None:
    curve = over_seeds([1, 2], [[1, 5], [3, 4]])
    assert (curve.y, curve.low, curve.high) == ((2, 4.5), (1, 4), (3, 5))


def test_chosen_by_name() -> None:
    assert [claim.name for claim in chosen(["theorem-1", "lemma-1", "lemma-1"])] == ["lemma-1", "theorem-1"]
    assert chosen([]) == list(CLAIMS.values())
    with pytest.raises(UnknownClaim, match="did you mean 'amplification'"):
        chosen(["amplificaton"])
    with pytest.raises(UnknownClaim, match="choose among lemma-1, "):
        chosen(["zzz"])


def test_a_claim_that_does_not_hold_says_so() -> None:
    """One seed is too noisy for every layer's norm to lie in the tolerance of the mean over 24."""
    (one,) = verdicts([CLAIMS["lemma-2-post-ln"]], 1)
    assert not one.holds and one.seeds == 1


def test_numbers_and_intervals_in_words() -> None:
    assert [number(x) for x in (0.0, -0.5, 1.6e-15, 62.8139, -0.0004, 3)] == [
        "0",
        "-0.5",
        "1.6e-15",
        "62.814",
        "-0.0004",
        "3",
    ]
    assert [interval(-0.05, 0.05), interval(None, 0.75), interval(1.0, None), interval(1.4, 1.62)] == [
        "± 0.05",
        "≤ 0.75",
        "≥ 1",
        "1.4 to 1.62",
    ]

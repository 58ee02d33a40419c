"""Two arms seed by seed: scipy's permutation test, all orders of a few values, and what is said."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from isograd.study.paired import apart_by_chance, paired, sign_flip
from isograd.study.statistics import median_interval

SAMPLES = {
    "all lower": [-0.11, -0.32, -0.05],
    "mixed": [-0.11, 0.32, -0.05, -0.21, -0.4, -0.07],
    "equal sizes": [0.1, -0.1, 0.1, 0.3, 0.3, -0.2, 0.4],
    "ten": [0.5, -0.3, 0.8, 0.1, -0.2, 1.1, 0.9, -0.05, 0.4, 0.6],
    "zeros": [0.0, 0.1, -0.2, 0.3, 0.4, 0.0, 0.5],
}


def signed_ranks(differences: np.ndarray, axis: int = -1) -> np.ndarray:
    return (np.sign(differences) * stats.rankdata(np.abs(differences), axis=axis)).sum(axis=axis)


@pytest.mark.parametrize("name", SAMPLES)
def test_sign_flip_is_scipys_permutation_test(name: str) -> None:
    sample = np.array(SAMPLES[name])
    found = stats.permutation_test((sample,), signed_ranks, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(SAMPLES[name]) == pytest.approx(found.pvalue, abs=1e-12)


@pytest.mark.parametrize("name", ["all lower", "mixed", "ten"])
def test_sign_flip_is_wilcoxons_test(name: str) -> None:
    assert sign_flip(SAMPLES[name]) == pytest.approx(stats.wilcoxon(SAMPLES[name], method="exact").pvalue, abs=1e-12)
    one_sided = stats.wilcoxon(SAMPLES[name], method="exact", alternative="less").pvalue
    assert sign_flip(SAMPLES[name]) != pytest.approx(one_sided)


def test_the_lowest_p_of_n_seeds() -> None:
    assert [sign_flip([-1.0 - i for i in range(n)]) for n in (1, 3, 5, 6)] == [1, 0.25, 0.0625, 0.03125]
    assert sign_flip([]) == sign_flip([0.0, 0.0]) == 1


def test_infinite_differences_rank_as_huge_ones() -> None:
    for sign in (-1, 1):
        many = [*SAMPLES["mixed"], sign * math.inf, sign * math.inf]
        assert sign_flip(many) == sign_flip([*SAMPLES["mixed"], sign * 1e9, sign * 1e9])
    assert sign_flip([*SAMPLES["mixed"], -math.inf]) != sign_flip([*SAMPLES["mixed"], math.inf])


@pytest.mark.parametrize(("n", "others"), [(2, 2), (3, 3), (5, 5), (7, 7), (8, 6), (3, 9), (7, 5)])
def test_apart_by_chance_is_the_share_of_all_orders(n: int, others: int) -> None:
    apart = []
    for taken in itertools.combinations(range(n + others), n):
        rest = [rank for rank in range(n + others) if rank not in taken]
        one, other = median_interval(taken), median_interval(rest)
        assert one and other
        apart.append(not one.overlaps(other))
    assert apart_by_chance(n, others) == pytest.approx(sum(apart) / len(apart), abs=1e-12)


def test_seeds_in_common() -> None:
    found = paired({1: 2.0, 2: 2.5, 4: 2.2}, {2: 2.6, 1: 2.3, 3: 9.0})
    assert found.seeds == (1, 2)
    assert found.differences == pytest.approx({1: -0.3, 2: -0.1})
    assert found.median == pytest.approx(-0.2)
    assert found.lower == 2
    assert found.mine and (found.mine.low, found.mine.high) == (2.0, 2.5)
    assert found.theirs and (found.theirs.low, found.theirs.high) == (2.3, 9.0)


def test_pairs_are_seeds_not_places() -> None:
    """The foil: the same losses under other seeds make other differences."""
    mine = {1: 1.0, 2: 2.0, 3: 3.0}
    assert paired(mine, {1: 1.1, 2: 2.1, 3: 3.1}).lower == 3
    assert paired(mine, {3: 1.1, 2: 2.1, 1: 3.1}).lower == 2


def test_divergence_in_one_arm_and_in_both() -> None:
    found = paired({1: 2.0, 2: math.inf, 3: math.inf, 4: 2.1}, {1: math.inf, 2: 2.0, 3: math.inf, 4: 2.2})
    assert found.seeds == (1, 2, 3, 4)
    assert found.differences == {1: -math.inf, 2: math.inf, 4: pytest.approx(-0.1)}
    assert found.median == pytest.approx(-0.1)
    assert found.interval and (found.interval.low, found.interval.high) == (-math.inf, math.inf)
    assert found.diverged == (2, 2)
    assert found.verdict is None
    assert found.said("a", "b") == (
        "No difference seen (n = 3). Median difference -0.1, of either sign. Intervals of 3 seeds hold the true median"
        " in 75 % of cases, not in 95 %. Diverged: a with 2, b with 2 of 4 seeds."
    )


LOW, HIGH = {1: 2.0, 2: 2.1, 3: 2.2}, {1: 2.5, 2: 2.6, 3: 2.8}


def test_the_lower_arm_is_named_by_three_rules() -> None:
    """And by no two of them."""
    assert paired(LOW, HIGH).verdict == "lower"
    assert paired(HIGH, LOW).verdict == "higher"
    near = {seed: loss + 0.05 for seed, loss in LOW.items()}
    overlapping = paired(LOW, near)
    assert overlapping.interval and overlapping.interval.high < 0
    assert overlapping.verdict is None
    both = [{seed: losses[seed] for seed in (1, 2)} for losses in (LOW, HIGH)]
    assert paired(*both).verdict is None
    other_seeds = paired(LOW | {9: 2.0}, {1: 2.5, 2: 2.6, 7: 2.6, 8: 2.7})  # apart, but two pairs only
    assert other_seeds.mine and other_seeds.theirs and not other_seeds.mine.overlaps(other_seeds.theirs)
    assert other_seeds.verdict is None


def test_apart_but_not_seed_by_seed() -> None:
    """The three seeds in common have both signs, while the arms over all seeds are apart."""
    mine = {seed: 2.0 + seed / 100 for seed in range(20)} | {20: 3.0}
    theirs = {seed: 2.5 + seed / 100 for seed in range(20, 40)} | {0: 2.6, 1: 2.6, 20: 2.9}
    found = paired(mine, theirs)
    assert found.n == 3
    assert found.mine and found.theirs and not found.mine.overlaps(found.theirs)
    assert found.interval and found.interval.holds(0)
    assert found.verdict is None


def test_what_is_said_of_three_seeds() -> None:
    assert paired(LOW, HIGH).said("a", "b") == (
        "The validation loss of a is lower than that of b (n = 3): median difference -0.5, between -0.6 and -0.5,"
        " p = 0.25. Intervals of 3 seeds hold the true median in 75 % of cases, not in 95 %."
        " Two arms that are alike come out so in up to 10 % of cases."
    )
    assert "Of 4 comparisons of arms that are alike, one or more come out so in up to 40 %." in paired(LOW, HIGH).said(
        "a", "b", comparisons=4
    )
    assert paired(LOW, LOW | {1: 1.9}).said("a", "b").startswith("No difference seen (n = 3). Median difference +0,")


def test_what_is_said_of_ten_seeds() -> None:
    """Nothing of too few seeds, and of chance only where there are many comparisons."""
    mine, theirs = ({seed: start + slope * seed for seed in range(10)} for start, slope in ((2.0, 0.01), (2.2, 0.02)))
    found = paired(mine, theirs)
    assert found.said("a", "b", "perplexity") == (
        "The perplexity of a is lower than that of b (n = 10):"
        " median difference -0.245, between -0.28 and -0.21, p = 0.002."
    )
    assert "comparisons" not in found.said("a", "b", comparisons=10)
    assert "Of 100 comparisons" in found.said("a", "b", comparisons=100)


def test_what_is_said_of_divergence() -> None:
    inf = dict.fromkeys(LOW, math.inf)
    assert "is lower than that of b (n = 3): median difference infinite, p = 0.25." in paired(LOW, inf).said("a", "b")
    assert paired(LOW, inf).said("a", "b").endswith("Diverged: a with 0, b with 3 of 3 seeds.")
    some = paired(LOW, HIGH | {3: math.inf}).said("a", "b")
    assert "median difference -0.5, -0.5 or lower, p = 0.25." in some
    assert "median difference +0.5, +0.5 or higher, p" in paired(HIGH | {3: math.inf}, LOW).said("a", "b")
    assert paired(inf, inf).said("a", "b") == "a and b diverge with every seed in common (n = 3)."
    assert paired(inf, inf).verdict is None
    assert paired(inf, inf).p == 1


def test_too_few_seeds_in_common() -> None:
    assert paired(LOW, {7: 2.0}).said("a", "b") == "a and b have no seed in common: not compared."
    assert paired(LOW, {1: 2.5}).said("a", "b") == "No verdict (n = 1): it takes 3 seeds in common."
    assert paired({}, {}).said("a", "b") == "a and b have no seed in common: not compared."

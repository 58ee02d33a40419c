"""The one rule: the sign-flip test and Holm's correction against second sources, its verdicts, and what is said."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from isograd.lab.statistics import (
    Comparison,
    caution,
    compare,
    compare_ratios,
    fewest,
    holm,
    lowest_p,
    side_by_side,
    sign_flip,
)

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


def test_the_lowest_p_by_all_signs() -> None:
    """Brute force: of all choices of the signs of n sizes none has a lower p."""
    for n in range(1, 8):
        sizes = [1.0 + i / 10 for i in range(n)]
        found = {
            sign_flip([s * x for s, x in zip(signs, sizes, strict=True)])
            for signs in itertools.product((-1, 1), repeat=n)
        }
        assert min(found) == lowest_p(n)


def test_from_how_many_seeds_on_the_rule_can_find_a_difference() -> None:
    for m in (1, 2, 4, 10, 15, 40):
        assert m * lowest_p(fewest(m)) <= 0.05 < m * lowest_p(fewest(m) - 1)


def closed(p: list[float]) -> list[float]:
    """Holm's correction by its definition as a closed test: the largest Bonferroni p of all sets that hold i."""
    places = range(len(p))
    sets = [s for size in range(1, len(p) + 1) for s in itertools.combinations(places, size)]
    return [max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in places]


@pytest.mark.parametrize("seed", range(20))
def test_holm_is_the_closed_bonferroni_test(seed: int) -> None:
    random = np.random.default_rng(seed)
    p = (0.01 + 0.1 * random.random(6)).round(2 if seed % 2 else 12).tolist()  # with ties, and without
    assert holm(p) == pytest.approx(closed(p), abs=1e-15)
    assert holm(p) != pytest.approx([min(1.0, len(p) * one) for one in p])  # the negative control: Bonferroni


def test_holm_by_hand() -> None:
    """Four tests: 4 x 0.005, 3 x 0.011, then 2 x 0.02 and 1 x 0.04, which may not fall below the one before."""
    assert holm([0.02, 0.005, 0.04, 0.011]) == pytest.approx([0.04, 0.02, 0.04, 0.033])
    assert holm([0.04, 0.03]) == pytest.approx([0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_seeds_in_common() -> None:
    found = compare({1: 2.0, 2: 2.5, 4: 2.2}, {2: 2.6, 1: 2.3, 3: 9.0})
    assert found.seeds == (1, 2)
    assert found.differences == pytest.approx({1: -0.3, 2: -0.1})
    assert found.median == pytest.approx(-0.2)
    assert (found.lower, found.higher) == (2, 0)


def test_pairs_are_seeds_not_places() -> None:
    """The negative control: the same losses under other seeds make other differences."""
    mine = {1: 1.0, 2: 2.0, 3: 3.0}
    assert compare(mine, {1: 1.1, 2: 2.1, 3: 3.1}).lower == 3
    assert compare(mine, {3: 1.1, 2: 2.1, 1: 3.1}).lower == 2


def test_divergence_in_one_arm_and_in_both() -> None:
    found = compare({1: 2.0, 2: math.inf, 3: math.inf, 4: 2.1}, {1: math.inf, 2: 2.0, 3: math.inf, 4: 2.2})
    assert found.seeds == (1, 2, 3, 4)
    assert found.differences == {1: -math.inf, 2: math.inf, 4: pytest.approx(-0.1)}
    assert found.median == pytest.approx(-0.1)
    assert found.interval and (found.interval.low, found.interval.high) == (-math.inf, math.inf)
    assert (found.count_said(), found.verdict, found.p) == ("lower with 2 of 3 seeds", "too few seeds", 1)


def arms(n: int, by: float, wrong: int = 0) -> tuple[dict[int, float], dict[int, float]]:
    """Two arms of n seeds, the first lower by about `by`, but for the `wrong` smallest differences."""
    theirs = {seed: 3.0 + 0.1 * seed for seed in range(n)}
    return {seed: loss + by * (1 + seed / 10) * (1 if seed < wrong else -1) for seed, loss in theirs.items()}, theirs


def test_three_seeds_never_say_that_two_arms_differ() -> None:
    """However far apart, also with a divergence: an exact test of three cannot give p below 0.25; six seeds can."""
    for mine, theirs in (arms(3, 2.5), ({1: 2.0, 2: 2.0, 3: 2.0}, dict.fromkeys((1, 2, 3), math.inf))):
        found = compare(mine, theirs)
        assert found.p == 0.25 == found.lowest
        assert found.verdict == "too few seeds" and not found.differs
    assert caution([compare(*arms(3, 2.5))]) == (
        "An exact test of 3 seeds cannot give p below 0.25, whatever the difference: it takes 6 seeds."
    )
    assert compare(*arms(5, 2.5)).verdict == "too few seeds"
    assert compare(*arms(6, 0.01)).verdict == "lower" and compare(*reversed(arms(6, 0.01))).verdict == "higher"
    assert caution([compare(*arms(6, 0.01))]) == ""


def test_seeds_that_disagree_are_no_difference() -> None:
    assert compare(*arms(6, 0.01, wrong=1)).verdict == "no difference seen"  # p = 4 / 64
    assert compare(*arms(9, 0.01, wrong=1)).verdict == "lower"  # p = 4 / 512
    like = dict.fromkeys(range(8), 3.0)
    assert compare(like, like).verdict == "no difference seen" and compare(like, like).p == 1


def test_the_correction_takes_a_difference_back() -> None:
    """What six seeds show alone they do not show as one of two comparisons; eight do, of four."""
    six, like = compare(*arms(6, 1.0)), compare(*arms(6, 1.0, wrong=3))
    assert six.verdict == "lower"
    corrected, _ = side_by_side([six, like])
    assert (corrected.p, corrected.corrected, corrected.of) == (0.03125, 0.0625, 2)
    assert corrected.verdict == "too few seeds" and side_by_side([six])[0].verdict == "lower"
    four = side_by_side([compare(*arms(8, 1.0, wrong=wrong)) for wrong in (0, 0, 3, 4)])
    assert [one.verdict for one in four] == ["lower", "lower", "no difference seen", "no difference seen"]


def test_what_has_no_seed_in_common_is_not_corrected_for() -> None:
    six, none = compare(*arms(6, 1.0)), compare({1: 2.0}, {2: 2.0})
    corrected, same = side_by_side([six, none])
    assert corrected.corrected == six.p and corrected.of == 1
    assert not same.seeds and same.count_said() == ""


def test_too_few_is_said_of_a_comparison_not_of_all() -> None:
    """Ten seeds beside three: the ten can tell, corrected for both; the three cannot, corrected or not."""
    ten, three = side_by_side([compare(*arms(10, 1.0)), compare(*arms(3, 1.0))])
    assert (ten.verdict, three.verdict) == ("lower", "too few seeds")
    assert "An exact test of 3 seeds" in caution([ten, three])


def test_ratios_are_compared_with_one() -> None:
    assert compare_ratios({seed: 0.5 + 0.01 * seed for seed in range(6)}).verdict == "lower"
    assert compare_ratios(dict.fromkeys(range(6), math.inf)).verdict == "higher"
    assert compare_ratios({1: 2.0, 2: 0.5}).median == pytest.approx(0)
    assert compare_ratios({1: 2.0, 2: 0.5}).p == compare({1: 0.7, 2: -0.7}, {1: 0.0, 2: 0.0}).p == 1


def test_what_is_said_of_many() -> None:
    mine, theirs = ({seed: first + slope * seed for seed in range(10)} for first, slope in ((2.0, 0.01), (2.2, 0.02)))
    four = side_by_side([compare(mine, theirs), *[compare(theirs, theirs)] * 3])
    assert four[0].count_said() == "lower with 10 of 10 seeds" and round(four[0].corrected, 4) == 0.0078
    assert caution(four) == "p is corrected for 4 comparisons by Holm's method."
    low, high = {1: 2.0, 2: 2.1, 3: 2.2}, {1: 2.5, 2: 2.6, 3: 2.8}
    assert compare(low, high).count_said() == "lower with 3 of 3 seeds"
    assert caution(side_by_side([compare(low, high)] * 4)) == (
        "p is corrected for 4 comparisons by Holm's method. An exact test of 3 seeds cannot give p below 0.25"
        " (1 corrected), whatever the difference: it takes 8 seeds."
    )
    inf = dict.fromkeys(low, math.inf)
    assert compare(low, inf).median == -math.inf and compare(inf, inf).p == 1 and not compare(inf, inf).n


def alike(random: np.random.Generator, n: int, k: int, shared: float) -> list[Comparison]:
    """One reference and k arms, all alike, `shared` of the variance the seed's own: nothing differs."""
    seed = math.sqrt(shared) * random.normal(size=n)
    reference, *others = (seed + math.sqrt(1 - shared) * random.normal(size=(k + 1, n))).tolist()
    return [compare(dict(enumerate(one)), dict(enumerate(reference))) for one in others]


@pytest.mark.parametrize(("n", "k", "shared"), [(8, 4, 0.0), (8, 4, 0.8), (10, 10, 0.5), (6, 1, 0.0)])
def test_like_arms_are_said_to_differ_in_five_percent_of_studies_at_most(n: int, k: int, shared: float) -> None:
    """The family-wise error rate by simulation. Uncorrected, the negative control, it is several times as high."""
    random, studies = np.random.default_rng(n + k), 300
    found = [alike(random, n, k, shared) for _ in range(studies)]
    often = sum(any(one.differs for one in side_by_side(study)) for study in found) / studies
    assert often <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / studies)
    uncorrected = sum(any(one.differs for one in study) for study in found) / studies
    assert uncorrected > 0.1 if k > 1 else uncorrected == often


def test_arms_that_differ_are_found() -> None:
    random = np.random.default_rng(1)
    seed = random.normal(size=(200, 1, 8))
    pairs = (seed + random.normal(size=(200, 2, 8)) - [[3.0], [0.0]]).tolist()
    found = [compare(dict(enumerate(one)), dict(enumerate(other))) for one, other in pairs]
    assert sum(one.verdict == "lower" for one in found) > 0.8 * 200
    assert not any(one.verdict == "higher" for one in found)

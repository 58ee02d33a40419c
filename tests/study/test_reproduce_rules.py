"""The rules of Xiong's and NormFormer's items, by hand: what the paper says, its contrary, what shows nothing."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from isograd.errors import RecipeError
from isograd.papers.reproduce.full import _runs
from isograd.papers.reproduce.item import Full
from isograd.papers.reproduce.registry import ITEMS, item_of
from isograd.papers.reproduce.rules import level

Rows = list[dict[str, Any]]
GOOD, BAD = [4.0, 4.1, 4.2], [5.0, 5.1, 5.2]


def rows(column: str, arms: dict[str, Sequence[float]], **more: Any) -> Rows:
    """Of each arm a value per seed."""
    return [
        {"arm": arm, "seed": seed, "outcome": "finished", column: value, **more}
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]


def losses(low: Sequence[str], high: Sequence[str]) -> Rows:
    return rows("validation_loss", dict.fromkeys(low, GOOD) | dict.fromkeys(high, BAD))


def post(optimizer: str, warmup: int, lr: str = "1e-3") -> str:
    return f"Post-LN, {optimizer}, {f'warm-up {warmup}' if warmup else 'no warm-up'}, lr {lr}"


def pre(optimizer: str = "Adam") -> str:
    return f"Pre-LN, {optimizer}, no warm-up, lr 1e-3"


WITH, NF, BASE = "NormFormer with ResScale", "NormFormer", "Pre-LN"
WARM, COLD = [post("Adam", 140, lr) for lr in ("1e-3", "2e-3")], [post("Adam", 0, lr) for lr in ("1e-3", "2e-3")]
SLOW = post("Adam", 0, "1e-4")
SETTINGS = ("lr 1.7e-3", "lr 5e-3", "longer warm-up", "GPT-3's rate")
BERT = ("Pre-LN, no warm-up, lr 3e-3", "Post-LN, warm-up 200, lr 1e-3")
PAIRS = {  # item -> arms that the paper has lower, and higher
    "xiong2020/warmup-fig2": (WARM, COLD),
    "xiong2020/sgd-fig2": ([post("SGD", 140, "1")], [post("SGD", 0, "1")]),
    "xiong2020/pre-ln-fig4": ([pre()], [post("Adam", 140)]),
    "xiong2020/wmt14-fig4": ([pre()], [post("Adam", 140)]),
    "xiong2020/radam-fig4": ([post("RAdam", 0)], [post("Adam", 0)]),
    "xiong2020/bert-fig5a": ([BERT[0]], [BERT[1]]),
    "normformer2021/ablation": ([WITH], [BASE]),
    "normformer2021/width-768-780": ([WITH], ["Pre-LN, width 68"]),
    "normformer2021/robustness": ([f"{WITH}, {name}" for name in SETTINGS], [f"{BASE}, {name}" for name in SETTINGS]),
}


@pytest.mark.parametrize("item", PAIRS)
def test_one_side_lower(item: str) -> None:
    judge, (low, high) = ITEMS[item].judge, PAIRS[item]
    assert judge is not None
    assert judge(losses(low, high)).verdict == "same direction"
    assert judge(losses(high, low)).verdict == "opposite"
    some = losses(low, high)
    some[0]["validation_loss"] = 9.0  # with one seed of one arm it is otherwise
    assert judge(some).verdict == "not seen"
    arms = {(runs.group, arm) for runs in ITEMS[item].runs for arm in runs.arms}
    assert {*low, *high} <= {arm for _, arm in arms}  # the rule speaks of arms that are run


def judged(item: str, found: Rows) -> str:
    judge = ITEMS[item].judge
    assert judge is not None
    return judge(found).verdict


def test_a_small_fixed_rate_lies_between() -> None:
    def between(slow: list[float]) -> Rows:
        return rows("validation_loss", {pre(): GOOD, SLOW: slow, post("Adam", 0, "2e-3"): BAD})

    assert judged("xiong2020/small-rate-fig6", between([4.5, 4.6, 4.7])) == "same direction"
    assert judged("xiong2020/small-rate-fig6", between([5.5, 5.6, 5.7])) == "not seen"


@pytest.mark.parametrize(
    ("item", "arms"),
    [
        ("xiong2020/radam-pre-ln-fig4", (pre("RAdam"), pre())),
        ("normformer2021/head-scale-placement", (f"{NF}, heads scaled after W_O", NF)),
    ],
)
def test_alike_is_less_than_a_twentieth_of_a_nat(item: str, arms: tuple[str, str]) -> None:
    near = rows("validation_loss", {arms[0]: [4.03, 4.07, 4.2], arms[1]: GOOD})
    assert judged(item, near) == "same direction"
    assert judged(item, rows("validation_loss", {arms[0]: BAD, arms[1]: GOOD})) == "opposite"


def test_gradients_after_the_warmup() -> None:
    arms = {"the update after warm-up": GOOD, "the first update": BAD}
    one = rows("gradient", arms, what="moment", panel=post("Adam", 140))
    assert judged("xiong2020/after-warmup", one) == "same direction"
    elsewhere = rows("gradient", arms, what="moment", panel=post("Adam", 140, "5e-4"))
    assert judged("xiong2020/after-warmup", elsewhere) == "not seen"


def test_growth_with_the_layer() -> None:
    def grown(**arms: float) -> Rows:
        found = []
        for arm, growth in arms.items():
            found += rows("growth", {arm.replace("_", "-"): [growth] * 3}, what="growth", change=abs(growth))
        return found

    assert judged("xiong2020/layer-gradients-fig3", grown(Post_LN=1.0, Pre_LN=-0.5)) == "same direction"
    assert judged("xiong2020/layer-gradients-fig3", grown(Post_LN=1.0, Pre_LN=-1.5)) == "not seen"
    assert judged("xiong2020/layer-gradients-fig3", grown(Post_LN=0.2, Pre_LN=-0.5)) == "opposite"


def test_exponents_over_depth() -> None:
    def exponents(post_ln: float, pre_ln: float) -> Rows:
        found = rows("exponent", {"Post-LN": [post_ln] * 3, "Pre-LN": [pre_ln] * 3}, what="exponent")
        return [{**row, "size": abs(row["exponent"])} for row in found]

    assert judged("xiong2020/depth-gradients-fig3", exponents(-0.1, -0.5)) == "same direction"
    assert judged("xiong2020/depth-gradients-fig3", exponents(-0.5, -0.5)) == "not seen"
    assert judged("xiong2020/depth-gradients-fig3", exponents(0.5, 0.0)) == "opposite"


def test_boundedness() -> None:
    def deltas(pre_ln: float) -> Rows:
        arms = {"Post-LN": [0.0, 0.01, 0.0], "Pre-LN": [pre_ln] * 3}
        return rows("delta_squares", arms, epsilon=0.1) + rows("delta_squares", {"Pre-LN": [0.9] * 3}, epsilon=0.05)

    assert judged("xiong2020/bounded-states", deltas(0.12)) == "same direction"
    assert judged("xiong2020/bounded-states", deltas(0.13)) == "not seen"


@pytest.mark.parametrize("item", ["xiong2020/mrpc-fig5b", "xiong2020/rte-fig5c"])
def test_faster_fine_tuning(item: str) -> None:
    assert judged(item, rows("mean_of_epochs", dict(zip(BERT, (BAD, GOOD), strict=True)))) == "same direction"
    assert judged(item, rows("mean_of_epochs", dict(zip(BERT, (GOOD, BAD), strict=True)))) == "opposite"


def test_gradients_by_layer() -> None:
    def ratios(normformer: float) -> Rows:
        arms = {"Post-LN, warm-up 150, lr 1e-3": [-0.5] * 3, BASE: [2.0] * 3, NF: [normformer] * 3}
        return rows("log_ratio", arms, what="ratio", panel="all of training")

    assert judged("normformer2021/gradients-fig3", ratios(1.0)) == "same direction"
    assert (
        judged("normformer2021/gradients-fig3", ratios(2.5))
        == judged("normformer2021/gradients-fig3", ratios(-1))
        == "not seen"
    )


def test_learned_scales() -> None:
    def scales(early: float, after: float, top: float) -> Rows:
        found = rows("early_late", {WITH: [early] * 3}, what="summary", highest_after=after, top=top, head_spread=0.1)
        return found

    assert judged("normformer2021/scales-fig4", scales(0.9, 0.98, -0.01)) == "same direction"
    assert judged("normformer2021/scales-fig4", scales(0.9, 1.02, -0.01)) == "not seen"
    assert judged("normformer2021/scales-fig4", scales(1.1, 1.02, 0.01)) == "opposite"


def test_stability_by_both_protocols() -> None:
    def rates(rising: float, constant: float) -> Rows:
        found = []
        for what, rate in (("rising", rising), ("constant", constant)):
            for arm, value in ((BASE, 0.05), (NF, rate)):
                found += rows("rate", {arm: [value] * 3}, what=what, log_rate=math.log(value))
        return found

    assert judged("normformer2021/lr-stability-fig5", rates(0.1, 0.07)) == "same direction"
    assert judged("normformer2021/lr-stability-fig5", rates(0.1, 0.03)) == "not seen"
    assert judged("normformer2021/lr-stability-fig5", rates(0.01, 0.03)) == "opposite"


def test_overhead() -> None:
    def steps(more: float) -> Rows:
        arms = {BASE: [0.0] * 3, NF: [more] * 3, WITH: [more] * 3}
        return rows("log_seconds", arms, what="step", more_time=100 * more)

    assert judged("normformer2021/overhead", steps(0.02)) == "same direction"
    assert judged("normformer2021/overhead", steps(-0.02)) == "opposite"
    assert judged("normformer2021/overhead", steps(0.0)) == "not seen"


def test_perplexity_at_both_sizes() -> None:
    def sizes(*lower: str) -> Rows:
        found = []
        for size, mine in zip(("4 layers, width 64", "6 layers, width 128"), lower, strict=True):
            other = {WITH: BASE, BASE: WITH}[mine]
            found += rows("perplexity", {mine: GOOD, other: BAD}, group=size, zero_shot=30.0)
        return found

    assert judged("normformer2021/clm-table2", sizes(WITH, WITH)) == "same direction"
    assert judged("normformer2021/clm-table2", sizes(WITH, BASE)) == "not seen"
    assert judged("normformer2021/clm-table2", sizes(BASE, BASE)) == "opposite"


@pytest.mark.parametrize("item", ["normformer2021/equal-loss", "normformer2021/wikitext"])
def test_steps_to_equal_loss(item: str) -> None:
    def shares(*values: float) -> Rows:
        own = rows("share_of_steps", {WITH: values}, what="equal loss", share_of_time=1.0)
        return losses([WITH], [BASE]) + [{key: value for key, value in row.items() if key != "outcome"} for row in own]

    assert judged(item, shares(0.7, 0.8, 0.9)) == "same direction"
    assert judged(item, shares(0.7, 0.8, math.inf)) == "not seen"
    assert judged(item, shares(math.inf, math.inf, math.inf)) == "opposite"


@pytest.mark.parametrize("item", ["normformer2021/mlm-glue-table3", "normformer2021/glue-mnli-qnli-qqp"])
def test_the_mean_over_tasks(item: str) -> None:
    def means(high: str, low: str) -> Rows:
        return rows("mean", {high: BAD, low: GOOD}, what="mean", RTE=50.0)

    assert judged(item, means(NF, BASE)) == "same direction"
    assert judged(item, means(BASE, NF)) == "opposite"


FULL = {name: item.full for name, item in ITEMS.items() if item.full}


@pytest.mark.parametrize("full", FULL.values(), ids=FULL)
def test_the_papers_size_takes_its_overrides(full: Full) -> None:
    """Each of its runs divides its batch by the item's devices."""
    runs = _runs(full.recipe, full.overrides, None)
    assert runs and all(run.micro_tokens(full.devices) >= 1 for run in runs)


def test_each_arm_at_its_best_rate() -> None:
    """One seed chooses, the others judge, and an arm that is better at one equal rate alone is not better."""

    def found(mine: dict[str, float], theirs: dict[str, float]) -> str:
        own = {f"NormFormer with ResScale, lr {lr}": [0.0, loss, loss, loss, loss] for lr, loss in mine.items()}
        arms = own | {f"Pre-LN, lr {lr}": [0.0, loss, loss, loss, loss] for lr, loss in theirs.items()}
        return judged("normformer2021/tuned-rates", [row for row in rows("validation_loss", arms) if row["seed"]])

    assert found({"1e-3": 5.0, "4e-3": 4.0}, {"1e-3": 4.5, "4e-3": 5.0}) == "same direction"
    assert found({"1e-3": 5.0, "4e-3": 4.0}, {"1e-3": 3.9, "4e-3": 5.0}) == "opposite"


@pytest.mark.parametrize(
    ("condition", "said"),
    [({"trainz": {"arms": ["a"]}}, "did you mean 'trains'"), ({"trains": {True: ["a"]}}, "it takes rows, arms")],
)
def test_a_rule_that_is_none_is_refused_before_the_runs(condition: Any, said: str) -> None:
    """YAML reads `yes:` as True."""
    row = {"id": "xiong2020/one", "title": "", "claim": "", "size_paper": "", "size_here": ""}
    with pytest.raises(RecipeError, match=said):
        item_of({**row, "judge": {"conditions": [condition]}})


def test_a_diverged_run_is_not_averaged_away() -> None:
    """In what is shown beside a verdict, too."""
    own = [*rows("validation_loss", {"a": [4.0, 4.2]}), {"arm": "a", "seed": 2, "outcome": "diverged"}]
    shown = level(own, "validation_loss", "a")
    assert (shown.n, shown.value) == (3, 4.2) and shown.high == math.inf

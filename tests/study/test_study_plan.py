"""Which cells a study has, how they are called, and what is refused."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from isograd.errors import RecipeError, UnknownPlacement
from isograd.lab.study.plan import Budget, Cell, Study, load_study, with_cells
from isograd.lab.train.recipe import run_from_dict
from isograd.placement.catalogue.attention import IN_ATTENTION
from isograd.placement.catalogue.inside import NORM_INSIDE
from isograd.placement.catalogue.on_the_sum import NORM_ON_THE_SUM
from isograd.placement.catalogue.parameterization import PARAMETERIZATION
from isograd.placement.catalogue.scaled import SCALED
from isograd.placement.catalogue.streams import STREAMS
from tests.study.tiny_study import AXES, content, study
from tests.train.recipes import TRANSLATION

RECIPES = Path(__file__).parents[2] / "isograd/lab/recipes/studies"


def names(of: Study) -> list[str]:
    return [cell.name for cell in of.cells]


def points(of: Study, *keys: str) -> list[tuple[Any, ...]]:
    """Of each cell its values at these keys, and its seed."""
    return [(*(cell.values[key] for key in keys), cell.run.seed) for cell in of.cells]


def at(cell: Cell, key: str) -> Any:
    """What a cell's run has at a dotted key, as JSON has it."""
    value: Any = cell.run.as_dict()
    for part in key.split("."):
        value = value[part]
    return value


def refused(folder: Path, *overrides: str, **changes: Any) -> str:
    with pytest.raises((RecipeError, UnknownPlacement)) as caught:
        study(folder, *overrides, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_combination_with_every_seed_seeds_outermost(tmp_path: Path) -> None:
    planned = study(tmp_path, seeds=[3, 1, 3])
    assert planned.name == "tiny" and planned.seeds == [3, 1]
    assert planned.axes == AXES and list(planned.axes) == list(AXES)
    expected = [(p, lr, seed) for seed in (3, 1) for p in ("post-ln", "pre-ln") for lr in (1e-3, 3e-3)]
    assert points(planned, *AXES) == expected
    for cell in planned.cells:
        assert {key: at(cell, key) for key in AXES} == cell.values
        assert cell.name == cell.run.folder_name()
    assert len(set(names(planned))) == 8
    assert [cell.run.seed for cell in study(tmp_path, seeds=None).cells] == [0] * 4  # the recipe's own


def test_any_key_also_lists_and_none(tmp_path: Path) -> None:
    axes = {"training.betas": [[0.9, 0.98], [0.9, 0.999]], "data.seed": [None, 5], "model.bias": [True, False]}
    planned = study(tmp_path, axes=axes, seeds=[1])
    found = [(at(c, "training.betas"), at(c, "data.seed"), at(c, "model.bias")) for c in planned.cells]
    assert found == list(itertools.product(*axes.values()))
    assert planned.axes == axes
    assert planned.cells[0].values == {"training.betas": [0.9, 0.98], "data.seed": None, "model.bias": True}


def test_further_grids_come_after_the_first(tmp_path: Path) -> None:
    """Ten placements at 48 layers beside all at 12, say: no cell more than that."""
    axes = {"training.lr": [3e-3, 1e-3], "model.layers": [2], "model.placement": ["post-ln", "pre-ln", "admin"]}
    also = [{"model.layers": [3, 4], "model": {"placement": ["pre-ln"]}}, {"training.lr": ["2e-3"]}]
    planned = study(tmp_path, axes=axes, also=also, seeds=[1, 2])
    first = [(lr, 2, p) for lr in (3e-3, 1e-3) for p in ("post-ln", "pre-ln", "admin")]
    deeper = [(lr, layers, "pre-ln") for lr in (3e-3, 1e-3) for layers in (3, 4)]
    other = [(2e-3, 2, p) for p in ("post-ln", "pre-ln", "admin")]
    assert points(planned, *axes) == [(*at, seed) for seed in (1, 2) for at in (*first, *deeper, *other)]
    assert planned.axes["model.layers"] == [2, 3, 4] and planned.axes["training.lr"] == [3e-3, 1e-3, 2e-3]
    assert set(names(study(tmp_path, axes=axes, seeds=[1, 2]))) < set(names(planned))
    one = study(tmp_path, "model.placement=admin", axes=axes, also=also, seeds=[1])
    assert {cell.run.model.placement for cell in one.cells} == {"admin"}, "an override is for all grids"
    assert len(study(tmp_path, "also=[]", axes=axes, also=also, seeds=[1]).cells) == 6
    same = study(tmp_path, axes=axes, also=[{"model.layers": [2]}], seeds=[1])
    assert len(same.cells) == 6, "a cell that two grids have is one"


def test_nested_axes_are_the_same(tmp_path: Path) -> None:
    nested = study(tmp_path, axes={"model": {"placement": ["post-ln", "pre-ln"]}, "training": {"lr": [1e-3, 3e-3]}})
    plain = study(tmp_path)
    assert nested == plain


def test_numbers_without_a_dot(tmp_path: Path) -> None:
    """3e-4 is text in YAML 1.1, which the reader follows; the cells have the number."""
    path = tmp_path / "recipe.yaml"
    text = yaml.safe_dump(content(axes=None)) + "axes: {training.lr: [3e-4, 1e-3]}\n"
    path.write_text(text)
    assert yaml.safe_load(text)["axes"] == {"training.lr": ["3e-4", "1e-3"]}
    planned = load_study(path)
    assert planned.axes == {"training.lr": [3e-4, 1e-3]}
    path.write_text(text.replace("3e-4, 1e-3", "3.0e-4, 1.0e-3"))
    assert load_study(path) == planned
    assert load_study(path, ["training.lr=[3e-4,1e-3]"]) == planned


def test_values_that_are_the_same_are_one(tmp_path: Path) -> None:
    planned = study(tmp_path, axes={"training.lr": [1e-3, 0.001, "1e-3"]}, seeds=[1, 1])
    assert planned.axes == {"training.lr": [1e-3]} and len(planned.cells) == 1


def test_arms_are_an_axis_of_their_own(tmp_path: Path) -> None:
    arms: list[Any] = ["pre-ln", ["post-ln", "training.warmup=3", "training.clip=1.0"], ["post-ln"]]
    planned = study(tmp_path, arms=arms, axes={"training.lr": [1e-3, 3e-3]}, seeds=[1, 2])
    said = ["pre-ln, no warm-up, clip 0", "post-ln, warm-up 3, clip 1", "post-ln, no warm-up, clip 0"]
    assert list(planned.axes) == ["arm", "training.lr"] and planned.axes["arm"] == said
    assert points(planned, "arm", "training.lr") == [(a, lr, s) for s in (1, 2) for a in said for lr in (1e-3, 3e-3)]
    warm = planned.cells[2]
    assert warm.values == {
        "arm": said[1],
        "model.placement": "post-ln",
        "training.warmup": 3,
        "training.clip": 1.0,
        "training.lr": 1e-3,
    }
    assert (warm.run.training.warmup, warm.run.training.clip) == (3, 1.0)
    spaced = study(tmp_path, arms=[["post-ln", " training.warmup = 3"]], axes=None, seeds=[1])
    assert spaced.cells[0].values == {"arm": "post-ln, warm-up 3", "model.placement": "post-ln", "training.warmup": 3}
    alone = study(tmp_path, arms=arms, axes=None)
    assert list(alone.axes) == ["arm"] and len(alone.cells) == 6


def test_names_do_not_depend_on_the_order_of_axes(tmp_path: Path) -> None:
    axes = {**AXES, "training.betas": [[0.9, 0.98], [0.8, 0.9]]}
    runs = [
        {cell.name: cell.run for cell in study(tmp_path, axes={key: axes[key] for key in order}, seeds=[2]).cells}
        for order in (list(axes), list(reversed(axes)))
    ]
    assert runs[0] == runs[1] and len(runs[0]) == 8


def test_more_seeds_and_values_keep_the_old_names(tmp_path: Path) -> None:
    before = set(names(study(tmp_path)))
    more = study(tmp_path, "seeds=[1,2,3]", "training.lr=[3e-4,1e-3,3e-3]")
    assert before < set(names(more)) and len(more.cells) == 18
    one_value = study(tmp_path, axes={**AXES, "training.warmup": [0]})
    assert set(names(one_value)) == before  # an axis that says what was so before
    renamed = study(tmp_path, name="another")
    assert set(names(renamed)) == before and renamed.name == "another"


@pytest.mark.parametrize(
    "change",
    ["training.weight_decay=0.1", "model.width=32", "data.seed=4", "budget.steps=7", "training.checkpoint_every=9"],
)
def test_a_changed_recipe_has_new_cells(tmp_path: Path, change: str) -> None:
    assert not set(names(study(tmp_path))) & set(names(study(tmp_path, change)))


def test_overrides_of_axes(tmp_path: Path) -> None:
    some = study(tmp_path, "training.lr=[5e-4,1e-3]", " model.placement = admin ")
    assert some.axes == {"model.placement": ["admin"], "training.lr": [5e-4, 1e-3]}
    assert study(tmp_path, "training.lr=2e-3").axes["training.lr"] == [2e-3]
    betas = {"training.betas": [[0.9, 0.98]]}
    assert study(tmp_path, "training.betas=[[0.8,0.9]]", axes=betas).axes == {"training.betas": [[0.8, 0.9]]}
    twice = study(tmp_path, "training.lr=2e-3", "training.lr=4e-3")
    assert twice.axes["training.lr"] == [4e-3]
    assert "training.lr" in refused(tmp_path, "training.lr=[]")
    assert "training.lr" in refused(tmp_path, "training.lr=")
    assert "not YAML" in refused(tmp_path, "training.lr=[1")


def test_overrides_of_the_rest(tmp_path: Path) -> None:
    planned = study(tmp_path, "seeds=[7]", "training.batch=2", "keep_models=true", "name=2024-01-01")
    assert (planned.seeds, planned.keep_models, planned.name) == ([7], True, "2024-01-01")
    assert {cell.run.training.batch for cell in planned.cells} == {2}
    assert {cell.run.name for cell in planned.cells} == {None}
    assert not study(tmp_path).keep_models
    assert study(tmp_path, name=None).name == "recipe"  # of the file
    new_axis = study(tmp_path, "axes.training.warmup=[0,2]")
    assert new_axis.axes == {**AXES, "training.warmup": [0, 2]}, "an override of `axes` itself"
    assert study(tmp_path, "axes={training.warmup: [0, 2]}", axes=None).axes == {"training.warmup": [0, 2]}


def test_budgets(tmp_path: Path) -> None:
    assert study(tmp_path).budget == Budget(unit="steps", amount=6)
    assert str(study(tmp_path, budget={"tokens": 1000}).budget) == "1,000 tokens"
    for override, steps in (
        ("budget.steps=9", 9),
        ("budget.tokens=96", 3),  # 4 sequences of 8
        ("budget.tokens=97", 4),
        ("budget.tokens=1", 1),
        ("budget={tokens: 320}", 10),
    ):
        assert {cell.run.training.steps for cell in study(tmp_path, override).cells} == {steps}, override
    sizes = study(tmp_path, axes={"training.batch": [2, 4], "data.length": [8, 24]}, budget={"tokens": 1000})
    for cell in sizes.cells:
        per_update = cell.values["training.batch"] * cell.values["data.length"]
        assert cell.run.training.steps == math.ceil(1000 / per_update)
    without = study(tmp_path, budget=None, training={"steps": 11})
    assert without.budget is None and {cell.run.training.steps for cell in without.cells} == {11}
    later = study(tmp_path, "budget.seconds=2.5", training={"steps": 11})
    assert later.budget == Budget(unit="seconds", amount=2.5)
    assert {cell.run.training.steps for cell in later.cells} == {11}  # until speeds are measured


def test_budgets_in_powers_of_ten(tmp_path: Path) -> None:
    """YAML reads 1e3 as text."""
    found = [study(tmp_path, override).budget for override in ("budget.tokens=1e3", "budget.tokens=1000")]
    assert found == [Budget(unit="tokens", amount=1000)] * 2
    assert study(tmp_path, budget={"steps": "1e1"}).cells[0].run.training.steps == 10


def test_a_seed_where_there_are_no_seeds(tmp_path: Path) -> None:
    assert study(tmp_path, "seed=3", seeds=None).seeds == [3]


def test_tokens_of_a_translation(tmp_path: Path) -> None:
    pairs = {**TRANSLATION["pairs"], "target": "de"}
    whole: dict[str, Any] = {"task": "translation", **TRANSLATION, "pairs": pairs, "axes": {"training.lr": [1e-3]}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**whole, "budget": {"tokens": 3001}}))
    assert [cell.run.training.steps for cell in load_study(path).cells] == [11]  # of 300


def test_the_budget_pays_before_the_schedule_is_looked_at(tmp_path: Path) -> None:
    """A warm-up beyond the 300 steps that a recipe has by default is right where the budget is larger."""
    warm: dict[str, Any] = {"axes": {"training.warmup": [400, 500]}, "training": {"decay": "linear"}}
    for budget in ({"steps": 1000}, {"tokens": 32_000}):
        planned = study(tmp_path, budget=budget, **warm)
        assert {cell.run.training.steps for cell in planned.cells} == {1000}
    assert "training.warmup=400" in refused(tmp_path, budget={"steps": 400}, **warm)


def test_with_cells_names_anew(tmp_path: Path) -> None:
    planned = study(tmp_path)
    other = study(tmp_path, "training.clip=1.0")
    clipped = with_cells(
        planned, lambda run: run_from_dict({**run.as_dict(), "training": {**run.as_dict()["training"], "clip": 1.0}})
    )
    assert names(clipped) == names(other) != names(planned)
    assert clipped.axes == planned.axes


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"axes": {"model.placment": ["pre-ln"]}}, "unknown key 'model.placment'; did you mean 'model.placement'"),
    ({"axes": {"lr": [1e-3]}}, "unknown key 'lr'; did you mean 'training.lr'"),
    ({"axes": {"model": ["a"]}}, "unknown key 'model'"),
    ({"axes": {"seed": [1, 2]}}, "write seeds: [1, 2, 3]"),
    ({"axes": {"name": ["a"]}}, "axes over 'name'"),
    ({"axes": {"task": ["language", "masked"]}}, "axes over 'task'"),
    ({"axes": {"training.lr": []}}, "training.lr needs a list of values"),
    ({"axes": {"training.lr": 1e-3}}, "training.lr needs a list of values"),
    ({"axes": {"training.lr": None}}, "training.lr needs a list of values"),
    ({"axes": {"training.lr": "1e-3"}}, "training.lr needs a list of values"),
    ({"axes": ["training.lr"]}, "axes is keys and lists"),
    ({"axes": {"training": {"lr": [1e-3]}, "training.lr": [1e-2]}}, "training.lr"),
    ({"axes": {"training.lr": [1e-3, "fast"]}}, "training.lr=fast"),
    ({"axes": {"training.lr": [1e-3, -1.0]}}, "the cell training.lr=-1: training.lr=-1.0 must be"),
    ({"axes": {"training.lr": [1e-3, None]}}, "training.lr is empty"),
    ({"axes": {"training.betas": [0.9]}}, "the cell training.betas=0.9"),
    ({"axes": {"model.placement": ["pre-ln", "pre-nl"]}}, "the cell model.placement=pre-nl"),
    ({"axes": {1: [2]}}, "unknown key '1'"),
    ({"axes": {None: [2]}}, "unknown key 'None'"),
    ({"axes": {"training": {1: [2]}}}, "unknown key 'training.1'"),
    ({"axes": None}, "a study needs axes"),
    ({"axes": {}}, "a study needs axes"),
    ({"also": {"training.lr": [1]}}, "also is a list of axes"),
    ({"also": ["training.lr"]}, "axes is keys and lists"),
    ({"also": [{"model.layers": [3]}]}, "also: model.layers is not among the axes"),
    ({"also": [{"training.lr": 3}]}, "training.lr needs a list of values"),
    (
        {"arms": [["post-ln", "training.lr=1.0"]], "axes": {"training.lr": [1]}},
        "training.lr is an axis, and an arm sets it, too",
    ),
    ({"arms": ["post-ln"]}, "model.placement is an axis, and an arm sets it, too"),
    ({"arms": [["training.lr=1.0"]], "axes": None}, "an arm begins with a placement"),
    ({"arms": [["post-ln", "seed=4"]], "axes": None}, "'seed=4' cannot differ between arms"),
    ({"arms": [["post-ln", "model.placement=pre-ln"]], "axes": None}, "cannot differ between arms"),
    ({"arms": [["post-ln", "training.wamup=4"]], "axes": None}, "did you mean 'training.warmup'"),
    ({"arms": [["post-ln", "pre-ln"]], "axes": None}, "'pre-ln' is an invalid override"),
    ({"arms": [["post-lm"]], "axes": None}, "post-lm"),
    ({"arms": "post-ln, pre-ln", "axes": None}, "arms is a list of lists of text"),
    ({"seeds": 3}, "seeds is a list of whole numbers"),
    ({"seeds": [1, 2.5]}, "seeds is a list of whole numbers"),
    ({"seeds": [True]}, "seeds is a list of whole numbers"),
    ({"seeds": [-1]}, "seed=-1"),
    ({"keep_models": "no"}, "keep_models is true or false"),
    ({"axis": {"training.lr": [1]}}, "unknown key 'axis'"),
    ({"budget": {"steps": 3, "tokens": 9}}, "budget is one of steps, tokens, seconds"),
    ({"budget": {"hours": 3}}, "budget is one of steps, tokens, seconds"),
    ({"budget": 300}, "budget is one of steps, tokens, seconds"),
    ({"budget": {"steps": 0}}, "steps is 0; it must be"),
    ({"budget": {"steps": -5}}, "steps is -5; it must be"),
    ({"budget": {"steps": True}}, "steps is True; it must be"),
    ({"budget": {"tokens": "many"}}, "tokens is 'many'; it must be"),
    ({"budget": {"seconds": math.inf}}, "seconds is inf; it must be"),
    ({"budget": {"seconds": math.nan}}, "seconds is nan; it must be"),
    ({"budget": {"steps": None}}, "steps is None; it must be"),
    ({"budget": {"tokens": 10**400}}, "it must be a number above 0"),
    ({"budget": {"tokens": "1e999"}}, "tokens is inf; it must be"),
    ({"axes": {"training.steps": [5, 10]}}, "training.steps"),  # and the budget, which says it, too
    ({"arms": [["pre-ln", "training.steps=5"]], "axes": None}, "training.steps"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[str(changes)[:60] for changes, _ in WRONG])
def test_wrong_recipes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refused(tmp_path, **changes)


def test_a_contradictory_cell_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, axes={"training.warmup": [0, 6], "training.decay": ["constant", "linear"]})
    assert said.startswith("the cell training.warmup=6, training.decay=linear: ")
    said = refused(tmp_path, axes={"training.decay_to": [0.1]}, arms=["pre-ln"])
    assert said.startswith("the cell model.placement=pre-ln, training.decay_to=0.1: training.decay_to is read by")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lrr=1", "unknown key 'training.lrr'; did you mean 'training.lr'"),
        ("lr=1", "did you mean 'training.lr'"),
        ("training.batch", "expected key=value"),
        ("training.lr", "expected key=value"),
        ("seeds", "expected key=value"),
        ("seeds=x", "seeds is a list of whole numbers"),
        ("budget.hours=3", "budget is one of"),
        ("budget.steps=0", "must be a number above 0"),
        ("budget.steps=[1", "not YAML"),
        ("model=3", "model is a section"),
        ("training.steps=5", "budget"),  # else it would be the budget's without a word
        ("axes.training.lrr=[1]", "did you mean 'training.lr'"),
        ("seed=3", "seeds are [1, 2], and seed is set, too; write seeds=[NUMBERS]"),  # else it would be lost
    ],
)
def test_wrong_overrides(tmp_path: Path, override: str, message: str) -> None:
    assert message in refused(tmp_path, override)


def test_overrides_that_arms_would_take_back(tmp_path: Path) -> None:
    arms = [["post-ln", "training.warmup=3"], ["pre-ln"]]
    for override in ("training.warmup=2", "model.placement=admin"):
        assert refused(tmp_path, override, arms=arms, axes=None).startswith(f"{override}: the recipe's arms set")


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    for name, text, message in (
        ("list.yaml", "- a\n- b\n", "expected keys and values, found list"),
        ("broken.yaml", "axes: {training.lr: [1", "not YAML"),
        ("empty.yaml", "", "a study needs axes"),
        ("bytes.yaml", b"\xff\xfe\x00", "not YAML"),
        ("endless.yaml", "axes: &a {training: *a}\n", "not YAML"),
        ("endless.yaml", "axes: {training.lr: &a [*a]}\n", "not YAML"),
        ("deep.yaml", "axes: " + "[" * 5000, "not YAML"),
    ):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(RecipeError, match=message) as caught:
            load_study(path)
        assert "\n" not in str(caught.value) and name in str(caught.value)
    with pytest.raises(RecipeError, match="no such recipe"):
        load_study(tmp_path / "none.yaml")


@pytest.mark.slow
def test_the_recipes_of_the_repository() -> None:
    sizes = {path.stem: load_study(path) for path in sorted(RECIPES.glob("*.yaml"))}
    warmup = sizes["warmup"]
    assert len(warmup.cells) == 135 == len(set(names(warmup)))
    assert warmup.axes["training.warmup"] == [0, 50, 150] and warmup.seeds == [1, 2, 3]
    every = {**NORM_ON_THE_SUM, **NORM_INSIDE, **SCALED, **STREAMS, **IN_ATTENTION, **PARAMETERIZATION}
    residuals = sizes["residuals"]
    every = {name: entry for name, entry in every.items() if name != "no-norm"}  # what folding leaves: no design
    assert set(residuals.axes["model.placement"]) == set(every), "the whole catalogue but that"
    assert len(residuals.cells) == 3 * 3 * (len(every) + 10 * 2)
    first = [cell.values for cell in residuals.cells[: len(every)]]
    assert {(at["training.lr"], at["model.layers"]) for at in first} == {(8e-3, 12)}
    for found in sizes.values():
        assert len(found.seeds) >= 3 and (found.budget is not None or found.name == "headroom"), found.name

"""Which arms a comparison has."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isograd.errors import RecipeError, UnknownPlacement
from isograd.lab.study.compare import plan
from isograd.lab.train.recipe import load_arms, load_run
from tests.train.recipes import small_translation


def arms(words: Sequence[str] = (), *placements: str, seeds: Sequence[int] = ()) -> list[tuple[str, int, int]]:
    planned = plan(Path("out"), load_run(None, words), [[name] for name in placements], seeds)
    return [(a.run.model.placement, a.run.training.warmup, a.run.seed) for a in planned]


def test_the_default_set() -> None:
    assert arms() == [
        ("post-ln", 0, 0),
        ("post-ln", 150, 0),
        ("pre-ln", 0, 0),
        ("normformer", 0, 0),
        ("admin", 0, 0),
        ("deepnorm", 0, 0),
    ]
    run: Any = plan(Path("out"))[0].run
    assert (run.model.layers, run.model.width, run.model.heads, run.model.ffn) == (12, 64, 4, None)
    assert (run.data.length, run.training.batch, run.training.steps) == (32, 16, 300)
    assert (run.training.optimizer, run.training.betas, run.training.lr) == ("adam", (0.9, 0.98), 1e-3)


def test_warmup_is_for_all_arms() -> None:
    """One post-ln then: without a warm-up it stands there once more, with half the steps."""
    warm = arms(["training.warmup=100"])
    assert {w for _, w, _ in warm} == {100}
    assert [p for p, _, _ in warm] == ["post-ln", "pre-ln", "normformer", "admin", "deepnorm"]
    assert arms(["training.steps=11"])[1] == ("post-ln", 5, 0)
    assert arms([], "post-ln", "pre-ln") == [("post-ln", 0, 0), ("pre-ln", 0, 0)]
    assert arms(["training.warmup=7"], "post-ln") == [("post-ln", 7, 0)]


def test_seed_by_seed_each_once() -> None:
    expected = [("admin", 0, 3), ("gpt2", 0, 3), ("admin", 0, 1), ("gpt2", 0, 1)]
    assert arms([], "admin", "gpt2", "admin", seeds=[3, 1, 3]) == expected


def test_a_folder_per_run() -> None:
    planned = plan(Path("out"), seeds=[0, 1])
    assert len({a.folder for a in planned}) == len(planned)
    assert {a.folder.parent for a in planned} == {Path("out")}
    run: Any = planned[0].run
    others = [
        replace(run, seed=5),
        replace(run, model=replace(run.model, width=32)),
        replace(run, data=replace(run.data, source="other.txt")),
        replace(run, training=replace(run.training, betas=(0.9, 0.999))),
    ]
    assert len({r.folder_name() for r in [run, *others]}) == 5
    assert replace(run, name="a name changes no number").folder_name() == run.folder_name()


def test_labels() -> None:
    base = load_run(None, ["training.warmup=9"])
    assert [a.label for a in plan(Path("out"), base, [["pre-ln"]])] == ["pre-ln, warm-up 9"]
    assert [a.label for a in plan(Path("out"), base, [["pre-ln", "training.warmup=0"]])] == ["pre-ln, no warm-up"]


def test_the_same_data_and_start_seed_for_all_arms() -> None:
    planned = plan(Path("out"), load_run(None, ["model.layers=3", "data.length=8"]))
    assert len({(a.run.seed, a.run.data_seed, a.run.data) for a in planned}) == 1
    assert len({replace(a.run.model, placement="") for a in planned}) == 1


def test_refused() -> None:
    with pytest.raises(UnknownPlacement, match="did you mean 'post-ln'"):
        plan(Path("out"), None, [["pre-ln"], ["postln"]])
    with pytest.raises(RecipeError, match=r"training\.warmup=-1"):
        plan(Path("out"), None, [["pre-ln", "training.warmup=-1"]])


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(small_translation(name="small", seed=4, training={"warmup": 3}).as_dict()))
    return path


def test_arms_of_a_recipe(recipe: Path) -> None:
    """Each is what `isograd train` makes of the recipe with that placement and those overrides."""
    arms = [["post-ln"], ["post-ln", "training.warmup=0"], ["pre-ln", "training.lr=2e-3", "training.optimizer=sgd"]]
    planned = plan(Path("out"), load_run(recipe), arms, [2, 1])
    assert [a.run for a in planned] == [
        load_run(recipe, [f"model.placement={placement}", *overrides, f"seed={seed}"])
        for seed in (2, 1)
        for placement, *overrides in arms
    ]
    assert [a.label for a in planned[3:]] == [
        "post-ln, warm-up 3, lr 0.01, optimizer adam",
        "post-ln, no warm-up, lr 0.01, optimizer adam",
        "pre-ln, warm-up 3, lr 0.002, optimizer sgd",
    ]
    assert len({a.folder for a in planned}) == 6 and {a.folder.parent for a in planned} == {Path("out")}


def test_a_recipe_without_arms(recipe: Path) -> None:
    planned = plan(Path("out"), load_run(recipe))
    assert [a.run.model.placement for a in planned] == ["post-ln", "pre-ln", "normformer", "admin", "deepnorm"]
    assert {(a.run.training.warmup, a.run.seed, a.run.task) for a in planned} == {(3, 4, "translation")}


def test_an_arm_twice_is_one(recipe: Path) -> None:
    arms = [["pre-ln"], ["pre-ln", "training.warmup=3"], ["pre-ln", "training.warmup=2"]]
    assert len(plan(Path("out"), load_run(recipe), arms, [0, 0])) == 2


def test_arms_and_seeds_in_a_recipe(recipe: Path) -> None:
    """Read for a comparison; to a training the recipe is the same without them."""
    before = load_run(recipe)
    assert load_arms(recipe) == ([], [])
    with recipe.open("a") as file:
        file.write("arms: [post-ln, [pre-ln, training.lr=2e-3]]\nseeds: [3, 1]\n")
    assert load_arms(recipe) == ([["post-ln"], ["pre-ln", "training.lr=2e-3"]], [3, 1])
    assert load_run(recipe) == before
    with pytest.raises(RecipeError, match="unknown key 'seeds'"):
        load_run(recipe, ["seeds=[1]"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("arms: 3", "arms is a list of lists"),
        ("arms: {post-ln: 3}", "arms is a list of lists"),
        ("arms: [[]]", "arms is a list of lists"),
        ("arms: [[post-ln, {training.warmup: 3}]]", "arms is a list of lists"),
        ("seeds: 3", "seeds is a list of whole numbers"),
        ("seeds: [1, true]", "seeds is a list of whole numbers"),
        ("seeds: [0.5]", "seeds is a list of whole numbers"),
    ],
)
def test_arms_and_seeds_refused(recipe: Path, line: str, said: str) -> None:
    with recipe.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RecipeError, match=said):
        load_arms(recipe)


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (["training.lr=1"], "an arm begins with a placement"),
        (["pre-ln", "seed=3"], "cannot differ between arms"),
        (["pre-ln", "task=language"], "cannot differ between arms"),
        (["pre-ln", "model.placement=admin"], "cannot differ between arms"),
        (["pre-ln", "training.warmpu=3"], "did you mean 'training.warmup'"),
        (["pre-ln", "training.lr=-1"], r"training\.lr=-1"),
        (["pre-ln", "warm-up"], "invalid override"),
    ],
)
def test_arms_refused(recipe: Path, arm: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        plan(Path("out"), load_run(recipe), [arm])


def test_an_unknown_placement_of_an_arm(recipe: Path) -> None:
    with pytest.raises(UnknownPlacement, match="did you mean 'post-ln'"):
        plan(Path("out"), load_run(recipe), [["postln"]])

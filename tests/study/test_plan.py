"""Which arms a comparison has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isograd.placement import UnknownPlacement
from isograd.study.compare import name_of, plan
from isograd.train.run import Data, Model, RecipeError, Training


def arms(**options: Any) -> list[tuple[str, int, int]]:
    planned = plan(Path("out"), **options)
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
    run = plan(Path("out"))[0].run
    assert (run.model.layers, run.model.width, run.model.heads, run.model.ffn) == (12, 64, 4, None)
    assert (run.data.length, run.training.batch, run.training.steps) == (32, 16, 300)
    assert (run.training.optimizer, run.training.betas, run.training.lr) == ("adam", (0.9, 0.98), 1e-3)


def test_warmup_is_for_all_arms() -> None:
    """One post-ln then: two would be the same run."""
    for steps in (0, 100):
        assert {w for _, w, _ in arms(warmup=steps)} == {steps}
        assert [p for p, _, _ in arms(warmup=steps)] == ["post-ln", "pre-ln", "normformer", "admin", "deepnorm"]
    assert arms(training=Training(steps=11))[1] == ("post-ln", 5, 0)
    assert arms(placements=["post-ln", "pre-ln"]) == [("post-ln", 0, 0), ("pre-ln", 0, 0)]
    assert arms(placements=["post-ln"], warmup=7) == [("post-ln", 7, 0)]


def test_seed_by_seed_each_once() -> None:
    expected = [("admin", 0, 3), ("gpt2", 0, 3), ("admin", 0, 1), ("gpt2", 0, 1)]
    assert arms(placements=["admin", "gpt2", "admin"], seeds=[3, 1, 3]) == expected


def test_a_folder_per_run() -> None:
    planned = plan(Path("out"), seeds=[0, 1])
    assert len({a.folder for a in planned}) == len(planned)
    assert {a.folder.parent for a in planned} == {Path("out")}
    run = planned[0].run
    others = [
        replace(run, seed=5),
        replace(run, model=replace(run.model, width=32)),
        replace(run, data=replace(run.data, source="other.txt")),
        replace(run, training=replace(run.training, betas=(0.9, 0.999))),
    ]
    assert len({name_of(r) for r in [run, *others]}) == 5
    assert name_of(replace(run, name="a name changes no number")) == name_of(run)


def test_labels() -> None:
    training = Training(warmup=9)
    assert [a.label for a in plan(Path("out"), placements=["pre-ln"], warmup=9)] == ["pre-ln, warm-up 9"]
    assert [a.label for a in plan(Path("out"), placements=["pre-ln"], training=training)] == ["pre-ln, no warm-up"]


def test_the_same_data_and_start_seed_for_all_arms() -> None:
    planned = plan(Path("out"), model=Model(layers=3), data=Data(length=8))
    assert len({(a.run.seed, a.run.data_seed, a.run.data) for a in planned}) == 1
    assert len({replace(a.run.model, placement="") for a in planned}) == 1


def test_refused() -> None:
    with pytest.raises(UnknownPlacement, match="did you mean 'post-ln'"):
        plan(Path("out"), placements=["pre-ln", "postln"])
    with pytest.raises(RecipeError, match=r"training\.warmup=-1"):
        plan(Path("out"), warmup=-1)

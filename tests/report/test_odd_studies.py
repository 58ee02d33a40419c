"""Studies over odd axes, of one cell, of failures only, and with a plan that something has damaged."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from isograd.files import read_rows
from isograd.lab.report.study.arms import found_in
from isograd.lab.report.study.files import read_study
from isograd.lab.report.study.page import failures, headline, progress, recipe, unlearnt, write_study_report
from isograd.lab.report.study.tables import arms_table, rates_table
from isograd.lab.study.plan import load_study
from tests.report.study_written import BASE, Row, Rule, write_study
from tests.report.test_page import checked
from tests.report.written import put
from tests.study.tiny_study import recipe as recipe_file

SMALL: Row = {**BASE, "model": {**BASE["model"], "layers": 2}}
AXES: Row = {"model.placement": ["post-ln", "pre-ln"], "training.lr": [1e-3, 3e-3]}


def even(values: Row, seed: int) -> float | str:
    return 2.0 + 0.01 * seed


def written(folder: Path, axes: Row, rule: Rule = even, **more: Any) -> Path:
    return write_study(folder / "study", axes, rule, base=SMALL, curves=False, **more)


@pytest.mark.parametrize("more", [{}, {"training.lr": [1e-3, 3e-3]}, {"training.warmup": [0, 5]}])
def test_files_of_one_name_are_not_one(tmp_path: Path, more: Row) -> None:
    """`en/train.txt` and `de/train.txt` are compared with each other, not thrown together."""
    sources = ["data/en/train.txt", "data/de/train.txt"]
    folder = written(tmp_path, {"data.source": sources, **more}, lambda v, s: 2.0 + sources.index(v["data.source"]))
    study = read_study(folder)
    found = found_in(study)
    assert found.design.who == ["en/train.txt", "de/train.txt"]
    assert {(arm.who, arm.median) for arm in found.arms} == {("en/train.txt", 2.0), ("de/train.txt", 3.0)}
    assert {one.found.median for one in found.compared} == {1.0}
    assert arms_table(found).header[0] == "source"
    assert yaml.safe_load(recipe(study))["axes"] == {"data.source": sources, **more}


def test_files_of_one_name_beside_what_is_compared(tmp_path: Path) -> None:
    axes = {"model.placement": ["post-ln", "pre-ln"], "data.source": ["en/train.txt", "de/train.txt"]}
    report = write_study_report(written(tmp_path, axes))
    assert {line[1] for line in report.table.lines} == {"en/train.txt", "de/train.txt"}
    assert [arm["data.source"] for arm in report.results["arms"]] == ["en/train.txt", "de/train.txt"] * 2
    assert "source en/train.txt" in checked(report.page).text


@pytest.mark.parametrize(
    ("key", "values", "named"),
    [
        ("model.ffn", [None, 128], ["ffn none", "ffn 128"]),
        ("model.bias", [True, False], ["bias true", "bias false"]),
        ("training.betas", [[0.9, 0.98], [0.9, 0.999]], ["betas (0.9, 0.98)", "betas (0.9, 0.999)"]),
        ("model.init", [None, "none"], ["init null", 'init "none"']),
        ("data.field", ["", "text"], ["“”", "text"]),
        ("data.source", ["a\nb.txt", "c\td.txt"], ["a b.txt", "c d.txt"]),
        ("glue.model", ["runs/post/model", "runs/pre/model/"], ["post", "pre"]),
        ("model.placement", ["<script>alert('a/b')</script>", "$x_y$"], ["<script>alert('a/b')</script>", "$x_y$"]),
    ],
)
def test_what_is_compared_has_a_name(tmp_path: Path, key: str, values: Sequence[Any], named: list[str]) -> None:
    folder = write_study(tmp_path / "study", {key: values}, even, base={**SMALL, "glue": {}}, curves=False)
    report = write_study_report(folder, reference=named[1])
    assert [report.table.header[0], *(line[0] for line in report.table.lines)] == [key.partition(".")[2], *named]
    assert " ".join(named[0].split()) in checked(report.page).text
    assert [arm[key] for arm in report.results["arms"]] == list(values)


def test_only_failures(tmp_path: Path) -> None:
    """The page says how many failed, and why."""
    folder = written(tmp_path, AXES, ended=lambda i: False)
    for i, cell in enumerate(json.loads((folder / "study.json").read_text())["cells"]):
        own = folder / "cells" / cell["cell"]
        own.mkdir(parents=True)
        put(own / "run.json", {**SMALL, "seed": cell["seed"]})
        put(own / "outcome.json", {"outcome": "failed", "error": f"out of memory {i if i < 2 else '<b>'}"})
    report = write_study_report(folder)
    assert report.summary[0] == "All 12 cells have ended (3 seeds): 12 failed."
    assert report.summary[1].startswith("Failed, and counted in nothing else: out of memory <b> (10 cells); out of mem")
    assert "out of memory <b> (10 cells)" in checked(report.page).text
    assert list(failures(read_study(written(tmp_path / "control", AXES)))) == []


def test_one_cell(tmp_path: Path) -> None:
    study = read_study(written(tmp_path, {"training.lr": [1e-3]}, seeds=(1,)))
    assert progress(study) == "1 of 1 cells has ended (one seed): 1 finished"


def test_nobody_is_best_where_nothing_trains(tmp_path: Path) -> None:
    axes = {**AXES, "training.warmup": [0, 5]}
    rules: list[Rule] = [lambda v, s: "collapsed", lambda v, s: 2.0]
    for i, rule in enumerate(rules):
        study = read_study(written(tmp_path / str(i), axes, rule))
        assert ("lowest median" in headline(study, found_in(study))) == bool(i)


def test_each_text_has_its_own_entropy(tmp_path: Path) -> None:
    """A loss of 2.5 is learnt where the entropy is 3, and not where it is 2; the cost of a wrong rate ends there."""
    axes = {"data.source": ["a.txt", "b.txt"], "training.lr": [1e-3, 3e-3]}
    folder = written(tmp_path, axes, lambda v, s: 2.5 if v["training.lr"] == 1e-3 else 9.0)
    for path in folder.glob("cells/b.txt*/outcome.json"):
        put(path, json.loads(path.read_text()) | {"unigram_entropy": 2.6})
    found = found_in(read_study(folder))
    assert found.entropy is None
    said = "".join(unlearnt(found))
    assert "record others: a.txt, LR 0.003 (3 of 3 seeds); b.txt, LR 0.003" in said
    assert [line[3] for line in rates_table(found).lines] == ["0.250", "0.050"]


def test_a_sentence_is_no_table(tmp_path: Path) -> None:
    folder = written(tmp_path, {"training.clip": [i / 10 for i in range(40)]}, lambda v, s: 9.0, seeds=(1,))
    found = found_in(read_study(folder))
    (said,) = unlearnt(found)
    assert said.endswith("clip 1.1 (1 of 1 seed); and 28 other arms.")


def test_the_recipe_on_the_page_is_the_study(tmp_path: Path) -> None:
    """Arms that set nothing, lists and yes or no come back as they were."""
    arms = [["post-ln", "model.ffn=null", "model.bias=false"], ["pre-ln", "training.betas=[0.9, 0.999]"]]
    planned = load_study(recipe_file(tmp_path, arms=arms, axes={"data.source": ["a/t.txt", "b/t.txt"]}))
    plan = {"name": planned.name, "axes": planned.axes, "seeds": planned.seeds, "budget": {"steps": 6}}
    cells = [{"cell": cell.name, "values": cell.values, "seed": cell.run.seed} for cell in planned.cells]
    put(tmp_path / "study.json", plan | {"base": planned.base.as_dict(), "cells": cells})
    (tmp_path / "again.yaml").write_text(recipe(read_study(tmp_path)))
    assert [cell.name for cell in load_study(tmp_path / "again.yaml").cells] == [cell.name for cell in planned.cells]


Damage = Callable[[Row], object]
DAMAGES: list[Damage] = [
    lambda plan: plan.update(seeds=5),
    lambda plan: plan.update(seeds=["a"]),
    lambda plan: plan.update(cells=[]),
    lambda plan: plan["budget"].update(steps=None),
    lambda plan: plan["budget"].update(steps=10**400),
    lambda plan: plan["axes"].update({"training.lr": ["x", 1e-3]}),
    lambda plan: plan["axes"].update({"training.lr": [None, 1e-3]}),
    lambda plan: plan["cells"][3]["values"].update({"training.lr": [1]}),
    lambda plan: plan["cells"][3]["values"].pop("training.lr"),
    lambda plan: plan["cells"][3].pop("seed"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_refused_in_a_line(tmp_path: Path, damage: Damage) -> None:
    folder = written(tmp_path, AXES)
    plan = json.loads((folder / "study.json").read_text())
    damage(plan)
    put(folder / "study.json", plan)
    with pytest.raises(ValueError, match=r"study.json: not what isograd study writes .*run the study again"):
        read_study(folder)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    folder = written(tmp_path, AXES)
    own = next(folder.glob("cells/pre-ln*"))
    deep = "[" * 100_000
    put(own / "outcome.json", {"outcome": "finished", "validation_loss": 10**400, "provenance": None})
    assert checked(write_study_report(folder).page)
    for name in ("outcome.json", "run.json"):
        (own / name).write_text(deep)
    (folder / "ledger.jsonl").write_text(deep + "\n")
    assert len(read_study(folder).left_out) == 2


@pytest.mark.parametrize(
    ("name", "row", "line"),
    [
        ("metrics.jsonl", '{"step": null, "loss": 2.0}', "line 1: step is null"),
        ("metrics.jsonl", '{"step": 1, "loss": Infinity}', "line 1: loss is no number"),
        ("metrics.jsonl", f'{{"step": 1, "loss": 1{"0" * 400}}}', "line 1: loss is no number"),
        ("metrics.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("quantities.jsonl", '{"step": 1, "kind": "ffn", "gradient_mean_abs": 1.0}', "line 1: no layer"),
        ("quantities.jsonl", '{"step": 1, "layer": 1, "kind": [1]}', "line 1: kind is [1]"),
        ("validation.jsonl", '{"step": "1", "loss": 2.0}', "line 1: step is no number"),
    ],
)
def test_a_damaged_row_is_said_in_a_line(tmp_path: Path, name: str, row: str, line: str) -> None:
    folder = write_study(tmp_path / "study", AXES, even, base=SMALL, seeds=(1,))
    path = next(folder.glob("cells/pre-ln*")) / name
    path.write_text(row + "\n" + path.read_text())
    study = read_study(folder)
    assert len(study.left_out) == 1 and str(path) in study.left_out[0] and line in study.left_out[0]
    assert len(study.ended) == 4


@pytest.mark.parametrize("rest", ["null", "[1]", "3", '"a', "[" * 100_000])
def test_a_last_line_that_is_no_row(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n' + rest)
    assert read_rows(path) == [{"step": 1, "loss": 2.0}]

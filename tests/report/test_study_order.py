"""The page of a study of many placements: the map, the order and the costs, from a rule that is known."""

import csv
from pathlib import Path

import pytest
import yaml

from isograd.lab.report.study.arms import found_in
from isograd.lab.report.study.files import read_study
from isograd.lab.report.study.page import StudyReport, headline, recipe, write_study_report
from isograd.lab.study.engine.ledger import write_study as write_plan
from isograd.lab.study.plan import load_study
from isograd.placement import CATALOGUE
from tests.report.study_written import BASE, Row, write_study
from tests.report.test_page import checked
from tests.study.tiny_study import study

WHO = [*list(CATALOGUE)[:12], "pre-ln", "mhc"]
RATES = [8e-3, 2e-3, 3.2e-2]  # in the order of a recipe that trains the middle one first
AXES: Row = {"training.lr": RATES, "model.layers": [2, 4], "model.placement": [*dict.fromkeys(WHO)]}
HIGHEST = {"post-ln": None, "admin": 2e-3, "deepnorm": 8e-3}  # the others stand all of them


def rule(values: Row, seed: int) -> float | str:
    """Seed 2 does not finish above the placement's own rate; deeper, DeepNorm stands no rate at all."""
    who, rate = values["model.placement"], values["training.lr"]
    limit = HIGHEST.get(who, 1.0)
    if who == "deepnorm" and values["model.layers"] == 4:
        limit = None
    if (limit is None or rate > limit) and seed == 2:
        return "collapsed"
    return 2.5 + 0.01 * AXES["model.placement"].index(who) + rate + 0.001 * seed


def not_run(index: int) -> bool:
    """Of the deeper cells only the first nine of each rate have ended."""
    place = index % (len(AXES["model.placement"]) * 2)
    return place < len(AXES["model.placement"]) + 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("study") / "order"
    return write_study(where, AXES, rule, base=BASE, curves=False, ended=not_run)


@pytest.fixture(scope="module")
def report(folder: Path) -> StudyReport:
    return write_study_report(folder)


def test_too_short_is_not_unstable(tmp_path: Path) -> None:
    """Undecided at every rate says nothing of stability; and a rate that few have tried is no failure of the others."""
    slow = lambda values, seed: "undecided" if values["model.placement"] == "admin" else rule(values, seed)  # noqa: E731
    one_rate = len(AXES["model.placement"]) * 2
    made = write_study(
        tmp_path / "slow", AXES, slow, seeds=(2,), base=BASE, curves=False, ended=lambda i: i < one_rate + 20
    )
    found = found_in(read_study(made))
    said = {(one.who, one.condition["model.layers"]): one.stable_said() for one in found.chosen}
    assert (said["admin", 2], said["post-ln", 2], said["pre-ln", 2]) == ("undecided", "none", "≥ 0.008")
    assert "finish with every seed at the highest rate tried, 0.008 at 2 layers" in headline(read_study(made), found)


def table(report: StudyReport, name: str) -> list[Row]:
    with (report.page.parent / "tables" / f"{name}.csv").open() as file:
        rows = list(csv.reader(file))
    return [dict(zip(map(str, range(len(line))), line, strict=True)) for line in rows[1:]]


def test_the_map_is_the_rule(folder: Path, report: StudyReport) -> None:
    found = found_in(read_study(folder))
    for one in found.chosen:
        deep = one.condition["model.layers"] == 4
        want = None if deep and one.who == "deepnorm" else HIGHEST.get(one.who, 3.2e-2)
        assert one.stable_rate == want and one.tried == (2e-3, 8e-3, 3.2e-2)
        assert one.stable_said() == ("none" if want is None else "≥ 0.032" if want == 3.2e-2 else f"{want:g}")
    rows = {row["0"]: row for row in table(report, "stable-rates")}
    assert list(rows)[-3:] == ["deepnorm", "admin", "post-ln"] and len(rows) == len(AXES["model.placement"])
    assert (rows["admin"]["1"], rows["admin"]["2"], rows["admin"]["4"]) == ("0.002", "0.002", "3")
    assert rows["deepnorm"]["5"] == "none" and rows["mhc"]["5"] == "not run"
    assert (report.page.parent / "stable-rates.svg").exists()


def test_the_headline_says_the_size(report: StudyReport) -> None:
    many = len(AXES["model.placement"]) - len(HIGHEST)
    said = report.summary[0]
    assert f"in models of width 8, 40 updates, {many} of {many + 3} placements finish with every seed" in said
    assert "0.032 at 2 layers" in said
    page = checked(report.page)
    assert "not run" in page.text and "Loss at the best rate: 2 layers" in page.text
    for name in ("losses", "learning-rates", "against"):  # fourteen lines in a panel
        assert not (report.page.parent / f"{name}.svg").exists()


def test_costs_stand_beside_the_reference(report: StudyReport) -> None:
    rows = {(row["0"], row["1"]): row for row in table(report, "cost")}
    slow = rows["mhc", "2 layers"]
    assert slow["2"] == "0.0060 (0.0060 to 0.0060)" and slow["3"] == "3.00"
    assert rows["pre-ln", "2 layers"]["3"] == "1.00" and ("mhc", "4 layers") not in rows


def test_few_placements_keep_their_curves(tmp_path: Path) -> None:
    """The negative control: twelve can be told apart."""
    few = {**AXES, "model.placement": AXES["model.placement"][:12], "model.layers": [2]}
    made = write_study_report(write_study(tmp_path / "few", few, rule, seeds=(1,), base=BASE, curves=False))
    assert (made.page.parent / "learning-rates.svg").exists()
    assert not (made.page.parent / "stable-rates.svg").exists() and "in models of" not in made.summary[0]


def test_a_recipe_of_several_grids_comes_back(tmp_path: Path) -> None:
    also = [{"model.layers": [3, 4], "model.placement": ["pre-ln"]}]
    axes = {"training.lr": [3e-3, 1e-3], "model.layers": [2], "model.placement": ["post-ln", "pre-ln"]}
    planned = study(tmp_path, axes=axes, also=also)
    write_plan(planned, tmp_path / "folder", 1)
    text = recipe(read_study(tmp_path / "folder"))
    assert yaml.safe_load(text)["also"] == also
    (tmp_path / "again.yaml").write_text(text)
    assert load_study(tmp_path / "again.yaml").cells == planned.cells

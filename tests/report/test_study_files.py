"""Folders of studies that were copied in part, cut off, or written over: reported, skipped, nothing lost."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isograd.lab.report.study.arms import design_of, study_arms
from isograd.lab.report.study.files import StudyFiles, read_study
from isograd.lab.report.study.page import progress, write_study_report
from tests.report.study_written import BASE, Row, write_study
from tests.report.test_page import checked
from tests.study.arms import refused

SMALL: Row = {**BASE, "model": {**BASE["model"], "layers": 2}}
AXES: Row = {"model.placement": ["post-ln", "pre-ln"], "training.lr": [1e-3, 3e-3]}
Edit = Callable[[Path, list[str]], None]  # of a folder, and the names of its cells in the order of the plan


def rule(values: Row, seed: int) -> float | str:
    return "collapsed" if values == {"model.placement": "post-ln", "training.lr": 3e-3} else 2.0 + 0.01 * seed


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path / "study", AXES, rule, base=SMALL, curves=False)


def names(folder: Path) -> list[str]:
    return [cell["cell"] for cell in json.loads((folder / "study.json").read_text())["cells"]]


def ends(study: StudyFiles) -> dict[str, tuple[str, float | None]]:
    return {cell.name: (cell.how, cell.number("validation_loss")) for cell in study.cells}


def cut_row(folder: Path, cells: list[str]) -> None:
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    lines[2] = lines[2][:40]
    lines[4] = '{"cell": 5}'
    lines[6] = lines[6].replace('"finished"', '"splendid"')
    (folder / "ledger.jsonl").write_text("\n".join(lines))


def half_written(folder: Path, cells: list[str]) -> None:
    path = folder / "cells" / cells[1] / "outcome.json"
    path.write_text(path.read_text()[:30])


def no_folder(folder: Path, cells: list[str]) -> None:
    shutil.rmtree(folder / "cells" / cells[3])


def no_cells(folder: Path, cells: list[str]) -> None:
    shutil.rmtree(folder / "cells")


def no_ledger(folder: Path, cells: list[str]) -> None:
    (folder / "ledger.jsonl").unlink()


def no_plan(folder: Path, cells: list[str]) -> None:
    (folder / "study.json").write_text('{"name": "stu')


def strange_rows(folder: Path, cells: list[str]) -> None:
    """Of a recipe that was changed since."""
    ledger = folder / "ledger.jsonl"
    row = json.loads(ledger.read_text().splitlines()[0])
    ledger.write_text(ledger.read_text() + "".join(json.dumps(row | {"cell": f"x{i}"}) + "\n" for i in range(3)))


def strange_cell(folder: Path, cells: list[str]) -> None:
    shutil.copytree(folder / "cells" / cells[0], folder / "cells" / "of-another-plan")


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (cut_row, ["ledger.jsonl, line 3: not JSON", "line 5: no row of a cell", 'outcome is "splendid"']),
        (half_written, ["outcome.json: not JSON; its numbers are the ledger’s"]),
        (no_folder, ["not there; its numbers are the ledger’s"]),
        (no_cells, [" and 11 others: not there; their numbers are the ledger’s"]),
        (no_ledger, []),
        (strange_rows, ["ledger.jsonl: x0 and 2 others are not in the plan"]),
        (strange_cell, ["of-another-plan is not in the plan"]),
    ],
)
def test_what_is_broken_is_told_and_nothing_else_lost(study: Path, edit: Edit, told: list[str]) -> None:
    whole = ends(read_study(study))
    edit(study, names(study))
    found = read_study(study)
    assert ends(found) == whole
    assert len(found.left_out) == len(told)
    assert all(any(line in one for one in found.left_out) for line in told), found.left_out


def test_what_is_in_neither_is_one_cell_less(study: Path) -> None:
    """Negative control: a cell without a row and with half a file is left out, and the other eleven are there."""
    whole, cells = ends(read_study(study)), names(study)
    half_written(study, cells)
    no_ledger(study, cells)
    found = read_study(study)
    assert {name: end for name, end in ends(found).items() if name != cells[1]} == {
        name: end for name, end in whole.items() if name != cells[1]
    }
    assert ends(found)[cells[1]] == ("not ended", None)
    report = write_study_report(study)
    page = checked(report.page)
    assert (
        "11 of 12 cells have ended" in page.text and "Left out" in page.text and "outcome.json: not JSON" in page.text
    )
    assert report.results["left_out"] == report.left_out == found.left_out


def test_files_before_the_ledger(study: Path) -> None:
    """The ledger is derived from the cells: where they differ it is stale."""
    path = study / "cells" / names(study)[0] / "outcome.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"validation_loss": 1.25}))
    assert ends(read_study(study))[names(study)[0]] == ("finished", 1.25)


def test_a_cell_that_failed_or_goes_on(study: Path) -> None:
    """A machine's failure counts as no outcome of a placement; a folder without an end is a cell under way."""
    cells = names(study)
    (study / "cells" / cells[0] / "outcome.json").unlink()
    rows = [json.loads(line) for line in (study / "ledger.jsonl").read_text().splitlines()]
    rows[0] |= {"outcome": "failed", "error": "no memory", "validation_loss": None, "final_loss": None}
    shutil.rmtree(study / "cells" / cells[4])
    (study / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows if row["cell"] != cells[4]))
    found = read_study(study)
    assert (ends(found)[cells[0]][0], ends(found)[cells[4]][0], found.left_out) == ("failed", "not ended", [])
    assert progress(found) == "11 of 12 cells have ended (3 seeds): 7 finished, 3 collapsed, 1 failed"
    arms = {arm.label: list(arm.losses) for arm in study_arms(found, design_of(found))}
    assert arms["post-ln, LR 0.001"] == [3] and arms["pre-ln, LR 0.001"] == [1, 2, 3]


@pytest.mark.slow
def test_the_ledger_alone_has_the_tables(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", AXES, rule, base=SMALL)
    whole = write_study_report(study, tmp_path / "whole")
    no_cells(study, [])
    copied = write_study_report(study, tmp_path / "copied")
    assert copied.table == whole.table and copied.results["comparisons"] == whole.results["comparisons"]
    assert "part-losses" in checked(whole.page).ids and "part-losses" not in checked(copied.page).ids


@pytest.mark.slow
def test_in_a_terminal(study: Path) -> None:
    cut_row(study, [])
    done = _isograd("report", str(study))
    assert done.returncode == 0 and "post-ln" in done.stdout and "report: " in done.stdout
    assert "left out: " in done.stderr and done.stderr.count("\n") == 3
    done = _isograd("report", str(study), "--json", "--reference", "post-ln")
    content = json.loads(done.stdout)
    assert {one["reference"] for one in content["comparisons"]} == {"post-ln, LR 0.001"}
    assert len(content["cells"]) == 12 and len(content["left_out"]) == 3


def test_one_line_where_nothing_can_be_read(study: Path) -> None:
    assert "post-ln; pre-ln" in refused("report", str(study), "--reference", "deepnorm")
    no_plan(study, [])
    assert "not what isograd study writes" in refused("report", str(study))


def _isograd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "isograd", *arguments], capture_output=True, text=True)

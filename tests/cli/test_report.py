"""`isograd report`: which folders it reads, what it writes, and what it says of those it cannot read."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.report.runs import find_runs, readable
from isograd.lab.study.faults import fault
from isograd.placement import CATALOGUE
from tests.report.test_page import checked, edit
from tests.study.arms import called, compare_command, read, refused, runs

Edit = Callable[[Path], Any]


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two placements, against the catalogue's order, and nothing but their run folders."""
    out = tmp_path_factory.mktemp("trained")
    assert called(*compare_command(text, out, "--placements", "pre-ln", "post-ln", "--jobs", "1"))[0] == 0
    for path in out.iterdir():
        path.unlink() if path.is_file() else shutil.rmtree(path / "model")
    return out


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "study"))


def test_what_is_written(study: Path) -> None:
    code, out, err = called("report", str(study), "--title", "Two of them")
    assert (code, err) == (0, "2 runs: making the page\n")
    report = study / "report"
    page = checked(report / "report.html")
    assert "Two of them" in page.text and str(report / "report.html") in out
    names = {path.stem for path in report.glob("*.svg")}
    assert names == {"loss", "gradients", "histories", "ratio", "residual", "dependency"}
    assert all((report / f"{name}.png").read_bytes()[:4] == b"\x89PNG" for name in names)
    assert all(f"{name}.svg" in page.text for name in names)
    results = read(report / "results.json")
    assert [row["placement"] for row in results] == ["post-ln", "pre-ln"] and (report / "results.csv").exists()
    assert [line.split(",")[0] for line in out.splitlines()[1:3]] == ["post-ln", "pre-ln"]


@pytest.mark.slow
def test_written_elsewhere_and_read_again(study: Path, tmp_path: Path) -> None:
    """A report is no run: a second one reads the same."""
    assert called("report", str(study))[0] == 0
    out = tmp_path / "some" / "where"
    assert called("report", str(study), "--out", str(out))[0] == 0
    assert (out / "report.html").read_bytes() == (study / "report" / "report.html").read_bytes()


def test_json(study: Path) -> None:
    code, out, _ = called("report", str(study), "--json")
    content = json.loads(out)
    assert code == 0 and content["left_out"] == []
    (one,) = content["reports"]
    assert one["runs"] == read(study / "report" / "results.json") and Path(one["report"]).exists()


@pytest.mark.slow
def test_one_run(study: Path) -> None:
    run = runs(study)[0]
    assert called("report", str(run))[0] == 0
    assert len(read(run / "report" / "results.json")) == 1
    assert find_runs([run]) == [run]


def test_which_folders(study: Path, tmp_path: Path) -> None:
    """Each once, those named in their order, those found in the catalogue's; linked ones too."""
    post, pre = sorted(runs(study), key=lambda p: list(CATALOGUE).index(read(p / "run.json")["model"]["placement"]))
    assert find_runs([study]) == [post, pre]
    assert find_runs([pre, study, post]) == [pre, post]
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to(pre)
    assert find_runs([tmp_path / "links"]) == [tmp_path / "links" / "one"]
    assert find_runs([tmp_path]) == find_runs([tmp_path / "links", study])[::-1]


def test_no_torch(study: Path) -> None:
    code = (
        f"import sys; from isograd.cli import main; assert main(['report', {str(study)!r}]) == 0\n"
        "assert not {'torch', 'transformers', 'accelerate'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_two_tasks_two_pages(study: Path) -> None:
    """Losses of different tasks are not put into one table."""
    run = runs(study)[0]
    edit(run / "run.json", task="masked")
    code, out, _ = called("report", str(study), "--json")
    assert code == 0
    pages = [Path(one["report"]) for one in json.loads(out)["reports"]]
    assert {page.parent.name for page in pages} == {"language", "masked"}
    assert all(len(checked(page).text) and len(read(page.with_name("results.json"))) == 1 for page in pages)


def test_nothing_to_report_on(study: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no folder with a run.json" in refused("report", str(tmp_path / "empty"))
    assert "is not there" in refused("report", str(tmp_path / "nowhere"))
    assert "is not a folder" in refused("report", str(runs(study)[0] / "run.json"))
    assert refused("report", str(study), "--out", str(runs(study)[0] / "run.json"))
    assert not (tmp_path / "empty" / "report").exists()


def cut(name: str) -> Edit:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-30])


def holding(name: str, content: str | bytes) -> Edit:
    return lambda run: (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def without(name: str, *keys: str) -> Edit:
    def change(run: Path) -> None:
        content = read(run / name)
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        (run / name).write_text(json.dumps(content))

    return change


FAULTS: dict[str, tuple[Edit, str]] = {
    "no recipe": (lambda run: (run / "run.json").unlink(), "run.json is missing beside the other files"),
    "half a recipe": (cut("run.json"), "run.json: not JSON"),
    "an empty recipe": (holding("run.json", ""), "run.json: not JSON"),
    "a recipe that is a list": (holding("run.json", "[1, 2]"), "run.json: not a JSON object"),
    "no seed": (without("run.json", "seed"), "run.json: no seed"),
    "no model": (without("run.json", "model"), "run.json: no model.placement"),
    "no placement": (without("run.json", "model", "placement"), "run.json: no model.placement"),
    "no rate": (without("run.json", "training", "lr"), "run.json: no training.lr"),
    "a section that is none": (lambda run: edit(run / "run.json", training=3), "run.json: no training.lr"),
    "a task of another time": (lambda run: edit(run / "run.json", task="vision"), 'run.json: task is "vision"'),
    "an outcome that is none": (lambda run: edit(run / "outcome.json", outcome="fine"), 'outcome is "fine"'),
    "data that is a list": (lambda run: edit(run / "resolved.json", data=[1]), "resolved.json: data is [1]"),
    "bytes": (holding("resolved.json", b"\xff\xfe{}"), "resolved.json: not JSON"),
    "no outcome": (without("outcome.json", "outcome"), "outcome.json: no outcome"),
    "a word for a number": (lambda run: edit(run / "outcome.json", final_loss="low"), 'final_loss is "low"'),
    "a broken row": (holding("metrics.jsonl", '{"step": 1, "lo\n{"step": 2, "loss": 1.0}\n'), "line 1: not JSON"),
    "a row without a step": (holding("quantities.jsonl", '{"loss": 1.0}\n'), "line 1: no step"),
    "a loss that is a word": (holding("metrics.jsonl", '{"step": 1, "loss": "x"}\n'), "line 1: loss is no number"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), FAULTS.values(), ids=FAULTS)
def test_a_run_that_cannot_be_read(study: Path, change: Edit, said: str) -> None:
    """It is named, in a line of its own."""
    first, second = find_runs([study])
    change(first)
    faulty = fault(first)
    assert faulty is not None and said in faulty and str(first) in faulty and "\n" not in faulty
    assert readable([first, second]) == ([second], [faulty])


def test_the_others_are_reported_on(study: Path) -> None:
    first, _ = find_runs([study])
    cut("run.json")(first)
    assert called("report", str(study))[::2] == (
        0,
        f"1 run: making the page\nisograd report: left out: {fault(first)}\n",
    )
    assert [row["arm"] for row in read(study / "report" / "results.json")] == ["pre-ln, no warm-up"]


def test_only_runs_that_cannot_be_read(study: Path) -> None:
    for run in runs(study):
        (run / "run.json").write_text("{")
    code, out, err = called("report", str(study))
    assert (code, out) == (2, "") and err.count("left out: ") == 2
    assert "none of 2 can be read" in err.splitlines()[-1] and not (study / "report").exists()
    first, _ = find_runs([study])
    assert called("report", str(first)) == (2, "", f"isograd report: {fault(first)}\n")  # one run, one line


def killed(run: Path) -> None:
    (run / "outcome.json").unlink()
    cut("metrics.jsonl")(run)
    cut("quantities.jsonl")(run)


@pytest.mark.slow
def test_what_a_kill_leaves_is_no_fault(study: Path) -> None:
    for run in runs(study):
        killed(run)
        assert fault(run) is None
    assert called("report", str(study))[0] == 0
    checked(study / "report" / "report.html")


@pytest.mark.slow
def test_files_of_a_study_beside_its_runs(study: Path) -> None:
    """The reports of `compare` lie beside the run folders and are no faults."""
    for name in ("report.html", "results.json", "loss.svg"):
        (study / name).write_text("{}")
    (study / ".hidden").mkdir()
    (study / ".hidden" / "run.json").write_text("{")
    assert called("report", str(study))[::2] == (0, "2 runs: making the page\n")

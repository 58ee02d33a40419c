"""`isograd study`: what it prints and writes, what it refuses, and its exit codes."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from isograd.lab.cli.progress import StudyProgress
from isograd.lab.study.plan import Study, load_study
from tests.build import few
from tests.study.arms import TEXT, called, lines, read, refused
from tests.study.test_runner import whole
from tests.study.tiny_study import recipe, study

AXES = {"model.placement": ["post-ln", "pre-ln"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and a recipe of four cells on it."""
    base = tmp_path_factory.mktemp("cli")
    (base / "text.txt").write_text(TEXT)
    recipe(base, text=base / "text.txt", axes=AXES, budget={"steps": 12})
    return base


@pytest.fixture(scope="module")
def told(base: Path) -> tuple[dict[str, Any], str]:
    """A whole study, trained in another process: what it said on stdout and stderr."""
    code, out, err = called(*command(base, base / "study", "--json", "--jobs", "1"))
    assert code == 0, err
    return json.loads(out), err


@pytest.fixture
def folder(base: Path, told: object, tmp_path: Path) -> Path:
    """A copy of the study that has ended."""
    return Path(shutil.copytree(base / "study", tmp_path / "study"))


def command(base: Path, out: Path, *more: str) -> list[str]:
    return ["study", str(base / "recipe.yaml"), "--out", str(out), *more]


def cell(base: Path, folder: Path, i: int = 0) -> Path:
    return folder / "cells" / load_study(base / "recipe.yaml").cells[i].name


def test_one_object_on_stdout(base: Path, told: tuple[dict[str, Any], str]) -> None:
    content, _ = told
    assert list(content) == ["rows", "cells", "report"] and content["cells"] == 4
    planned = load_study(base / "recipe.yaml")
    assert [row["cell"] for row in content["rows"]] == [one.name for one in planned.cells]
    assert content["rows"] == lines(base / "study/ledger.jsonl")
    assert Path(content["report"]) == base / "study/report/report.html" and Path(content["report"]).exists()
    assert [one["cell"] for one in read(base / "study/study.json")["cells"]] == [one.name for one in planned.cells]


def test_a_line_per_cell_where_there_is_no_terminal(told: tuple[dict[str, Any], str]) -> None:
    content, err = told
    ended = [line for line in err.splitlines() if line.startswith("[")]
    assert sorted(line[:5] for line in ended) == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    for row in content["rows"]:
        named = f"{row['values']['model.placement']}, seed {row['seed']}"
        said = f"{named}: {row['outcome']}, loss {row['validation_loss']:.3f}"
        assert any(said in line for line in ended), said
    assert not any("left" in line for line in ended[-1:])
    assert "\x1b" not in err
    announced, ready = err.splitlines()[:2]  # before minutes of silence
    assert announced.startswith("4 runs in ") and announced.endswith("; loading torch and transformers ..."), err
    assert ready == "4 runs to train"


def test_again_it_has_nothing_to_do(base: Path, told: tuple[dict[str, Any], str], folder: Path) -> None:
    before = whole(folder / "cells")
    code, out, err = called(*command(base, folder, "--json"))
    assert code == 0 and len(err.splitlines()) == 1 and ", 4 ended before; loading torch" in err, err
    assert json.loads(out)["rows"] == told[0]["rows"]
    assert whole(folder / "cells") == before
    code, out, err = called(*command(base, folder))
    assert code == 0 and "post-ln" in out and str(folder / "report/report.html") in out.replace("\n", "")


def test_a_dry_run_writes_speeds_and_nothing_else(base: Path, tmp_path: Path) -> None:
    """It lists the cells with the time that each will take."""
    new = tmp_path / "new"
    planned = load_study(base / "recipe.yaml")
    code, out, err = called(*command(base, new, "--dry-run", "--json", "--jobs", "1"))
    assert (code, err) == (0, "")
    assert [path.name for path in new.rglob("*")] == ["speeds.json"]
    content = json.loads(out)
    assert list(content) == ["cells", "left", "seconds", "seconds_left"]
    assert [one["cell"] for one in content["cells"]] == [one.name for one in planned.cells]
    assert [one["values"] for one in content["cells"]] == [one.values for one in planned.cells]
    assert [one["seed"] for one in content["cells"]] == [1, 1, 2, 2] and content["left"] == 4
    each = [one["seconds"] for one in content["cells"]]
    assert min(each) > 0 and content["seconds"] == pytest.approx(sum(each)) == pytest.approx(content["seconds_left"])
    before = whole(new)
    code, out, err = called(*command(base, new, "--dry-run", "--jobs", "2"))
    assert (code, err) == (0, "") and whole(new) == before
    assert all(one.name in out for one in planned.cells) and "ended" not in out
    assert "4 cells of 12 updates, 2 at once: about " in out and str(new) in out
    half = json.loads(called(*command(base, new, "--dry-run", "--json", "--jobs", "1", "--shard", "1/2"))[1])
    assert [one["cell"] for one in half["cells"]] == [one.name for one in planned.cells[1::2]]


def test_a_dry_run_of_what_has_begun(base: Path, folder: Path) -> None:
    """Speeds are those of the cells that have ended; nothing is measured, nothing is written."""
    shutil.rmtree(cell(base, folder, 3))
    before = whole(folder)
    code, out, err = called(*command(base, folder, "--dry-run"))
    assert (code, err, whole(folder)) == (0, "", before)
    rows = out.splitlines()
    assert [row.split()[-1] == "ended" for row in rows[1:5]] == [True, True, True, False]
    assert "; 1 left, about " in rows[-1]


def test_failed_cells_end_with_1(base: Path, folder: Path) -> None:
    path = cell(base, folder, 1) / "outcome.json"
    path.write_text('{"outcome": "failed", "error": "out of [memory]"}')
    code, out, err = called(*command(base, folder, "--json"))
    assert code == 1 and [row["outcome"] == "failed" for row in json.loads(out)["rows"]] == [False, True, False, False]
    assert f"isograd study: {path.parent.name} failed: out of [memory]" in err.splitlines()
    assert err.splitlines()[-1] == "isograd study: --retry trains failed and broken cells once more"


def test_broken_cells_end_with_1(base: Path, folder: Path) -> None:
    path = cell(base, folder, 1) / "outcome.json"
    path.write_text('{"outcome": "fini')
    code, out, err = called(*command(base, folder, "--json"))
    assert code == 1 and len(json.loads(out)["rows"]) == 3
    assert f"note: {path}: not JSON" in err.splitlines()
    assert err.splitlines()[-1] == "isograd study: --retry trains failed and broken cells once more"
    code, out, err = called(*command(base, folder, "--json", "--shard", "0/2"))
    assert code == 0 and len(json.loads(out)["rows"]) == 2 and json.loads(out)["report"] is None
    assert called(*command(base, folder, "--shard", "1/2"))[0] == 1


@pytest.mark.parametrize("shard", few(["2/2", "3/2", "-1/2", "1", "1/0", "a/b", "0/-1", "1/2/3", "0.5/2", ""], 3))
def test_wrong_shards(base: Path, tmp_path: Path, shard: str) -> None:
    said = refused(*command(base, tmp_path / "new"), f"--shard={shard}")
    assert "--shard" in said and "I/N" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--jobs", "0"], "argument --jobs: expected a whole number of at least 1"),
        (["--threads", "-2"], "argument --threads: expected a whole number of at least 1"),
        (["--address", "auto"], "--address is of a Ray cluster; add --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "--jobs is for the local engine"),
        (["--engine", "slurm"], "slurm"),
        (["training.lrr=1"], "did you mean 'training.lr'"),
        (["budget.steps=0"], "must be a number above 0"),
        (["model.placement=[post-lm]"], "post-lm"),
        (["model.heads=3"], "heads"),
        (["data.source=/nowhere/text.txt"], "/nowhere/text.txt"),
        (["--retyr"], "--retyr"),
    ],
)
def test_wrong_use(base: Path, tmp_path: Path, more: list[str], message: str) -> None:
    """One line, and nothing is written."""
    assert message in refused(*command(base, tmp_path / "new", *more))
    assert not (tmp_path / "new").exists()


def test_wrong_files(base: Path, folder: Path, tmp_path: Path) -> None:
    assert "no such recipe" in refused("study", str(tmp_path / "none.yaml"))
    (tmp_path / "list.yaml").write_text("[1]")
    assert "expected keys and values" in refused("study", str(tmp_path / "list.yaml"))
    (tmp_path / "file").write_text("")
    assert "file" in refused(*command(base, tmp_path / "file"))
    assert (tmp_path / "file").read_text() == ""


def test_another_text_is_refused(base: Path, folder: Path, tmp_path: Path) -> None:
    text = base / "text.txt"
    before = whole(folder)
    text.write_text(TEXT.replace("wolf", "bear"))
    try:
        assert "holds a run on another text" in refused(*command(base, folder))
    finally:
        text.write_text(TEXT)
    assert whole(folder) == before


MANY: dict[str, Any] = {
    "model.placement": ["post-ln", "pre-ln", "normformer", "admin", "deepnorm", "gpt2"],
    "training.warmup": [0, 1, 2, 3, 4],
    "training.lr": [1e-3, 3e-3],
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study of thirty rows of the table."""
    return study(tmp_path_factory.mktemp("many"), axes=MANY)


def progress(many: Study, height: int, width: int, live: bool = True) -> StudyProgress:
    console = Console(file=io.StringIO(), force_terminal=live, height=height, width=width, color_system=None)
    shown = StudyProgress(many.cells, list(many.axes), console)
    return shown


def drawn(of: StudyProgress) -> list[str]:
    rendered = of.console.render_lines(of.table(), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in rendered]


def test_what_the_table_shows(many: Study) -> None:
    shown = progress(many, 60, 120)
    shown.step(3, 4, 2.71828)
    lines_now = drawn(shown)
    assert lines_now[1].strip() == "▶ post-ln, warm-up 1, lr 0.003, seed 1: step 4/6, loss 2.718"
    assert "▶ running" in lines_now[2]
    assert lines_now[3].split() == ["placement", "warmup", "lr", "0.001", "0.003"]
    assert lines_now[4].split() == ["post-ln", "0", "··", "··"]
    assert lines_now[5].split() == ["post-ln", "1", "··", "▶·"]
    assert len(lines_now) == 4 + 30
    shown.row(3, {"outcome": "diverged", "cell": "x", "steps": 4})
    assert drawn(shown)[4].split() == ["post-ln", "1", "··", "✗·"]
    assert "1/120" in drawn(shown)[0]


def test_a_live_table_in_a_terminal(many: Study) -> None:
    """What is written never moves the cursor up by more lines than there are."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, height=12, width=80, color_system=None)
    with StudyProgress(many.cells, list(many.axes), console) as shown:
        for place in range(40):
            shown.step(place, 3, 2.0)
            if place % 3:
                shown.row(place, {"outcome": "finished", "cell": many.cells[place].name, "validation_loss": 2.0})
        shown.note("a line of its own [with brackets]")
    written = file.getvalue()
    assert "note: a line of its own [with brackets]" in written and "post-ln" in written
    frames = written.split("\x1b[2K")
    assert len(frames) > 1
    ups = max(block.count("\x1b[1A") for block in written.split("runs "))
    assert 0 < ups < 12


def test_lines_of_a_pipe(many: Study) -> None:
    shown = progress(many, 24, 80, live=False)
    name = many.cells[1].name
    shown.row(0, {"outcome": "finished", "cell": many.cells[0].name, "validation_loss": 2.0})  # of before: not said
    shown.step(1, 3, 2.5)
    shown.row(1, {"outcome": "diverged", "cell": name, "final_loss": None})
    shown.row(2, {"outcome": "failed", "cell": many.cells[2].name, "error": "no [such] file"})
    said = shown.console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert said[0].startswith("[2/120] post-ln, warm-up 0, lr 0.003, seed 1: diverged, about ")
    assert said[1].startswith("[3/120] post-ln, warm-up 1, lr 0.001, seed 1: failed: no [such] file")
    assert len(said) == 2

"""`isograd evaluate`: a grid over seeds, its table, its sentence; what is wrong in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from isograd.lab.data.glue import load_glue
from tests.study.arms import called, read, refused, runs
from tests.train.tuned import glue_folder, pretrained

SMALL = ["--epochs", "1", "--batch", "8", "--jobs", "1", "training.precision=fp32"]


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pretrained(tmp_path_factory.mktemp("pretrained"))


@pytest.fixture(scope="module", name="grid")
def _grid(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that has run: two rates, pre-trained and from scratch, two seeds."""
    out = tmp_path_factory.mktemp("grid")
    command = [*evaluate(model, out), "--lr", "1e-3", "1e-2", "--seeds", "1", "2", "--with-scratch"]
    code, _, err = called(*command)
    assert code == 0 and err.count("accuracy") == 8
    return command


def evaluate(model: str, out: Path, task: str = "mrpc") -> list[str]:
    command = ["evaluate", model, "--task", task, "--data", str(glue_folder())]
    return [*command, *SMALL, "--out", str(out)]


def as_json(command: list[str]) -> dict[str, Any]:
    code, out, _ = called(*command, "--json")
    assert code == 0
    return json.loads(out)


def test_the_grid(grid: list[str]) -> None:
    """Eight runs, each with the weights, rate and seed that its name says; all else as the first one."""
    folders = runs(Path(grid[grid.index("--out") + 1]))
    found = [read(folder / "run.json") for folder in folders]
    points = {(run["glue"]["scratch"], run["training"]["lr"], run["seed"]) for run in found}
    assert points == {(scratch, lr, seed) for scratch in (False, True) for lr in (1e-3, 1e-2) for seed in (1, 2)}
    for run in found:
        same = run["glue"] | {"scratch": None}, run["training"] | {"lr": None}
        assert same == (found[0]["glue"] | {"scratch": None}, found[0]["training"] | {"lr": None})
    assert (found[0]["glue"]["length"], found[0]["model"]["placement"]) == (24, "pre-ln")
    assert not any((folder / "model").exists() for folder in folders)


def test_what_has_ended_is_not_trained_again(grid: list[str]) -> None:
    out = Path(grid[grid.index("--out") + 1])
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/outcome.json")}
    told = as_json(grid)
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/outcome.json")} == before and len(before) == 8
    gone = sorted(before)[0].parent
    shutil.rmtree(gone)
    again = as_json(grid)
    assert _without_times(again) == _without_times(told)
    assert sum(path.stat().st_mtime_ns != before[path] for path in before) == 1


def _without_times(told: dict[str, Any]) -> dict[str, Any]:
    for run in told["runs"]:
        run.pop("tokens_per_second")
    return told


def test_everything_as_json(grid: list[str]) -> None:
    told = as_json(grid)
    assert [arm["arm"] for arm in told["arms"]] == [
        "pre-trained, lr 0.001", "pre-trained, lr 0.01", "from scratch, lr 0.001", "from scratch, lr 0.01"
    ]  # fmt: skip
    first = [run for run in told["runs"] if run["arm"] == "pre-trained, lr 0.001"]
    scores = [run["score"] for run in first]
    arm = told["arms"][0]
    assert (arm["n"], arm["lowest"], arm["highest"]) == (2, min(scores), max(scores))
    assert arm["median"] == pytest.approx(sum(scores) / 2) and arm["interval"] is None
    assert arm["failed"] == sum(run["failed"] for run in first) / 2
    assert {"glue", "scratch", "batch", "epochs", "metric", "majority", "scores"} <= set(first[0])
    assert (first[0]["layers"], first[0]["epochs"], first[0]["warmup"]) == (None, 1, 0.06)
    said, why = told["findings"]
    assert said.startswith("Too few seeds to compare with from scratch, lr 0.001: pre-trained") and "2 seeds" in said
    assert why == "An exact test of 2 seeds cannot give p below 0.5, whatever the difference: it takes 6 seeds."
    assert Path(told["report"]).is_file()


def test_the_table(grid: list[str]) -> None:
    """The majority-class baseline stands beside the scores, of dev and of test."""
    code, out, _ = called(*grid)
    assert code == 0
    data = load_glue("mrpc", glue_folder())
    assert data.test
    line = [sum(part.labels) / len(part) for part in (data.dev, data.test)]
    rows = [row for row in out.splitlines() if row.startswith(("pre-trained, lr", "from scratch, lr"))]
    assert len(rows) == 4 and all("{:.3f} (test {:.3f})".format(*line) in row for row in rows)
    assert "too few seeds" in out.lower() and "report: " in out


def test_training_one_says_its_score(model: str, tmp_path: Path) -> None:
    recipe = tmp_path / "one.yaml"
    recipe.write_text(
        f"task: classification\nglue: {{task: sts-b, source: '{glue_folder()}', model: '{model}', length: 24}}\n"
        "training: {steps: 100, epochs: 1, batch: 8, probe_every: 0}\n"
    )
    code, out, err = called("train", str(recipe), "--out", str(tmp_path / "run"))
    assert code == 0 and "(majority-class baseline 0.0000)" in out and "pearson" in out
    assert "step 5 (epoch 1.0): validation loss" in err and "spearman" in err


def test_wrong_use_in_one_line(model: str, tmp_path: Path) -> None:
    command = evaluate(model, tmp_path / "out")
    assert "--grid paper says what --batch says" in refused(*command, "--grid", "paper")
    assert "write --lr here" in refused(*command, "training.lr=1")
    assert "training.batch=8 does not divide" in refused(*command, "training.accumulation=3")
    assert "invalid choice: 'wnli'" in refused(*evaluate(model, tmp_path / "out", "wnli"))
    assert "unknown key 'glue.lenght'; did you mean 'glue.length'?" in refused(*command, "glue.lenght=3")
    assert "/nothing: no such folder" in refused(*evaluate("/nothing", tmp_path / "out"))
    assert "must be finite and above 0" in refused(*command, "--lr", "0")
    assert not (tmp_path / "out").exists()


def test_bad_data_in_one_line(model: str, tmp_path: Path) -> None:
    def says(*words: str) -> str:
        command = ["evaluate", model, "--task", "rte", *SMALL, "--out", str(tmp_path / "out")]
        return refused(*command, "--data", *words)

    assert "no such folder" in says(str(tmp_path / "nothing"))
    folder = tmp_path / "RTE"
    folder.mkdir()
    (folder / "train.tsv").write_text("sentence1\tsentence2\tlabl\na\tb\tentailment\n")
    assert "no column 'label'; found 'sentence1', 'sentence2', 'labl'" in says(str(folder))
    (folder / "train.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tentails\n")
    assert "line 2: label 'entails' is unknown; known are entailment (0), not_entailment (1)" in says(str(folder))
    assert not (tmp_path / "out").exists()


def test_the_papers_grid() -> None:
    """2 batches x 4 rates x 3 numbers of epochs, six seeds: the ranges of Xiong et al. 2020."""
    from isograd.lab.study.compare import PAPER, PAPER_SEEDS

    rates, batches, epochs = PAPER.values()
    assert (min(rates), max(rates), list(batches)) == (1e-5, 1e-4, [16, 32])
    assert (min(epochs), max(epochs), len(PAPER_SEEDS)) == (3, 8, 6)


@pytest.mark.slow
def test_a_comparison_of_fine_tunings(model: str, tmp_path: Path) -> None:
    """A recipe with arms: the same table by `isograd compare`, and a page."""
    recipe = tmp_path / "arms.yaml"
    recipe.write_text(
        f"task: classification\nglue: {{source: '{glue_folder()}', model: '{model}', length: 24}}\n"
        "training: {steps: 100, epochs: 1, batch: 8, probe_every: 0}\n"
        "arms: [[pre-ln], [pre-ln, glue.scratch=true]]\n"
    )
    command = ["compare", str(recipe), "--jobs", "1", "--out", str(tmp_path / "out")]
    told = as_json(command)
    assert [arm["arm"] for arm in told["arms"]] == ["pre-trained", "from scratch"] and "unigram_entropy" not in told
    code, out, _ = called(*command)
    assert code == 0 and "majority" in out and "too few seeds" in out.lower()
    page = Path(told["report"]).read_text(encoding="utf-8")
    assert "mrpc, fine-tuned from" in page and "majority-class baseline" in page
    assert "set model.placement=pre-ln" in refused(*command, "--arm", "post-ln")

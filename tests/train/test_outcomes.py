"""How a run ends, and what its folder then holds."""

import json
import math
import signal
import statistics
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from isograd.files import append_rows, finite, keep_until, read_rows, write_json
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.tasks.language import load_corpus_of
from isograd.lab.train.train import ended, gradient_ratio, load_task, train
from isograd.models import IsogradForCausalLM
from isograd.placement import Learned, Norm, Placement, Residual, register
from tests.train.recipes import losses, outcome, same_run, small


@pytest.mark.parametrize("task", ["language", "masked"])
def test_the_unigram_loss_is_of_the_same_batches(task: Literal["language", "masked"], tmp_path: Path) -> None:
    """Half of the text is easy, half is not: a step's batch may be of either, and neither is at the entropy."""
    text = tmp_path / "text.txt"
    text.write_text("a" * 4000 + "abcdefghijklmnopqrstuvwxyz" * 154, encoding="utf-8")
    run = run_from_dict(
        {"task": task, "data": {"source": str(text), "length": 8}, "training": {"steps": 9, "batch": 2}}
    )
    of: Any = load_task(run)
    ids = of.corpus.train.tolist()
    for steps in ([3], [8, 9], range(1, 10)):
        hand = []
        for step in steps:
            rows = of.samples.__getitems__([2 * step - 2, 2 * step - 1])
            wanted = rows["shift_labels" if task == "language" else "labels"].flatten().tolist()
            hand.append(statistics.fmean(-math.log(ids.count(i) / len(ids)) for i in wanted if i >= 0))
        assert of.unigram_loss(steps) == pytest.approx(statistics.fmean(hand), abs=1e-12)
    apart = [abs(of.unigram_loss([step]) - of.unigram_entropy) for step in range(1, 10)]
    assert max(apart) > 0.1


def test_a_run_that_ended(tmp_path: Path) -> None:
    run = small(name="mine")
    seen: list[tuple[int, float]] = []
    got = train(run, tmp_path, progress=lambda step, loss: seen.append((step, loss)))
    assert got == outcome(tmp_path) and got["outcome"] == "undecided"  # in six steps it has learned nothing yet
    assert "more steps would tell" in got["reason"] and got["judged"]["needed"] > 6
    rows = losses(tmp_path)
    assert got["final_loss"] == pytest.approx(sum(rows) / len(rows)) and got["steps"] == 6 == len(rows)
    assert seen[-1] == (6, rows[-1])
    assert got["unigram_entropy"] == load_corpus_of(run).unigram_entropy
    assert got["seconds"] > 0 and got["tokens_per_second"] > 0
    assert {"torch", "transformers", "isograd", "python", "device"} <= set(got["provenance"])
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"run.json", "resolved.json", "metrics.jsonl", "quantities.jsonl", "outcome.json", "model"}
    model = IsogradForCausalLM.from_pretrained(tmp_path / "model")
    assert got["parameters"] == sum(p.numel() for p in model.parameters())
    rows = read_rows(tmp_path / "quantities.jsonl")
    assert [r["step"] for r in rows[:: 2 * 2]] == [1, 2, 4, 6]
    assert got["gradient_ratio_start"] == gradient_ratio(rows[:4])
    assert got["gradient_ratio_end"] == gradient_ratio(rows)


def test_an_ended_run_is_not_trained_again(tmp_path: Path) -> None:
    first = train(small(), tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert train(small(), tmp_path) == first
    assert train(small(name="renamed"), tmp_path) == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == times


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    train(small(), tmp_path)
    before = (tmp_path / "run.json").read_text()
    with pytest.raises(FileExistsError, match="holds a run of another recipe"):
        train(small(training={"lr": 0.5}), tmp_path)
    assert (tmp_path / "run.json").read_text() == before
    assert ended(small(), tmp_path) is not None


@pytest.mark.parametrize("cause", ["rate", "placement"])
def test_diverged(cause: str, tmp_path: Path, own_catalogue: None) -> None:
    """It stops within ten steps, says so, and writes no number that is none."""
    register("broken", Placement(each=Residual(pre=Norm(), scale=Learned(init=math.nan)), final=Norm()))
    options: dict[str, Any] = {
        "rate": {"training": {"lr": 1e12, "optimizer": "sgd", "steps": 40, "checkpoint_every": 0}}
    }
    options["placement"] = {"model": {"placement": "broken"}, "training": {"steps": 40, "checkpoint_every": 0}}
    got = train(small(**options[cause]), tmp_path)
    assert (got["outcome"], got["final_loss"], got["validation_loss"]) == ("diverged", None, None)
    assert got["steps"] == 10 == len(losses(tmp_path))
    text = "".join((tmp_path / n).read_text() for n in ("outcome.json", "metrics.jsonl", "quantities.jsonl"))
    assert "NaN" not in text and "Infinity" not in text and "null" in text
    assert train(small(**options[cause]), tmp_path) == got  # a result: not tried again


def test_collapsed(tmp_path: Path) -> None:
    """A head without anything but frequencies: here a constant text, whose entropy the model reaches at once."""
    source = tmp_path / "same.txt"
    source.write_text("a" * 2000)
    run = small(
        data={"source": str(source)}, training={"steps": 320, "lr": 0.05, "probe_every": 0, "checkpoint_every": 0}
    )
    got = train(run, tmp_path / "run")
    assert got["outcome"] == "collapsed" and abs(got["final_loss"] - got["unigram_entropy"]) <= 0.1


def test_failed_is_recorded_and_tried_again(tmp_path: Path) -> None:
    """Also after the last checkpoint: a resume with nothing left to train still ends the run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model").write_text("a file where a folder must go")
    got = train(small(), tmp_path / "run")
    assert got["outcome"] == "failed" and "model" in got["error"] and "\n" not in got["error"]
    assert outcome(tmp_path / "run")["outcome"] == "failed"
    assert "Traceback" in (tmp_path / "run/error.txt").read_text()
    (tmp_path / "run/model").unlink()
    assert train(small(), tmp_path / "run")["outcome"] == "undecided"
    assert not (tmp_path / "run/error.txt").exists()
    train(small(), tmp_path / "whole")
    same_run(tmp_path / "run", tmp_path / "whole")


def test_an_interrupted_run_says_so_and_goes_on(tmp_path: Path) -> None:
    """SIGINT as from a keyboard, in step 30."""
    run = small(training={"steps": 60, "checkpoint_every": 20, "probe_every": 0})
    folder = tmp_path / "run"

    def interrupt(step: int, loss: float) -> None:
        if step == 30:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            train(run, folder, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome(folder)["outcome"] == "interrupted"
    assert ended(run, folder) is None
    assert len(losses(folder)) == 30
    seen: list[int] = []

    class EnoughError(Exception):
        pass

    def progress(step: int, loss: float) -> None:
        seen.append(step)
        if len(seen) == 2:
            raise EnoughError("enough seen")

    assert train(run, folder, progress=progress)["error"] == "enough seen"
    assert seen[0] == 30  # from the checkpoint of step 20


def test_the_files_of_a_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    assert read_rows(rows) == []
    append_rows(rows, [{"step": 1, "loss": math.nan}, {"step": 2, "loss": 0.1}])
    append_rows(rows, [{"step": 3, "loss": math.inf}])
    assert read_rows(rows) == [{"step": 1, "loss": None}, {"step": 2, "loss": 0.1}, {"step": 3, "loss": None}]
    with rows.open("a") as file:
        file.write('{"step": 4, "lo')  # cut off by a kill
    assert [r["step"] for r in read_rows(rows)] == [1, 2, 3]
    keep_until(rows, 2)
    assert rows.read_text() == '{"step": 1, "loss": null}\n{"step": 2, "loss": 0.1}\n'
    write_json(tmp_path / "x.json", {"a": [math.nan, (1.0, -math.inf)], "b": {"c": "NaN"}})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, [1.0, None]], "b": {"c": "NaN"}}
    assert {p.name for p in tmp_path.iterdir()} == {"rows.jsonl", "x.json"}
    assert finite(True) is True


def test_gradient_ratio() -> None:
    """Of W_2, first layer over last, each the mean over steps; other kinds and rows without a gradient count not."""
    rows = [
        {"kind": "ffn", "layer": 1, "gradient_mean_abs": 2.0},
        {"kind": "ffn", "layer": 1, "gradient_mean_abs": 4.0},
        {"kind": "ffn", "layer": 2, "gradient_mean_abs": 99.0},
        {"kind": "ffn", "layer": 3, "gradient_mean_abs": 1.0},
        {"kind": "ffn", "layer": 3, "gradient_mean_abs": None},
        {"kind": "attn", "layer": 1, "gradient_mean_abs": 50.0},
        {"kind": "ffn", "layer": 4},
    ]
    assert gradient_ratio(rows) == 3.0
    assert gradient_ratio([]) is None and gradient_ratio(rows[5:]) is None
    assert gradient_ratio([{"kind": "ffn", "layer": 1, "gradient_mean_abs": 0.0}]) is None
    assert torch.is_grad_enabled()

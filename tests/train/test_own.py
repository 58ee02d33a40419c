"""Models of the user's own: a function's arguments as arms, resumed to the bit, judged by their own baseline."""

import json
import os
import signal
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from isograd.errors import RecipeError
from isograd.files import read_rows
from isograd.lab.study.headroom import load_plan
from isograd.lab.study.labels import labels, names
from isograd.lab.study.plan import load_study
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Run
from isograd.lab.train.train import train
from isograd.outcome import in_units, judge
from tests.study.arms import TEXT, called, read, refused, runs

LANGUAGE = """
import torch
from torch import nn

import helper


def build(vocab_size, depth=2, norm="pre", dropout=0.0):
    torch.manual_seed(torch.randint(1 << 30, ()).item())  # of the run's seed
    return Small(vocab_size, depth, norm, dropout)


class Small(nn.Module):
    def __init__(self, vocab_size, depth, norm, dropout):
        super().__init__()
        self.table = nn.Embedding(vocab_size, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True, norm_first=norm == "pre")
            for _ in range(depth)
        )
        self.head = nn.Linear(16, vocab_size, bias=False)
        self.head.weight = self.table.weight  # tied: saved once, and tied again when it is loaded

    def forward(self, ids):
        x = self.table(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(x * helper.SCALE)
"""
TASK = """
import torch
from torch import nn
from torch.nn import functional as F

baseline = "mse"


def build(width=8, learns=True):
    model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))
    for p in model.parameters() if not learns else ():
        torch.nn.init.zeros_(p)
    return model, lambda model, batch: F.mse_loss(model(batch[0]), batch[1])


def batches():
    for _ in range(7):  # random numbers of torch's own: they are not the model's
        x = torch.randn(1024, 2)
        yield x, 100 * x[:, :1]


def held_out():
    return list(batches())
"""
SHORT = {"steps": 12, "checkpoint_every": 4, "probe_every": 3}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a language model, a task, and a text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "helper.py").write_text("SCALE = 1.0\n")
    (tmp_path / "small_lm.py").write_text(LANGUAGE)
    (tmp_path / "small_task.py").write_text(TASK)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def language(folder: Path, **arguments: Any) -> Run:
    return run_from_dict(
        {
            "model": {"build": f"{folder}/small_lm.py:build", "arguments": arguments},
            "data": {"source": str(folder / "text.txt"), "length": 16},
            "training": SHORT | {"batch": 4, "valid_sequences": 8},
        }
    )


def task(folder: Path, **training: Any) -> Run:
    return run_from_dict({"model": {"build": f"{folder}/small_task.py:build"}, "training": SHORT | training})


def test_arms_are_arguments(folder: Path) -> None:
    """Table, page, ledger and results of two arms and two seeds, as of isograd's own models."""
    command = ["compare", "--model", f"{folder}/small_lm.py:build", "depth=3"]
    command += ["training.steps=6", "training.batch=4", "--data", str(folder / "text.txt")]
    command += ["--arm", "norm=pre", "--arm", "norm=post", "training.warmup=4"]
    command += ["--seeds", "0", "1", "--jobs", "1", "--out", str(folder / "out"), "--json"]
    code, out, err = called(*command)
    assert code == 0, err
    content = json.loads(out)
    found = [(arm["arm"], arm["seed"]) for arm in content["arms"]]
    named = ["norm=pre, no warm-up", "norm=post, warm-up 4"]
    assert found == [(name, seed) for seed in (0, 1) for name in named]
    assert len({arm["final_loss"] for arm in content["arms"]}) == 4
    assert all(arm["arguments"]["depth"] == 3 and arm["outcome"] == "undecided" for arm in content["arms"])
    first = runs(folder / "out")[0]
    assert read(first / "run.json")["model"]["sha256"] == read(first / "resolved.json")["built"]["sha256"]
    layers = {row["layer"] for row in read_rows(first / "quantities.jsonl")}
    assert layers == {1, 2, 3}  # so the page has its figures over depth
    page = (folder / "out/report.html").read_text()
    assert "W<sub>2</sub>" not in page and "layer’s last matrix" in page.replace("&#39;", "’")
    assert called(*command)[1] == out  # nothing is trained again


@pytest.mark.parametrize("make", [language, task])
def test_killed_and_resumed_to_the_bit(folder: Path, make: Any) -> None:
    """Dropout, tied tables, and batches that draw from torch's own random numbers."""
    run = make(folder) if make is task else make(folder, dropout=0.2)

    def die() -> None:
        train(run, folder / "killed", lambda step, _: os.kill(os.getpid(), signal.SIGKILL) if step == 10 else None)

    process = get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    seen: list[int] = []
    resumed = train(run, folder / "killed", lambda step, _: seen.append(step))
    whole = train(run, folder / "whole")
    assert min(seen) > 8  # from the checkpoint of step 8
    for name in ("metrics.jsonl", "quantities.jsonl"):
        mine, theirs = (read_rows(folder / one / name) for one in ("killed", "whole"))
        assert mine == theirs
    assert [resumed[key] for key in ("final_loss", "validation_loss", "outcome")] == [
        whole[key] for key in ("final_loss", "validation_loss", "outcome")
    ]
    other = train(run_from_dict(run.as_dict() | {"seed": 1}), folder / "other")
    assert other["final_loss"] != whole["final_loss"]


@pytest.mark.parametrize("file", ["small_lm.py", "helper.py"])
def test_a_changed_file_is_another_run(folder: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that the file imports; what is imported already is imported anew, not from bytecode of before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    run = language(folder)
    before = train(run, folder / "out")
    path = folder / file
    written = path.stat()
    path.write_text(
        path.read_text().replace("SCALE = 1.0", "SCALE = 2.0").replace("* helper.SCALE", "* 2 * helper.SCALE")
    )
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))  # within a second, as a tool does it
    with pytest.raises(RecipeError, match="has changed since this run was planned"):
        train(run, folder / "stale")
    changed = language(folder)
    assert changed.folder_name() != run.folder_name()
    with pytest.raises(FileExistsError, match="another recipe"):
        train(changed, folder / "out")
    assert train(changed, folder / "again")["final_loss"] != before["final_loss"]


def test_an_outcome_by_the_task_s_own_baseline(folder: Path) -> None:
    """Losses of a regression are some 10,000: in nats each would have diverged or collapsed."""
    run = task(folder, steps=400, lr=3e-2, probe_every=0)
    learned = train(run, folder / "learned")
    assert learned["outcome"] == "finished" and "below the variance of its targets" in learned["reason"]
    assert 8_000 < learned["unigram_entropy"] < 12_000 and learned["final_loss"] < 0.5 * learned["unigram_entropy"]
    content = run.as_dict()
    content["model"]["arguments"] = {"learns": False}
    content["training"] |= {"lr": 1e-9, "steps": 300}
    rests = train(run_from_dict(content), folder / "rests")
    assert rests["outcome"] == "collapsed" and "predicts the same for every input" in rests["reason"]
    (folder / "small_task.py").write_text(TASK.replace('baseline = "mse"', ""))
    content["training"]["steps"] = 12
    unknown = train(run_from_dict(content), folder / "unknown")
    assert unknown["outcome"] == "finished" and "every loss was finite" in unknown["reason"]


@pytest.mark.parametrize("unit", [1.0, 250.0])
@pytest.mark.parametrize(
    "losses", [[0.5] * 300, [1.0] * 300, [1.0] * 60, [0.2] * 100 + [2.0] * 300, [3 - 0.01 * i for i in range(90)]]
)
def test_the_rule_has_no_scale(losses: list[float], unit: float) -> None:
    """A loss in other units has the same outcome, and no sentence speaks of tokens; of another unit none of nats."""
    plain = judge(losses, 1.0, held_out=0.9)
    own = in_units(judge([loss * unit / unit for loss in losses], 1.0, held_out=0.9), unit, "its baseline")
    assert own.outcome == plain.outcome
    assert not any(word in own.reason for word in ("unigram", "token"))
    assert unit == 1 or "nat" not in own.reason
    assert plain.numbers.final_loss is not None and own.numbers.final_loss == plain.numbers.final_loss * unit


def test_headroom_in_the_task_s_own_units(folder: Path) -> None:
    command = [
        "study",
        "--find",
        "max-lr",
        "--model",
        f"{folder}/small_task.py:build",
        "training.steps=30",
        "--arm",
        "width=4",
    ]
    command += ["--arm", "width=8", "--warmup", "0", "--seeds", "0", "--low", "0.01", "--high", "1", "--precision", "4"]
    code, out, err = called(*command, "--jobs", "1", "--out", str(folder / "out"), "--json")
    assert code == 0, err
    content = json.loads(out)
    assert content["placements"] == ["width=4", "width=8"]
    assert all(chain["boundary"] is not None for chain in content["chains"])


def test_a_study_over_arguments(folder: Path) -> None:
    recipe = folder / "study.yaml"
    recipe.write_text(
        f"model: {{build: '{folder}/small_task.py:build'}}\ntraining: {{steps: 6}}\nseeds: [0, 1]\n"
        "axes: {model.arguments.width: [4, 8], training.lr: [1.0e-3, 1.0e-2]}\n"
    )
    assert len(load_study(recipe).cells) == 8
    assert list(load_plan(recipe).arms) == ["width=4", "width=8"]
    code, out, err = called("study", str(recipe), "--jobs", "1", "--out", str(folder / "out"), "--json")
    assert code == 0, err
    assert {tuple(row["values"].values()) for row in json.loads(out)["rows"]} == {
        (width, lr) for width in (4, 8) for lr in (1e-3, 1e-2)
    }
    page = (folder / "out/report/report.html").read_text()
    assert "unigram entropy" not in page and "width" in page


def test_labels(folder: Path) -> None:
    """What differs, as it was typed; the function where nothing does."""
    found = [language(folder, **given).as_dict() for given in ({"norm": "pre"}, {"norm": "post", "depth": 3}, {})]
    assert labels(found) == ["norm=pre, no warm-up", "norm=post, depth=3, no warm-up", "small_lm:build, no warm-up"]
    assert names(found) == ["norm=pre", "norm=post, depth=3", "small_lm:build"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "{}/small_lm.py:build", "--arm", "nrom=pre"], "takes no 'nrom'; did you mean 'norm'?"),
        (["--model", "{}/small_lm.py:biuld"], "has no 'biuld'; did you mean 'build'?"),
        (["--model", "{}/none.py:build"], "no such file"),
        (["--model", "{}/small_lm.py"], "expected FILE.py:FUNCTION"),
        (["--model", "{}/small_lm.py:build", "--arm", "post-ln"], "such as norm=pre"),
        (["--model", "{}/small_lm.py:build", "--placements", "post-ln"], "contradict each other"),
        (["warmup", "--model", "{}/small_lm.py:build"], "recipe warmup and --model contradict each other"),
        (["--model", "{}/small_task.py:build", "--data", "{}/text.txt"], "has batches()"),
        (["--model", "{}/small_task.py:build", "training.fsdp=true"], "leave it out"),
        (["--model", "{}/small_task.py:build", "model.placement=pre-ln"], "is of isograd's own models"),
    ],
)
def test_what_is_refused_before_anything_runs(folder: Path, words: list[str], said: str) -> None:
    out = str(folder / "out")
    assert said in refused("compare", *(word.replace("{}", str(folder)) for word in words), "--out", out)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def batches(): return []\ndef loss(m, b): ...\n", "gives none"),
        ("def batches(): raise ValueError('no such table')\n", "batches raised ValueError: no such table"),
        ("baseline = 'msee'\ndef batches():\n    yield 1\n", "did you mean 'mse'?"),
        ("baseline = -1\ndef batches():\n    yield 1\n", "expected a number above 0"),
    ],
)
def test_what_a_file_does_not_give(folder: Path, text: str, said: str) -> None:
    (folder / "wrong.py").write_text("def build(): ...\n" + text)
    assert said in refused("compare", "--model", f"{folder}/wrong.py:build", "--out", str(folder / "out"))

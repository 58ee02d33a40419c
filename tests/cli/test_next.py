"""Every command that a verb prints as the next one runs as it stands: no placeholder, no option left behind."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import isograd
from isograd.files import write_json
from tests.build import few
from tests.study.arms import called

CODE = """
import torch
from torch import nn
from tests.diagnose.test_profile_edges import Layers

class OfFive(Layers):
    def forward(self, x):
        if x.shape[1] != 5:
            raise ValueError("five places are expected")
        return super().forward(x)

def layers():
    torch.manual_seed(0)
    return OfFive()

def cut():
    return OfFive(blocked=True)

def batch():
    return torch.ones(2, 5, 8).cumsum(1)
"""
SIZES = ("model.layers=2", "model.width=16", "model.heads=2", "training.steps=4", "training.batch=2", "data.length=8")
COMMAND = re.compile(r"^(?:next|report): (isograd .*?)(?:   \(|$)|(?:its page|can be checked): (isograd .*)$", re.M)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my models").mkdir()
    (tmp_path / "my models/layers.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield


def printed(text: str) -> list[list[str]]:
    return [shlex.split(one or other)[1:] for one, other in COMMAND.findall(text)]


def follow(text: str) -> str:
    """Run the one command that a text prints: not refused."""
    (words,) = printed(text)
    code, out, err = called(*words)
    assert code in (0, 1), (words, err)
    return out + err


MODEL, BATCH = "my models/layers.py:layers", ("--batch", "my models/layers.py:batch")


@pytest.mark.slow
def test_diagnose_then_explain_then_explain_with_a_rate() -> None:
    """The module takes no guessed inputs: each command has to carry its batch along."""
    code, _, err = called("explain", MODEL)
    assert code == 2 and "--batch" in err
    said = follow(called("explain", MODEL, *BATCH)[1])
    assert "again after the first change" in said  # the module has no final norm
    assert printed(follow(said)) == printed(said)


@pytest.mark.slow
def test_explain_of_a_healthy_model_asks_for_the_rate_and_ends() -> None:
    name = "tests.lint.faults.plain:pre"
    said = called("explain", name)[1]
    (words,) = printed(said)
    assert words[-4:] == ["--lr", "1e-3", "--warmup", "0"]
    last = follow(said)
    assert "next: train it" in last and printed(last) == []


def test_explain_of_a_fault_keeps_the_rate() -> None:
    said = called("explain", "my models/layers.py:cut", *BATCH, "--lr", "2e-3", "--warmup", "7")[1]
    (words,) = printed(said)
    assert words[-4:] == ["--lr", "0.002", "--warmup", "7"]
    follow(said)


@pytest.mark.parametrize("outcome", few(["finished", "undecided", "interrupted", "diverged"], ["undecided"]))
def test_explain_of_a_run(outcome: str) -> None:
    assert called("train", *SIZES, "--out", "my runs/one")[0] == 0
    write_json(Path("my runs/one/outcome.json"), {"outcome": outcome, "reason": "it is said so", "steps": 4})
    said = called("explain", "my runs/one")[1]
    (words,) = printed(said)
    assert words[0] == {"diverged": "replay", "undecided": "train"}.get(outcome, "report")
    if outcome == "diverged":
        words += ["--try", "training.lr=1e-5"]  # three runs, of seconds
    code, _, err = called(*words)
    assert code in (0, 1), err


def test_a_watched_loop_says_how_to_read_it(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    optimizer = torch.optim.Adam(model.parameters())
    watch = isograd.watch(model, optimizer=optimizer, folder="my runs/loop")
    for _ in range(3):
        loss = model(torch.randn(2, 4, 16)).square().mean()
        loss.backward()
        watch.step(loss)
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    follow(capfd.readouterr().err)
    code, out, err = called("explain", "my runs/loop")
    assert code == 0
    follow(out + err)
    code, _, err = called("replay", "my runs/loop")
    assert code == 2
    follow(err)


def test_a_checkpoint_too_large_for_the_memory_names_what_can_be_checked() -> None:
    from transformers import LlamaConfig

    sizes = {"hidden_size": 1 << 14, "intermediate_size": 1 << 20, "num_hidden_layers": 2000, "num_attention_heads": 4}
    LlamaConfig(**sizes, architectures=["LlamaForCausalLM"]).save_pretrained("a model")
    Path("a model/model.safetensors").touch()
    code, _, err = called("check", "a model")
    (words,) = printed(err)
    assert code == 2 and words == ["check", "a model/config.json"] and Path(words[1]).is_file()

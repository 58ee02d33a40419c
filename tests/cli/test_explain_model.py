"""`isograd explain`: what it reads as MODEL and as a batch, what it prints and writes, how it ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isograd.convert.checkpoints.tokenizers import for_transformers, train_tokenizer
from isograd.diagnose import profile
from isograd.lab.report.pages.profile import plain
from tests import build
from tests.lint.families import FAMILIES
from tests.report.test_page import checked
from tests.study.arms import called, read, refused

TEXT = "Where there is a will there is a way, and the way is long.\n" * 40
CODE = """
import torch
from torch import nn
from tests.diagnose.test_profile_edges import Layers

def flat():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

def layers():
    torch.manual_seed(0)
    return Layers()

def cut():
    return Layers(blocked=True)

def batch():
    return torch.ones(2, 5, 8).cumsum(1)

def narrow():
    return torch.ones(2, 5, 7)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with a module and a text."""
    monkeypatch.chdir(tmp_path)
    Path("my_layers.py").write_text(CODE)
    Path("notes.txt").write_text(TEXT)
    yield


def saved(model: Any, folder: str, mask: bool = False) -> Any:
    """A model with a tokenizer beside it."""
    model.save_pretrained(folder)
    for_transformers(train_tokenizer([TEXT], "char", mask=mask)).save_pretrained(folder)
    return model


def test_a_folder_as_table_page_and_json() -> None:
    model = FAMILIES["gpt2"].build()
    model.save_pretrained("gpt")
    code, out, _ = called("explain", "gpt", "--seed", "3")
    assert code == 0
    folder = Path("runs/explain/gpt")
    assert f"page: {folder / 'explain.html'}" in out and f"with figures: {folder / 'profile.html'}" in out
    content = plain(profile(model, seed=3).as_dict()) | {"text": None}
    written = read(folder / "profile.json")
    assert written.pop("facts")["model"] == "gpt"
    assert written == content
    page = checked(folder / "profile.html")
    assert "Decoder: 3 layers of pre-ln, 1 final norm." in page.text
    assert all(row["address"] in page.text for row in content["rows"])
    for name in ("gradients", "stream", "dependency", "amplification", "attention", "massive"):
        assert {p.suffix for p in folder.glob(f"{name}.*")} >= {".svg", ".png"}
    assert (folder / "gradients.csv").exists()
    code, out, _ = called("explain", "gpt", "--seed", "3", "--json", "--out", "elsewhere")
    assert json.loads(out)["profile_page"] == "elsewhere/profile.html"
    assert read(Path("elsewhere/profile.json"))["rows"] == content["rows"]


def test_a_module_and_its_batch() -> None:
    called("explain", "my_layers:layers", "--batch", "my_layers:batch", "--out", "out")
    content = read(Path("out/profile.json"))
    assert [row["address"] for row in content["rows"]] == ["layers.0", "layers.1", "layers.2"]
    assert list(content["inputs"].values()) == [[2, 5, 8]]
    assert content["objective"] == "random targets"
    assert "largest |logit|" not in checked(Path("out/profile.html")).text
    assert not Path("out/attention.png").exists()


def test_without_gradients_it_says_so() -> None:
    code, out, _ = called("explain", "my_layers:cut", "--batch", "my_layers:batch", "--out", "out")
    assert code == 1 and "autograd gives it no gradient" in out
    assert "Missing: gradients" in checked(Path("out/profile.html")).text


@pytest.mark.slow
def test_text_is_read_with_the_models_tokenizer() -> None:
    size = len(set(TEXT)) + 4
    model = saved(build.model("causal", vocab_size=size), "model")
    code, _, _ = called("explain", "model", "--text", "notes.txt", "--out", "out")
    assert code == 0
    content = read(Path("out/profile.json"))
    ids = torch.tensor([sorted(set(TEXT)).index(c) + 4 for c in TEXT])[: 4 * 32].view(4, 32)  # 32 positions
    assert content["inputs"]["input_ids"] == [4, 32]
    logits = model(input_ids=ids).logits
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert content["loss"] == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.slow
def test_a_masked_model_is_asked_for_what_is_hidden() -> None:
    saved(build.model("masked", vocab_size=len(set(TEXT)) + 5), "model", mask=True)
    called("explain", "model", "--text", "notes.txt", "--out", "out")
    assert read(Path("out/profile.json"))["objective"] == "given labels"


def test_without_a_tokenizer_a_text_is_refused() -> None:
    FAMILIES["gpt2"].build().save_pretrained("gpt")
    assert "gpt has no tokenizer" in refused("explain", "gpt", "--text", "notes.txt")


def test_a_model_without_sublayers_says_so() -> None:
    code, out, _ = called("explain", "my_layers:flat")
    assert code == 0 and "no sublayers found in Sequential" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere/at-all/here",), "nowhere/at-all/here"),
        (("my_layers:nothing",), "my_layers has no 'nothing'"),
        (
            ("my_layers:layers", "--batch", "my_layers:narrow"),
            "does not run on my_layers:narrow",
        ),
        (("my_layers:layers", "--batch", "my_layers:none"), "my_layers has no 'none'"),
        (("my_layers:layers", "--text", "none.txt"), "none.txt"),
        (("my_layers:layers", "--out", "notes.txt"), "--out notes.txt: not a folder"),
        (("my_layers:layers", "--batch", "my_layers:batch", "--text", "notes.txt"), "contradict each other"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], said: str) -> None:
    assert said in refused("explain", *words)
    assert not Path("runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_no_cuda_device() -> None:
    assert "torch finds no CUDA device" in refused("explain", "my_layers:layers", "--device", "cuda")


def test_explain_a_module() -> None:
    code, said, _ = called("explain", "my_layers:layers", "--batch", "my_layers:batch", "--json")
    content = json.loads(said)
    assert code == int(content["broken"]) and content["next"] and content["verdict"]
    assert {row["layer"] for row in content["profile"]} >= {1, 2}
    assert content["profile"][0]["references"]["residual_rms"] is not None
    assert Path(content["page"]).is_file()

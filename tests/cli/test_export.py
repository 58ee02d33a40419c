"""`isograd export`: a folder with everything, or one line and nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isograd.convert.parity import hashes
from isograd.lab.train.train import train
from tests.build import model
from tests.study.arms import called, read, refused
from tests.train.recipes import TEXT, small

FEW: dict[str, Any] = {"steps": 4}


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(small(model={"placement": "deepnorm"}, training=FEW), root / "deepnorm")
    train(small(model={"placement": "normformer"}, training=FEW), root / "normformer")
    return root


def test_the_nearest_class_is_found_and_named(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new/folder"
    code, said, err = called("export", str(runs / "deepnorm"), "--out", str(out))
    assert (code, err) == (0, "")
    assert "parity: passed" in said and f"OPTForCausalLM (--to opt): {out}" in said
    assert "The coefficients of deepnorm are folded into weights of post-ln." in said
    native = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert type(native).__name__ == "OPTForCausalLM" and not native.config.do_layer_norm_before
    card = (out / "README.md").read_text()
    assert "| placement | deepnorm:" in card and "| seed | 0 |" in card and "| data | text.txt |" in card
    assert read(runs / "deepnorm/resolved.json")["data"]["sha256"] in card


def test_json_text_and_a_chosen_class(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    text = str(tmp_path / "text.txt")
    out = tmp_path / "out"
    code, said, err = called(
        "export", str(runs / "normformer"), "--out", str(out), "--to", "isograd", "--text", text, "--json"
    )
    content = json.loads(said)
    assert (code, err, content["to"], content["form"]) == (0, "", "isograd", "IsogradForCausalLM")
    assert content["inputs"]["kind"] == "text" and content["folder"] == str(out)
    assert {k: v for k, v in content.items() if k not in ("folder", "to", "form")} == read(out / "parity.json")


def test_the_same_folder_twice_is_the_same(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert called("export", str(runs / "deepnorm"), "--out", str(tmp_path / name))[0] == 0
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    texts = [(tmp_path / name / "parity.json").read_text() for name in ("a", "b")]
    assert texts[0] == texts[1]


def test_what_is_refused(runs: Path, tmp_path: Path) -> None:
    out, run = str(tmp_path / "out"), str(runs / "deepnorm")
    said = refused("export", str(runs / "normformer"), "--out", out)
    assert "it has no norm on what the branch wrote (out), and this placement has" in said
    assert "isograd's own class (--to isograd) and ONNX (--to onnx) hold every model" in said
    assert "it has no norm on the sum (post)" in refused("export", run, "--out", out, "--to", "gpt2")
    said = refused("export", run, "--out", out, "--to", "gpt9")
    assert "unknown class 'gpt9'" in said and "onnx" in said
    assert "no such folder" in refused("export", str(tmp_path / "none"), "--out", out)
    assert "no config.json here or in model/" in refused("export", str(tmp_path), "--out", out)
    assert "none.txt" in refused("export", run, "--out", out, "--text", str(tmp_path / "none.txt"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_alone(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "kept.txt"):
        assert "exists already" in refused("export", str(runs / "deepnorm"), "--out", str(out))
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"] and (tmp_path / "kept.txt").read_text() == "mine"


def test_a_failed_parity_report_leaves_nothing(tmp_path: Path) -> None:
    made = model(placement="admin", embedding_norm=True)
    torch.nn.init.constant_(made.model.embedding.norm.bias, 1000.0)  # exact in fp64, four digits short in fp32
    torch.nn.init.constant_(made.model.layers[0].attn.combine.skip.weight, 1.3)
    torch.nn.init.zeros_(made.model.layers[0].attn.branch.out.weight)
    made.save_pretrained(tmp_path / "model")
    out = tmp_path / "deep/out"
    code, said, err = called("export", str(tmp_path / "model"), "--out", str(out))
    assert code == 1 and "parity: FAILED" in said
    assert "nothing is written" in err and err.count("\n") == 1
    code, said, _ = called("export", str(tmp_path / "model"), "--out", str(out), "--json")
    assert (code, json.loads(said)["passed"], json.loads(said)["folder"]) == (1, False, None)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_push_that_fails_is_one_line(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there; and without --push nobody asks."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    out = tmp_path / "out"
    assert called("export", str(runs / "deepnorm"), "--out", str(out))[0] == 0
    code, said, err = called("export", str(runs / "deepnorm"), "--out", str(tmp_path / "pushed"), "--push", "me/model")
    assert code == 1 and "parity: passed" in said
    assert err.startswith("isograd export: me/model: not pushed (") and err.count("\n") == 1
    assert hashes(tmp_path / "pushed") == hashes(out)

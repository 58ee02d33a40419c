"""`isograd export --to folded`: a plain model with its tokenizer and report, or one line and nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isograd.convert.parity import hashes
from isograd.lab.evaluate.translation import Translator
from isograd.lab.train.train import train
from tests.build import few, model
from tests.study.arms import called, read, refused
from tests.train.recipes import TEXT, small, small_translation

SMALL: dict[str, Any] = {"steps": 4}

FOLD = ("export", "--to", "folded")


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained language model, a masked one, and a translation."""
    root = tmp_path_factory.mktemp("runs")
    train(small(model={"placement": "admin"}, training=SMALL), root / "language")
    train(small(task="masked", model={"placement": "deepnorm"}, training=SMALL), root / "masked")
    train(small_translation(model={"placement": "admin"}, training=SMALL), root / "pair")
    train(small(model={"placement": "pre-ln"}, training=SMALL), root / "plain")
    return root


@pytest.mark.parametrize("name", few(["language", "masked", "pair"], ["pair"]))
def test_a_run_is_folded(name: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new/folder"
    code, said, err = called(*FOLD, str(runs / name), "--out", str(out), "--untie")
    assert code == 0, err
    assert "parity: passed" in said and f"model: {out}" in said and "folded into post-ln" in said
    report = read(out / "parity.json")
    assert report["passed"] and report["files"] == {
        name: sha for name, sha in hashes(out).items() if name != "README.md"
    }
    assert report["source"] == hashes(runs / name / "model")
    kind = {"language": "CausalLM", "masked": "MaskedLM", "pair": "Seq2SeqLM"}[name]
    loaded = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(out)
    assert loaded.config.placement == "post-ln" and loaded.config.calibration is None
    before = transformers.AutoTokenizer.from_pretrained(runs / name / "model")
    assert transformers.AutoTokenizer.from_pretrained(out).get_vocab() == before.get_vocab()
    assert sorted(p.name for p in out.parent.iterdir()) == ["folder"]  # nothing beside it
    assert (out / "generation_config.json").exists() == (name != "masked")


@pytest.mark.slow
def test_a_folded_translator_translates_the_same(runs: Path, tmp_path: Path) -> None:
    out, lines = tmp_path / "out", ["one two", "seven nine ten", "four"]
    assert called(*FOLD, str(runs / "pair/model"), "--out", str(out), "--untie")[0] == 0
    before, after = (list(Translator.load(f).translate(lines)) for f in (runs / "pair", out))
    assert [t.text for t in before] == [t.text for t in after] and any(t.text for t in before)
    assert [t.score for t in before] == pytest.approx([t.score for t in after], abs=1e-5)
    assert read(out / "generation_config.json")["num_beams"] == 2


def test_real_text_and_json(runs: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(TEXT)
    code, said, _ = called(*FOLD, str(runs / "language"), "--out", str(out), "--untie", "--text", str(text), "--json")
    content = json.loads(said)
    assert (code, content["model"], content["inputs"]["kind"]) == (0, str(out), "text")
    assert {k: v for k, v in content.items() if k != "model"} == read(out / "parity.json")


@pytest.mark.slow
def test_the_same_folder_twice_is_the_same(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()  # an empty folder will do
        assert called(*FOLD, str(runs / "masked"), "--out", str(tmp_path / name), "--untie")[0] == 0
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    texts = [(tmp_path / name / "parity.json").read_text() for name in ("a", "b")]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_vocabularies_of_two_languages_go_along(tmp_path: Path) -> None:
    shapes = {"placement": "deepnorm", "share_embeddings": False}
    run = small_translation(model=shapes, pairs={"joint": False}, training=SMALL)
    train(run, tmp_path / "run")
    assert called(*FOLD, str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--untie")[0] == 0
    before, after = (Translator.load(tmp_path / n).tokenizer for n in ("run", "out"))
    assert before.source.encode(["one two"]) == after.source.encode(["one two"])
    assert (tmp_path / "out/source_tokenizer").exists() and not before.joint


def test_what_is_refused(runs: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    language = str(runs / "language")
    assert "(--untie) gives each its own copy" in refused(*FOLD, language, "--out", out)
    assert "no coefficients to fold" in refused(*FOLD, str(runs / "plain"), "--out", out)
    assert "no config.json here or in model/" in refused(*FOLD, str(tmp_path), "--out", out)
    assert "no such folder" in refused(*FOLD, str(tmp_path / "none"), "--out", out)
    assert "empty.txt" in refused(*FOLD, language, "--out", out, "--text", str(tmp_path / "empty.txt"))
    (tmp_path / "blank.txt").write_text("\n \n")
    assert "blank.txt" in refused(*FOLD, language, "--out", out, "--untie", "--text", str(tmp_path / "blank.txt"))
    assert not Path(out).exists()


def test_a_folder_that_holds_something_is_left_alone(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    said = refused(*FOLD, str(runs / "language"), "--out", str(tmp_path), "--untie")
    assert "exists already" in said and [p.name for p in tmp_path.iterdir()] == ["kept.txt"]
    assert "exists already" in refused(*FOLD, str(runs / "language"), "--out", str(tmp_path / "kept.txt"), "--untie")
    model_itself = runs / "language/model"
    before = hashes(model_itself)
    assert "exists already" in refused(*FOLD, str(model_itself), "--out", str(model_itself), "--untie")
    assert hashes(model_itself) == before


def test_models_that_are_not_to_be_folded(runs: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    start = tmp_path / "start"
    start.mkdir()
    shutil.copy(runs / "language/model/config.json", start)
    assert "a configuration without weights" in refused(*FOLD, str(start), "--out", out, "--untie")
    broken = tmp_path / "broken"
    shutil.copytree(runs / "language/model", broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:1000])
    assert "is damaged or cut off" in refused(*FOLD, str(broken), "--out", out, "--untie")
    other = tmp_path / "other"
    transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9)).save_pretrained(
        other
    )
    assert "GPT2LMHeadModel is not a model of isograd's" in refused(*FOLD, str(other), "--out", out)
    assert not Path(out).exists()


@pytest.mark.slow
def test_a_failed_parity_report_leaves_nothing(tmp_path: Path) -> None:
    """Offsets of a thousand that the next norm takes off again: exact in fp64, and four digits short in fp32."""
    made = model("causal", placement="admin", embedding_norm=True)
    torch.nn.init.constant_(made.model.embedding.norm.bias, 1000.0)
    torch.nn.init.constant_(made.model.layers[0].attn.combine.skip.weight, 1.3)
    torch.nn.init.zeros_(made.model.layers[0].attn.branch.out.weight)
    made.save_pretrained(tmp_path / "model")
    code, said, err = called(*FOLD, str(tmp_path / "model"), "--out", str(tmp_path / "deep/out"))
    assert code == 1 and "parity: FAILED" in said and "nothing is written" in err
    assert not (tmp_path / "deep/out").exists() and not any((tmp_path / "deep").glob(".*"))
    code, said, _ = called(*FOLD, str(tmp_path / "model"), "--out", str(tmp_path / "deep/out"), "--json")
    assert code == 1 and json.loads(said)["passed"] is False


@pytest.mark.slow
def test_from_a_fresh_interpreter(runs: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "isograd",
        "export",
        "--to",
        "folded",
        str(runs / "language"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run([*command, "--untie"], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "parity: passed" in done.stdout

"""`isograd train`: one training from a recipe."""

import json
from pathlib import Path

import pytest
import yaml

from isograd.lab.train.recipe import known_keys, load_run
from isograd.lab.train.tasks.language import LanguageRun
from tests.study.arms import called, read, refused

SHAPE = [
    *("model.layers=2", "model.width=16", "model.heads=2", "data.length=8"),
    *("training.batch=4", "training.steps=4", "training.valid_sequences=4"),
]


def test_keys_are_a_recipe(tmp_path: Path) -> None:
    """Every key, once, and read back as the same run."""
    code, out, err = called("train", "--keys")
    assert (code, err) == (0, "")
    (tmp_path / "all.yaml").write_text(out)
    assert load_run(tmp_path / "all.yaml") == LanguageRun()
    content = yaml.safe_load(out)
    flat = {f"{a}.{b}" if isinstance(v, dict) else a for a, v in content.items() for b in (v if v else [0])}
    assert {k for k in flat if not k.endswith(".0")} >= set(known_keys("language")) - {"name", "seed"}
    changed = called("train", "training.lr=3e-4", "model.placement=admin", "--keys")[1]
    (tmp_path / "changed.yaml").write_text(changed)
    assert load_run(tmp_path / "changed.yaml") == load_run(None, ["training.lr=3e-4", "model.placement=admin"])


def test_a_training(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options may stand between recipe and overrides; the second call trains nothing and says the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"name: mine\ndata: {{source: {text}}}\nmodel: {{placement: post-ln}}\n")
    command = ["train", "mine.yaml", "--json", *SHAPE]
    code, out, _ = called(*command)
    told = json.loads(out)
    assert code == 0 and told["outcome"] == "undecided" and told["steps"] == 4
    assert Path(told["folder"]) == Path("runs/mine")
    assert read(Path("runs/mine/run.json"))["model"]["placement"] == "post-ln"
    before = Path("runs/mine/outcome.json").stat().st_mtime_ns
    assert json.loads(called(*command)[1]) == told
    assert Path("runs/mine/outcome.json").stat().st_mtime_ns == before
    code, out, _ = called("train", "mine.yaml", *SHAPE)
    assert out.splitlines() == [
        f"undecided, final loss {told['final_loss']:.4f}, validation loss {told['validation_loss']:.4f}",
        f"undecided: {told['reason']}",
        "folder: runs/mine",
        "it had ended before, and nothing was trained again; --out FOLDER starts another run",
    ]


def test_exit_codes(text: Path, tmp_path: Path) -> None:
    """3 for a diverged run, which is a result: its numbers are on stdout all the same."""
    command = ["train", *SHAPE, f"data.source={text}", "training.lr=1e38", "training.optimizer=sgd", "--json"]
    code, out, _ = called(*command, "--out", str(tmp_path / "run"))
    told = json.loads(out)
    assert (code, told["outcome"], told["final_loss"]) == (3, "diverged", None)
    assert "NaN" not in out and "Infinity" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch.yaml"], "no such recipe"),
        (["model.layer=3"], "did you mean 'model.layers'"),
        (["training.steps=many"], "steps"),
        (["training.steps=0"], "at least 1"),
        (["model.heads=3"], "model.heads=3"),
        (["model.placement=postln"], "did you mean 'post-ln'"),
        (["data.source=nosuch.txt"], "nosuch.txt: no such file"),
        (["model.layers=2", "words"], "expected key=value"),
        (["--bogus"], "--bogus"),
    ],
)
def test_refused(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("train", *words)
    assert not [*tmp_path.iterdir()]


def test_an_out_that_cannot_be(text: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in ("file", "file/inside"):
        assert out in refused("train", *SHAPE, f"data.source={text}", "--out", str(tmp_path / out))
    assert (tmp_path / "file").read_bytes() == b""

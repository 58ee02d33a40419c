"""`isograd train RECIPE --dry-run`: what a training will take, from the recipe alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.build import model
from tests.study.arms import called, refused

RECIPES = Path(__file__).parents[2] / "isograd/lab/recipes"
NORMFORMER = RECIPES / "normformer2021"


def told(*words: str) -> dict[str, Any]:
    code, out, err = called("train", *words, "--dry-run", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize(
    ("recipe", "size", "tokens"),
    [("125m", 125e6, 2**19), ("355m", 355e6, 2**19), ("1.3b", 1.3e9, 2**20), ("2.7b", 2.7e9, 2**20)],
)
def test_the_papers_shapes(recipe: str, size: float, tokens: int) -> None:
    """As large as they are called, 300B tokens in batches of half a million and a million; NormFormer adds < 0.1 %."""
    path = str(NORMFORMER / f"clm-{recipe}.yaml")
    base, ours = (told(path, f"model.placement={name}", "--world-size", "8") for name in ("pre-ln", "normformer"))
    assert base["parameters"] == pytest.approx(size, rel=0.03)
    assert ours["tokens_per_update"] == tokens and ours["tokens"] == pytest.approx(300e9, rel=1e-3)
    assert 0 < ours["parameters"] / base["parameters"] - 1 < 1e-3
    assert ours["devices"] == 8 and ours["memory"]["static"] < ours["memory"]["total"]


def test_the_pair_of_equal_parameters_says_what_it_adds() -> None:
    path = NORMFORMER / "width-768-780.yaml"
    narrow, wide, ours = (
        told(str(path), *words)["parameters"]
        for words in (["model.placement=pre-ln"], ["model.placement=pre-ln", "model.width=780"], [])
    )
    text = path.read_text(encoding="utf-8")
    assert f"{ours - narrow:,} parameters" in text and f"adds {wide - narrow:,};" in text


def test_a_table_for_people() -> None:
    code, out, err = called("train", str(NORMFORMER / "clm-1.3b.yaml"), "--dry-run", "--world-size", "8")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith("normformer2021-clm-1.3b normformer, 24 layers, width 2048, 32 heads, feed-forward 8192")
    assert "memory of each of 8 devices, sharded" in lines
    assert any(line.startswith("all 1,312,021,248 1.31 B") for line in lines)
    assert any(line.startswith("tokens 299,999,690,752 300 B") for line in lines)
    assert re.search(r"learning rate\s+0 in update 1, .*warm-up 750, polynomial", out)
    columns = {line.index("  ", 1) for line in out.splitlines() if line.startswith("parameters  ")}
    assert columns == {len("parameters")}


def test_a_calibration_is_counted_by_the_micro_batch() -> None:
    """ADMIN at the 1.3B shape: 8,192 tokens on each of 8 devices, not the million of the batch; on the host."""
    recipe = str(NORMFORMER / "clm-1.3b.yaml")
    words = (recipe, "model.placement=admin", "--world-size", "8")
    found = told(*words)
    pass_over = 4 * 8192 * 2048 * (3 + 2 * 4)  # x, u and their sum, and twice the inner width of 4 d, in float32
    assert found["memory"]["calibration"] == 4 * found["parameters"] + pass_over
    assert not told(recipe, "--world-size", "8")["memory"]["calibration"]
    lines = [" ".join(line.split()) for line in called("train", *words, "--dry-run")[1].splitlines()]
    assert any(line.startswith("calibration 5.") and "on the host" in line for line in lines)


def test_nothing_is_built_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 1,900 billion parameters on a text that is not there."""
    monkeypatch.chdir(tmp_path)
    found = told("model.width=400000", "model.layers=1", "data.source=nosuch.txt", "data.length=100000")
    assert found["parameters"] > 1.9e12 and found["memory"]["static"] == 16 * found["parameters"]
    assert not [*tmp_path.iterdir()]


def test_a_translation_and_characters() -> None:
    found = told(str(RECIPES / "xiong2020/iwslt14.yaml"))
    assert found["tokens_per_update"] == 4096 and found["parts"]["head"] == 0
    out = called("train", str(RECIPES / "xiong2020/iwslt14.yaml"), "--dry-run")[1]
    assert "6 + 6 layers" in out and "vocabulary of merges, taken as 8,000" in out and "at most 100,000" in out
    assert "vocabulary of characters, taken as 256" in called("train", "--dry-run")[1]
    assert "vocabulary up to 8,192" in called("train", "task=masked", "data.level=bpe", "--dry-run")[1]
    counting_epochs = ("training.epochs=3", "training.decay=step", "training.decay_at=2")
    assert "learning rate  peak 0.001" in called("train", "task=translation", *counting_epochs, "--dry-run")[1]


def test_fine_tuning_takes_the_shape_of_its_model(tmp_path: Path) -> None:
    network = model("masked", placement="normformer", random=False)
    network.save_pretrained(tmp_path / "model")
    tower = sum(p.numel() for p in network.model.parameters())
    for folder in (tmp_path, tmp_path / "model"):
        found = told("task=classification", f"glue.model={folder}", "training.batch=4")
        assert found["parameters"] == tower + 16 * 16 + 16 + 2 * 16 + 2
        assert found["tokens_per_update"] == 4 * 128
    (tmp_path / "model/config.json").write_text('{"model_type": "bert"}')
    said = refused("train", "task=classification", f"glue.model={tmp_path}", "--dry-run")
    assert "weights are missing" in said
    assert "no such folder" in refused("train", "task=classification", "glue.model=x", "--dry-run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.width=2147483640", "--dry-run"], "make it narrower"),
        (["model.width=2147483640", "--dry-run"], "make it narrower"),
        (["model.width=65", "--dry-run"], "model.width=65 is not a multiple of model.heads=4"),
        (["model.placement=postln", "--dry-run"], "did you mean 'post-ln'"),
        (["data.level=bpe", "data.vocab_size=259", "--dry-run"], "data.vocab_size=259: BPE needs at least 260"),
        (["--dry-run", "--world-size", "3"], "training.batch=16 does not divide by 3 processes"),
        (["--dry-run", "--world-size", "0"], "expected a whole number of at least 1"),
        (["--dry-run", "--world-size", "two"], "'two'"),
        (["--world-size", "2"], "--world-size is read by --dry-run only"),
        (["nosuch.yaml", "--dry-run"], "no such recipe"),
        (["task=translation", "training.tokens=3", "--dry-run", "--world-size", "4"], "less than one for each of 4"),
    ],
)
def test_refused(words: list[str], said: str) -> None:
    assert said in refused("train", *words)


@pytest.mark.parametrize(
    "key", ["model.layers", "model.encoder_layers", "model.width", "training.batch", "data.length"]
)
@pytest.mark.parametrize("number", ["1e22", "1" + 22 * "0"])
def test_numbers_that_no_machine_can_hold(key: str, number: str) -> None:
    """One line, and at once: no stack of so many layers is built to be counted."""
    task = ["task=translation"] if key == "model.encoder_layers" else []
    said = refused("train", *task, f"{key}={number}", "--dry-run")
    assert key in said and ("must be at most" in said or "expected a whole number" in said)
    assert "model.layers=5000 must be at most 4,096" in refused("train", "model.layers=5000", "--dry-run")

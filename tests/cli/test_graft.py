"""`isograd graft`: a changed model with its tokenizer and reports, or one line and nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from isograd.convert.graft import graft
from isograd.errors import GraftError
from tests.interop.graft.families import family, logits
from tests.study.arms import called, read, refused

_LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
from isograd.cli import main
sys.exit(main(sys.argv[1:]))
"""
_KILLED = """
import os, signal, sys
from isograd.convert.graft import graft_folder
def progress(said):
    if said.startswith("comparing"):
        os.kill(os.getpid(), signal.SIGKILL)
graft_folder(sys.argv[1], sys.argv[2], "layers=4", progress=progress)
"""


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with a tokenizer of words."""
    folder = tmp_path_factory.mktemp("graft") / "model"
    family("gpt2").save_pretrained(folder)
    words = {"<unk>": 3} | {f"w{i}": i for i in range(4, 61)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    text = " ".join(f"w{4 + i * i % 57}" for i in range(4000))
    (folder.parent / "text.txt").write_text(text, encoding="utf-8")
    return folder


def test_exact_changes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new/deeper"
    words = ["graft", str(folder), "--out", str(out), "--change", "layers=4", "--change", "vocabulary=64"]
    code, said, err = called(*words)
    assert code == 0, err
    assert "parity: passed" in said and "3 to 4 layers: 3 is new" in said and f"model: {out}" in said
    assert read(out / "parity.json")["passed"] and read(out / "graft.json")["exact"]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert torch.allclose(logits(loaded)[..., :61], logits(family("gpt2")), atol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(out).get_vocab()["w9"] == 9
    assert sorted(p.name for p in out.parent.iterdir()) == ["deeper"]
    assert "exists already" in refused(*words)


def test_a_measured_change_and_healing(folder: Path, tmp_path: Path) -> None:
    out, text = tmp_path / "less", folder.parent / "text.txt"
    words = ["--change", "layers=2", "--drop", "angle", "--heal", "10", "--rate", "1e-2", "--data", str(text)]
    code, said, err = called("graft", str(folder), "--out", str(out), *words)
    assert code == 0, err
    assert "angle" in said and "loss_without" in said and "nats per token" in said
    found = read(out / "graft.json")
    change, heal = found["steps"]
    assert not found["exact"] and not (out / "parity.json").exists()
    assert [row["layer"] for row in change["found"]] == [1, 2, 3] and heal["losses"][1] < heal["losses"][0]
    assert transformers.AutoModelForCausalLM.from_pretrained(out).config.n_layer == 2


def test_refusals(folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    family("bert").save_pretrained(tmp_path / "bert")
    change = ["--out", out, "--change"]
    assert "a norm is applied to the sum" in refused("graft", str(tmp_path / "bert"), *change, "layers=4")
    assert "did you mean 'layers'" in refused("graft", str(folder), *change, "layer=4")
    assert "no such folder" in refused("graft", str(tmp_path / "none"), *change, "layers=4")
    assert "no tokenizer" in refused("graft", str(tmp_path / "bert"), *change, "layers=2")
    (tmp_path / "bert/model.safetensors").write_bytes((tmp_path / "bert/model.safetensors").read_bytes()[:5000])
    assert "is damaged or cut off" in refused("graft", str(tmp_path / "bert"), *change, "vocabulary=99")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_full_disk(folder: Path, tmp_path: Path) -> None:
    """No file may become larger than 50 kB: one line, and nothing is left."""
    command = [
        sys.executable,
        "-c",
        _LIMITED,
        "graft",
        str(folder),
        "--out",
        str(tmp_path / "out"),
        "--change",
        "layers=4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 2 and done.stderr.strip().startswith("isograd graft: "), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_killed_in_mid_write(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(folder), str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    assert not (tmp_path / "out").exists()
    assert called("graft", str(folder), "--out", str(tmp_path / "out"), "--change", "layers=4")[0] == 0


VISION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WITHOUT_TOKENS = {
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **VISION)),
    "wav2vec2": lambda: transformers.Wav2Vec2Model(
        transformers.Wav2Vec2Config(
            conv_dim=(8, 8),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            **VISION,
        )
    ),
    "clip": lambda: transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={"vocab_size": 50, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2} | VISION,
            vision_config={"image_size": 8, "patch_size": 4} | VISION,
            projection_dim=8,
        )
    ),
}
EDITS = ("layers=3", "layers=1", "kv-heads=1", "vocabulary=64", "norm-weights=folded", "norm=rmsnorm", "norm=dyt")
EDITS += ("scale=layerscale", "streams=2", "placement=sandwich", "placement=pre-ln", "qk-norm=removed")


@pytest.mark.parametrize("kind", WITHOUT_TOKENS)
def test_a_model_without_token_ids_is_one_line(kind: str, tmp_path: Path) -> None:
    """Whatever the change: it changes nothing, and says what it reads."""
    made = WITHOUT_TOKENS[kind]()
    for change in EDITS:
        with pytest.raises(GraftError, match="has no table of token ids"):
            graft(made, change)
    made.save_pretrained(tmp_path / "model")
    words = ("graft", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--change", "layers=3")
    assert "has no table of token ids" in refused(*words) and not (tmp_path / "out").exists()

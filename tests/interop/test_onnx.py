"""onnxruntime beside torch: the same logits for every placement, at lengths that were not traced, with padding."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from isograd.convert.onnx import OnnxModel, export_onnx, measure_onnx
from isograd.errors import InteropError
from isograd.models import IsogradModel
from tests import build

LIMIT = 1e-5  # float32 on both sides, of logits of order 1


def given(head: str, batch: int, time: int, pad: int = 0) -> dict[str, Tensor]:
    """Sequences of that length, the first with `pad` places of padding on its right, the last on its left."""
    inputs = build.inputs(head, batch=batch, time=time)
    mask = torch.ones_like(inputs["input_ids"])
    if pad:
        mask[0, -pad:] = 0
        mask[-1, :pad] = 0
    return inputs | {"attention_mask": mask}


def gap(model: Any, folder: Path, inputs: dict[str, Tensor]) -> float:
    """The largest difference at places that count."""
    with torch.no_grad():
        ours = model(**inputs).logits
    away = (ours - OnnxModel(folder)(**inputs)).abs()
    if "decoder_input_ids" not in inputs and away.ndim == 3:
        away = away[inputs["attention_mask"].bool()]
    return float(away.max())


def check(head: str, folder: Path, model: Any) -> Path:
    path = export_onnx(model, folder / "onnx")
    for inputs in (given(head, 2, 3), given(head, 1, 2), given(head, 3, 19, pad=2)):
        assert gap(model, path, inputs) < LIMIT
    return path


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(0)
    model = build.model("causal", placement="normformer-resscale", num_hidden_layers=1)
    return model, export_onnx(model, tmp_path_factory.mktemp("language") / "onnx")


def test_a_language_model(language: tuple[Any, Path]) -> None:
    model, folder = language
    for inputs in (given("causal", 2, 3), given("causal", 1, 1), given("causal", 3, 32), given("causal", 3, 19, pad=2)):
        assert gap(model, folder, inputs) < LIMIT


def test_the_parity_report_and_its_negative_control(language: tuple[Any, Path]) -> None:
    model, folder = language
    found = measure_onnx(model, folder)
    assert found.passed, found
    assert [(row.search, row.equal) for row in found.generated] == [("greedy", 8)]
    assert "model.onnx" in found.files
    other = build.model("causal", placement="normformer-resscale", num_hidden_layers=1, norm_eps=1e-3)
    other.load_state_dict(model.state_dict())
    assert not measure_onnx(other, folder).passed


def test_it_needs_onnxruntime_alone(language: tuple[Any, Path]) -> None:
    model, folder = language
    onnx.checker.check_model(folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    assert {field.name: field.shape for field in session.get_inputs()} == {
        "input_ids": ["batch", "time"],
        "attention_mask": ["batch", "time"],
    }
    ids = build.tokens(2, 5)
    (logits,) = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": np.ones((2, 5), np.int64)})
    with torch.no_grad():
        build.close(torch.from_numpy(logits), model(input_ids=ids).logits, atol=LIMIT)


def test_it_reads_to_the_left_and_where_the_mask_allows(language: tuple[Any, Path]) -> None:
    """A later token changes nothing before it, a token under the mask nothing at all; one that counts does."""
    _, folder = language
    run, ids = OnnxModel(folder), build.tokens(1, 6)
    other = ids.clone()
    other[0, 3] = 40 if ids[0, 3] != 40 else 39
    before, after = run(ids), run(other)
    build.close(before[:, :3], after[:, :3], atol=0)
    assert float((before[:, 3:] - after[:, 3:]).abs().max()) > 1e-2
    mask = torch.tensor([[1, 1, 1, 0, 1, 1]])
    seen, unseen = run(ids, mask), run(other, mask)
    places = mask.bool()
    build.close(seen[places], unseen[places], atol=0)


def test_its_configuration_is_there(language: tuple[Any, Path]) -> None:
    model, folder = language
    config: Any = AutoConfig.from_pretrained(folder)
    assert config.placement == "normformer-resscale"
    assert config.vocab_size == model.config.vocab_size


def test_the_model_stays_as_it_is(language: tuple[Any, Path]) -> None:
    model, _ = language
    assert model.config._attn_implementation != "eager"
    assert model.device.type == "cpu"


@pytest.mark.slow
def test_a_translator(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_hidden_layers": 1, "encoder_layers": 1, "position_embedding_type": "sinusoidal"}
    model = build.model("seq2seq", placement="admin", **options)
    folder = check("seq2seq", tmp_path, model)
    found = measure_onnx(model, folder)
    assert found.passed, found
    assert [(row.search, row.equal) for row in found.generated] == [("greedy", 8)]
    assert sorted(path.name for path in folder.glob("*.onnx")) == ["decoder_model.onnx", "encoder_model.onnx"]
    with pytest.raises(ValueError, match="decoder_input_ids"):
        OnnxModel(folder)(build.tokens(2, 3))


def test_warnings_are_as_before(language: tuple[Any, Path]) -> None:
    with pytest.warns(UserWarning, match="still heard"):
        warnings.warn("still heard", UserWarning, stacklevel=1)


@pytest.mark.slow
@pytest.mark.parametrize("placement", build.NAMES)
def test_every_placement(placement: str, tmp_path: Path) -> None:
    check("seq2seq", tmp_path, build.model("seq2seq", placement=placement, num_hidden_layers=1, encoder_layers=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "options"),
    [
        ("masked", {"placement": "normformer-resscale-qkv", "type_vocab_size": 2}),
        ("classify", {"placement": "post-ln", "norm": "rmsnorm", "hidden_act": "swiglu"}),
        ("causal", {"position_embedding_type": "rotary", "hidden_act": "gelu_tanh", "scale_embedding": True}),
        ("causal", {"position_embedding_type": "sinusoidal_interleaved", "position_offset": 2, "embedding_norm": True}),
        ("causal", {"position_embedding_type": "none", "hidden_act": "relu_squared", "bias": False}),
    ],
    ids=str,
)
def test_heads_positions_and_activations(head: str, options: dict[str, Any], tmp_path: Path) -> None:
    check(head, tmp_path, build.model(head, **options))


@pytest.mark.slow
def test_towers_that_differ(tmp_path: Path) -> None:
    other = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "placement": "admin"}
    narrow: dict[str, Any] = {"input_size": 8, "output_size": 12, "tie_word_embeddings": False, "head_bias": True}
    check("seq2seq", tmp_path, build.model("seq2seq", encoder_options=other, **narrow))


@pytest.mark.slow
def test_token_types(tmp_path: Path) -> None:
    model = build.model("masked", placement="post-ln", type_vocab_size=2)
    folder = export_onnx(model, tmp_path / "onnx")
    ids, types = build.tokens(2, 6), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    with torch.no_grad():
        build.close(OnnxModel(folder)(ids, token_type_ids=types), model(ids, token_type_ids=types).logits, LIMIT)
        build.close(OnnxModel(folder)(ids), model(ids).logits, LIMIT)
    assert float((OnnxModel(folder)(ids, token_type_ids=types) - OnnxModel(folder)(ids)).abs().max()) > 1e-2


# What is refused.


def test_a_tower_without_a_head(tmp_path: Path) -> None:
    with pytest.raises(InteropError, match="IsogradModel has no head"):
        export_onnx(IsogradModel(build.config("masked")), tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="exists already"):
        export_onnx(build.model("causal"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_without_the_library(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name} is not installed: pip install 'isograd\[export\]'"):
        export_onnx(build.model("causal"), tmp_path / "onnx")

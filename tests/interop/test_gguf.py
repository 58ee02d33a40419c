"""GGUF files: tensors by hand, logits by transformers' reader, and by llama.cpp itself where a binding is installed."""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from isograd.convert import gguf as module
from isograd.convert.checkpoints.tokenizers import for_transformers, train_tokenizer
from isograd.convert.export import export_folder
from isograd.convert.gguf import FILE, export_gguf, measure_gguf
from isograd.errors import InteropError
from tests import build

TOKENIZER = train_tokenizer(
    ["The quick brown fox jumps over the lazy dog.", "A man isn't 12 feet tall, is he?"], "bpe", 290
)
WORDS = TOKENIZER.get_vocab_size()
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": None}
GPT2: dict[str, Any] = {
    "hidden_act": "gelu_tanh",
    "intermediate_size": 64,
}  # 4 x width, as transformers' reader assumes
LLAMA: dict[str, Any] = {
    "norm": "rmsnorm",
    "hidden_act": "swiglu",
    "position_embedding_type": "rotary",
    "rope_theta": 500.0,
    "norm_eps": 1e-3,
    "bias": False,
    "intermediate_size": 40,
}


def causal(**options: Any) -> Any:
    model = build.model("causal", **(IDS | {"vocab_size": WORDS + 2, "max_position_embeddings": 1024} | options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return model


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, and fields as Python's values."""
    reader = gguf.GGUFReader(folder / FILE)
    tensors = {t.name: torch.tensor(t.data) for t in reader.tensors}
    return tensors, {name: field.contents() for name, field in reader.fields.items()}


def test_gpt2_tensor_by_tensor(tmp_path: Path) -> None:
    model = causal(**GPT2)
    tensors, fields = read(export_gguf(model, TOKENIZER, tmp_path / "gguf"))
    own = model.model
    layer = own.layers[1]
    branch = layer.attn.branch
    expected = {
        "token_embd.weight": own.embedding.tokens.weight,
        "position_embd.weight": own.embedding.positions.weight,
        "output_norm.bias": own.norm.bias,
        "blk.1.attn_norm.weight": layer.attn.pre.weight,
        "blk.1.attn_qkv.weight": torch.cat([branch.query.weight, branch.key.weight, branch.value.weight]),
        "blk.1.attn_qkv.bias": torch.cat([branch.query.bias, branch.key.bias, branch.value.bias]),
        "blk.1.attn_output.weight": branch.out.weight,
        "blk.1.ffn_norm.weight": layer.ffn.pre.weight,
        "blk.1.ffn_up.weight": layer.ffn.branch.into.weight,
        "blk.1.ffn_down.weight": layer.ffn.branch.out.weight,
        "blk.1.ffn_down.bias": layer.ffn.branch.out.bias,
    }
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name
    assert "output.weight" not in tensors  # tied
    assert fields["general.architecture"] == "gpt2"
    assert fields["gpt2.block_count"] == 2
    assert fields["gpt2.context_length"] == 1024
    assert fields["gpt2.feed_forward_length"] == 64
    assert fields["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-5)


def test_llama_tensor_by_tensor(tmp_path: Path) -> None:
    model = causal(**LLAMA)
    tensors, fields = read(export_gguf(model, TOKENIZER, tmp_path / "gguf"))
    layer = model.model.layers[0]
    for name, rows in (("attn_q", layer.attn.branch.query.weight), ("attn_k", layer.attn.branch.key.weight)):
        found = tensors[f"blk.0.{name}.weight"]
        for head in range(4):  # of 4 features: rotated are 0 with 2 and 1 with 3 here, neighbours there
            ours, theirs = rows[4 * head : 4 * head + 4], found[4 * head : 4 * head + 4]
            assert torch.equal(theirs, ours[[0, 2, 1, 3]])
    assert torch.equal(tensors["blk.0.attn_v.weight"], layer.attn.branch.value.weight)
    assert torch.equal(tensors["blk.0.ffn_gate.weight"], layer.ffn.branch.gate.weight)
    assert torch.equal(tensors["blk.0.ffn_up.weight"], layer.ffn.branch.into.weight)
    assert fields["general.architecture"] == "llama"
    assert fields["llama.rope.freq_base"] == 500.0
    assert fields["llama.rope.dimension_count"] == 4
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-3)


def test_the_vocabulary(tmp_path: Path) -> None:
    _, fields = read(export_gguf(causal(**GPT2), TOKENIZER, tmp_path / "gguf"))
    tokens = fields["tokenizer.ggml.tokens"]
    assert tokens[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokens[:WORDS] == [TOKENIZER.id_to_token(i) for i in range(WORDS)]
    assert tokens[WORDS:] == [f"<unused-{WORDS}>", f"<unused-{WORDS + 1}>"]
    assert fields["tokenizer.ggml.token_type"][:5] == [3, 2, 3, 3, 1]
    assert fields["tokenizer.ggml.token_type"][-2:] == [5, 5]
    merges = json.loads(TOKENIZER.to_str())["model"]["merges"]
    assert fields["tokenizer.ggml.merges"] == [" ".join(merge) for merge in merges]
    assert (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert fields["tokenizer.ggml.eos_token_id"] == 3
    assert fields["tokenizer.ggml.add_bos_token"] is False


CASES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-sinusoids": GPT2 | {"position_embedding_type": "sinusoidal", "scale_embedding": True, "bias": False},
    "llama": LLAMA,
    "llama-scaled": LLAMA | {"scale_embedding": True},
    "llama-untied": LLAMA | {"tie_word_embeddings": False},
}


def gap(model: Any, folder: Path) -> float:
    ids = build.tokens(2, 9, low=4, high=WORDS)
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE)
    with torch.no_grad():
        return float((theirs(ids).logits - model(ids).logits).abs().max())


@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_the_same_function(case: str, tmp_path: Path) -> None:
    model = causal(**CASES[case])
    assert gap(model, export_gguf(model, TOKENIZER, tmp_path / "gguf")) < 1e-5


def test_rows_that_are_not_paired_are_another_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_paired", lambda weight, heads: weight)
    model = causal(**LLAMA)
    folder = export_gguf(model, TOKENIZER, tmp_path / "gguf")
    assert gap(model, folder) > 1e-2
    assert not measure_gguf(model, folder).passed


@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_the_parity_report(case: str, tmp_path: Path) -> None:
    model = causal(**(CASES[case] | {"intermediate_size": 24, "max_position_embeddings": 40}))
    found = measure_gguf(model, export_gguf(model, TOKENIZER, tmp_path / "gguf"))
    assert found.passed, found
    assert "llama.cpp was not run" in str(found)
    assert FILE in found.files


def test_half(tmp_path: Path) -> None:
    model = causal(**LLAMA)
    folder = export_gguf(model, TOKENIZER, tmp_path / "gguf", half=True)
    tensors, _ = read(folder)
    assert tensors["blk.0.attn_v.weight"].dtype == torch.float16
    assert tensors["blk.0.attn_norm.weight"].dtype == torch.float32
    found = measure_gguf(model, folder, half=True)
    assert found.logits[0].relative is not None
    assert 1e-5 < found.logits[0].relative < 1e-2


@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_reads_the_same_function(case: str, tmp_path: Path) -> None:
    binding = pytest.importorskip("xllamacpp", reason="no binding of llama.cpp is installed")
    model = causal(**CASES[case])
    options = binding.CommonParams()
    options.model.path = str(export_gguf(model, TOKENIZER, tmp_path / "gguf") / FILE)
    options.n_ctx, options.n_parallel, options.n_gpu_layers, options.warmup, options.verbosity = 32, 1, 0, False, -1
    options.cpuparams.n_threads = 1
    options.cache_type_k = options.cache_type_v = binding.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = binding.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # keys in float16
    server = binding.Server(options)
    limit = 1e-4 if case.startswith("llama") else 2e-2  # its GELU is a table of float16
    compared = 0
    for seed in range(12):
        ids = build.tokens(1, 9, seed=seed, low=4, high=WORDS)
        asked = {"prompt": ids[0].tolist(), "max_tokens": 1, "temperature": 0, "logprobs": WORDS, "n_probs": WORDS}
        told = (server.handle_completions(asked)["choices"][0].get("logprobs") or {}).get("content")
        if not told:  # a byte that is no character alone
            continue
        with torch.no_grad():
            ours = model(ids).logits[0, -1].log_softmax(dim=-1)
        compared += 1
        for token in told[0]["top_logprobs"]:
            assert token["logprob"] == pytest.approx(float(ours[token["id"]]), abs=limit)
    assert compared >= 6


def test_from_folder_to_folder(tmp_path: Path) -> None:
    causal(**LLAMA).save_pretrained(tmp_path / "model")
    for_transformers(TOKENIZER).save_pretrained(tmp_path / "model")
    done = export_folder(tmp_path / "model", tmp_path / "out", to="gguf")
    assert (done.to, done.form, done.report.passed) == ("gguf", "GGUF", True)
    assert {FILE, "README.md", "parity.json"} <= {path.name for path in (tmp_path / "out").iterdir()}


# What is refused.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"placement": "post-ln", **GPT2}, "it has no norm on the sum"),
        ({"placement": "admin", **GPT2}, "it has no norm on the sum"),
        ({"placement": "normformer", **GPT2}, "no norm"),
        ({"hidden_act": "relu"}, "gpt2 computes gelu_tanh, and this model relu"),
        (LLAMA | {"bias": True}, "has no biases"),
        (LLAMA | {"norm": "layernorm"}, "its norms are rmsnorm, this model's layernorm"),
        (LLAMA | {"hidden_act": "gelu_tanh"}, "its activation is one of swiglu"),
    ],
)
def test_what_llama_cpp_cannot_hold(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InteropError, match=said) as caught:
        export_gguf(causal(**options), TOKENIZER, tmp_path / "gguf")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_other_models_and_vocabularies(tmp_path: Path) -> None:
    characters = train_tokenizer(["abc"], "char")
    for model, tokenizer, said in (
        (build.model("seq2seq"), TOKENIZER, "left to right, IsogradForSeq2SeqLM does not"),
        (causal(**GPT2), characters, "WordLevel"),
        (causal(**GPT2), None, "NoneType has none"),
    ):
        with pytest.raises(InteropError, match=said):
            export_gguf(model, tokenizer, tmp_path / "gguf")
    assert not list(tmp_path.iterdir())


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"isograd\[export\]"):
        export_gguf(causal(**GPT2), TOKENIZER, tmp_path / "gguf")

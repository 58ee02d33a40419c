"""CTranslate2 reads what we write: its own log-probabilities, logits and hypotheses beside ours."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from isograd.convert import ctranslate2 as module
from isograd.convert.checkpoints.subwords import PairTokenizer, train_subwords
from isograd.convert.checkpoints.vocabulary import pieces
from isograd.convert.ctranslate2 import export_ctranslate2, measure_ctranslate2
from isograd.convert.export import export_folder
from isograd.convert.parity import ParityError, ParityReport
from isograd.convert.sample import random_sample
from isograd.errors import InteropError
from isograd.models.search import search
from isograd.placement import ByKind, Norm, Placement, ProjectionNorm, Residual, register
from tests import build

GERMAN, ENGLISH = ["ein mann geht zur arbeit"] * 2, ["a man goes to his work, quickly"] * 2
SOURCE, TARGET = train_subwords(GERMAN, "char", 0), train_subwords(ENGLISH, "char", 0)
PAIR = PairTokenizer(SOURCE, TARGET)
EOS = TARGET.eos_id
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": EOS, "decoder_start_token_id": EOS}
ROWS = TARGET.vocab_size + 2  # two that the vocabulary does not know
N = Norm()


def translator(**options: Any) -> Any:
    own: dict[str, Any] = {"vocab_size": ROWS, "encoder_vocab_size": SOURCE.vocab_size, "hidden_act": "relu"}
    return sharper(build.model("seq2seq", **(IDS | own | options)))


def causal(**options: Any) -> Any:
    return sharper(build.model("causal", **(IDS | {"vocab_size": ROWS} | options)))


def sharper(model: Any) -> Any:
    """Far from uniform, so that what is wrong shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return model


def exported(model: Any, folder: Path, **options: Any) -> Any:
    path = export_ctranslate2(model, PAIR if model.config.is_encoder_decoder else TARGET, folder / "ct2", **options)
    kind = ctranslate2.Translator if model.config.is_encoder_decoder else ctranslate2.Generator
    return kind(str(path), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1)


def sources(n: int = 5, time: int = 9) -> Tensor:
    return build.tokens(n, time, low=4, high=SOURCE.vocab_size)


def words(ids: Tensor, vocabulary: Any = SOURCE) -> list[list[str]]:
    known = pieces(vocabulary, ROWS)
    return [[known[i] for i in row] for row in ids.tolist()]


def log_p(model: Any, source: Tensor, target: Tensor) -> Tensor:
    """Of the target and </s>, by the model's own forward pass."""
    end = torch.full((len(target), 1), EOS)
    with torch.no_grad():
        logits = model(input_ids=source, decoder_input_ids=torch.cat([end, target], dim=1)).logits
    return logits.log_softmax(dim=-1).gather(2, torch.cat([target, end], dim=1)[..., None])[..., 0]


def gap(model: Any, folder: Path) -> float:
    """The largest difference of a log-probability or a logit to CTranslate2's."""
    theirs, source = exported(model, folder), sources()
    if model.config.is_encoder_decoder:
        target = build.tokens(5, 6, seed=1, low=4, high=TARGET.vocab_size)
        scores = theirs.score_batch(words(source), words(target, TARGET))
        return float((log_p(model, source, target) - torch.tensor([s.log_probs for s in scores])).abs().max())
    ids = build.tokens(5, 9, low=4, high=ROWS)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    return float((logits - torch.from_numpy(np.array(theirs.forward_batch(ids.tolist())))).abs().max())


CASES: Sequence[dict[str, Any]] = (
    {"placement": "post-ln", "position_embedding_type": "sinusoidal", "scale_embedding": True},
    {"placement": "pre-ln", "position_embedding_type": "sinusoidal_interleaved", "hidden_act": "gelu"},
    {"placement": "admin", "embedding_norm": True, "position_embedding_type": "sinusoidal"},
    {"placement": "admin", "position_embedding_type": "sinusoidal"},  # into tables, untied on the way
    {"placement": "deepnorm", "position_offset": 2},
    {"norm": "rmsnorm", "hidden_act": "swiglu", "bias": False, "position_embedding_type": "rotary"},
    {"placement": "post-ln", "norm": "rmsnorm", "norm_eps": 0.1, "position_embedding_type": "none"},
    {"placement": "admin-closed", "position_embedding_type": "rotary", "rope_theta": 100.0, "hidden_act": "gelu_tanh"},
    {"placement": "pre-ln", "type_vocab_size": 2, "tie_word_embeddings": False, "head_bias": True},
)


@build.in_turn("made, options", [translator, causal], CASES, ids=lambda x: getattr(x, "__name__", "") or str(x))
def test_the_same_function(made: Any, options: dict[str, Any], tmp_path: Path) -> None:
    assert gap(made(**options), tmp_path) < 5e-5


ATTENTIONS: Sequence[dict[str, Any]] = (
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 1, "position_embedding_type": "rotary", "norm": "rmsnorm", "hidden_act": "swiglu"},
    {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_type": "rotary", "bias": False},
    {"head_dim": 2},
    {"attention_multiplier": 0.2, "num_key_value_heads": 2, "scale_embedding": 3.0},
    {"position_embedding_type": "rotary", "rope_interleaved": True, "rope_theta": 50.0, "head_dim": 8},
    {"position_embedding_type": "rotary", "head_dim": 8, "num_key_value_heads": 1}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}},
    {"bias_roles": ["query", "key", "value"], "num_key_value_heads": 2},
    {"bias_roles": ["value", "ffn_out"], "placement": "post-ln"},
    {"placement": "admin", "num_key_value_heads": 2},
)


@pytest.mark.parametrize("options", ATTENTIONS, ids=lambda options: "-".join(map(str, options)))
def test_grouped_heads_of_any_width(options: dict[str, Any], tmp_path: Path) -> None:
    """Greedy continuations too, which are computed with a cache."""
    model = causal(num_attention_heads=4, **options)
    assert gap(model, tmp_path) < 5e-5
    assert not measure_ctranslate2(model, TARGET, tmp_path / "ct2").failures()


@pytest.mark.parametrize("made", [translator, causal])
def test_norms_on_queries_and_keys(made: Any, tmp_path: Path, own_catalogue: None) -> None:
    normed = Residual(pre=N, projections=ProjectionNorm(of=("query", "key"), over="head"))
    register("normed", Placement(each=ByKind(attn=normed, cross=Residual(pre=N), ffn=Residual(pre=N)), final=N))
    assert gap(made(placement="normed", position_embedding_type="rotary"), tmp_path / "layernorm") < 5e-5
    assert gap(made(placement="normed", norm="rmsnorm"), tmp_path / "rmsnorm") < 5e-5


def test_final_norms_are_the_placements(tmp_path: Path, own_catalogue: None) -> None:
    register("post and final", Placement(each=Residual(post=N), final=N))
    register("pre alone", Placement(each=Residual(pre=N)))
    assert gap(translator(placement="post and final"), tmp_path / "post") < 5e-5
    assert gap(translator(placement="pre alone"), tmp_path / "pre") < 1e-3  # logits of several hundred


def test_towers_and_tables_of_other_widths(tmp_path: Path) -> None:
    other = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "placement": "admin"}
    assert gap(translator(placement="pre-ln", encoder_options=other), tmp_path / "towers") < 5e-5
    narrow = {"input_size": 8, "output_size": 12, "tie_word_embeddings": False}
    assert gap(translator(placement="deepnorm", **narrow), tmp_path / "decoder") < 5e-5
    assert gap(causal(placement="post-ln", scale_embedding=True, **narrow), tmp_path / "language") < 5e-5


def test_the_shared_table_of_a_translator(tmp_path: Path) -> None:
    model = translator(placement="admin", encoder_vocab_size=None, share_encoder_embeddings=True)
    path = export_ctranslate2(model, PairTokenizer(TARGET, TARGET), tmp_path / "ct2")
    assert (path / "shared_vocabulary.json").is_file()
    assert measure_ctranslate2(model, PairTokenizer(TARGET, TARGET), path).passed


# The search.


def ending(placement: str = "post-ln", bias: float = 3.0) -> Any:
    """Hypotheses end after some tokens, and none has padding in it: one feature is 1, so that its column is a bias."""
    model = translator(placement=placement, tie_word_embeddings=False)
    with torch.no_grad():
        last = model.decoder.layers[-1].ffn.post
        last.weight[0], last.bias[0] = 0, 1
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[0, 0] = -20
        model.lm_head.weight[EOS, 0] = bias
    return model


def hypotheses(model: Any, source: Tensor, **options: Any) -> list[list[tuple[list[int], float]]]:
    found = search(model, source, beam=5, early_stopping=True, **options)
    return [[(h.tokens, h.score) for h in each] for each in found]


def theirs_of(model: Any, source: Tensor, folder: Path, **options: Any) -> list[Any]:
    given = {"beam_size": 5, "max_decoding_length": 31, "return_scores": True, "return_end_token": True} | options
    found: list[Any] = exported(model, folder).translate_batch(words(source), **given)
    return found


@pytest.mark.parametrize("penalty", build.few([0.6, 1.0, 2.0], [0.6]))
def test_beams_are_ours_with_early_stopping(penalty: float, tmp_path: Path) -> None:
    model, source = ending("admin"), sources(24)
    found = theirs_of(model, source, tmp_path, length_penalty=penalty, min_decoding_length=0)
    known = pieces(TARGET, ROWS)
    ours = hypotheses(model, source, length_penalty=penalty, limit=30, min_length=0)
    ended = [(each, theirs) for each, theirs in zip(ours, found, strict=True) if len(theirs.hypotheses[0]) <= 30]
    assert len(ended) >= 22  # at the limit ours forces </s>, and CTranslate2 does not
    assert len({len(each[0][0]) for each, _ in ended}) >= (1 if penalty < 1 else 4)
    for each, theirs in ended:
        assert theirs.hypotheses[0] == [known[i] for i in each[0][0]]
        assert theirs.scores[0] == pytest.approx(each[0][1], abs=1e-5)


def test_the_length_counts_the_end_returned_or_not(tmp_path: Path) -> None:
    model, source = ending(), sources(12)
    returned = theirs_of(model, source, tmp_path / "a")
    without = theirs_of(model, source, tmp_path / "b", return_end_token=False)
    for a, b in zip(returned, without, strict=True):
        assert a.scores == b.scores
        assert [token for token in a.hypotheses[0] if token != "</s>"] == b.hypotheses[0]


def test_a_minimum_length_is_the_one_difference_of_scores(tmp_path: Path) -> None:
    """Ours takes </s> out of the first step's continuations; there its share goes to the other ones."""
    model, source = ending(bias=4.0), sources(12)
    found, ours = theirs_of(model, source, tmp_path), hypotheses(model, source, limit=30)
    with torch.no_grad():
        first = model(input_ids=source, decoder_input_ids=torch.full((12, 1), EOS)).logits[:, 0].softmax(dim=-1)
    known, compared = pieces(TARGET, ROWS), 0
    for theirs, (best, *_), share in zip(found, ours, first[:, EOS].tolist(), strict=True):
        if theirs.hypotheses[0] == [known[i] for i in best[0]] and len(best[0]) <= 30:
            compared += 1
            assert share > 0.1
            assert (theirs.scores[0] - best[1]) * len(best[0]) == pytest.approx(-np.log1p(-share), abs=1e-4)
    assert compared >= 8


def test_greedy_generation(tmp_path: Path) -> None:
    model = causal(placement="admin")
    prompts = build.tokens(4, 5, low=4, high=TARGET.vocab_size)
    found = exported(model, tmp_path).generate_batch(
        words(prompts, TARGET), beam_size=1, max_length=12, include_prompt_in_result=False
    )
    ours = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=12)
    for row, theirs in zip(ours[:, 5:].tolist(), found, strict=True):
        assert theirs.sequences_ids[0] == (row[: row.index(EOS)] if EOS in row else row)


def test_a_line_of_text(tmp_path: Path) -> None:
    model = ending()
    theirs = exported(model, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ct2" / "source_tokenizer")
    read = tokenizer.convert_ids_to_tokens(tokenizer(GERMAN[0])["input_ids"])
    assert read[-1] == "</s>"
    (found,) = theirs.translate_batch([read], beam_size=1, max_decoding_length=30)
    (ours,) = search(model, torch.tensor(SOURCE.encode(GERMAN[:1])), beam=1, limit=30)
    assert found.hypotheses[0] == [pieces(TARGET, ROWS)[i] for i in ours[0].tokens[:-1]][:30]


# Quantisation, and what is measured.


SATURATES = pytest.mark.skipif(
    "vnni" not in Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else False,
    reason="sums of int8 products saturate on a processor without VNNI: parity fails there, and says so",
)
INT8 = pytest.param("int8", marks=SATURATES)


@pytest.mark.parametrize("quantization", [INT8, "bfloat16"])
def test_quantised_weights(quantization: Any, tmp_path: Path) -> None:
    model = translator(placement="post-ln", hidden_size=32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = export_ctranslate2(model, PAIR, tmp_path / "small", quantization=quantization)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name  # CTranslate2 quantises in place: it has to get copies
    whole = export_ctranslate2(model, PAIR, tmp_path / "whole")
    assert (path / "model.bin").stat().st_size < 0.6 * (whole / "model.bin").stat().st_size
    report = measure_ctranslate2(model, PAIR, path, quantization=quantization)
    assert report.passed
    assert report.as_dict()["logits"][0]["relative"] > 1e-4


def report_of(model: Any, changed: Any, folder: Path) -> ParityReport:
    tokenizer = PAIR if model.config.is_encoder_decoder else TARGET
    return measure_ctranslate2(model, tokenizer, export_ctranslate2(changed, tokenizer, folder / "ct2"))


@pytest.mark.parametrize("made", [translator, causal])
def test_the_parity_report_and_its_negative_control(made: Any, tmp_path: Path) -> None:
    model = made(placement="admin", norm_eps=1e-3)
    kept = report_of(model, model, tmp_path)
    assert kept.passed, kept
    assert {row["search"] for row in kept.as_dict()["generated"]} == {"greedy"}
    assert "model.bin" in kept.files
    assert "ctranslate2" in kept.versions
    other = made(placement="admin", norm_eps=2e-3)
    assert not report_of(model, other, tmp_path / "other").passed


def test_real_text_is_searched_by_beams_too(tmp_path: Path) -> None:
    model = ending("admin", bias=4.5)
    sample = replace(random_sample(model), kind="text")
    path = export_ctranslate2(model, PAIR, tmp_path / "ct2")
    found = measure_ctranslate2(model, PAIR, path, sample)
    assert found.passed, found
    assert [row["search"] for row in found.as_dict()["generated"]] == ["greedy", "beam 5"]


@pytest.mark.parametrize("positions", build.few(["sinusoidal", "learned", "rotary"], ["learned"]))
def test_both_searches_stop_where_the_model_does(positions: str, tmp_path: Path) -> None:
    """With 47 positions no hypothesis is longer than 46, also where CTranslate2's own bound is 1,024."""
    model = translator(tie_word_embeddings=False, position_embedding_type=positions, max_position_embeddings=47)
    path = export_ctranslate2(model, PAIR, tmp_path / "ct2")
    found = measure_ctranslate2(model, PAIR, path, replace(random_sample(model), kind="text"))
    assert found.passed, found
    assert max(len(h.tokens) for h, *_ in search(model, sources(), beam=5, early_stopping=True)) == 47  # with its </s>


@pytest.mark.parametrize("to", ["ctranslate2", pytest.param("ctranslate2-int8", marks=SATURATES)])
def test_from_folder_to_folder(to: str, tmp_path: Path) -> None:
    model = ending("admin")
    model.save_pretrained(tmp_path / "model")
    PAIR.save(tmp_path / "model")
    done = export_folder(tmp_path / "model", tmp_path / "out", to=to, lines=GERMAN)
    assert (done.to, done.form, done.report.passed) == (to, "CTranslate2", True)
    assert ctranslate2.contains_model(str(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "parity.json").read_text(encoding="utf-8"))
    assert written["passed"] and "model.safetensors" in written["source"]
    assert "ctranslate2.Translator" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_a_failed_parity_report_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", 0.0)
    ending("admin").save_pretrained(tmp_path / "model")
    PAIR.save(tmp_path / "model")
    with pytest.raises(ParityError, match="parity failed"):
        export_folder(tmp_path / "model", tmp_path / "out", to="ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# What is refused.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"placement": "normformer"}, "has a norm on the branch's output"),
        ({"placement": "normformer-resscale-no-out"}, "has a norm before the last projection"),
        ({"placement": "qk-norm"}, "cross in layer 1 of the decoder has a norm on each query"),
        ({"hidden_act": "relu_squared"}, "no activation 'relu_squared'"),
    ],
)
def test_what_it_cannot_hold(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InteropError, match=said) as caught:
        export_ctranslate2(translator(**options), PAIR, tmp_path / "ct2")
    assert "\n" not in str(caught.value)
    assert "onnx" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_both_norms_and_none(tmp_path: Path, own_catalogue: None) -> None:
    register("both", Placement(each=Residual(pre=N, post=N)))
    register("none", Placement(each=Residual()))
    register("mixed", Placement(each=ByKind(attn=Residual(pre=N), ffn=Residual(post=N))))
    for name, said in (("both", "norms before the branch and on the sum"), ("none", "no norm"), ("mixed", "one flag")):
        with pytest.raises(InteropError, match=said):
            export_ctranslate2(causal(placement=name), TARGET, tmp_path / "ct2")


def test_a_masked_model(tmp_path: Path) -> None:
    with pytest.raises(InteropError, match="IsogradForMaskedLM does neither"):
        export_ctranslate2(build.model("masked"), TARGET, tmp_path / "ct2")


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="exists already"):
        export_ctranslate2(causal(), TARGET, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_unknown_quantisation_leaves_nothing(tmp_path: Path) -> None:
    wrong: Any = "int3"
    with pytest.raises(ValueError, match="int3"):
        export_ctranslate2(causal(), TARGET, tmp_path / "ct2", quantization=wrong)
    assert not list(tmp_path.iterdir())


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"isograd\[export\]"):
        export_ctranslate2(causal(), TARGET, tmp_path / "ct2")

"""The report holds where nothing changed and fails at the smallest change that counts."""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

from isograd.convert.folding import fold, measure_fold
from isograd.convert.parity import LIMITS, ParityReport, Runner, hashes, measure
from isograd.convert.sample import Sample, random_sample
from tests.build import HEADS, model, tokens

IDS = {"input_ids": tokens(2, 5), "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
SAMPLE = Sample(kind="by hand", batches=[IDS])


def given(value: Tensor) -> Any:
    return lambda batch: value


def row(report: ParityReport, precision: str) -> Any:
    return next(row for row in report.logits if row.precision == precision)


@pytest.mark.parametrize("head", HEADS)
def test_a_fold_has_one(head: str) -> None:
    made = model(head, placement="admin")
    report = measure_fold(made, fold(made, untie=True), untie=True)
    assert report.passed and report.about == "admin folded into post-ln"
    assert [r.precision for r in report.logits] == ["fp64", "fp32", "bf16"]
    assert 0 < row(report, "fp64").relative < 1e-14 < row(report, "fp32").relative < 1e-5
    assert row(report, "bf16").relative > 1e-3 and row(report, "bf16").limit is None
    assert report.inputs["padding"] > 0 and report.inputs["tokens"] > report.inputs["padding"]
    searches = [(w.search, w.precision, w.judged, w.equal, w.prompts) for w in report.generated]
    expected = [
        (search, *row) for row in (("fp64", True, 8, 8), ("fp32", False, 8, 8)) for search in ("greedy", "beam 5")
    ]
    assert searches == (expected if head in ("causal", "seq2seq") else [])
    assert all(w.tokens > 0 for w in report.generated)


def test_the_numbers_by_hand() -> None:
    made = model(placement="admin")
    other = copy.deepcopy(made)
    torch.nn.init.constant_(other.lm_head.weight[7], 0.3)
    sample = random_sample(made)
    report = measure(made, other, sample)
    largest, difference = 0.0, 0.0
    for batch in sample.batches:
        for i, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
            ids = batch["input_ids"][i : i + 1, :length]  # each sequence alone, without padding
            with torch.no_grad():
                a, b = (copy.deepcopy(m).double()(ids).logits for m in (made, other))
            largest, difference = max(largest, float(a.abs().max())), max(difference, float((a - b).abs().max()))
    exact = row(report, "fp64")
    assert exact.largest == pytest.approx(largest, rel=1e-12)
    assert exact.difference == pytest.approx(difference, rel=1e-12)
    assert exact.relative == pytest.approx(difference / largest, rel=1e-12)
    assert not report.passed and len(report.failures()) >= 2


def test_own_rounding_is_that_of_the_first_model() -> None:
    made = model(placement="post-ln")
    report = measure(made, made)
    assert all(r.difference == 0 for r in report.logits) and report.passed
    assert row(report, "fp64").rounding is None
    assert 1e-9 < row(report, "fp32").rounding < 1e-5 < row(report, "bf16").rounding < 0.1


def test_places_of_padding_do_not_count() -> None:
    logits = torch.randn(2, 5, 11)
    other = logits.clone()
    other[1, 3:] = float("nan")
    assert measure(given(logits), given(other), SAMPLE).passed
    other[1, 2, 4] += 1e-3
    report = measure(given(logits), given(other), SAMPLE)
    assert not report.passed and row(report, "fp32").difference == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_fails(value: float) -> None:
    logits = torch.randn(2, 5, 11)
    other = logits.clone()
    other[0, 0, 0] = value
    for first, second in ((logits, other), (other, logits), (other, other)):
        report = measure(given(first), given(second), SAMPLE)
        assert report.failures() == ["fp32 logits are not numbers, where 1e-05 is allowed"]
        assert json.loads(json.dumps(report.as_dict(), allow_nan=False))["logits"][0]["difference"] is None


def test_the_limits() -> None:
    assert LIMITS == {"fp64": 1e-12, "fp32": 1e-5, "bf16": None}
    logits = torch.ones(2, 5, 11, dtype=torch.float64)
    for change, holds in ((0.9e-12, True), (1.1e-12, False)):
        sides: list[Mapping[Any, Any]] = [{"fp64": given(logits)}, {"fp64": given(logits + change)}]
        assert measure(*sides, SAMPLE).passed is holds
    assert measure(given(logits), given(logits + 0.9e-5), SAMPLE).passed
    assert not measure(given(logits), given(logits + 1.1e-5), SAMPLE).passed
    assert measure(given(logits), given(logits + 0.5), SAMPLE, limits={"fp32": 0.6}).passed
    assert measure(given(logits * 100), given(logits * 100 + 0.9e-3), SAMPLE).passed  # in relation to the largest


def test_the_largest_logit_may_be_zero() -> None:
    zero = torch.zeros(2, 5, 3)
    assert measure(given(zero), given(zero), SAMPLE).passed
    assert not measure(given(zero), given(zero + 1e-4), SAMPLE).passed


def test_outputs_are_compared_token_for_token() -> None:
    sample = Sample(kind="by hand", batches=[IDS], prompts=[IDS], new_tokens=3)
    logits = given(torch.randn(2, 5, 11))

    def writes(*rows: list[int]) -> Runner:
        return Runner(logits=logits, generate=lambda prompt, beams, new: [list(row) for row in rows])

    first = writes([4, 5], [6])
    assert measure(first, writes([4, 5], [6]), sample).passed
    report = measure(first, writes([4, 5], [6, 7]), sample)
    assert report.failures() == ["1 of 2 greedy outputs are equal", "1 of 2 beam 5 outputs are equal"]
    assert "greedy in fp32: 1 of 2 outputs equal, 3 tokens" in str(report)
    with pytest.raises(ValueError, match="zip"):
        measure(first, writes([4, 5]), sample)
    assert measure(first, Runner(logits=logits), sample).generated == ()  # where one side cannot write


def test_writing_is_that_of_generate() -> None:
    made = model("seq2seq", placement="admin", dtype=torch.float64)
    made.generation_config.max_length = 5  # not what is compared
    other = copy.deepcopy(made)
    other.generation_config.num_beams = 3
    report = measure(made, other, random_sample(made))
    assert report.passed and report.generated[0].tokens > 8 * 5
    with torch.no_grad():
        torch.nn.init.normal_(other.lm_head.weight, generator=torch.Generator().manual_seed(1))
    assert measure(made, other).generated[0].equal < 8


def test_models_of_transformers() -> None:
    small = {"vocab_size": 50, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    torch.manual_seed(0)
    made: list[nn.Module] = [
        GPT2LMHeadModel(GPT2Config(**small, n_embd=16, n_layer=2, n_head=2, n_positions=20)),
        BertForMaskedLM(BertConfig(**small, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)),
        MarianMTModel(MarianConfig(**small, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                                   decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
                                   decoder_start_token_id=1, max_position_embeddings=20)),
    ]  # fmt: skip
    for network in made:
        assert measure(network, copy.deepcopy(network)).passed
        other = copy.deepcopy(network)
        next(p for n, p in other.named_parameters() if "attn" in n.lower() or "attention" in n).data *= 1.01
        assert not measure(network, other).passed


def test_nothing_to_judge_is_an_error() -> None:
    logits = given(torch.randn(2, 5, 11))
    with pytest.raises(ValueError, match="nothing to judge"):
        measure({"bf16": logits}, {"bf16": logits}, SAMPLE)
    with pytest.raises(ValueError, match="nothing to judge"):
        measure({"fp64": logits}, logits, SAMPLE)
    with pytest.raises(ValueError, match="pass a sample"):
        measure(logits, logits)
    with pytest.raises(ValueError, match=r"shapes \(8, 11\) and \(8, 12\)"):
        measure(logits, given(torch.randn(2, 5, 12)), SAMPLE)


@pytest.mark.slow
def test_the_same_models_have_the_same_report(tmp_path: Path) -> None:
    made = model("seq2seq", placement="deepnorm")
    folded = fold(made, untie=True)
    texts = [measure_fold(made, folded, untie=True).write(tmp_path).read_text() for _ in range(2)]
    assert texts[0] == texts[1]
    content = json.loads(texts[0])
    assert content["passed"] and "date" not in content and content["versions"].keys() >= {"isograd", "torch", "python"}
    dated = measure_fold(made, folded, untie=True, date="2026-01-01", versions={"other": "1"})
    assert dated.as_dict()["date"] == "2026-01-01" and dated.versions["other"] == "1"


def test_hashes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "sub/b").write_bytes(b"")
    (tmp_path / "parity.json").write_text("{}")
    assert hashes(tmp_path) == {"a.bin": hashlib.sha256(b"abc").hexdigest(), "sub/b": hashlib.sha256().hexdigest()}


def test_models_are_left_as_they_were() -> None:
    made = model("causal", placement="admin").train()
    before, generation = copy.deepcopy(made.state_dict()), made.generation_config.to_dict()
    measure(made, made)
    assert made.training and made.dtype == torch.float32 and made.generation_config.to_dict() == generation
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_half_precision_is_measured_before_the_cast() -> None:
    """bf16 weights: fp64 and fp32 say that the fold is exact, bf16 and a note what was written."""
    made = model("causal", placement="admin", dtype=torch.bfloat16)
    report = measure_fold(made, fold(made, untie=True), untie=True)
    assert report.passed and row(report, "bf16").relative > 1e-3
    assert "Weights are stored in bfloat16: see the row bf16." in report.notes
    assert not measure(made, fold(made, untie=True)).passed  # the negative control: the cast itself is not within 1e-5


@pytest.mark.parametrize("head", HEADS)
def test_random_samples_fit_the_model(head: str) -> None:
    made = model(head, max_position_embeddings=9, encoder_vocab_size=30 if head == "seq2seq" else None)
    sample = random_sample(made)
    for batch in sample.batches:
        assert batch["input_ids"].shape == (4, 9)
        assert batch["attention_mask"].sum(dim=1).tolist() == [9, 7, 5, 3]
        words = batch["input_ids"][batch["attention_mask"].bool()]
        assert words.min() > 2 and words.max() < (30 if head == "seq2seq" else 41)
        assert made(**batch).logits.isfinite().all()
    assert bool(sample.prompts) == (head in ("causal", "seq2seq"))
    again, other = random_sample(made), random_sample(made, seed=1)
    assert torch.equal(again.batches[0]["input_ids"], sample.batches[0]["input_ids"])
    assert not torch.equal(other.batches[0]["input_ids"], sample.batches[0]["input_ids"])

"""Saved and loaded, copied and pickled: bit for bit the same model; and in other dtypes it still runs."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import isograd
from isograd.models import IsogradConfig
from isograd.transformer.norms import NORMS
from isograd.transformer.positions import POSITIONS
from tests.build import EVERY, HEADS, close, config, crossed, inputs, labelled, model, tokens

AUTO = {
    "causal": transformers.AutoModelForCausalLM,
    "masked": transformers.AutoModelForMaskedLM,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "classify": transformers.AutoModelForSequenceClassification,
}
every_head = pytest.mark.parametrize("head", HEADS)


def same(a: Any, b: Any, head: str) -> None:
    assert type(a) is type(b)
    first, second = a.state_dict(), b.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[n], second[n]) and first[n].dtype == second[n].dtype for n in first)
    assert torch.equal(a(**inputs(head)).logits, b(**inputs(head)).logits)


@crossed("name, head", EVERY, [*HEADS])
def test_auto_classes_load_what_was_saved(name: str, head: str, tmp_path: Path) -> None:
    made = model(head, placement=name)
    made.save_pretrained(tmp_path)
    same(made, AUTO[head].from_pretrained(tmp_path), head)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_options_are_saved(norm: str, position: str, tmp_path: Path) -> None:
    options = {"norm": norm, "position_embedding_type": position, "position_offset": 2, "embedding_norm": True}
    made = model(**options, scale_embedding=True, hidden_act="swiglu", bias=False, norm_eps=1e-3, rope_theta=500.0)
    made.save_pretrained(tmp_path)
    same(made, AUTO["causal"].from_pretrained(tmp_path), "causal")


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_tables_stay_tied_or_apart(tie: bool, share: bool, tmp_path: Path) -> None:
    if share and not tie:
        return
    made = model("seq2seq", tie_word_embeddings=tie, share_encoder_embeddings=share)
    made.save_pretrained(tmp_path)
    again = AUTO["seq2seq"].from_pretrained(tmp_path)
    same(made, again, "seq2seq")
    for network in (made, again):
        target = network.decoder.embedding.tokens.weight
        assert (network.lm_head.weight is target) == tie
        assert (network.encoder.embedding.tokens.weight is target) == share


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("head", ["causal", "masked"])
def test_the_head_is_tied_or_apart(head: str, tie: bool, tmp_path: Path) -> None:
    made = model(head, tie_word_embeddings=tie)
    made.save_pretrained(tmp_path)
    for network in (made, AUTO[head].from_pretrained(tmp_path)):
        assert (network.get_output_embeddings().weight is network.get_input_embeddings().weight) == tie


def test_two_vocabularies(tmp_path: Path) -> None:
    made = model("seq2seq", encoder_vocab_size=50, vocab_size=41)
    made.save_pretrained(tmp_path)
    again = AUTO["seq2seq"].from_pretrained(tmp_path)
    same(made, again, "seq2seq")
    assert len(again.encoder.embedding.tokens.weight) == 50 and len(again.decoder.embedding.tokens.weight) == 41


@crossed("name, head", EVERY, [*HEADS])
def test_deepcopy_and_pickle(name: str, head: str) -> None:
    made = model(head, placement=name)
    same(made, copy.deepcopy(made), head)
    same(made, pickle.loads(pickle.dumps(made)), head)


def test_a_copy_shares_nothing() -> None:
    made = model()
    other = copy.deepcopy(made)
    torch.nn.init.zeros_(other.model.layers[0].attn.branch.out.weight)
    assert made.model.layers[0].attn.branch.out.weight.any()
    assert other.lm_head.weight is other.model.embedding.tokens.weight


@crossed("name, head, dtype", EVERY, [*HEADS], [torch.bfloat16, torch.float16])
def test_half_precision_runs(name: str, head: str, dtype: torch.dtype) -> None:
    """Forward and loss in the dtype, near the float32 model; gradients too."""
    exact = model(head, placement=name)
    half = copy.deepcopy(exact).to(dtype)
    out = half(**inputs(head))
    assert out.logits.dtype == dtype
    assert (out.logits.float() - exact(**inputs(head)).logits).abs().max() < 0.25
    half(**labelled(head)).loss.backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in half.parameters())


@crossed("name, head, norm", EVERY, [*HEADS], ["layernorm", "rmsnorm"])
def test_autocast_runs(name: str, head: str, norm: str) -> None:
    made = model(head, placement=name, norm=norm).train()
    exact = made(**labelled(head)).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = made(**labelled(head)).loss
    loss.backward()
    assert (loss - exact).abs() < 0.05
    assert all(p.grad.dtype == torch.float32 for p in made.parameters())


@pytest.mark.parametrize("kind", NORMS.values())
def test_a_norm_of_a_bfloat16_input_with_float32_gains(kind: Any) -> None:
    """What autocast hands it: as exact as the input, and without leaving the fused kernel (which would warn)."""
    norm, x = kind(16, eps=1e-5), torch.randn(4, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(x.bfloat16())
    close(out.float(), norm(x), 0.05)


@pytest.mark.parametrize("position", POSITIONS)
def test_loaded_in_bfloat16(position: str, tmp_path: Path) -> None:
    model(position_embedding_type=position).save_pretrained(tmp_path)
    half = AUTO["causal"].from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half(**inputs("causal")).logits.isfinite().all()
    assert half.generate(inputs("causal")["input_ids"], max_new_tokens=3).shape[1] <= 10


def test_names_at_the_top() -> None:
    assert isograd.IsogradForCausalLM is HEADS["causal"][0]
    assert transformers.AutoConfig.for_model("isograd").__class__ is IsogradConfig
    assert set(isograd.__all__) >= {cls.__name__ for cls, _ in HEADS.values()}


@every_head
def test_a_configuration_goes_round(head: str, tmp_path: Path) -> None:
    made = config(head, placement="admin", calibration={"method": "admin", "encoder": [1.0], "decoder": [1.0, 1.5]})
    made.save_pretrained(tmp_path)
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert again.to_dict() | {"_name_or_path": ""} == made.to_dict()
    assert IsogradConfig(**made.to_dict()).to_dict() == made.to_dict()


@pytest.mark.parametrize("scaled", [False, True])
def test_an_embedding_keeps_its_scale_whatever_the_default(scaled: bool, tmp_path: Path) -> None:
    """config.json says it in either case, so that a changed default changes no model that was saved before."""
    made = model(scale_embedding=scaled)
    made.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["scale_embedding"] is scaled
    again = isograd.IsogradForCausalLM.from_pretrained(tmp_path).eval()
    close(again(**inputs("causal")).logits, made(**inputs("causal")).logits, atol=0)


def test_one_configuration_serves_several_heads() -> None:
    """Building a decoder leaves the caller's configuration as it was."""
    shared = config()
    for head in ("causal", "masked", "classify"):
        HEADS[head][0](shared)
    assert not shared.is_decoder


def test_growing_the_vocabulary() -> None:
    made, ids = model(), inputs("causal")["input_ids"]
    before = made(ids).logits
    made.resize_token_embeddings(60, mean_resizing=False)
    after = made(ids).logits
    assert after.shape[-1] == 60 and torch.equal(after[..., :41], before)
    assert made.lm_head.weight is made.model.embedding.tokens.weight
    assert made.model.embedding.tokens.padding_idx == 1


def test_a_masked_model_is_not_read_as_a_causal_one(tmp_path: Path) -> None:
    """transformers would fill the head anew, warn of it, and generate nonsense."""
    model("masked").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a masked language model's, which reads both ways and cannot generate"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model("causal").save_pretrained(tmp_path)
    causal = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert causal.generate(tokens(1, 3), max_new_tokens=2).shape[1] <= 5

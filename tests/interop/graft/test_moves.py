"""Every change on every family: exact, or refused for the reason that stands here."""

import copy
import re
from typing import Any

import pytest
import torch

from isograd.convert.cli.surgery import graft as verb
from isograd.convert.graft import CHANGES, graft, proven
from isograd.convert.parity import Promoted
from isograd.errors import GraftError
from tests.build import few, in_turn
from tests.build import model as our_model
from tests.interop.graft.families import FAMILIES, IDS, POST_LN, family, logits

FUSED = "expected a matrix for each"
NO_OPTION = "no option of its configuration counts key/value heads"
ELSEWHERE = "isograd's own class cannot hold the model"
REASONS: dict[str, dict[str, str]] = {
    "layers=5": dict.fromkeys(POST_LN, "a norm is applied to the sum"),
    "kv-heads=4": {"gpt2": FUSED, "gpt_neox": FUSED}
    | dict.fromkeys(("opt", "roberta-prelayernorm", *POST_LN), NO_OPTION),
    "vocabulary=80": {},
    "norm-weights=folded": {},
}


@in_turn("name, change", [*FAMILIES], [*REASONS])
def test_an_exact_change(name: str, change: str) -> None:
    model = family(name)
    before = logits(model)
    if reason := REASONS[change].get(name):
        with pytest.raises(GraftError, match=reason):
            graft(model, change)
        return
    made = graft(model, change)
    assert type(made.model) is type(model)
    report = made.steps[0].parity
    assert report is not None and report.passed
    assert {row.precision: row.limit for row in report.logits} == {"fp64": 1e-10, "fp32": 1e-5, "bf16": None}
    after = logits(made.model)[..., : before.shape[-1]]
    assert float((after - before).abs().max() / before.abs().max()) < 1e-5  # as it stands, nothing promoted
    assert torch.equal(logits(model), before)


OURS = {
    "scale=layerscale": "LearnedAdd",
    "streams=3": "HyperConnection",
    "norm=rmsnorm": "RMSNorm",
    "layers=4": "LearnedAdd",
}


@in_turn("name, change", ["gpt2", "gpt_neox", "roberta-prelayernorm", "bert", "llama", "gemma2"], [*OURS], every=2)
def test_an_exact_change_into_our_class(name: str, change: str) -> None:
    refused = {
        ("gpt_neox", "streams=3"): "equal to Pre-LN alone",
        ("gpt_neox", "norm=rmsnorm"): "its stream is not plain",
        ("llama", "norm=rmsnorm"): "not plain LayerNorms",
        ("gemma2", "norm=rmsnorm"): "not plain LayerNorms",
        ("bert", "streams=3"): "equal to Pre-LN alone",
        ("bert", "norm=rmsnorm"): "a norm is applied to the sum",
        ("bert", "layers=4"): "a norm is applied to the sum",
        ("roberta-prelayernorm", "norm=rmsnorm"): "the embedding has a norm",
    }
    model = family(name)
    if reason := refused.get((name, change)):
        with pytest.raises(GraftError, match=reason):
            graft(model, change, new="gate")
        return
    made = graft(model, change, new="gate")
    assert made.exact and OURS[change] in {type(module).__name__ for module in made.model.modules()}
    before, after = logits(model), logits(made.model)
    assert float((after - before).abs().max() / before.abs().max()) < 1e-5


@pytest.mark.slow
def test_changes_one_after_another(tmp_path: Any) -> None:
    model = family("gpt2")
    made = graft(model, "layers=4", "norm-weights=folded", "vocabulary=70", "scale=layerscale", "layers=5")
    assert made.exact and len(made.steps) == 5 and made.model.config.num_hidden_layers == 5
    made.model.save_pretrained(tmp_path)
    loaded = type(made.model).from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(made.model))
    before, after = logits(model), logits(loaded)[..., :61]
    assert float((after - before).abs().max() / before.abs().max()) < 1e-5


def test_folded_norms_are_ones() -> None:
    made: Any = graft(family("llama"), "norm-weights=folded").model
    weights = [n for n, p in made.named_parameters() if "norm" in n and not torch.equal(p, torch.ones_like(p))]
    assert not weights
    gemma: Any = graft(family("gemma2"), "norm-weights=folded").model  # stored around 1
    layer = gemma.model.layers[0]
    assert not layer.input_layernorm.weight.any() and layer.post_attention_layernorm.weight.any()


def test_every_head_of_a_group_is_the_same() -> None:
    """Rows of 8: heads 0 and 1 of the new keys are head 0 of the old."""
    model: Any = family("llama")
    made: Any = graft(model, "kv-heads=4").model
    old, new = (m.model.layers[1].self_attn.k_proj.weight.view(-1, 8, 32) for m in (model, made))
    assert [int(torch.tensor([torch.equal(n, o) for o in old]).nonzero()) for n in new] == [0, 0, 1, 1]
    assert made.config.num_key_value_heads == 4


@pytest.mark.parametrize(
    "change", few(["norm-weights=folded", "kv-heads=4", "scale=layerscale", "streams=2"], ["kv-heads=4"])
)
def test_the_proof_sees_a_wrong_weight(change: str) -> None:
    """The negative control: the last matrix of the result moved by a thousandth of itself."""
    model = family("llama" if change == "kv-heads=4" else "gpt2")
    done = graft(model, change)
    made, right = done.model, done.steps[0].parity
    assert right is not None and right.passed
    matrix = [p for n, p in made.named_parameters() if (p.ndim == 2 and "layers" in n) or ".h." in n][-2]
    with torch.no_grad():
        matrix.mul_(1.01)
    report = proven(model, made, about=change)
    assert not report.passed and report.failures()


def test_float64_throughout() -> None:
    """Without it a norm of Llama's rounds to float32, and 1e-10 could not be asked for: each model against itself."""
    model = copy.deepcopy(family("llama")).double()
    with torch.inference_mode():
        plain = model(IDS).logits
        with Promoted():
            inside = model(IDS).logits
    difference = float((plain - inside).abs().max() / inside.abs().max())
    assert 1e-9 < difference < 1e-5


def test_what_is_no_model_of_one_stack() -> None:
    with pytest.raises(GraftError, match="an encoder and a decoder"):
        graft(our_model("seq2seq"), "layers=4")
    with pytest.raises(GraftError, match="which every sublayer mixes"):
        graft(our_model(placement="hyper-connections"), "layers=4")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("vocabulary=61", "expected more"),
        ("kv-heads=3", "a divisor of 4 heads"),
        ("kv-heads=2", "the model has 2"),
        ("norm=layernorm", "expected rmsnorm or dyt"),
        ("norm=dyt", "measured on a text"),
        ("layers=2", "measured on a text"),
    ],
)
def test_refusals(change: str, said: str) -> None:
    with pytest.raises(GraftError, match=said):
        graft(family("gpt2" if change == "norm=dyt" else "llama"), change)


def test_the_help_lists_every_change() -> None:
    text = " ".join((verb.__doc__ or "").split())
    for name, change in CHANGES.items():
        assert re.search(re.escape(f"{name}={change.value} {change.about}"), text), name

"""What transformers' own classes begin with is no error of a user who takes them as they are; what he did is."""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, MT5Config, MT5ForConditionalGeneration

import isograd
from tests.study.arms import called


class Mine(MT5ForConditionalGeneration):
    """A class of one's own, whatever it inherits."""


def mt5(kind: Any = MT5ForConditionalGeneration, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 101}
    return kind(MT5Config(**sizes, decoder_start_token_id=0, **more))


def test_what_every_new_model_has_is_less_severe_and_says_so() -> None:
    (finding,) = isograd.check(mt5())
    assert (finding.code, finding.severity, finding.kind) == ("initial-loss", "info", "fact")
    assert "every new MT5ForConditionalGeneration of transformers" in finding.message
    assert called("check", "tests.lint.test_upstream:mt5")[0] == 0


def test_in_a_class_of_ones_own_it_is_not() -> None:
    (finding,) = isograd.check(mt5(Mine))
    assert (finding.code, finding.severity) == ("initial-loss", "warning")


def gpt2(**settings: Any) -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=101, n_positions=32, **settings))


def test_what_a_setting_or_a_weight_has_done_stays_an_error() -> None:
    assert not isograd.check(gpt2()).errors
    found = isograd.check(gpt2(initializer_range=1.0), prove=True)
    assert "init-large" in [one.code for one in found.errors], str(found)
    model = gpt2()
    model.transformer.h[1].mlp.c_fc.weight.data[3, 5] = float("nan")
    assert [one.code for one in isograd.check(model).errors] == ["not-finite"]
    model = mt5()
    torch.nn.init.zeros_(model.decoder.block[0].layer[2].DenseReluDense.wo.weight)
    loud = [one.code for one in isograd.check(model) if one.severity != "info"]
    assert loud and "initial-loss" not in loud


def test_the_random_numbers_of_the_caller_stay() -> None:
    model = gpt2()
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    isograd.check(model)
    assert torch.equal(torch.rand(3), wanted)

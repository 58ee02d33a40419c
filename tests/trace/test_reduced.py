"""Large models: what is left out of them, that it changes nothing that is said, and what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from isograd.errors import ModelError
from isograd.hub import from_config
from isograd.lint.checked_model import CheckedModel
from isograd.trace import record
from isograd.trace.anatomy import find_anatomy
from isograd.trace.inputs import guess_inputs
from isograd.trace.load import load_part
from isograd.trace.reduced import few_of_each, size_of
from tests.study.arms import refused

# DeepSeek V3: three dense layers first, then experts; Gemma 2: windows on every second layer
FAMILIES: list[tuple[Any, Any, list[int]]] = [
    (GPT2Config(), GPT2LMHeadModel, [2]),
    (LlamaConfig(), LlamaForCausalLM, [2]),
    (T5Config(num_layers=12, num_decoder_layers=10), T5ForConditionalGeneration, [2, 2]),
    (Gemma2Config(), Gemma2ForCausalLM, [2]),
    (DeepseekV3Config(), DeepseekV3ForCausalLM, [4]),
]


@pytest.mark.parametrize(("config", "kind", "layers"), FAMILIES, ids=[kind.__name__ for _, kind, _ in FAMILIES])
def test_one_layer_of_each_kind_is_built_of_a_configuration(config: Any, kind: Any, layers: list[int]) -> None:
    build = partial(from_config, kind)
    small, left_out = few_of_each(build, config)
    with torch.device("meta"):
        model = kind(small)
    assert [len(m) for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1][: len(layers)] == layers
    assert size_of(build, small) < size_of(build, config) / 4
    assert model.get_input_embeddings().weight.shape == (2048, config.hidden_size)
    assert left_out.count(" layers") == len(layers)


def config_of(folder: Path, **sizes: int) -> Path:
    small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaConfig(**{**small, "architectures": ["LlamaForCausalLM"], **sizes}).save_pretrained(folder)
    return folder / "config.json"


def test_a_part_is_built_only_of_what_has_too_many_parameters(tmp_path: Path) -> None:
    file = config_of(tmp_path, num_hidden_layers=12)
    whole, nothing = load_part(str(file), 10_000_000)
    part, left_out = load_part(str(file), 1_000_000)
    assert (len(whole.model.layers), nothing) == (12, "")
    assert len(part.model.layers) == 2
    assert left_out.startswith("10 of 12 layers and 29,952 of 32,000 tokens")


def test_what_no_memory_holds_is_refused_in_a_line(tmp_path: Path) -> None:
    file = config_of(tmp_path, hidden_size=1 << 19, intermediate_size=1 << 20, num_hidden_layers=80)
    said = refused("check", str(file))
    assert "B parameters take" in said
    assert said.endswith("GB are free here")


def test_a_checkpoint_that_no_memory_holds_is_sent_to_its_configuration(tmp_path: Path) -> None:
    config_of(tmp_path, hidden_size=1 << 19, intermediate_size=1 << 20, num_hidden_layers=80)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=rf"isograd check {tmp_path}/config\.json$"):
        load_part(str(tmp_path), 1e9)


def checked(model: nn.Module) -> CheckedModel:
    inputs = guess_inputs(model)
    return CheckedModel(model, inputs, find_anatomy(model, inputs))


def test_a_large_model_shares_its_weights_and_runs_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LARGE", 0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=8, vocab_size=64, n_positions=32))
    seen = checked(model)
    memory = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in seen.few.parameters()} == memory
    ran: list[str] = []
    for name, module in seen.few.named_modules():
        if name.endswith(".attn"):
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    seen.run(seen.inputs)
    assert ran == ["transformer.h.0.attn", "transformer.h.1.attn", "transformer.h.7.attn"]


def test_a_layer_that_is_another_kind_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LARGE", 0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=8, vocab_size=64, n_positions=32))
    model.transformer.h[4].attn.c_proj.weight.data.zero_()
    model.transformer.h[5].mlp.dropout.p = 0.7
    seen = checked(model)
    ran: list[str] = []
    for name, module in seen.few.named_modules():
        if name.endswith(".attn"):
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    seen.run(seen.inputs)
    assert [name.split(".")[2] for name in ran] == ["0", "1", "4", "5", "7"]


def test_the_weights_of_a_large_model_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import isograd

    monkeypatch.setattr(record, "LARGE", 0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=4, vocab_size=64, n_positions=32)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    isograd.check(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())

"""Options of the model beyond width and heads: each reaches the network, its saved configuration and the forecast."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.errors import RecipeError
from isograd.lab.train.forecast.memory import parameters
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import MODEL_LATER, Run
from isograd.lab.train.train import train
from isograd.models import IsogradConfig, IsogradForCausalLM
from tests.build import few
from tests.train.recipes import losses as losses_of
from tests.train.recipes import read_json, small
from tests.train.test_memory import ratio, shaped

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 500.0}
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what the recipe says -> what config.json has
    "kv_heads": ({"kv_heads": 1}, {"num_key_value_heads": 1}),
    "head_dim": ({"head_dim": 12}, {"head_dim": 12}),
    "rope": ({"positions": "rotary", "rope": YARN}, {"rope_parameters": YARN}),
    "rope_interleaved": ({"positions": "rotary", "rope_interleaved": True}, {"rope_interleaved": True}),
    "sliding_window": ({"sliding_window": 3}, {"sliding_window": 3}),
    "layer_types": (
        {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention", "sliding_attention"]},
    ),
    "attention_multiplier": ({"attention_multiplier": 0.3}, {"attention_multiplier": 0.3}),
    "logits_scale": ({"logits_scale": 0.5}, {"logits_scale": 0.5}),
    "logits_cap": ({"logits_cap": 2.0}, {"logits_cap": 2.0}),
    "norm_bias": ({"norm_bias": False}, {"norm_bias": False}),
    "act": ({"act": "swiglu"}, {"hidden_act": "swiglu"}),
}


FURTHER = {"from_", "optimizer_state"}  # what is trained further, which tests/train/test_from.py has


def test_each_is_tried() -> None:
    assert set(MODEL_LATER) - FURTHER | {"act"} == set(OPTIONS)


@pytest.mark.parametrize("name", few(OPTIONS, ["kv_heads", "rope", "layer_types", "norm_bias"]))
def test_an_option_trains_and_is_saved(name: str, tmp_path: Path) -> None:
    said, expected = OPTIONS[name]
    steps = {"steps": 3, "checkpoint_every": 0}
    run = small(model={**said}, training=steps)
    train(run, tmp_path)
    losses, other = losses_of(tmp_path), {key: value for key, value in said.items() if key != name}
    assert len(losses) == 3 and all(map(math.isfinite, losses))
    model = IsogradForCausalLM.from_pretrained(tmp_path / "model")
    assert expected.items() <= read_json(tmp_path / "model/config.json").items()
    known = {key: value for key, value in said.items() if key in MODEL_LATER}
    assert known.items() <= read_json(tmp_path / "run.json")["model"].items()
    config = IsogradConfig(**run.config().to_diff_dict() | {"vocab_size": model.config.vocab_size})
    assert sum(parameters(config, "language").values()) == sum(p.numel() for p in model.parameters())
    before = small(model=other, training=steps)
    assert run.key() != before.key()
    assert function_or_size(model, before) != 0.0  # the option does something


def function_or_size(model: IsogradForCausalLM, before: Run) -> float:
    """How far the network is from the one without the option, with the same weights where their shapes agree."""
    plain = IsogradForCausalLM(before.config()).eval()
    facts = {name: p.shape for name, p in plain.named_parameters() if "tokens" not in name and "lm_head" not in name}
    own = {name: p.shape for name, p in model.named_parameters() if "tokens" not in name and "lm_head" not in name}
    if facts != own:
        return math.inf
    plain = IsogradForCausalLM(
        IsogradConfig(**before.config().to_diff_dict() | {"vocab_size": model.config.vocab_size})
    )
    plain.load_state_dict(model.state_dict())
    ids = torch.arange(8)[None] % model.config.vocab_size
    with torch.no_grad():
        return float((plain.eval()(ids).logits - model.eval()(ids).logits).abs().max())


def test_what_a_run_was_without_them_it_is() -> None:
    """Neither its key nor what it writes down changes, and the defaults are said where everything is."""
    run = small()
    assert not set(MODEL_LATER) & set(run.as_dict()["model"]) and set(MODEL_LATER) - FURTHER <= set(
        run.as_dict(True)["model"]
    )
    assert run_from_dict(run.as_dict(True)) == run and not set(MODEL_LATER) & set(run.model.options())


@pytest.mark.parametrize(
    "options",
    [
        {"kv_heads": 2, "layers": 3},
        {"kv_heads": 1, "head_dim": 8, "positions": "rotary"},
        {"head_dim": 32},
        {"act": "swiglu"},
        {"act": "geglu"},
        {"norm_bias": False},
    ],
    ids=str,
)
def test_activations_of_other_shapes(options: dict[str, Any]) -> None:
    assert ratio(shaped("pre-ln", **options)) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_heads": 3}, "model.kv_heads"),
        ({"rope": YARN}, "model.rope needs model.positions=rotary"),
        ({"positions": "rotary", "rope": {"rope_type": "spiral"}}, "rope"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"head_dim": 0}, "head_dim"),
    ],
)
def test_what_no_model_has_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said) as error:
        small(model=options).config()
    assert "\n" not in str(error.value)

"""Every option changes the function or the init; an unknown or contradictory one is refused and told what to type."""

import copy
import pickle
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from isograd.lab.train.run import Model
from isograd.models import (
    IsogradConfig,
    IsogradForCausalLM,
    IsogradForMaskedLM,
    IsogradForSeq2SeqLM,
    IsogradForSequenceClassification,
)
from isograd.models.config import TERMS
from isograd.placement import CATALOGUE
from isograd.transformer.feedforward import ACTIVATIONS
from isograd.transformer.init import SCHEMES
from isograd.transformer.norms import NORMS
from isograd.transformer.positions import POSITIONS
from tests.build import HEADS, config, inputs, labelled

ROTARY = {"position_embedding_type": "rotary", "hidden_size": 32}
RULES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
]
# option -> another value, and the head and the options beside it where it needs some
CHANGES: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("vocab_size", 50, "causal", {}),
    ("hidden_size", 20, "causal", {}),
    ("num_hidden_layers", 3, "causal", {}),
    ("num_attention_heads", 2, "causal", {}),
    ("intermediate_size", None, "causal", {}),
    ("norm_eps", 1e-3, "causal", {}),
    ("bias", False, "causal", {}),
    ("position_offset", 2, "causal", {"position_embedding_type": "sinusoidal"}),
    ("position_offset", 2, "causal", {}),
    ("max_position_embeddings", 40, "causal", {}),
    ("rope_theta", 100.0, "causal", {"position_embedding_type": "rotary"}),
    ("scale_embedding", True, "causal", {}),
    ("embedding_norm", True, "causal", {}),
    ("initializer_range", 0.1, "causal", {"init": "normal"}),
    ("tie_word_embeddings", False, "causal", {}),
    ("pad_token_id", None, "causal", {}),
    ("encoder_layers", 2, "seq2seq", {}),
    ("encoder_vocab_size", 50, "seq2seq", {}),
    ("share_encoder_embeddings", True, "seq2seq", {}),
    ("encoder_options", {"hidden_size": 20}, "seq2seq", {}),
    ("input_size", 12, "causal", {"tie_word_embeddings": False}),
    ("head_bias", True, "seq2seq", {}),
    ("output_size", 12, "causal", {"tie_word_embeddings": False}),
    ("is_decoder", True, "classify", {}),
    ("num_key_value_heads", 2, "causal", {}),
    ("head_dim", 6, "causal", {}),
    ("attention_multiplier", 1.0, "causal", {}),
    ("norm_bias", False, "causal", {}),
    ("bias_roles", ["query", "ffn_out"], "causal", {}),
    ("bias_roles", ["query", "key", "value", "attn_out", "ffn_in", "ffn_out"], "masked", {}),
    *[("rope_parameters", rules, "causal", ROTARY) for rules in RULES],
    ("rope_interleaved", True, "causal", ROTARY),
    ("rotary_layers", [True, False], "causal", ROTARY),
    ("sliding_window", 3, "causal", {}),
    ("sliding_window", 2, "masked", {}),
    ("layer_types", ["full_attention", "sliding_attention"], "causal", {"sliding_window": 3}),
    ("logits_scale", 0.5, "causal", {}),
    ("logits_cap", 0.5, "causal", {}),
    ("scale_embedding", 3.0, "causal", {}),
    ("type_vocab_size", 2, "masked", {}),
    ("next_sentence", True, "masked", {}),
    *[("placement", name, "causal", {}) for name in CATALOGUE if name not in ("pre-ln", "qk-clip")],
    *[("hidden_act", name, "causal", {}) for name in ACTIVATIONS if name != "gelu"],
    *[("norm", name, "causal", {}) for name in NORMS if name != "layernorm"],
    *[("position_embedding_type", name, "causal", {}) for name in POSITIONS if name != "learned"],
    *[("init", name, "causal", {}) for name in SCHEMES if name != "xavier-uniform"],
]
IN_TRAINING = [
    ("hidden_dropout", "causal"),
    ("attention_dropout", "causal"),
    ("activation_dropout", "causal"),
    ("embedding_dropout", "causal"),
    ("classifier_dropout", "classify"),
]
# no function of the network: how it is run, what generation does, what a calibration has left
ELSEWHERE = {
    "loss_chunk",
    "use_cache",
    "formula",
    "calibration",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
}


def drawn(head: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return HEADS[head][0](config(head, **options)).eval()


@pytest.mark.parametrize(
    ("option", "value", "head", "beside"), CHANGES, ids=lambda v: str(v) if not isinstance(v, dict) else ""
)
def test_an_option_changes_the_function_or_the_init(option: str, value: Any, head: str, beside: dict[str, Any]) -> None:
    before, after = (drawn(head, given) for given in (beside, beside | {option: value}))
    first, second = before.state_dict(), after.state_dict()
    if {n: p.shape for n, p in first.items()} != {n: p.shape for n, p in second.items()}:
        return
    if any(not torch.equal(first[n], second[n]) for n in first):
        return
    assert not torch.equal(before(**inputs(head)).logits, after(**inputs(head)).logits)


@pytest.mark.parametrize(("option", "head"), IN_TRAINING)
def test_dropout_changes_training(option: str, head: str) -> None:
    before, after = drawn(head, {}).train(), drawn(head, {option: 0.5}).train()
    torch.manual_seed(1)
    first = before(**inputs(head)).logits
    assert not torch.equal(first, after(**inputs(head)).logits)


def test_every_option_is_tested() -> None:
    options = set(IsogradConfig.__annotations__)
    assert options == {change[0] for change in CHANGES} | {option for option, _ in IN_TRAINING} | ELSEWHERE
    assert all(f"        {name}" in IsogradConfig.__doc__ or f" {name}" in IsogradConfig.__doc__ for name in options - {
        "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "use_cache",  # transformers' own
    })  # fmt: skip


def test_what_runs_differently() -> None:
    feed = inputs("causal")
    assert drawn("causal", {"use_cache": True})(**feed).past_key_values is not None
    assert drawn("causal", {"use_cache": False})(**feed).past_key_values is None
    loss = drawn("causal", {})(**labelled("causal")).loss
    assert torch.allclose(drawn("causal", {"loss_chunk": 3})(**labelled("causal")).loss, loss)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"placement": "preln"}, "unknown placement 'preln': did you mean 'pre-ln'"),
    ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new' is unknown; expected one of 'relu', 'gelu', 'gelu_tanh'"),
    ({"norm": "batchnorm"}, "norm='batchnorm' is unknown; expected one of 'layernorm', 'rmsnorm'"),
    ({"position_embedding_type": "alibi"}, "expected one of 'learned', 'sinusoidal', 'sinusoidal_interleaved'"),
    ({"init": "xavier"}, "init='xavier' is unknown; expected one of 'xavier-uniform', 'xavier-normal'"),
    ({"hidden_size": 18}, "hidden_size=18 is not a multiple of num_attention_heads=4"),
    ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
    ({"num_key_value_heads": 0}, "num_key_value_heads=0 must be at least 1"),
    ({"head_dim": -2}, "head_dim=-2 and num_key_value_heads=4 must be at least 1"),
    ({"head_dim": 5, "position_embedding_type": "rotary"}, "rotary positions need an even width per head"),
    ({"bias_roles": ["querys"]}, "bias_roles: querys: expected some of query, key"),
    ({"logits_cap": 0.0}, "logits_cap=0.0 must be above 0"),
    ({"sliding_window": 0}, "sliding_window=0 must be at least 1"),
    ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, and num_hidden_layers is 2"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types has 'sliding_attention': set sliding_window"),
    ({"layer_types": ["chunked_attention"] * 2}, "chunked_attention: expected full_attention or sliding_attention"),
    ({"rope_interleaved": True}, "rope_interleaved: set position_embedding_type='rotary'"),
    ({"rotary_layers": [True], "position_embedding_type": "rotary"}, "rotary_layers has 1 entries"),
    (
        {"rope_parameters": {"rope_type": "ntk"}, "position_embedding_type": "rotary"},
        "rope_type 'ntk': expected one of default, linear",
    ),
    (
        {"rope_parameters": {"rope_type": "linear"}, "position_embedding_type": "rotary"},
        "Missing required keys in `rope_parameters` for 'rope_type'='linear': {'factor'}",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}, "position_embedding_type": "rotary"},
        "rope_parameters by type of layer: set layer_types",
    ),
    ({"encoder_layers": 2, "sliding_window": 3}, "sliding_window: for a model of one stack"),
    ({"hidden_size": 12, "position_embedding_type": "rotary"}, "rotary positions need an even width per head"),
    (
        {"hidden_size": 2, "num_attention_heads": 1, "position_embedding_type": "sinusoidal"},
        "sinusoidal positions need hidden_size of at least 4, and got 2",
    ),
    ({"share_encoder_embeddings": True}, "need encoder_layers: there is no encoder"),
    ({"encoder_vocab_size": 41}, "need encoder_layers: there is no encoder"),
    (
        {"encoder_layers": 2, "share_encoder_embeddings": True, "tie_word_embeddings": False},
        "share_encoder_embeddings=True needs tie_word_embeddings=True",
    ),
    (
        {"encoder_layers": 2, "share_encoder_embeddings": True, "encoder_vocab_size": 50},
        "encoder_vocab_size=50 and vocab_size=41 differ",
    ),
    ({"encoder_layers": 2, "is_decoder": True}, "is_decoder=True is for a model of one stack"),
    ({"pad_token_id": 41}, "pad_token_id=41 must be a row of the token table, 0 to 40"),
    ({"pad_token_id": -1}, "pad_token_id=-1 must be a row of the token table, 0 to 40"),
    ({"hiden_size": 3}, "unknown option 'hiden_size': did you mean 'hidden_size'"),
    ({"layer_norm_eps": 1e-12}, "unknown option 'layer_norm_eps': did you mean 'norm_eps'"),
    ({"dropout": 0.1}, "unknown option 'dropout': did you mean"),
    ({"alpha": 2.0}, "unknown option 'alpha': expected one of placement, vocab_size"),
    *[
        ({name: 0}, f"{name}=0 must be at least 1")
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "encoder_layers",
            "loss_chunk",
        )
    ],
    *[({name: -1}, f"{name}=-1 must not be negative") for name in ("norm_eps", "initializer_range", "position_offset")],
    *[({name: 1.0}, f"{name}=1.0 must be in [0, 1)") for name, _ in IN_TRAINING],
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda v: ",".join(v) if isinstance(v, dict) else "")
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, KeyError)) as info:
        config(**options)
    assert message in str(info.value)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (IsogradForCausalLM, {"encoder_layers": 2}, "use IsogradForSeq2SeqLM"),
        (IsogradForSeq2SeqLM, {}, "needs encoder_layers"),
        (IsogradForMaskedLM, {"is_decoder": True}, "leave encoder_layers and is_decoder unset"),
        (IsogradForMaskedLM, {"encoder_layers": 2}, "leave encoder_layers and is_decoder unset"),
        (IsogradForSequenceClassification, {"encoder_layers": 2}, "takes a model of one stack"),
    ],
)
def test_a_head_refuses_the_wrong_stacks(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(config(**options))


def test_what_transformers_passes_is_taken() -> None:
    given = config(
        num_labels=3, attn_implementation="eager", dtype="float32", architectures=["X"], torch_dtype="float32"
    )
    assert given.num_labels == 3 and given._attn_implementation == "eager" and given.dtype == torch.float32
    assert IsogradConfig.from_dict(given.to_dict(), hidden_size=32).hidden_size == 32


def test_a_recipe_and_a_bare_configuration_have_the_same_defaults() -> None:
    """But for shape, and for positions, of which a recipe on any text takes those without a longest."""
    given, shape = IsogradConfig(), {"layers", "encoder_layers", "width", "heads", "ffn", "positions"}
    shape |= {"from_", "optimizer_state"}  # of what is trained further, not of a shape
    for field in fields(Model):
        if field.name not in shape:
            name = TERMS.get(field.name, field.name)
            assert getattr(given, name, None) == field.default, field.name  # one that is None is not always kept


def test_defaults() -> None:
    """What a bare configuration is: pre-ln, GPT-like, W_1 of 4d."""
    given = IsogradConfig()
    assert (given.placement, given.norm, given.scheme()) == ("pre-ln", "layernorm", "xavier-uniform")
    assert given.intermediate_size == 4 * given.hidden_size
    assert given.depths("decoder") == (6, 0)
    assert config("seq2seq").depths("encoder") == (3, 2) and config("seq2seq").depths("decoder") == (2, 3)
    assert (
        config(placement="gpt2").scheme() == "normal" and config(placement="gpt2", init="fairseq").scheme() == "fairseq"
    )


def test_equal_configurations_are_equal() -> None:
    """Of a dataclass with fields that are taken away where they are None."""
    one = IsogradConfig(hidden_size=32, num_attention_heads=4)
    assert one == IsogradConfig(hidden_size=32, num_attention_heads=4) == copy.deepcopy(one)
    assert one != IsogradConfig(hidden_size=64, num_attention_heads=4) and one != 3
    grouped = IsogradConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    assert grouped == pickle.loads(pickle.dumps(grouped)) != one

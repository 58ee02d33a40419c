"""States of fairseq and Transformer-Clinic become models that compute what the originals did (fp64, 1e-9)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.export.fairseq import load_fairseq, renamed
from isograd.export.fairseq_options import config_from_fairseq
from isograd.models import IsogradForCausalLM, IsogradForMaskedLM, IsogradForSeq2SeqLM
from tests.build import close
from tests.golden import PAD, read, under

CASES = {
    "lm/lm_pre_AHFR": (IsogradForCausalLM, "normformer-fairseq-resscale", ""),
    "mlm/mlm_post": (IsogradForMaskedLM, "post-ln", ""),
    "encdec/ed_post_plain": (IsogradForSeq2SeqLM, "post-ln", ""),
    "admin/admin_perturbed_learned": (IsogradForSeq2SeqLM, "admin", "init/"),
}


def given(case: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """The state in fp64 under its own names, the other tensors of the case, the options."""
    tensors, index = read(case)
    tag = CASES[case][2]
    state = {k: v.double() for k, v in under(tensors, f"{tag}state/").items()}
    return state, tensors, dict(index["config"])


def logits(model: Any, tensors: dict[str, Tensor]) -> Tensor:
    ids = tensors["in/src_tokens"]
    feed = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    if isinstance(model, IsogradForSeq2SeqLM):
        feed["decoder_input_ids"] = tensors["in/prev_output_tokens"]
    with torch.no_grad():
        return model(**feed).logits[tensors.get("in/prev_output_tokens", ids) != PAD]


def expected(case: str, tensors: dict[str, Tensor]) -> Tensor:
    ids = tensors.get("in/prev_output_tokens", tensors["in/src_tokens"])
    return tensors[f"{CASES[case][2]}out64/logits"][ids != PAD]


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_model_computes_what_the_original_did(case: str) -> None:
    state, tensors, options = given(case)
    model = load_fairseq(state, options)
    kind, placement, _ = CASES[case]
    assert type(model) is kind and model.config.placement == placement and not model.training
    assert (model.config.calibration is not None) == (placement == "admin")
    close(logits(model, tensors), expected(case, tensors), 1e-9)


def test_fused_projections_are_query_key_value_in_that_order() -> None:
    """The foil: any other order is seen."""
    case = "admin/admin_perturbed_learned"
    state, tensors, options = given(case)
    name = "decoder.layers.0.self_attn.in_proj_weight"
    query, key, value = state[name].chunk(3)
    ours = renamed({name: state[name]}, options)
    assert all(
        torch.equal(ours[f"decoder.layers.0.attn.branch.{role}.weight"], part)
        for role, part in (("query", query), ("key", key), ("value", value))
    )
    swapped = load_fairseq(state | {name: torch.cat([query, value, key])}, options)
    assert (logits(swapped, tensors) - expected(case, tensors)).abs().max() > 1e-3


def test_names_without_a_place_are_refused_each() -> None:
    state, _, options = given("encdec/ed_post_plain")
    strange = {"decoder.layers.0.moe.gate.weight": torch.zeros(1), "bert.pooler": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"no place for: bert\.pooler, decoder\.layers\.0\.moe\.gate\.weight$"):
        load_fairseq(state | strange, options)
    with pytest.raises(ValueError, match=r"this model does not have: decoder\.layers\.9\.attn\.out\.weight$"):
        load_fairseq(state | {"decoder.layers.9.attn_ln.weight": torch.zeros(32)}, options)


def test_missing_weights_are_refused_by_name() -> None:
    state, _, options = given("encdec/ed_post_plain")
    state.pop("encoder.layers.1.fc2.bias")
    with pytest.raises(ValueError, match=r"missing: encoder\.layers\.1\.ffn\.branch\.out\.bias$"):
        load_fairseq(state, options)
    with pytest.raises(ValueError, match=r"no embed_tokens\.weight among the weights"):
        load_fairseq({}, options)


def test_a_tied_table_is_one_table() -> None:
    state, tensors, options = given("encdec/ed_post_plain")
    assert options["share_decoder_input_output_embed"]
    state.pop("decoder.output_projection.weight", None)
    close(logits(load_fairseq(state, options), tensors), expected("encdec/ed_post_plain", tensors), 1e-9)
    other = {"decoder.output_projection.weight": state["decoder.embed_tokens.weight"] + 1}
    with pytest.raises(ValueError, match=r"shared, but that differ: lm_head\.weight$"):
        load_fairseq(state | other, options)


def test_one_table_for_all_three() -> None:
    state, tensors, options = given("encdec/ed_post_plain")
    state["encoder.embed_tokens.weight"] = state["decoder.embed_tokens.weight"]
    apart = load_fairseq(state, options)
    shared = load_fairseq(state, options | {"share_all_embeddings": True})
    assert shared.encoder.embedding.tokens.weight is shared.decoder.embedding.tokens.weight
    assert apart.encoder.embedding.tokens.weight is not apart.decoder.embedding.tokens.weight
    assert torch.equal(logits(apart, tensors), logits(shared, tensors))


def test_buffers_without_weights_are_dropped() -> None:
    options = {"decoder_layers": 1, "decoder_normalize_before": False}
    assert renamed({"decoder.version": torch.ones(1)}, options) == {}
    assert renamed({"decoder.embed_positions._float_tensor": torch.ones(1)}, options) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"no_decoder_final_norm": True}, "no_decoder_final_norm=True"),
        ({"decoder_output_dim": 16}, "decoder_output_dim=16"),
        ({"adaptive_input": True}, "adaptive_input=True"),
        ({"activation_fn": "swish"}, "activation_fn='swish'; expected one of relu, gelu"),
        ({"encoder_embed_dim": 64}, "encoder_embed_dim=64 and decoder_embed_dim=32"),
        ({"encoder_normalize_before": True}, "encoder_normalize_before=True and decoder_normalize_before=False"),
        ({"scale_attn": True}, "scale_attn: fairseq scales in a translator's decoder only"),
        ({"encoder_layers": None, "scale_attn": True}, "no placement has decoder_normalize_before=False with scale_at"),
        ({"encoder_layers": None, "decoder_layers": None}, "neither encoder_layers nor decoder_layers"),
    ],
)
def test_options_of_another_network_are_refused(change: dict[str, Any], message: str) -> None:
    _, _, options = given("encdec/ed_post_plain")
    assert config_from_fairseq(options, 97).placement == "post-ln"
    with pytest.raises(ValueError, match=message):
        config_from_fairseq(options | change, 97)


def test_a_missing_size_is_named() -> None:
    _, _, options = given("encdec/ed_post_plain")
    options.pop("decoder_ffn_embed_dim")
    with pytest.raises(ValueError, match="missing: decoder_ffn_embed_dim"):
        config_from_fairseq(options, 97)


def test_every_option_is_read() -> None:
    _, _, options = given("encdec/ed_post_plain")
    change = {
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "relu_dropout": 0.3,
        "max_target_positions": 77,
        "no_scale_embedding": True,
        "layernorm_embedding": True,
        "activation_fn": "gelu_accurate",
        "init_type": "adaptive-profiling",
        "no_token_positional_embeddings": True,
    }
    read_back = config_from_fairseq(options | change, 97, encoder_vocab_size=50, pad=3, bos=4, eos=5)
    got = read_back.to_dict()
    assert {k: got[k] for k in ("hidden_dropout", "embedding_dropout")} == dict.fromkeys(
        ("hidden_dropout", "embedding_dropout"), 0.1
    )
    assert (read_back.attention_dropout, read_back.activation_dropout) == (0.2, 0.3)
    assert (read_back.max_position_embeddings, read_back.position_offset) == (77, 4)
    assert (read_back.scale_embedding, read_back.embedding_norm) == (False, True)
    assert (read_back.hidden_act, read_back.placement) == ("gelu_tanh", "admin")
    assert (read_back.position_embedding_type, read_back.encoder_vocab_size) == ("none", 50)
    assert (read_back.pad_token_id, read_back.bos_token_id, read_back.decoder_start_token_id) == (3, 4, 5)

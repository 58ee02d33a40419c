"""States of fairseq and Transformer-Clinic become models that compute what the originals did (fp64, 1e-9).

Where no golden file is here, against the equations written out (isograd.papers.fairseq.original), which the golden
files hold to the originals.
"""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isograd.diagnose.calibrate import calibrate
from isograd.models import IsogradForCausalLM, IsogradForMaskedLM, IsogradForSeq2SeqLM
from isograd.models.search import search
from isograd.papers.fairseq import from_fairseq
from isograd.papers.fairseq import original as equations
from isograd.papers.fairseq.names import original_name, renamed
from isograd.papers.fairseq.options import config_from_fairseq, options_of
from tests.build import close, in_turn, tokens
from tests.golden import PAD, read, state_of, under
from tests.interop.fairseq_by_hand import by_hand, random_state

CASES = {
    "lm/lm_pre_AHFR": (IsogradForCausalLM, "normformer-fairseq-resscale", ""),
    "headscale_paper/paperhs_lm_pre_AHF": (IsogradForCausalLM, "normformer", ""),
    "mlm/mlm_post": (IsogradForMaskedLM, "post-ln", ""),
    "encdec/ed_post_plain": (IsogradForSeq2SeqLM, "post-ln", ""),
    "admin/admin_perturbed_learned": (IsogradForSeq2SeqLM, "admin", "init/"),
}
SIDE = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 4, "layers": 2, "normalize_before": True}
BOTH = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
LONGEST = dict.fromkeys(("max_source_positions", "max_target_positions", "max_positions"), 12)
COMMON: dict[str, Any] = {"activation_fn": "gelu", "layernorm_embedding": False, "no_scale_embedding": False} | LONGEST
DECODER = {k: v for k, v in BOTH.items() if k.startswith("decoder_")} | COMMON
ENCODER = {k: v for k, v in BOTH.items() if k.startswith("encoder_")} | COMMON | {"encoder_learned_pos": True}
PAIR = BOTH | COMMON
LETTERS = {"A": "scale_attn", "H": "scale_heads", "F": "scale_fc", "R": "scale_resids"}
COMBINATIONS = ["".join(c) for n in range(5) for c in itertools.combinations("AHFR", n)]


def flags(letters: str, prefix: str = "") -> dict[str, bool]:
    return {prefix + name: letter in letters for letter, name in LETTERS.items()}


def given(case: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """The state in fp64 under its own names, the other tensors of the case, its entry in the index, flat."""
    tensors, index = read(case)
    tag = CASES[case][2]
    return state_of(under(tensors, tag)), tensors, options_of(index)


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


def agrees(options: dict[str, Any], kind: str, **changed: Tensor) -> Any:
    """The model of a random state of these options, after its logits were compared with the equations."""
    state = random_state(options, kind) | changed
    model = from_fairseq(state, options)
    ids = tokens(3, 8)
    ids[1, 5:], ids[2, 1:] = PAD, PAD
    if kind == "pair":
        ids = ids.flip(1)  # sources are padded on the left
    written = tokens(3, 6, seed=1)
    written[1, 4:] = PAD
    feed = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    if kind == "pair":
        feed["decoder_input_ids"] = written
    with torch.no_grad():
        got = model(**feed).logits
    wanted = by_hand(model, state, options, ids, written if kind == "pair" else None)
    real = (written if kind == "pair" else ids) != PAD
    close(got[real], wanted[real], 1e-11)
    return model


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_model_computes_what_the_original_did(case: str) -> None:
    state, tensors, options = given(case)
    model = from_fairseq(state, read(case)[1])
    kind, placement, _ = CASES[case]
    assert type(model) is kind and model.config.placement == placement and not model.training
    assert (model.config.calibration is not None) == (placement == "admin")
    close(logits(model, tensors), expected(case, tensors), 1e-9)
    flat = from_fairseq(state, options)
    assert torch.equal(logits(flat, tensors), logits(model, tensors))


@pytest.mark.parametrize("case", CASES)
def test_the_equations_written_out_are_the_originals(case: str) -> None:
    state, tensors, options = given(case)
    ids, written = tensors["in/src_tokens"], tensors.get("in/prev_output_tokens")
    real = (ids if written is None else written) != PAD
    model = from_fairseq(state, options)
    close(by_hand(model, state, options, ids, written)[real], expected(case, tensors), 1e-11)


@in_turn("pre, letters", [True, False], COMBINATIONS)
def test_every_combination_of_flags(letters: str, pre: bool) -> None:
    """In a language model, in a decoder over a plain encoder, in both towers, in an encoder alone."""
    changes = {"decoder_normalize_before": pre, "encoder_normalize_before": pre}
    agrees(DECODER | changes | flags(letters), "causal")
    agrees(PAIR | changes | flags(letters), "pair")
    agrees(PAIR | changes | flags(letters) | flags("AF", "enc_"), "pair")
    agrees(ENCODER | changes | flags(letters, "enc_"), "masked")


@in_turn("pre, letters", [True, False], [c for c in COMBINATIONS if "H" in c], every=2)
def test_heads_scaled_in_the_papers_place(letters: str, pre: bool) -> None:
    place = {"headscale_position": "before out_proj (paper)"}
    changes = {"decoder_normalize_before": pre, "encoder_normalize_before": pre}
    agrees(DECODER | changes | flags(letters) | place, "causal")
    agrees(ENCODER | changes | flags(letters, "enc_") | place, "masked")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("causal", {"no_decoder_final_norm": True}),
        ("causal", {"no_decoder_final_norm": True, "scale_attn": True}),
        ("causal", {"no_decoder_final_norm": True, "decoder_normalize_before": False}),
        ("causal", {"decoder_input_dim": 12, "decoder_output_dim": 12, "share_decoder_input_output_embed": True}),
        ("causal", {"decoder_input_dim": 12, "decoder_output_dim": 20}),
        ("causal", {"decoder_input_dim": 12, "decoder_learned_pos": True, "layernorm_embedding": True}),
        ("causal", {"decoder_output_dim": 12, "no_scale_embedding": True}),
        ("causal", {"no_token_positional_embeddings": True}),
        ("causal", {"activation_fn": "gelu_accurate"}),
        ("causal", {"activation_fn": "relu_squared"}),
        ("pair", {"no_decoder_final_norm": True}),
        ("pair", {"encoder_embed_dim": 20, "encoder_ffn_embed_dim": 12, "encoder_attention_heads": 2}),
        ("pair", {"encoder_embed_dim": 12, "encoder_layers": 3, "decoder_learned_pos": True, "decoder_output_dim": 8}),
        ("pair", {"decoder_output_dim": 12}),
        ("pair", {"encoder_normalize_before": False}),
        ("pair", {"decoder_normalize_before": False, "scale_fc": True}),
        ("pair", {"encoder_learned_pos": True, "decoder_learned_pos": True, "max_source_positions": 9}),
        ("pair", {"encoder_learned_pos": True}),
        ("pair", {"decoder_learned_pos": True, "layernorm_embedding": True, "no_scale_embedding": True}),
        ("pair", {"no_token_positional_embeddings": True, "share_decoder_input_output_embed": True}),
        ("pair", {"share_all_embeddings": True, "share_decoder_input_output_embed": True}),
        ("masked", {"untie_weights_roberta": True, "layernorm_embedding": True, "no_scale_embedding": True}),
        ("masked", {"encoder_learned_pos": False}),
        ("masked", {"encoder_normalize_before": False, "activation_fn": "relu"}),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.items())) if isinstance(v, dict) else None,
)
def test_every_option_of_the_network(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Also after the model was written and read."""
    options = {"causal": DECODER, "pair": PAIR, "masked": ENCODER}[kind] | change
    model = agrees(options, kind)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())
    assert len(list(model.parameters())) == len(list(again.parameters()))


def test_generation_of_unequal_towers_with_a_cache() -> None:
    options = PAIR | {"encoder_embed_dim": 20, "encoder_attention_heads": 2, "decoder_output_dim": 12} | flags("AHFR")
    model = agrees(options, "pair")
    ids = tokens(2, 5)
    written = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, num_beams=1)
    assert torch.equal(model(ids, decoder_input_ids=written).logits.argmax(-1)[:, 0], written[:, 1])
    again = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, num_beams=1, use_cache=False)
    assert torch.equal(written, again)
    found = search(model, ids, beam=1, limit=6)
    assert [h[0].tokens[:1] for h in found] == written[:, 1:2].tolist()
    model.set_attn_implementation("eager")
    assert model.encoder.config is not model.config
    assert {m._attn_implementation for m in (model.config, model.encoder.config)} == {"eager"}


@pytest.mark.slow
def test_a_placement_made_from_flags_loads_in_a_fresh_process(tmp_path: Path) -> None:
    """No registration: its name says all."""
    model = agrees(PAIR | flags("HR") | {"no_decoder_final_norm": True}, "pair")
    assert model.config.placement == "fairseq-pre-HR-nofinal"
    assert model.config.encoder_options == {"placement": "pre-ln"}
    model.save_pretrained(tmp_path)
    code = (
        "import sys, torch\nfrom isograd.models import IsogradForSeq2SeqLM\n"
        "model = IsogradForSeq2SeqLM.from_pretrained(sys.argv[1], dtype=torch.float64)\n"
        "print(model(torch.tensor([[5, 6, 2]]), decoder_input_ids=torch.tensor([[2, 7]])).logits.sum().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    here = model(torch.tensor([[5, 6, 2]]), decoder_input_ids=torch.tensor([[2, 7]])).logits.sum().item()
    assert float(done.stdout) == pytest.approx(here, rel=1e-12)


def test_a_stored_table_of_positions_is_used_as_it_is(tmp_path: Path) -> None:
    """Ours is the original's bit for bit and needs no place; another one becomes a frozen learned table."""
    case = "lm/lm_pre_AHFR"
    state, tensors, options = given(case)
    assert "sinusoidal_table" in state
    ours = from_fairseq(state, options)
    assert ours.config.position_embedding_type == "sinusoidal"
    other = state["sinusoidal_table"] + 0.125
    model = from_fairseq(state | {"sinusoidal_table": other}, options)
    assert model.config.position_embedding_type == "learned"
    table = model.model.embedding.positions.weight
    assert torch.equal(table, other) and not table.requires_grad
    assert (logits(model, tensors) - logits(ours, tensors)).abs().max() > 1e-3
    pair, _, options = given("encdec/ed_post_plain")
    shifted = from_fairseq(pair | {"encoder_sinusoidal_table": pair["encoder_sinusoidal_table"] + 1}, options)
    assert shifted.encoder.config.position_embedding_type == "learned"
    assert shifted.decoder.config.position_embedding_type == "sinusoidal"


def test_a_pad_row_is_used_as_it_is() -> None:
    """Row 1 of both tables is not zero in the random states; at pads alone does it stand, and there nothing is read."""
    options = DECODER | {"decoder_learned_pos": True, "share_decoder_input_output_embed": True}
    model = agrees(options, "causal")
    assert model.model.embedding.tokens.weight[PAD].abs().min() > 0
    model(input_ids=tokens(1, 5), labels=tokens(1, 5)).loss.backward()
    assert model.model.embedding.tokens.weight.grad[PAD].abs().max() > 0  # through the head alone


def test_ratios_numbered_in_forward_order() -> None:
    """ADMIN in a model of one tower."""
    for kind, options in (("causal", DECODER), ("masked", ENCODER)):
        plain = options | {"decoder_normalize_before": False, "encoder_normalize_before": False}
        omegas = {f"omega.{i}": torch.rand(16, dtype=torch.float64) + i for i in range(1, 5)}
        model = from_fairseq(random_state(plain, kind) | omegas, plain)
        assert model.config.placement == "admin"
        skips = [v for k, v in model.state_dict().items() if k.endswith("combine.skip.weight")]
        assert all(torch.equal(skip, omega) for skip, omega in zip(skips, omegas.values(), strict=True))
        prefix = "decoder" if kind == "causal" else "encoder.sentence_encoder"
        names = [f"{prefix}.layers.{i}.{n}_ratio_change" for i in (0, 1) for n in ("attention", "fc")]
        agrees(plain, kind, **dict(zip(names, omegas.values(), strict=True)))


@torch.no_grad()
def test_the_profile_of_a_masked_model() -> None:
    """ADMIN's recursion on the original's equations: what stands behind the embedding's norm is zero at pads."""
    options = ENCODER | {"encoder_normalize_before": False, "layernorm_embedding": True, "no_scale_embedding": True}
    state = random_state(options, "masked")
    for table in ("embed_tokens", "embed_positions"):
        state[f"encoder.sentence_encoder.{table}.weight"][PAD] = 0  # as fairseq keeps it
    state |= {f"omega.{i}": torch.ones(16, dtype=torch.float64) for i in range(4)}
    ids = tokens(3, 8)
    ids[1, 5:], ids[2, 1:] = PAD, PAD
    model = from_fairseq(state, options)
    skips = calibrate(model, {"input_ids": ids, "attention_mask": (ids != PAD).long()}, again=True)["encoder"]
    pads, running, expected = ids == PAD, 1.0, []
    x = equations._embedded(state, options, "encoder.sentence_encoder", ids, pads)
    for layer in range(2):
        at = f"encoder.sentence_encoder.layers.{layer}"
        branches = {
            "self_attn": equations._self_attention(state, options, at, 4, pads[:, None, None]),
            "final": equations._feedforward(state, at, equations.ACTIVATIONS["gelu"]),
        }
        for name, branch in branches.items():
            expected.append(running)
            skip, f = running * x, branch(x)
            running = float((skip.var(unbiased=False) + f.var(unbiased=False)).sqrt())
            x = equations._norm(state, f"{at}.{name}_layer_norm", skip + f)
    assert skips == pytest.approx(expected, rel=1e-9)


def test_names_of_older_versions() -> None:
    options = PAIR | {"encoder_normalize_before": False, "decoder_normalize_before": False}
    state = random_state(options, "pair")
    numbered = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    old = {}
    for name, value in state.items():
        tower = name.split(".")[0]
        for number, norm in enumerate(numbered[tower]):
            name = name.replace(f".{norm}.", f".layer_norms.{number}.")
        old[name] = value
    assert set(old) != set(state)
    same(from_fairseq(state, options), from_fairseq(old, options))
    roberta = random_state(ENCODER | {"layernorm_embedding": True}, "masked")
    older = {
        k.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm"): v
        for k, v in roberta.items()
    }
    same(*(from_fairseq(s, ENCODER | {"layernorm_embedding": True}) for s in (roberta, older)))


def same(one: Any, other: Any) -> None:
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())


def test_the_first_decoders_end_without_a_norm() -> None:
    state = random_state(DECODER | {"no_decoder_final_norm": True}, "causal")
    with pytest.raises(ValueError, match=r"missing keys: decoder\.layer_norm\.bias, decoder\.layer_norm\.weight$"):
        from_fairseq(state, DECODER)
    model = from_fairseq({k: v for k, v in state.items() if k != "decoder.version"}, DECODER)
    assert model.config.placement == "fairseq-pre-nofinal"


def test_defaults_of_roberta() -> None:
    """Its oldest checkpoints name few options: Post-LN, gelu, learned positions, a norm on an unscaled embedding."""
    few = {k: v for k, v in ENCODER.items() if k.startswith("encoder_") and k not in ("encoder_normalize_before",)}
    few.pop("encoder_learned_pos")
    got = config_from_fairseq(few | {"max_positions": 12}, 41)
    assert (got.placement, got.hidden_act, got.position_embedding_type) == ("post-ln", "gelu", "learned")
    assert (got.embedding_norm, got.scale_embedding, got.tie_word_embeddings) == (True, False, True)


def test_options_of_both_towers_in_a_model_of_one() -> None:
    """fairseq's parsers leave the options of the other."""
    state = random_state(DECODER, "causal")
    same(from_fairseq(state, DECODER), from_fairseq(state, PAIR))


def test_nested_options() -> None:
    nested = {
        "model": COMMON | dict.fromkeys(("encoder", "decoder"), SIDE),
        "task": "translation",
    }
    same(*(from_fairseq(random_state(PAIR, "pair"), options) for options in (PAIR, nested)))


def test_fused_projections_are_query_key_value_in_that_order() -> None:
    """The negative control: any other order is seen."""
    case = "admin/admin_perturbed_learned"
    state, tensors, options = given(case)
    name = "decoder.layers.0.self_attn.in_proj_weight"
    query, key, value = state[name].chunk(3)
    ours = renamed({name: state[name]}, options)
    assert all(
        torch.equal(ours[f"decoder.layers.0.attn.branch.{role}.weight"], part)
        for role, part in (("query", query), ("key", key), ("value", value))
    )
    swapped = from_fairseq(state | {name: torch.cat([query, value, key])}, options)
    assert (logits(swapped, tensors) - expected(case, tensors)).abs().max() > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_the_originals_names_are_found_again(case: str) -> None:
    state, _, options = given(case)
    for name, value in state.items():
        if "in_proj" in name or name.endswith((".version", "sinusoidal_table", "embed_out")):
            continue
        (ours,) = renamed({name: value}, options)
        assert original_name(ours, options) == name


def test_names_without_a_place_are_refused_each() -> None:
    state, _, options = given("encdec/ed_post_plain")
    strange = {"decoder.layers.0.moe.gate.weight": torch.zeros(1), "bert.pooler": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"unexpected keys: bert\.pooler, decoder\.layers\.0\.moe\.gate\.weight$"):
        from_fairseq(state | strange, options)
    with pytest.raises(ValueError, match=r"unexpected keys: decoder\.layers\.9\.attn_ln\.weight$"):
        from_fairseq(state | {"decoder.layers.9.attn_ln.weight": torch.zeros(32)}, options)


def test_missing_weights_are_refused_by_name() -> None:
    state, _, options = given("encdec/ed_post_plain")
    state.pop("encoder.layers.1.fc2.bias")
    with pytest.raises(ValueError, match=r"missing keys: encoder\.layers\.1\.fc2\.bias$"):
        from_fairseq(state, options)
    with pytest.raises(ValueError, match=r"no embed_tokens\.weight among the weights"):
        from_fairseq({}, options)


def test_mismatched_shapes_are_refused_by_name() -> None:
    state, _, options = given("encdec/ed_post_plain")
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.fc1\.weight \(64, 32\) in place of \(48, 32\)"):
        from_fairseq(state, options | {"encoder_ffn_embed_dim": 48})
    with pytest.raises(ValueError, match="vocab_size=98, but the token table has 97 rows"):
        from_fairseq(state, options | {"vocab_size": 98})


def test_a_tied_table_is_one_table() -> None:
    state, tensors, options = given("encdec/ed_post_plain")
    assert options["share_decoder_input_output_embed"]
    state.pop("decoder.output_projection.weight", None)
    close(logits(from_fairseq(state, options), tensors), expected("encdec/ed_post_plain", tensors), 1e-9)
    other = {"decoder.output_projection.weight": state["decoder.embed_tokens.weight"] + 1}
    with pytest.raises(ValueError, match=r"should be one, but differ: decoder\.output_projection\.weight$"):
        from_fairseq(state | other, options)


@pytest.mark.parametrize("kept", ["decoder.embed_tokens", "decoder.output_projection", "encoder.embed_tokens"])
def test_a_shared_table_under_one_name(kept: str) -> None:
    """safetensors keeps any one of them."""
    options = PAIR | {"share_all_embeddings": True}
    state = random_state(options, "pair")
    names = {f"{n}.weight" for n in ("decoder.embed_tokens", "decoder.output_projection", "encoder.embed_tokens")}
    assert names <= set(state)
    few = {k: v for k, v in state.items() if k not in names or k == f"{kept}.weight"}
    same(from_fairseq(state, options), from_fairseq(few, options))


def test_buffers_without_weights_are_dropped() -> None:
    options = {"decoder_layers": 1, "decoder_normalize_before": False}
    assert renamed({"decoder.version": torch.ones(1)}, options) == {}
    assert renamed({"decoder.embed_positions._float_tensor": torch.ones(1)}, options) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adaptive_input": True}, "adaptive_input=True"),
        ({"activation_fn": "swish"}, "activation_fn='swish'; expected one of relu, gelu"),
        ({"activation_fn": None}, "missing: activation_fn"),
        ({"decoder_attention_heads": None}, "missing: decoder_attention_heads"),
        ({"encoder_normalize_before": None}, "missing: encoder_normalize_before"),
        ({"decoder_layers_to_keep": "0,2"}, "decoder_layers_to_keep=0,2"),
        ({"init_type": "rezero"}, "init_type='rezero'"),
        ({"init_type": "adaptive", "decoder_normalize_before": True}, "ADMIN's ratios are for Post-LN"),
        ({"init_type": "adaptive", "scale_attn": True}, "ADMIN's ratios .* scale_attn is set"),
        ({"encoder_layers": None, "decoder_layers": None}, "neither encoder_layers nor decoder_layers"),
    ],
)
def test_options_of_another_network_are_refused(change: dict[str, Any], message: str) -> None:
    _, _, options = given("encdec/ed_post_plain")
    assert config_from_fairseq(options, 97).placement == "post-ln"
    with pytest.raises(ValueError, match=message):
        config_from_fairseq(options | change, 97)


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
        "pad": 3,
        "bos": 4,
        "eos": 5,
    }
    read_back = config_from_fairseq(options | change, 97, encoder_vocab_size=50)
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

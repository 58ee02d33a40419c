"""Every class computes what our model computes: fp64 logits, greedy and beam outputs; a mistake is noticed."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from isograd.convert.checkpoints.weights import depths, from_theirs, to_theirs
from isograd.convert.folding import fold
from isograd.convert.hf import FAMILIES
from isograd.convert.hf.family import LEAST, norms_at
from isograd.convert.kinds import CAUSAL
from isograd.convert.pretrained import built, fit, homes, measure_native, to_transformers
from isograd.errors import InteropError
from isograd.placement import CATALOGUE, Norm, Placement, Residual, register
from tests.build import config, few, in_turn, model, tokens
from tests.interop.homes import HOMES, PAD, Home, batch, counted, loaded, logits, made

NORMED = {"embedding_norm": True}
WITH_INNER_NORMS = [name for name in CATALOGUE if name.startswith("normformer")]
WRITERS = [home for home in HOMES if home.head in ("causal", "seq2seq")]


def exact(native: Any) -> Any:
    """transformers' RMSNorms compute in float32: with torch's own in their place the class computes in fp64."""
    for parent in list(native.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm).__name__ in ("LlamaRMSNorm", "Qwen3RMSNorm"):
                own = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
                own.weight = norm.weight
                setattr(parent, name, own)
    return native


@pytest.mark.parametrize("home", few(HOMES, 2), ids=str)
def test_the_class_computes_the_same(home: Home, tmp_path: Path) -> None:
    ours = made(home)
    to_transformers(ours, home.to).save_pretrained(tmp_path)
    native = exact(loaded(home, tmp_path))
    for side in ("right", "left") if home.left else ("right",):
        given = batch(home.head, side)
        expected = counted(ours(**given).logits, given)
        error = (counted(logits(native, given), given) - expected).abs().max() / expected.abs().max()
        assert error <= 1e-12, side
    assert native.config.architectures == [home.name]


@in_turn("beams, home", [3, 1], WRITERS, every=3, ids=str)
def test_the_class_writes_the_same(home: Home, beams: int, tmp_path: Path) -> None:
    ours = made(home)
    to_transformers(ours, home.to).save_pretrained(tmp_path)
    native = exact(loaded(home, tmp_path))
    side = "right" if home.head == "seq2seq" else "left"
    given = {k: v for k, v in batch(home.head, side).items() if not k.startswith("decoder")}
    if home.to in ("bart", "mbart") and home.head == "causal":  # they count positions from the left edge
        given = {k: v[:1] for k, v in given.items()}
    how = {"num_beams": beams, "max_new_tokens": 7, "do_sample": False}
    how |= {"output_logits": True, "return_dict_in_generate": True}
    expected, got = ours.generate(**given, **how), native.generate(**given, **how)
    assert torch.equal(got.sequences, expected.sequences)
    steps = [torch.stack(out.logits, dim=1) for out in (got, expected)]  # what a random model writes is a repetition
    if beams == 1:  # a sentence that has ended goes on reading pad
        ended = (expected.sequences[:, -steps[0].shape[1] :] == 2).cumsum(dim=1).roll(1, 1)
        ended[:, 0] = 0
        steps = [step[ended == 0] for step in steps]
    assert (steps[0] - steps[1]).abs().max() <= 1e-12 * steps[1].abs().max()


@pytest.mark.parametrize("kind", few(["position", "eps", "scale", "heads", "tied"], ["eps", "tied"]))
def test_a_mistake_fails_the_certificate(kind: str) -> None:
    ours = model(hidden_act="gelu_tanh", scale_embedding=kind in ("scale", "tied"), dtype=torch.float64)
    done = fit(ours, "gpt2")
    native: Any = built(done)
    assert measure_native(ours, done, native, beams=()).passed
    with torch.no_grad():
        if kind == "position":
            native.transformer.wpe.weight.copy_(native.transformer.wpe.weight.roll(1, 0))
        elif kind == "eps":
            native.transformer.h[1].ln_2.eps = 2e-5
        elif kind == "scale":
            native.transformer.wte.weight.div_(4)
        elif kind == "heads":
            native.config.n_head = 2
            native = type(native).from_pretrained(
                None, config=native.config, state_dict=native.state_dict(), dtype=torch.float64
            )
        else:
            native.lm_head.weight.copy_(native.transformer.wte.weight)
    broken = copy.deepcopy(done)
    object.__setattr__(broken, "exact", True)  # so that fp64 is measured on what is there
    report = measure_native(ours, broken, native, beams=())
    assert not report.passed and "fp64" in report.failures()[0]


@pytest.mark.parametrize("placement", ["admin", "post-ln"])
def test_what_was_loaded_is_certified(placement: str, tmp_path: Path) -> None:
    """Weights with new values are measured in fp64 under the configuration that was saved."""
    ours = model("masked", placement=placement, embedding_norm=True, scale_embedding=True)
    done = fit(ours)
    built(done).save_pretrained(tmp_path)
    native = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    assert not done.exact and measure_native(ours, done, native).passed
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"layer_norm_eps": 1e-05', '"layer_norm_eps": 1.1e-05'))
    report = measure_native(ours, done, transformers.BertForMaskedLM.from_pretrained(tmp_path))
    assert [row.passed for row in report.logits if row.limit] == [False, True]  # too little for fp32 to show


@pytest.mark.parametrize(
    ("head", "options", "expected"),
    [
        ("causal", {"hidden_act": "gelu_tanh"}, "gpt2"),
        ("causal", {"position_offset": 2}, "opt"),  # counts as the model does
        ("causal", {"placement": "post-ln"}, "opt"),
        ("causal", {"placement": "admin", "embedding_norm": True}, "bart"),
        ("causal", {"norm_eps": 1e-6}, "gpt2"),
        ("masked", {"placement": "post-ln", "embedding_norm": True}, "bert"),
        ("masked", {"placement": "post-ln", "embedding_norm": True, "position_offset": 2}, "roberta"),
        ("masked", {"embedding_norm": True}, "roberta-prelayernorm"),
        ("masked", {}, "megatron-bert"),
        ("seq2seq", {"placement": "deepnorm", "embedding_norm": True}, "bart"),
        ("seq2seq", {"placement": "admin", "position_embedding_type": "sinusoidal"}, "fsmt"),
        ("seq2seq", {"position_embedding_type": "sinusoidal", "position_offset": 2}, "m2m100"),
        ("seq2seq", {"position_embedding_type": "sinusoidal"}, "blenderbot"),
    ],
)
def test_auto_finds_the_nearest(head: str, options: dict[str, Any], expected: str) -> None:
    assert fit(model(head, **options)).family.name == expected


@pytest.mark.parametrize(
    ("head", "to", "options", "said"),
    [
        (
            "causal",
            "auto",
            {"placement": "normformer"},
            r"of the nearest, .*no norm on what the branch wrote \(out\)",
        ),
        ("causal", "gpt2", {"placement": "normformer"}, r"no norm inside the branch \(mid\).*--to isograd.*--to onnx"),
        ("masked", "auto", {"placement": "post-ln"}, "norm on the embedding, and this model has none"),
        (
            "causal",
            "gpt2",
            {"placement": "post-ln"},
            r"no norm on the sum \(post\), and this placement has one.*--to opt",
        ),
        ("causal", "opt", {"norm_eps": 1e-6}, r"norm_eps: it has 1e-05, this model 1e-06.*--to gpt2"),
        ("causal", "gpt2", {"embedding_norm": True}, r"no norm on the embedding, and this model has one.*--to mbart"),
        ("causal", "gpt2", {"position_embedding_type": "rotary"}, "positions: it has added, this model rotary"),
        (
            "causal",
            "gpt-neox",
            {"position_embedding_type": "rotary", "position_offset": 2},
            "the same but for rounding",
        ),
        ("causal", "auto", {"norm": "rmsnorm"}, "norms are layernorm, this model's rmsnorm"),
        ("causal", "gpt2", {"hidden_act": "swiglu"}, "activation is one of silu, relu"),
        ("causal", "gpt2", {"placement": "qk-norm"}, "no such norms on queries"),
        ("causal", "bert", {}, "no class for a causal language model"),
        (
            "causal",
            "gpt2",
            {"input_size": 8, "output_size": 8, "tie_word_embeddings": False},
            "token_width: it has 16, this model 8",
        ),
        ("masked", "roberta", {"placement": "post-ln", "embedding_norm": True, "hidden_act": "relu"}, "of its head is"),
        (
            "masked",
            "roberta",
            {"placement": "post-ln", "embedding_norm": True, "pad_token_id": None},
            "no pad_token_id",
        ),
        (
            "masked",
            "roberta",
            {"placement": "post-ln", "embedding_norm": True, "next_sentence": True},
            "next_sentence: it has False",
        ),
        ("seq2seq", "bart", {"placement": "post-ln", "embedding_norm": True, "encoder_vocab_size": 50}, "50 tokens"),
        (
            "seq2seq",
            "fsmt",
            {"placement": "post-ln", "decoder_start_token_id": PAD},
            "is the pad token: the class gives it no position",
        ),
        ("seq2seq", "marian", {"placement": "post-ln"}, "keeps no table"),
        ("seq2seq", "m2m100", {}, "fairseq's sinusoids .*, this model's are learned"),
        (
            "seq2seq",
            "blenderbot",
            {"encoder_options": {"placement": "post-ln"}},
            "norm before the branch .*, and this placement has none",
        ),
        (
            "seq2seq",
            "blenderbot",
            {"encoder_options": {"hidden_size": 8, "num_attention_heads": 2}},
            "hidden_size: it has 16, this model 8",
        ),
        ("causal", "gpt2", {"head_bias": True}, "head_bias: it has False, this model True"),
        ("causal", "gpt3", {}, "unknown class 'gpt3': expected auto or one of .*gpt2"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(head: str, to: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InteropError, match=said) as error:
        to_transformers(model(head, **options), to)
    assert "\n" not in str(error.value)


def test_a_placement_without_its_last_norm_is_refused(own_catalogue: None) -> None:
    register("bare", Placement(each=Residual(pre=Norm())))
    with pytest.raises(InteropError, match=r"a norm after the last layer \(final\), and this placement has none"):
        to_transformers(model(placement="bare"))


@pytest.mark.slow
def test_every_reason_is_a_difference() -> None:
    """A class that is said to hold a model does (above); over the catalogue none is refused for nothing."""
    fits = {name: homes(config(placement=name), CAUSAL) for name in ("pre-ln", "gpt2", "post-ln", *WITH_INNER_NORMS)}
    assert fits["pre-ln"] == fits["gpt2"] == ["gpt2", "opt"] and fits["post-ln"] == ["opt"]
    assert not any(fits[name] for name in WITH_INNER_NORMS)


@pytest.mark.parametrize("home", HOMES, ids=str)
def test_names_lead_there_and_back(home: Home) -> None:
    ours = made(home)
    ours = fold(ours, untie=True) if home.options.get("placement") in ("admin", "deepnorm") else ours
    state = {name: value for name, value in ours.state_dict().items() if name != "lm_head.bias"}  # a buffer there
    names, norms, layers = FAMILIES[home.to].names, norms_at(ours.config), depths(ours.config)
    assert norms is not None
    table = names.modules(layers, dict.fromkeys(layers, norms), classifier=home.head == "classify")
    theirs = to_theirs(state, table, names, heads=4)
    back, rest = from_theirs(theirs | {"other.weight": tokens(1)}, table, names, heads=4)
    assert set(rest) == {"other.weight"} and set(back) == set(state)
    assert all(torch.equal(back[name], value) for name, value in state.items())
    with pytest.raises(InteropError, match=r"no place there for: model\.layers\.0\.attn\.out\.weight"):
        to_theirs({"model.layers.0.attn.out.weight": tokens(1)}, table, names)


def test_what_is_stored_in_half_precision() -> None:
    """Weights that keep their values keep their dtype; new values are not rounded to 8 bits."""
    kept = to_transformers(model(dtype=torch.bfloat16))
    assert kept.dtype == torch.bfloat16
    scaled = fit(model(dtype=torch.bfloat16, scale_embedding=True))
    assert built(scaled).dtype == torch.float32 and "stored in float32" in " ".join(scaled.notes)
    assert built(fit(model(dtype=torch.bfloat16, placement="admin"))).dtype == torch.float32


def test_tables_stay_one_where_they_can() -> None:
    tied: Any = to_transformers(model())
    assert tied.lm_head.weight is tied.transformer.wte.weight
    shared: Any = to_transformers(model("seq2seq", share_encoder_embeddings=True))
    assert shared.lm_head.weight is shared.model.encoder.embed_tokens.weight is shared.model.decoder.embed_tokens.weight
    apart: Any = to_transformers(model("seq2seq"))
    assert apart.lm_head.weight is not apart.model.decoder.embed_tokens.weight
    own: Any = to_transformers(
        model("seq2seq", placement="post-ln", position_embedding_type="sinusoidal_interleaved"), "marian"
    )
    assert own.lm_head.weight is own.model.decoder.embed_tokens.weight is not own.model.encoder.embed_tokens.weight


def test_positions_that_are_a_function_are_written_out_far_enough() -> None:
    ours = model(position_embedding_type="sinusoidal", max_position_embeddings=8)
    native: Any = to_transformers(ours)
    assert native.config.n_positions == LEAST
    ids = tokens(1, 40)
    torch.testing.assert_close(native(ids).logits, ours(ids).logits, rtol=0, atol=1e-5)


def test_saved_once_more_nothing_is_lost(tmp_path: Path) -> None:
    """FSMT keeps the table that is no sinusoid; Marian computes its own anew, which is why it gets no other."""
    fsmt = next(home for home in HOMES if home.to == "fsmt")
    marian = next(home for home in HOMES if home.to == "marian")
    for home, atol in ((fsmt, 0.0), (marian, 1e-5)):
        first, second = tmp_path / f"{home.to}-1", tmp_path / f"{home.to}-2"
        to_transformers(made(home), home.to).save_pretrained(first)
        loaded(home, first).save_pretrained(second)
        again = getattr(transformers, home.name).from_pretrained(second)
        given = batch("seq2seq", "right")
        expected, got = (counted(logits(n, given), given) for n in (loaded(home, first), again))
        assert (got - expected).abs().max() <= atol * expected.abs().max()


def test_settings_come_along() -> None:
    ours = model("seq2seq", placement="post-ln", embedding_norm=True)
    ours.generation_config.num_beams = 4
    native: Any = to_transformers(ours)
    assert native.generation_config.num_beams == 4 and native.generation_config.use_cache
    assert native.generation_config.decoder_start_token_id == 2 and native.generation_config.forced_eos_token_id is None
    assert ours.generation_config.num_beams == 4  # and the original stays as it is
    labels = {0: "no", 1: "maybe", 2: "yes"}
    classifier: Any = to_transformers(model("classify", id2label=labels))
    assert classifier.config.id2label == labels and classifier.config.num_labels == 3

"""In and out of every family: the same weights bit for bit, logits, gradients and texts, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings

from isograd.convert.hf import FAMILIES as HERE
from isograd.convert.pretrained import from_transformers, import_pretrained, to_transformers
from isograd.errors import InteropError
from tests.build import close, few
from tests.interop.families import FAMILIES, PAIR, SHAPE, Native, drawn, gradients, logits, padded, promoted


def name_of(native: Any) -> str:
    return next(name for name, f in HERE.items() if type(native).__name__ in f.classes.values())


def exact(native: Any) -> Any:
    return HERE[name_of(native)].in_fp64(native)


FIRST = [next(native for native in FAMILIES if native.cls == cls) for cls in dict.fromkeys(n.cls for n in FAMILIES)]


@pytest.mark.parametrize("native", few(FAMILIES, FIRST[::2]), ids=str)
def test_in_and_out(native: Native, tmp_path: Path) -> None:
    theirs = native.build()
    ours = from_transformers(theirs)
    given, mask = padded()
    expected = logits(exact(theirs), given, mask)
    close(logits(ours, given, mask), expected, 1e-9)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path, dtype=torch.float64)
    back = to_transformers(again, name_of(theirs))
    assert type(back) is type(theirs)
    before = theirs.state_dict()
    for name, value in back.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert set(before) == set(back.state_dict())
    close(logits(exact(back), given, mask), expected, 1e-13)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(native=drawn())
def test_in_and_out_with_options_as_they_come(native: Native) -> None:
    theirs = native.build()
    ours = from_transformers(theirs)
    ids, mask = padded()
    close(logits(ours, ids, mask), logits(exact(theirs), ids, mask), 1e-9)
    back, before = to_transformers(ours, name_of(theirs)).state_dict(), theirs.state_dict()
    assert set(back) == set(before) and all(torch.equal(back[name], before[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("native", FAMILIES, ids=str)
def test_in_float32_unpatched(native: Native) -> None:
    """What a user gets: no cast is touched, the default back-end."""
    theirs = native.build().float()
    ours = from_transformers(theirs)
    given, mask = padded()
    whole = HERE[name_of(theirs)].comparable(theirs)
    found, expected = (logits(network, given, mask, exact=False) for network in (ours, whole))
    error = (found - expected).abs().max() / expected.abs().max()
    assert error <= 1e-5


CAUSAL = [native for native in FAMILIES if native.cls.endswith("CausalLM")]
WRITERS = [*CAUSAL, *(native for native in FAMILIES if native.shape is not SHAPE)]


def often(natives: list[Native]) -> list[Any]:
    """Each fourth class once; the others and further options are slow."""
    return [pytest.param(n, marks=[] if n in FIRST[::4] else pytest.mark.slow, id=str(n)) for n in natives]


@pytest.mark.parametrize("native", often(FAMILIES))
def test_gradients_of_all_parameters(native: Native) -> None:
    theirs = native.build()
    ours = from_transformers(theirs)
    assert gradients(theirs, ours, exact(theirs)) <= 1e-8
    with torch.no_grad():  # the negative control: one weight of one norm
        next(p for name, p in ours.named_parameters() if p.ndim == 1 and name.endswith("weight"))[0] += 1e-3
    assert gradients(theirs, ours, exact(theirs)) > 1e-6


@pytest.mark.parametrize("native", often(WRITERS))
def test_texts(native: Native) -> None:
    theirs = native.build()
    ours = from_transformers(theirs)
    given, _ = padded()
    network: Any
    texts = []
    for network in (theirs, ours):
        network.set_attn_implementation("eager")
        with promoted(network):
            texts.append(network.generate(given[:1], max_new_tokens=9, do_sample=False, num_beams=2))
    assert torch.equal(texts[0], texts[1]) and texts[0].shape[1] > (given.shape[1] if native.shape is SHAPE else 1)


@pytest.mark.parametrize("native", [CAUSAL[0], CAUSAL[4], CAUSAL[14]], ids=str)
def test_the_negative_control(native: Native) -> None:
    """A key-value head less exact, a base, a window: each is noticed."""
    theirs = native.build()
    given, mask = padded()
    expected = logits(exact(theirs), given, mask)
    for change in ({"rope_theta": 77.0}, {"sliding_window": 3}, {"attention_multiplier": 0.1}):
        ours = from_transformers(theirs)
        for name, value in change.items():
            setattr(ours.config, name, value)
        ours.config.rope_parameters = None
        wrong = type(ours)(ours.config).double().eval()
        wrong.load_state_dict(ours.state_dict())
        assert (logits(wrong, given, mask) - expected).abs().max() > 1e-6, change


PAIRS = [native for native in FAMILIES if native.shape is not SHAPE]


@pytest.mark.parametrize("native", [PAIRS[0], PAIRS[4], PAIRS[6]], ids=str)
def test_sinusoids_are_computed_and_another_table_is_kept(native: Native, tmp_path: Path) -> None:
    theirs = native.build()
    tables = [stack.embed_positions.weight for stack in (theirs.get_encoder(), theirs.get_decoder())]
    assert "sinusoidal" in from_transformers(theirs).config.position_embedding_type
    with torch.no_grad():
        tables[1][4, 3] += 1e-4
    ours = from_transformers(theirs)
    assert ours.config.position_embedding_type == "learned"
    assert not ours.decoder.embedding.positions.weight.requires_grad  # type: ignore[union-attr]
    given, mask = padded()
    close(logits(ours, given, mask), logits(exact(theirs), given, mask), 1e-12)


@pytest.mark.parametrize("native", few(PAIRS[::4], 3), ids=str)
def test_a_folder_of_a_translator(native: Native, tmp_path: Path) -> None:
    native.build().float().save_pretrained(tmp_path / "theirs")
    report = import_pretrained(tmp_path / "theirs", tmp_path / "ours")
    assert report.passed and all(row.equal == row.prompts for row in report.generated if row.judged)


@pytest.mark.parametrize(
    ("cls", "options", "said"),
    [
        (
            "T5ForConditionalGeneration",
            {"d_model": 16, "num_layers": 1, "d_ff": 8},
            "trained bias by relative position",
        ),
        ("DebertaV2ForMaskedLM", {}, "disentangled attention"),
        ("MixtralForCausalLM", {"num_local_experts": 2}, "mixtures of experts"),
        ("Qwen3MoeForCausalLM", {"num_experts": 2, "num_experts_per_tok": 1}, "mixtures of experts"),
        ("BloomForCausalLM", {}, "ALiBi"),
        ("AlbertForMaskedLM", {}, "share their weights"),
        ("ElectraForMaskedLM", {"embedding_size": 8}, "normalizes token vectors before it projects"),
        ("LlamaForCausalLM", {"hidden_act": "tanh"}, "activation 'tanh': expected one of swish, silu"),
        ("GemmaForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("ModernBertForMaskedLM", {"classifier_activation": "relu"}, "classifier_activation='relu'"),
        ("NllbMoeForConditionalGeneration", {"num_experts": 2}, "mixtures of experts"),
        ("M2M100ForConditionalGeneration", PAIR | {"decoder_start_token_id": 1}, "1 is the pad token: the class gives"),
        ("MambaForCausalLM", {}, "not attention"),
        ("DistilBertForMaskedLM", {}, "no counterpart here; expected one of"),
    ],
)
def test_what_cannot_be_said_is_refused(cls: str, options: dict[str, Any], said: str) -> None:
    made = getattr(transformers, cls)
    with torch.device("meta"):
        theirs = made(made.config_class(**{**SHAPE, "num_hidden_layers": 1, **options}))
    with pytest.raises(InteropError, match=said) as error:
        from_transformers(theirs)
    assert "\n" not in str(error.value)


def test_quantised_weights_are_refused() -> None:
    theirs = FAMILIES[0].build()
    theirs.config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(InteropError, match="quantised; load it in floating point"):
        from_transformers(theirs)

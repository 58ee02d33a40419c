"""In and out of every family: the same weights bit for bit, logits, gradients and texts, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings

from isograd.errors import InteropError
from isograd.interop.hf import FAMILIES as HERE
from isograd.interop.parity import Promoted
from isograd.interop.pretrained import from_transformers, to_transformers
from tests.build import close
from tests.interop.families import FAMILIES, SHAPE, Native, drawn, logits, padded


def name_of(native: Any) -> str:
    return next(name for name, f in HERE.items() if type(native).__name__ in f.classes.values())


def exact(native: Any) -> Any:
    return HERE[name_of(native)].in_fp64(native)


@pytest.mark.parametrize("native", FAMILIES, ids=str)
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
    found, expected = (network(input_ids=given, attention_mask=mask).logits for network in (ours, theirs))
    counted = mask.bool() if found.ndim == 3 else slice(None)
    error = (found[counted] - expected[counted]).abs().max() / expected[counted].abs().max()
    assert error <= 1e-5


CAUSAL = [native for native in FAMILIES if native.cls.endswith("CausalLM")]
FIRST = [next(native for native in CAUSAL if native.cls == cls) for cls in dict.fromkeys(n.cls for n in CAUSAL)]


@pytest.mark.parametrize(
    "native", [pytest.param(n, marks=[] if n in FIRST else pytest.mark.slow, id=str(n)) for n in CAUSAL]
)
def test_gradients_and_texts(native: Native) -> None:
    theirs = native.build()
    ours = from_transformers(theirs)
    given, _ = padded()
    network: Any
    grads, texts = [], []
    for network in (exact(theirs), ours):
        network.set_attn_implementation("eager")
        with Promoted():
            rows = network(input_ids=given[:1], **({} if network is not ours else {"output_logits": True})).logits
            loss = torch.nn.functional.cross_entropy(rows[0, :-1], given[0, 1:])
            loss.backward()
            texts.append(network.generate(given[:1], max_new_tokens=9, do_sample=False, num_beams=2))
        grads.append((loss, network.get_input_embeddings().weight.grad))
    close(grads[1][0], grads[0][0], 1e-9)
    close(grads[1][1], grads[0][1], 1e-9)
    assert torch.equal(texts[0], texts[1]) and texts[0].shape[1] > given.shape[1]


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
        ("LlamaForCausalLM", {"hidden_act": "tanh"}, "activation 'tanh': expected one of silu"),
        ("GemmaForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("ModernBertForMaskedLM", {"classifier_activation": "relu"}, "classifier_activation='relu'"),
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

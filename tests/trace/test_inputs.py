"""Inputs that a model runs on, guessed; what a --batch callable may return."""

from collections import UserDict
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from isograd.errors import InputsError
from isograd.trace.inputs import as_inputs, guess_inputs, run
from tests import build
from tests.lint.families import FAMILIES, GPT, PAIR, SMALL, of


def shapes(inputs: Any) -> dict[str, tuple[int, ...]] | list[tuple[int, ...]]:
    if isinstance(inputs, dict):
        return {name: tuple(part.shape) for name, part in inputs.items()}
    return [tuple(part.shape) for part in inputs]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gets_inputs_that_it_runs_on(name: str) -> None:
    model: Any = FAMILIES[name].build()
    inputs = guess_inputs(model)
    assert run(model, inputs) is not None
    parts = inputs.values() if isinstance(inputs, dict) else inputs
    assert {len(part) for part in parts if part.ndim > 2 or not part.is_floating_point()} == {2}  # sequences
    if isinstance(inputs, dict) and "input_ids" in inputs:
        special = {getattr(model.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
        for key in {"input_ids", "decoder_input_ids"} & inputs.keys():
            assert not special & set(inputs[key].flatten().tolist())
        assert inputs["attention_mask"].min() == 1


def test_text_of_one_stack_and_of_two() -> None:
    assert shapes(guess_inputs(FAMILIES["llama"].build())) == {"input_ids": (2, 16), "attention_mask": (2, 16)}
    two = {"input_ids": (2, 16), "attention_mask": (2, 16), "decoder_input_ids": (2, 12)}
    for name in ("bart", "t5"):
        assert shapes(guess_inputs(FAMILIES[name].build())) == two
    assert shapes(guess_inputs(FAMILIES["vit"].build())) == {"pixel_values": (2, 3, 16, 16)}


@pytest.mark.parametrize("head", ["causal", "masked", "seq2seq", "classify"])
def test_our_own_models(head: str) -> None:
    model = build.model(head)
    inputs = guess_inputs(model)
    assert isinstance(inputs, dict) and run(model, inputs).logits.isfinite().all()
    assert inputs["input_ids"].shape == (2, 16)


def test_the_same_model_gets_the_same_inputs_and_random_numbers_are_left_alone() -> None:
    model = FAMILIES["gpt2"].build().train()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other = guess_inputs(model), guess_inputs(model)
    assert isinstance(one, dict) and isinstance(other, dict)
    assert torch.equal(one["input_ids"], other["input_ids"])
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("build", "length"),
    [
        (of("GPT2LMHeadModel", "GPT2", **(GPT | {"n_positions": 5})), 5),
        (of("RobertaForMaskedLM", "Roberta", **(SMALL | {"max_position_embeddings": 9})), 7),  # two rows are lost
    ],
)
def test_few_positions_make_short_inputs(build: Any, length: int) -> None:
    inputs = guess_inputs(build())
    assert isinstance(inputs, dict) and inputs["input_ids"].shape == (2, length)


def test_heads_that_want_an_end_or_one_sequence() -> None:
    bart = of("BartForSequenceClassification", "Bart", **PAIR)()
    inputs = guess_inputs(bart)
    assert isinstance(inputs, dict) and set(inputs["input_ids"][:, -1].tolist()) == {2}
    gpt2 = of("GPT2ForSequenceClassification", "GPT2", num_labels=3, **GPT)()
    assert shapes(guess_inputs(gpt2)) == {"input_ids": (1, 16), "attention_mask": (1, 16)}


def test_composite_models() -> None:
    encoder = transformers.BertConfig(**(SMALL | {"vocab_size": 50}))
    decoder = transformers.BertConfig(**(SMALL | {"vocab_size": 40, "is_decoder": True, "add_cross_attention": True}))
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    inputs = guess_inputs(transformers.EncoderDecoderModel(config))
    assert isinstance(inputs, dict) and inputs["input_ids"].max() < 50 and inputs["decoder_input_ids"].max() < 40
    text = {**SMALL, "max_position_embeddings": 20}
    vision = {"image_size": 16, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    both = {"input_ids": (2, 16), "attention_mask": (2, 16), "pixel_values": (2, 3, 16, 16)}
    clip = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    assert shapes(guess_inputs(transformers.CLIPModel(clip))) == both
    siglip = transformers.SiglipConfig(text_config=text, vision_config=vision)
    assert shapes(guess_inputs(transformers.SiglipModel(siglip))) == both


def test_sound() -> None:
    config = transformers.WhisperConfig(
        **(PAIR | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 12})
    )
    assert shapes(guess_inputs(transformers.WhisperForConditionalGeneration(config))) == {
        "input_features": (2, 8, 20),
        "decoder_input_ids": (2, 12),
    }


@pytest.mark.parametrize("in_front", [True, False])
def test_torchs_stacks_in_either_layout(in_front: bool) -> None:
    options: dict[str, Any] = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": in_front}
    layer, below = nn.TransformerEncoderLayer(8, 2, **options), nn.TransformerDecoderLayer(8, 2, **options)
    source = (2, 16, 8) if in_front else (16, 2, 8)
    target = (2, 12, 8) if in_front else (12, 2, 8)
    assert shapes(guess_inputs(layer)) == [source]
    assert shapes(guess_inputs(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))) == [source]
    two = {"tgt": target, "memory": source, "tgt_mask": (12, 12)}
    assert shapes(guess_inputs(below)) == two
    assert shapes(guess_inputs(nn.TransformerDecoder(below, 2))) == two
    stacks: dict[str, Any] = {  # nn.Transformer's own encoder warns where it cannot nest tensors
        "custom_encoder": nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        "custom_decoder": nn.TransformerDecoder(below, 1),
    }
    whole = guess_inputs(nn.Transformer(8, 2, batch_first=in_front, **stacks))
    assert shapes(whole) == {"src": source, "tgt": target, "tgt_mask": (12, 12)}
    assert isinstance(whole, dict)
    hidden = whole["tgt_mask"].isinf()
    assert torch.equal(hidden, torch.ones(12, 12, dtype=torch.bool).triu(1))  # the decoder must not see the future


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(6, 8)
        self.words = nn.Embedding(50, 8)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, *, scale: float = 1.0) -> Tensor:
        assert src_mask.dtype == torch.bool and src_mask.all()
        places = self.places(torch.arange(src.shape[1]))  # six at most: longer inputs fail
        return self.words(src) + self.words(tgt) + places * scale


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.read = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.read(x))


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 4, 8, 8)
        self.read = nn.Linear(4 * 16, 3)

    def forward(self, picture: Tensor) -> Tensor:
        return self.read(self.cut(picture).flatten(1))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Translator(), [(2, 4), (2, 4), (2, 4)]),
        (Vectors(), [(2, 16, 7)]),
        (Picture(), [(2, 1, 32, 32)]),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), [(2, 6)]),
    ],
)
def test_other_modules_by_their_layers(model: nn.Module, expected: list[tuple[int, ...]]) -> None:
    assert shapes(guess_inputs(model)) == expected


def test_numbers_in_the_models_precision() -> None:
    (x,) = guess_inputs(Vectors().to(torch.bfloat16))
    assert isinstance(x, Tensor) and x.dtype == torch.bfloat16


class Hopeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(3, 3)

    def forward(self, graph: Any) -> Tensor:
        return self.read(graph.nodes)


def test_where_nothing_runs_a_batch_is_asked_for() -> None:
    for model in (Hopeless(), nn.ReLU(), nn.Bilinear(2, 2, 2)):
        with pytest.raises(InputsError, match=f"{type(model).__name__}.*--batch") as error:
            guess_inputs(model)
        assert "\n" not in str(error.value)


def test_what_a_batch_may_be() -> None:
    x = torch.zeros(2, 3)
    assert as_inputs(x) == (x,)
    assert as_inputs([x, None]) == (x, None) and as_inputs((x, 3)) == (x, 3)
    assert as_inputs(UserDict(input_ids=x)) == {"input_ids": x}
    for wrong, words in ((None, "NoneType"), ("x", "str"), ({}, "no tensor"), ((1, 2), "no tensor")):
        with pytest.raises(InputsError, match=words):
            as_inputs(wrong)

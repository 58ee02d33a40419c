"""Models of transformers' own classes as isograd's: equal logits in fp64, with padding, and after being written."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from isograd.convert.checkpoints.tokenizers import for_transformers
from isograd.convert.graft import graft_folder
from isograd.convert.pretrained import from_transformers, import_pretrained
from isograd.errors import InteropError, ModelError
from tests.build import close, few, model
from tests.models.test_oracles import PAD, SHAPE, finished, padded

ONE: dict[str, Any] = SHAPE | {"max_position_embeddings": 32, "pad_token_id": PAD}
GPT2 = {"vocab_size": 41, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4}
IDS = {"bos_token_id": 0, "eos_token_id": 2}
OPT: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 24,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
}
PAIR: dict[str, Any] = {
    "vocab_size": 41,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2 | IDS),
    "gpt2-untied": ("GPT2LMHeadModel", GPT2 | IDS | {"tie_word_embeddings": False, "n_inner": 24}),
    "gpt2-relu": ("GPT2LMHeadModel", GPT2 | IDS | {"activation_function": "relu", "layer_norm_epsilon": 1e-3}),
    "opt": ("OPTForCausalLM", OPT | {"word_embed_proj_dim": 16}),
    "opt-post-projected": ("OPTForCausalLM", OPT | {"word_embed_proj_dim": 12, "do_layer_norm_before": False}),
    "bert": ("BertForMaskedLM", ONE),
    "bert-two-heads": ("BertForPreTraining", ONE | {"hidden_act": "relu"}),
    "bert-classifier": ("BertForSequenceClassification", ONE | {"num_labels": 3}),
    "roberta": ("RobertaForMaskedLM", ONE),
    "roberta-classifier": ("RobertaForSequenceClassification", ONE | {"num_labels": 3}),
    "roberta-prelayernorm": ("RobertaPreLayerNormForMaskedLM", ONE),
    "bart": ("BartForConditionalGeneration", PAIR),
    "bart-scaled-untied": (
        "BartForConditionalGeneration",
        PAIR | {"scale_embedding": True, "tie_word_embeddings": False},
    ),
    "mbart": ("MBartForConditionalGeneration", PAIR),
    "marian": ("MarianMTModel", PAIR),
    "marian-two-tables": (
        "MarianMTModel",
        PAIR | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50, "scale_embedding": True},
    ),
}


def theirs(name: str) -> Any:
    kind, options = MODELS[name]
    cls = getattr(transformers, kind)
    made = finished(cls(cls.config_class(**options)))
    if hasattr(made, "final_logits_bias"):
        made.final_logits_bias.normal_()
    return made


def logits(network: Any, side: str = "right") -> Tensor:
    """At all places that count."""
    ids, mask = padded(side)
    feed = {"input_ids": ids, "attention_mask": mask}
    if network.config.is_encoder_decoder:
        feed["decoder_input_ids"], mask = padded("right", 6)
    with torch.no_grad():
        out = network(**feed)
    found: Tensor = out.prediction_logits if hasattr(out, "prediction_logits") else out.logits
    return found if found.ndim == 2 else found[mask.bool()]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same(name: str, tmp_path: Path) -> None:
    original = theirs(name)
    before = {k: v.clone() for k, v in original.state_dict().items()}
    ours = from_transformers(original)
    assert not ours.training and ours.dtype == torch.float64
    close(logits(ours), logits(original), 1e-12)
    assert all(torch.equal(v, before[k]) for k, v in original.state_dict().items())
    with torch.no_grad():  # nothing is shared with the original
        for p in ours.parameters():
            p.zero_()
    assert all(torch.equal(v, before[k]) for k, v in original.state_dict().items())
    ours = from_transformers(original)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path, dtype=torch.float64)
    assert torch.equal(logits(again), logits(ours))


@pytest.mark.parametrize("name", ["gpt2", "bart", "marian-two-tables"])
def test_training_goes_on_with_the_same_gradient(name: str) -> None:
    original = theirs(name)
    ours = from_transformers(original)
    ids, _ = padded("right")
    labels = padded("right", 6)[0] if ours.config.is_encoder_decoder else ids
    losses = []
    for network in (original, ours):
        network.zero_grad()
        out = network(input_ids=ids, labels=labels, **({} if network is original else {"output_logits": True}))
        flat = out.logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(flat, labels.flatten())  # theirs may sum in float32
        loss.backward()
        losses.append(loss)
    close(losses[1], losses[0], 1e-12)
    table = original.get_input_embeddings().weight.grad
    close(ours.get_input_embeddings().weight.grad[3:], table[3:], 1e-10)  # but for pads


@pytest.mark.parametrize("name", ["gpt2", "roberta", "bart"])
def test_the_negative_control(name: str) -> None:
    """A norm's eps, an activation, one weight: each is seen."""
    original = theirs(name)
    ours = from_transformers(original)
    expected = logits(original)
    for module in ours.modules():
        if hasattr(module, "eps"):
            module.eps += 1e-6
    assert (logits(ours) - expected).abs().max() > 1e-9


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2", {"activation_function": "tanh"}, "activation 'tanh': expected one of .*relu"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("roberta", {"hidden_act": "relu"}, "RoBERTa's head has gelu"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
    ],
)
def test_options_of_another_network_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    kind, options = MODELS[name]
    cls = getattr(transformers, kind)
    with pytest.raises(InteropError, match=message):
        from_transformers(cls(cls.config_class(**options | change)))


def test_classes_without_a_counterpart_are_refused() -> None:
    with pytest.raises(InteropError, match=r"GPT2Model: no counterpart here; expected one of .*GPT2LMHeadModel"):
        from_transformers(transformers.GPT2Model(transformers.GPT2Config(**GPT2)))


@pytest.mark.parametrize("name", few(["gpt2", "bert", "roberta", "bart", "marian"], ["bert", "bart"]))
def test_a_folder_and_its_parity_report(name: str, tmp_path: Path) -> None:
    original = copy.deepcopy(theirs(name)).float()
    original.save_pretrained(tmp_path / "theirs")
    words = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "b"])}, "<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for_transformers(words).save_pretrained(tmp_path / "theirs")
    report = import_pretrained(tmp_path / "theirs", tmp_path / "ours")
    assert report.passed and {row.precision for row in report.logits} == {"fp64", "fp32", "bf16"}
    assert [row.search for row in report.generated if row.judged] == ([] if "bert" in name else ["greedy", "beam 5"])
    assert (tmp_path / "ours/parity.json").is_file()
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert read("a b")["input_ids"] == [4, 5]


def test_what_is_no_model_of_transformers_is_refused(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path / "ours")
    with pytest.raises(InteropError, match="expected a model of transformers' own"):
        import_pretrained(tmp_path / "ours", tmp_path / "out")
    with pytest.raises(ModelError, match="no such folder"):
        import_pretrained(tmp_path / "none" / "such" / "thing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("take", [import_pretrained, graft_folder])
def test_a_configuration_alone_is_not_taken(take: Any, index: bool, tmp_path: Path) -> None:
    """Its weights would be drawn at random, and parity with themselves would hold."""
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 41, "n_positions": 8}
    transformers.GPT2Config(**sizes, architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path / "model")
    if index:
        said = {"metadata": {}, "weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}
        (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps(said))
    what = {} if take is import_pretrained else {"changes": ["layers=2"]}
    with pytest.raises((InteropError, ModelError), match="without weights"):
        take(tmp_path / "model", out=tmp_path / "out", **what)
    assert not (tmp_path / "out").exists()

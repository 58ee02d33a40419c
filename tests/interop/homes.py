"""Models and the classes of transformers that hold them, and both read side by side."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from isograd.models.base import CACHE
from tests.build import model, tokens

PAD, START = 1, 2
AUTO = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "classify": "AutoModelForSequenceClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
_LLAMA = {"norm": "rmsnorm", "hidden_act": "swiglu", "bias": False, "position_embedding_type": "rotary"}
_SINES = {"position_embedding_type": "sinusoidal", "scale_embedding": True}
_BIAS = {"head_bias": True}
_NORMED = {"embedding_norm": True}


@dataclass(frozen=True)
class Home:
    """A model of `options`, the class that `--to` names, whether that class finds positions in a left-padded batch."""

    head: str
    to: str
    name: str
    left: bool
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = (f"{k}={v}" for k, v in self.options.items())
        return f"{self.name} {' '.join(said)}"


HOMES = [
    Home("causal", "gpt2", "GPT2LMHeadModel", False, {"placement": "gpt2", "hidden_act": "gelu_tanh"}),
    Home("causal", "gpt2", "GPT2LMHeadModel", False, {"bias": False, "hidden_act": "relu", "norm_eps": 1e-6, **_SINES}),
    Home("causal", "opt", "OPTForCausalLM", True, {"hidden_act": "relu", "position_offset": 2}),
    Home("causal", "opt", "OPTForCausalLM", True, {"placement": "post-ln", "hidden_act": "relu_squared"}),
    Home("causal", "opt", "OPTForCausalLM", True, {"placement": "post-ln", "bias": False, **_SINES}),
    Home("causal", "opt", "OPTForCausalLM", True, {"placement": "admin", "position_offset": 3}),
    Home("causal", "opt", "OPTForCausalLM", True, {"position_embedding_type": "none", "tie_word_embeddings": False}),
    Home("causal", "opt", "OPTForCausalLM", True, {"input_size": 12, "output_size": 12, "scale_embedding": True}),
    Home("causal", "llama", "LlamaForCausalLM", False, {**_LLAMA, "rope_theta": 1000.0, "hidden_size": 64}),
    Home("causal", "llama", "LlamaForCausalLM", False, {**_LLAMA, "bias": True, "scale_embedding": True}),
    Home("causal", "qwen3", "Qwen3ForCausalLM", False, {**_LLAMA, "placement": "qk-norm", "norm_eps": 1e-6}),
    Home("causal", "gpt-neox", "GPTNeoXForCausalLM", False, {"position_embedding_type": "rotary", "hidden_size": 64}),
    Home("causal", "bart", "BartForCausalLM", False, {"placement": "deepnorm", **_NORMED}),
    Home("causal", "mbart", "MBartForCausalLM", False, {**_NORMED, "scale_embedding": True}),
    Home("masked", "bert", "BertForMaskedLM", False, {"placement": "post-ln", **_NORMED, "norm_eps": 1e-12}),
    Home("masked", "bert", "BertForMaskedLM", False, {"placement": "deepnorm", **_NORMED, "hidden_act": "relu"}),
    Home("masked", "bert", "BertForPreTraining", False, {"placement": "post-ln", **_NORMED, "next_sentence": True}),
    Home("masked", "roberta", "RobertaForMaskedLM", True, {"placement": "post-ln", **_NORMED, "position_offset": 2}),
    Home("masked", "roberta-prelayernorm", "RobertaPreLayerNormForMaskedLM", True, {**_NORMED, **_SINES}),
    Home("masked", "megatron-bert", "MegatronBertForMaskedLM", False, {"hidden_act": "gelu_tanh"}),
    Home("classify", "bert", "BertForSequenceClassification", False, {"placement": "post-ln", **_NORMED}),
    Home("classify", "roberta", "RobertaForSequenceClassification", False, {"placement": "post-ln", **_NORMED}),
    Home("classify", "megatron-bert", "MegatronBertForSequenceClassification", False, {"scale_embedding": True}),
    Home("seq2seq", "bart", "BartForConditionalGeneration", False, {"placement": "post-ln", **_NORMED}),
    Home(
        "seq2seq",
        "bart",
        "BartForConditionalGeneration",
        False,
        {"placement": "admin", **_NORMED, **_SINES, "encoder_vocab_size": 37},
    ),
    Home(
        "seq2seq",
        "mbart",
        "MBartForConditionalGeneration",
        False,
        {**_NORMED, "encoder_options": {"num_attention_heads": 2, "intermediate_size": 20}},
    ),
    Home("seq2seq", "fsmt", "FSMTForConditionalGeneration", True, {"placement": "post-ln", "encoder_vocab_size": 50}),
    Home(
        "seq2seq",
        "fsmt",
        "FSMTForConditionalGeneration",
        True,
        {"placement": "admin", **_SINES, "share_encoder_embeddings": True},
    ),
    Home(
        "seq2seq",
        "marian",
        "MarianMTModel",
        False,
        {"placement": "post-ln", "position_embedding_type": "sinusoidal_interleaved", "scale_embedding": True},
    ),
    Home(
        "seq2seq",
        "marian",
        "MarianMTModel",
        False,
        {
            "placement": "post-ln",
            "position_embedding_type": "sinusoidal_interleaved",
            "encoder_vocab_size": 50,
            "tie_word_embeddings": False,
            **_BIAS,
        },
    ),
    Home("seq2seq", "bart", "BartForConditionalGeneration", False, {"placement": "post-ln", **_NORMED, **_BIAS}),
    Home("seq2seq", "m2m100", "M2M100ForConditionalGeneration", True, {**_SINES, "position_offset": 2}),
    Home("seq2seq", "blenderbot", "BlenderbotForConditionalGeneration", False, {"share_encoder_embeddings": True}),
]


def made(home: Home, dtype: torch.dtype = torch.float64) -> Any:
    """Weights large enough that what is written is no repetition; norms, biases and coefficients random."""
    return model(home.head, dtype=dtype, **{"init": "normal", "initializer_range": 0.25, **home.options})


def loaded(home: Home, folder: Path) -> Any:
    """By transformers' Auto classes, every weight found."""
    auto = "AutoModelForPreTraining" if home.name.endswith("ForPreTraining") else AUTO[home.head]
    native, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert type(native).__name__ == home.name
    assert not any(info.values()), info
    return native


def batch(head: str, side: str, rows: int = 37) -> dict[str, Tensor]:
    """Three sequences of length 8, 5 and 2, padded on a side; what a decoder reads is padded on the right."""
    given = dict(zip(("input_ids", "attention_mask"), _padded(8, (8, 5, 2), side, rows), strict=True))
    if head == "seq2seq":
        ids, mask = _padded(6, (6, 6, 3), "right", 41)
        ids[:, 0] = START
        given |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    return given


def _padded(time: int, lengths: tuple[int, ...], side: str, rows: int) -> tuple[Tensor, Tensor]:
    ids, mask = tokens(len(lengths), time, high=rows, seed=time), torch.ones(len(lengths), time, dtype=torch.long)
    for row, length in enumerate(lengths):
        places = slice(length, None) if side == "right" else slice(0, time - length)
        ids[row, places], mask[row, places] = PAD, 0
    return ids, mask


def counted(logits: Tensor, given: dict[str, Tensor]) -> Tensor:
    """At the places that are not padding."""
    mask = given.get("decoder_attention_mask", given["attention_mask"])
    return logits if logits.ndim == 2 else logits[mask.bool()]


def logits(native: Any, given: dict[str, Tensor]) -> Tensor:
    """As a user gets them; of FSMT token by token, since its causal mask is not made for fp64."""
    if native.config.model_type == "fsmt":
        return _step_by_step(native, given)
    out = native(**given)
    return out.prediction_logits if "prediction_logits" in out else out.logits


def _step_by_step(native: Any, given: dict[str, Tensor]) -> Tensor:
    seen = {"attention_mask": given["attention_mask"]}
    memory = native.get_encoder()(given["input_ids"], **seen)
    found, past = [], None
    for time in range(given["decoder_input_ids"].shape[1]):
        out = native(
            encoder_outputs=memory,
            decoder_input_ids=given["decoder_input_ids"][:, time : time + 1],
            **{CACHE: past},
            use_cache=True,
            **seen,
        )
        past = getattr(out, CACHE)
        found.append(out.logits)
    return torch.cat(found, dim=1)

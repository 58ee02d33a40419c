"""Families of transformers whose configuration says the network: a tiny example of each, and more by hypothesis."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from torch import Tensor

from isograd.convert.parity import Promoted
from isograd.convert.pretrained import under_our_names

SHAPE: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
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
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
FSMT = {name: value for name, value in PAIR.items() if name != "vocab_size"} | {
    "langs": ["a", "b"],
    "src_vocab_size": 45,
    "tgt_vocab_size": 41,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 500.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}


@dataclass(frozen=True)
class Native:
    """A class of transformers with options beside those of a shape."""

    cls: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=lambda: SHAPE)

    def __str__(self) -> str:
        return f"{self.cls} {' '.join(f'{k}={v}' for k, v in self.options.items())}"[:90]

    def build(self, seed: int = 5) -> Any:
        cls = getattr(transformers, self.cls)
        made = cls(cls.config_class(**{**self.shape, **self.options}))
        return randomised(made, seed).double().eval()


def randomised(network: Any, seed: int) -> Any:
    """Every weight drawn anew, those of norms and coefficients away from 0 and 1, biases from 0; sinusoids stay."""
    draw = torch.Generator().manual_seed(seed)
    fixed = {id(p) for m in network.modules() if "Sinusoidal" in type(m).__name__ for p in m.parameters()}
    with torch.no_grad():
        if hasattr(network, "final_logits_bias"):
            network.final_logits_bias.normal_(generator=draw)
        for name, p in network.named_parameters():
            if id(p) in fixed:
                continue
            if p.ndim == 1 and name.endswith("weight"):
                p.copy_(torch.rand(p.shape, generator=draw) + 0.5)
            else:
                p.copy_(torch.randn(p.shape, generator=draw) * 0.3)
    network.tie_weights()
    return network


def padded(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two sequences of 14 and 10 tokens, padded on the right, and their mask."""
    ids = torch.randint(3, 41, (2, 14), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    ids[1, 10:], mask[1, 10:] = 1, 0
    return ids, mask


def logits(network: Any, given: Tensor, mask: Tensor, *, exact: bool = True) -> Tensor:
    """At the places that count, in eager mode, whose casts to float32 are promoted."""
    if hasattr(network, "set_attn_implementation"):
        network.set_attn_implementation("eager")
    feed = {"input_ids": given, "attention_mask": mask}
    if getattr(network.config, "is_encoder_decoder", False):
        ids, mask = (both[: len(given), :12] for both in padded(1))
        ids[:, 0] = 2
        feed |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    with promoted(network) if exact else nullcontext():
        out = network(**feed)
    found: Tensor = out.prediction_logits if hasattr(out, "prediction_logits") else out.logits
    return found[mask.bool()] if found.ndim == 3 else found


def promoted(network: Any) -> Any:
    """Casts to float32 go to float64, but those of sinusoids, which encoder-decoders add and round."""
    return nullcontext() if getattr(network.config, "is_encoder_decoder", False) else Promoted()


def gradients(theirs: Any, ours: Any, reads: Any = None) -> float:
    """The largest difference of a gradient of any parameter, over the largest of its own, in float64.

    Of a random sum of the logits of one sequence without padding; theirs go through the importer's own table of names.
    A gradient that is zero in theory (of a key's bias) is measured over a millionth of the largest of all. The row of
    pad is left out: torch's embeddings give it none, and a decoder that begins with it reads it.

    Args:
        reads: what computes theirs in float64, where that is a module around it or a copy.
    """
    given = padded()[0][:1]
    reads = theirs if reads is None else reads
    theirs = getattr(reads, "model", theirs) if not hasattr(reads, "config_class") else reads
    for network in (reads, ours):
        network.zero_grad()
        out = logits(network, given, torch.ones_like(given))
        (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)).sum().backward()
    every = dict(theirs.named_parameters(remove_duplicate=False))
    expected = under_our_names(theirs, {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in every.items()})
    largest = max(float(value.abs().max()) for value in expected.values())
    worst, pad = 0.0, ours.config.pad_token_id
    for name, p in ours.named_parameters():
        if name == "lm_head.bias" and name not in expected:  # a buffer there
            continue
        wanted, found = expected[name], torch.zeros_like(p) if p.grad is None else p.grad
        if pad is not None and name.endswith("tokens.weight"):
            wanted, found = (torch.cat([g[:pad], g[pad + 1 :]]) for g in (wanted, found))
        worst = max(worst, float((found - wanted).abs().max()) / max(float(wanted.abs().max()), 1e-6 * largest))
    return worst


FAMILIES = [
    Native("LlamaForCausalLM", {"num_key_value_heads": 2, "head_dim": 6, "rope_parameters": LLAMA3}),
    Native("LlamaForCausalLM", {"num_key_value_heads": 1, "attention_bias": True, "rope_parameters": YARN}),
    Native("LlamaForCausalLM", {"mlp_bias": True, "rope_parameters": LINEAR, "tie_word_embeddings": True}),
    Native("LlamaForCausalLM", {"rope_parameters": DYNAMIC, "max_position_embeddings": 8}),
    Native("MistralForCausalLM", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}),
    Native(
        "Qwen2ForCausalLM",
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    Native("Qwen3ForCausalLM", {"num_key_value_heads": 2, "head_dim": 6, "attention_bias": True}),
    Native("Olmo2ForCausalLM", {"num_key_value_heads": 2}),
    Native(
        "Olmo3ForCausalLM",
        {
            "num_key_value_heads": 2,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": YARN,
            },
        },
    ),
    Native("Starcoder2ForCausalLM", {"num_key_value_heads": 2, "sliding_window": 5}),
    Native("SmolLM3ForCausalLM", {"num_key_value_heads": 2, "no_rope_layers": [1, 1, 0]}),
    Native(
        "GraniteForCausalLM",
        {
            "num_key_value_heads": 2,
            "embedding_multiplier": 12.0,
            "logits_scaling": 13.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
        },
    ),
    Native(
        "GPTNeoXForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    Native("GPTNeoXForCausalLM", {"use_parallel_residual": False, "attention_bias": False}),
    Native("GemmaForCausalLM", {"num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": True}),
    Native(
        "GemmaForCausalLM", {"num_key_value_heads": 2, "head_dim": 6, "hidden_size": 24}
    ),  # whose root is no number of float32
    Native(
        "Gemma2ForCausalLM",
        {
            "num_key_value_heads": 2,
            "head_dim": 6,
            "sliding_window": 4,
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    Native(
        "Gemma3ForCausalLM",
        {
            "num_key_value_heads": 2,
            "head_dim": 6,
            "sliding_window": 4,
            "query_pre_attn_scalar": 10,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    Native("CohereForCausalLM", {"num_key_value_heads": 2, "logit_scale": 0.3}),
    Native("CohereForCausalLM", {"num_key_value_heads": 2, "use_qk_norm": True, "attention_bias": True}),
    Native("PhiForCausalLM", {"num_key_value_heads": 2, "hidden_size": 32}),
    Native("PhiForCausalLM", {"qk_layernorm": True, "hidden_size": 32}),
    Native("GPTJForCausalLM", {"rotary_dim": 4, "hidden_size": 32, "n_inner": 24}),
    Native(
        "ModernBertForMaskedLM",
        {"local_attention": 6, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    Native(
        "ModernBertForMaskedLM",
        {"local_attention": 6, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    ),
    Native("ElectraForMaskedLM", {"embedding_size": 16}),
    Native("XLMRobertaForMaskedLM", {}),
    Native("XLMRobertaForSequenceClassification", {"num_labels": 3}),
    Native("FSMTForConditionalGeneration", {}, FSMT),
    Native("FSMTForConditionalGeneration", {"src_vocab_size": 41, "tie_word_embeddings": True}, FSMT),
    Native("M2M100ForConditionalGeneration", {}, PAIR),
    Native("M2M100ForConditionalGeneration", {"scale_embedding": False, "activation_function": "gelu"}, PAIR),
    Native("PegasusForConditionalGeneration", {"decoder_start_token_id": 1, "scale_embedding": True}, PAIR),
    Native("PegasusForConditionalGeneration", {"activation_function": "relu"}, PAIR),
    Native("MarianMTModel", {"decoder_start_token_id": 1}, PAIR),
    Native("MarianMTModel", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 43}, PAIR),
    Native("BlenderbotForConditionalGeneration", {"scale_embedding": True}, PAIR),
    Native("MBartForConditionalGeneration", {"activation_function": "relu"}, PAIR),
]

ROPES = st.one_of(
    st.just({"rope_type": "default", "rope_theta": 700.0}),
    *(
        st.fixed_dictionaries({name: st.just(v) for name, v in rules.items()})
        for rules in (LLAMA3, YARN, LINEAR, DYNAMIC)
    ),
)
DRAWN = {  # class -> what may be drawn beside key-value heads and rotary rules
    "LlamaForCausalLM": {
        "head_dim": st.sampled_from([4, 6, 8]),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
    },
    "MistralForCausalLM": {"head_dim": st.sampled_from([4, 6]), "sliding_window": st.none() | st.integers(2, 9)},
    "Qwen3ForCausalLM": {"head_dim": st.sampled_from([4, 6]), "attention_bias": st.booleans()},
    "GraniteForCausalLM": {
        "residual_multiplier": st.floats(0.1, 1.5),
        "embedding_multiplier": st.floats(0.5, 20.0),
        "attention_multiplier": st.floats(0.05, 1.0),
        "logits_scaling": st.integers(1, 16).map(float),
    },
    "Gemma2ForCausalLM": {
        "head_dim": st.sampled_from([4, 6]),
        "query_pre_attn_scalar": st.integers(2, 40),
        "attn_logit_softcapping": st.none() | st.floats(1.0, 9.0),
        "final_logit_softcapping": st.none() | st.floats(1.0, 9.0),
        "sliding_window": st.integers(2, 9),
    },
    "CohereForCausalLM": {"use_qk_norm": st.booleans(), "logit_scale": st.floats(0.1, 2.0)},
    "SmolLM3ForCausalLM": {"no_rope_layers": st.lists(st.integers(0, 1), min_size=3, max_size=3)},
}


@st.composite
def drawn(draw: st.DrawFn) -> Native:
    cls = draw(st.sampled_from(sorted(DRAWN)))
    own = draw(st.fixed_dictionaries(DRAWN[cls]))
    common = {"num_key_value_heads": draw(st.sampled_from([1, 2, 4])), "rope_parameters": dict(draw(ROPES))}
    return Native(cls, {**common, **own, "tie_word_embeddings": draw(st.booleans())})

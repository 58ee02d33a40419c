"""Tiny models of transformers' own families, with all weights, norm weights and biases drawn at random."""

import hashlib
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel

_SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40} | _ENDS,
    "llama": _SHAPE | _GROUPED,
    "qwen3": _SHAPE | _GROUPED,
    "gemma2": _SHAPE | _GROUPED | {"sliding_window": 8},
    "gpt_neox": _SHAPE,
    "opt": _SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bert": _SHAPE,
    "roberta": _SHAPE,
    "roberta-prelayernorm": _SHAPE,
    "olmo2": _SHAPE | _GROUPED,
}
POST_LN = ("bert", "roberta")
QUICK = ("gpt2", "llama", "bert")  # the families of the default suite


def of(*names: str) -> list[Any]:
    """Families as test parameters: all but the quick ones are slow."""
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in names]


IDS = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))


def held_out(name: str) -> bool:
    """Whether a family was tried after the changes were written, and not before."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 == 1


def family(name: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """Weights from N(0, 0.15^2), norm weights off their init by N(0, 0.3^2), biases from N(0, 0.3^2)."""
    config = CONFIG_MAPPING[name](**(FAMILIES[name] | options))
    auto = transformers.AutoModelForMaskedLM if "bert" in name else transformers.AutoModelForCausalLM
    made = auto.from_config(config).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if parameter.ndim > 1:
                parameter.copy_(0.15 * noise)
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.add_(0.3 * noise)
    return made


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        found = model(IDS).logits
    assert isinstance(found, Tensor)
    return found

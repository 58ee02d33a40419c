"""Small models of the families that people use, at their start, and what `isograd check` is to say of each.

Every one is built from its configuration alone, three layers of width 32. `python -m tests.lint.families` writes the
gallery of docs/check.md from this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

BEGIN, END = "<!-- gallery -->", "<!-- end of gallery -->"
PRE = {"attn": "pre-ln", "ffn": "pre-ln"}
POST = {"attn": "post-ln", "ffn": "post-ln"}
SANDWICH = {"attn": "sandwich", "ffn": "sandwich"}
OUT = {"attn": "out-ln", "ffn": "out-ln"}
SUB = {"attn": "sub-ln", "ffn": "sub-ln"}
SCALED = {"attn": "layerscale", "ffn": "layerscale"}
PRE_PAIR = PRE | {"cross": "pre-ln"}
POST_PAIR = POST | {"cross": "post-ln"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A builder without arguments, and what is to be found in the model that it builds.

    Attributes:
        placements: kind of sublayer -> placement.
        findings: the codes that the family deserves -> why, for the gallery.
        layers: of each stack.
    """

    build: Callable[[], nn.Module]
    placements: Mapping[str, str]
    findings: Mapping[str, str] = field(default_factory=dict)
    layers: int = 3

    @property
    def counts(self) -> dict[str, int]:
        """Kind of sublayer -> how many there are; cross-attention stands in the second stack only."""
        stacks = 2 if "cross" in self.placements else 1
        return {kind: self.layers * (1 if kind == "cross" else stacks) for kind in self.placements}


SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
GPT: dict[str, Any] = {
    "vocab_size": 101,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAIR: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
OPT = {name: SMALL[name] for name in SMALL if name != "intermediate_size"} | {"ffn_dim": 64, "word_embed_proj_dim": 32}
T5: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 3,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 10,
}


def of(architecture: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A builder of a class of transformers, from a configuration with these options."""

    def build() -> nn.Module:
        settings = getattr(transformers, f"{config}Config")(**options)
        model: nn.Module = getattr(transformers, architecture)(settings)
        return model.eval()

    return build


def encoder(*, norm_first: bool) -> nn.Module:
    """torch.nn.TransformerEncoder as it ought to be built: every layer drawn for itself, a final norm where needed."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 3, nn.LayerNorm(32) if norm_first else None, enable_nested_tensor=False)
    return redrawn(stack).eval()


def redrawn(stack: nn.Module) -> nn.Module:
    """Every matrix of torch.nn's cloned layers drawn again, Xavier uniform, so that no two layers are equal."""
    with torch.no_grad():
        for parameter in stack.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
    return stack


def transformer() -> nn.Module:
    """torch.nn.Transformer as it comes: post-norm, and one norm too many at the end of each stack.

    It draws every matrix again, so its layers, though cloned, are not equal.
    """
    return nn.Transformer(32, 4, 3, 3, 64, dropout=0.0, batch_first=True).eval()


def x_transformer(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        x = pytest.importorskip("x_transformers")
        model: nn.Module = x.TransformerWrapper(
            num_tokens=101, max_seq_len=32, attn_layers=x.Decoder(dim=32, depth=3, heads=4, attn_dim_head=8, **options)
        )
        return model.eval()

    return build


def timm_vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    model: nn.Module = timm.models.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=32, depth=3, num_heads=4, num_classes=10
    )
    return model.eval()


FAMILIES: dict[str, Family] = {
    "gpt2": Family(build=of("GPT2LMHeadModel", "GPT2", **GPT), placements=PRE),
    "gpt-neox": Family(build=of("GPTNeoXForCausalLM", "GPTNeoX", **SMALL), placements=PRE),
    "gptj": Family(build=of("GPTJForCausalLM", "GPTJ", rotary_dim=4, **GPT), placements=PRE),
    "phi": Family(build=of("PhiForCausalLM", "Phi", **SMALL), placements=PRE),
    "falcon": Family(
        build=of("FalconForCausalLM", "Falcon", **{k: v for k, v in SMALL.items() if k != "intermediate_size"}),
        placements=PRE,
    ),
    "bloom": Family(
        build=of("BloomForCausalLM", "Bloom", vocab_size=101, hidden_size=32, n_layer=3, n_head=4), placements=PRE
    ),
    "opt": Family(build=of("OPTForCausalLM", "OPT", **OPT), placements=PRE),
    "opt-post": Family(build=of("OPTForCausalLM", "OPT", do_layer_norm_before=False, **OPT), placements=POST),
    "llama": Family(build=of("LlamaForCausalLM", "Llama", **DECODER), placements=PRE),
    "mistral": Family(build=of("MistralForCausalLM", "Mistral", sliding_window=None, **DECODER), placements=PRE),
    "mixtral": Family(
        build=of("MixtralForCausalLM", "Mixtral", num_local_experts=4, sliding_window=None, **DECODER), placements=PRE
    ),
    "qwen2": Family(build=of("Qwen2ForCausalLM", "Qwen2", **DECODER), placements=PRE),
    "qwen3": Family(build=of("Qwen3ForCausalLM", "Qwen3", **DECODER), placements=PRE),
    "gemma": Family(build=of("GemmaForCausalLM", "Gemma", **DECODER), placements=PRE),
    "gemma2": Family(build=of("Gemma2ForCausalLM", "Gemma2", **DECODER), placements=SANDWICH),
    "gemma3": Family(build=of("Gemma3ForCausalLM", "Gemma3Text", **DECODER), placements=SANDWICH),
    "glm4": Family(build=of("Glm4ForCausalLM", "Glm4", **DECODER), placements=SANDWICH),
    "olmo": Family(build=of("OlmoForCausalLM", "Olmo", **DECODER), placements=PRE),
    "olmo2": Family(build=of("Olmo2ForCausalLM", "Olmo2", **DECODER), placements=OUT),
    "granite": Family(build=of("GraniteForCausalLM", "Granite", **DECODER), placements=PRE),
    "cohere": Family(build=of("CohereForCausalLM", "Cohere", **DECODER), placements=PRE),
    "bitnet": Family(build=of("BitNetForCausalLM", "BitNet", **DECODER), placements=SUB),
    "bert": Family(build=of("BertForMaskedLM", "Bert", **SMALL), placements=POST),
    "roberta": Family(build=of("RobertaForMaskedLM", "Roberta", **SMALL), placements=POST),
    "roberta-prelayernorm": Family(
        build=of("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNorm", **SMALL), placements=PRE
    ),
    "distilbert": Family(
        build=of(
            "DistilBertForMaskedLM",
            "DistilBert",
            vocab_size=101,
            dim=32,
            n_layers=3,
            n_heads=4,
            hidden_dim=64,
            max_position_embeddings=32,
        ),
        placements=POST,
    ),
    "electra": Family(build=of("ElectraForMaskedLM", "Electra", embedding_size=32, **SMALL), placements=POST),
    "modernbert": Family(
        build=of(
            "ModernBertForMaskedLM",
            "ModernBert",
            **{k: v for k, v in SMALL.items() if not k.endswith("_token_id")},
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        placements=PRE,
    ),
    "marian": Family(build=of("MarianMTModel", "Marian", **PAIR), placements=POST_PAIR),
    "bart": Family(build=of("BartForConditionalGeneration", "Bart", **PAIR), placements=POST_PAIR),
    "mbart": Family(build=of("MBartForConditionalGeneration", "MBart", **PAIR), placements=PRE_PAIR),
    "m2m100": Family(build=of("M2M100ForConditionalGeneration", "M2M100", **PAIR), placements=PRE_PAIR),
    "pegasus": Family(build=of("PegasusForConditionalGeneration", "Pegasus", **PAIR), placements=PRE_PAIR),
    "t5": Family(build=of("T5ForConditionalGeneration", "T5", **T5), placements=PRE_PAIR),
    "t5-v1.1": Family(
        build=of("T5ForConditionalGeneration", "T5", feed_forward_proj="gated-gelu", tie_word_embeddings=False, **T5),
        placements=PRE_PAIR,
        findings={
            "initial-loss": "transformers 5.23 ties the head also with `tie_word_embeddings=False`, and then does not"
            " scale what it reads: the first loss is 20 nats (a loaded checkpoint brings a head of its own)"
        },
    ),
    "vit": Family(build=of("ViTForImageClassification", "ViT", **IMAGE), placements=PRE),
    "deit": Family(build=of("DeiTForImageClassification", "DeiT", **IMAGE), placements=PRE),
    "dinov2": Family(
        build=of("Dinov2ForImageClassification", "Dinov2", mlp_ratio=2, **IMAGE),
        placements=SCALED,
    ),
    "swinv2": Family(
        build=of(
            "Swinv2ForImageClassification",
            "Swinv2",
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            num_labels=10,
        ),
        placements=OUT,
        layers=4,
    ),
    "torch-encoder-pre": Family(build=lambda: encoder(norm_first=True), placements=PRE),
    "torch-encoder-post": Family(build=lambda: encoder(norm_first=False), placements=POST),
    "torch-transformer": Family(build=transformer, placements=POST_PAIR),
    "x-transformers": Family(build=x_transformer(), placements=PRE),
    "x-transformers-sandwich": Family(build=x_transformer(sandwich_norm=True), placements=SANDWICH),
    "timm-vit": Family(build=timm_vit, placements=PRE),
}


def gallery() -> str:
    """The tables of docs/check.md: families by placement, and the findings of those that have any."""
    of: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        of.setdefault(", ".join(dict.fromkeys(family.placements.values())), []).append(name)
    why: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        for code, reason in family.findings.items():
            why.setdefault(f"[{code}](check/{code}.md): {reason}", []).append(name)
    placed = [f"| {placement} | {', '.join(names)} |" for placement, names in of.items()]
    found = [f"| {', '.join(names)} | {reason} |" for reason, names in why.items()]
    return "\n".join(
        ["| placement | families |", "|---|---|", *placed, "", "| family | finding |", "|---|---|", *found]
    )


def main() -> None:
    page = Path(__file__).parents[2] / "docs" / "check.md"
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{gallery()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

"""Attention and feed-forward side by side: GPT-NeoX; Cohere, Phi and GPT-J with one LayerNorm for both."""

import copy
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.family import Family, FamilyPart, first_residual
from isograd.convert.hf.gpt2 import INNER, OPTIONS
from isograd.convert.hf.llama import ATTENTION_NAMES, GATED_NAMES, QK_NORMS, decoder
from isograd.convert.hf.parts import ATTENTION, FEEDFORWARD, SIZES, biases, heads, rope
from isograd.convert.kinds import CAUSAL
from isograd.convert.parity import Promoted
from isograd.models import IsogradConfig
from isograd.placement import CATALOGUE, ByKind, Placement, ProjectionNorm, Residual
from isograd.placement.streams import Parallel

_SHARED = CATALOGUE["parallel-shared"]


def _normed(over: Any) -> Placement:
    norms = ProjectionNorm(of=("query", "key"), over=over)
    return replace(_SHARED, each=ByKind(attn=Residual(projections=norms), ffn=Residual()))


def _has_norms(option: str) -> FamilyPart:
    """Read by the family's placement."""
    return FamilyPart(write=lambda config: {option: first_residual(config).projections is not None})


# GPT-J's rotary positions have no rules, but a number of features.


def _rotary_dim(theirs: Any) -> dict[str, Any]:
    share = theirs.rotary_dim / (theirs.n_embd // theirs.n_head)
    rules = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    own: dict[str, Any] = {"rope_theta": 10000.0} if share == 1.0 else {"rope_parameters": rules}
    return own | {"rope_interleaved": True}


def _rotated(config: IsogradConfig) -> dict[str, Any]:
    share = config.rope_of("full_attention").get("partial_rotary_factor", 1.0)
    return {"rotary_dim": int(config.head_size * share)}


class _GptJ(Family):
    def in_fp64(self, native: PreTrainedModel) -> nn.Module:
        """It looks sines and cosines up in a float32 table, which is made anew."""
        made: Any = copy.deepcopy(native)
        for layer in made.transformer.h:
            rows, size = layer.attn.embed_positions.shape
            with Promoted():
                layer.attn.embed_positions = create_sinusoidal_positions(rows, size)
        assert isinstance(made, nn.Module)
        return made


_LAYER = {"attn.stream.norm": "input_layernorm"}
_PHI = {
    "attn.branch.query": "self_attn.q_proj",
    "attn.branch.key": "self_attn.k_proj",
    "attn.branch.value": "self_attn.v_proj",
    "attn.branch.out": "self_attn.dense",
    "attn.branch.query_norm": "self_attn.q_layernorm",
    "attn.branch.key_norm": "self_attn.k_layernorm",
    "ffn.branch.into": "mlp.fc1",
    "ffn.branch.out": "mlp.fc2",
}
_ALL = (*ATTENTION, *FEEDFORWARD)

FAMILIES = (
    Family(
        name="gpt-neox",
        classes={CAUSAL: "GPTNeoXForCausalLM"},
        positions="rotary",
        options=SIZES | {"norm_eps": "layer_norm_eps", "hidden_dropout": "hidden_dropout"},
        names=Names(
            stacks={"model": "gpt_neox"},
            stack={"embedding.tokens": "embed_in", "norm": "final_layer_norm"},
            layer={
                "attn.pre": "input_layernorm",
                "attn.branch.out": "attention.dense",
                "ffn.pre": "post_attention_layernorm",
                "ffn.branch.into": "mlp.dense_h_to_4h",
                "ffn.branch.out": "mlp.dense_4h_to_h",
            },
            fused="attention.query_key_value",
            by_head=True,
        ),
        placement=lambda theirs: "parallel" if theirs.use_parallel_residual else "pre-ln",
        parts=(
            rope(partial=True),
            biases(attention_bias=ATTENTION, fixed=FEEDFORWARD),
            FamilyPart(
                read=lambda theirs: {"embedding_dropout": theirs.hidden_dropout},
                write=lambda config: {"use_parallel_residual": isinstance(config.entry().stream, Parallel)},
            ),
        ),
        always={"norm": "layernorm"},
    ),
    decoder(
        "cohere",
        "CohereForCausalLM",
        (
            heads(),
            rope(interleaved=True),
            biases(attention_bias=ATTENTION),
            _has_norms("use_qk_norm"),
        ),
        placement=lambda theirs: _normed("heads") if theirs.use_qk_norm else _SHARED,
        layer=ATTENTION_NAMES | GATED_NAMES | QK_NORMS | _LAYER,
        options={"norm_eps": "layer_norm_eps", "logits_scale": "logit_scale"},
        always={"norm": "layernorm", "norm_bias": False},
        rank=1,
    ),
    decoder(
        "phi",
        "PhiForCausalLM",
        (heads(), rope(partial=True), biases(fixed=_ALL), _has_norms("qk_layernorm")),
        placement=lambda theirs: _normed("head") if theirs.qk_layernorm else _SHARED,
        options={"norm_eps": "layer_norm_eps", "hidden_dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop"},
        always={"norm": "layernorm"},
        gated=False,
        head_bias=CAUSAL,
        rank=1,
        names=Names(
            stacks={"model": "model"},
            stack={"embedding.tokens": "embed_tokens", "norm": "final_layernorm"},
            layer=_PHI | _LAYER,
        ),
    ),
    _GptJ(
        name="gpt-j",
        classes={CAUSAL: "GPTJForCausalLM"},
        positions="rotary",
        options=OPTIONS,
        names=Names(
            stacks={"model": "transformer"},
            stack={"embedding.tokens": "wte", "norm": "ln_f"},
            layers="h",
            layer={
                "attn.stream.norm": "ln_1",
                "attn.branch.query": "attn.q_proj",
                "attn.branch.key": "attn.k_proj",
                "attn.branch.value": "attn.v_proj",
                "attn.branch.out": "attn.out_proj",
                "ffn.branch.into": "mlp.fc_in",
                "ffn.branch.out": "mlp.fc_out",
            },
        ),
        placement="parallel-shared",
        parts=(INNER, FamilyPart(read=_rotary_dim, write=_rotated), biases(fixed=FEEDFORWARD)),
        head_bias=CAUSAL,
        rank=1,
        always={"norm": "layernorm"},
    ),
)

"""Gemma 1 to 3: norms stored around 1, from Gemma 2 on also on what branches wrote; token vectors times sqrt(d)."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.hf.llama import ATTENTION_NAMES, GATED_NAMES, QK_NORMS, decoder
from isograd.convert.hf.parts import ATTENTION, attention_cap, biases, heads, rope, rope_by_type, scores_over, windows
from isograd.placement import ByKind, Norm, Placement, ProjectionNorm, Residual

_N = Norm(centered=True)
_SANDWICH = {
    "attn.pre": "input_layernorm",
    "attn.out": "post_attention_layernorm",
    "ffn.pre": "pre_feedforward_layernorm",
    "ffn.out": "post_feedforward_layernorm",
}
_CAPS = (scores_over("query_pre_attn_scalar"), attention_cap("attn_logit_softcapping"))


def _first(theirs: Any) -> Placement:
    return Placement(each=Residual(pre=_N), final=_N)


def _second(theirs: Any) -> Placement:
    cap = theirs.attn_logit_softcapping
    return Placement(each=ByKind(attn=Residual(pre=_N, out=_N, cap=cap), ffn=Residual(pre=_N, out=_N)), final=_N)


def _third(theirs: Any) -> Placement:
    attention = Residual(
        pre=_N,
        out=_N,
        cap=theirs.attn_logit_softcapping,
        projections=ProjectionNorm(of=("query", "key"), over="head", norm=_N),
    )
    return Placement(each=ByKind(attn=attention, ffn=Residual(pre=_N, out=_N)), final=_N)


class _Gemma(Family):
    def in_fp64(self, native: PreTrainedModel) -> nn.Module:
        """It keeps sqrt(d) as a float32 tensor, which is exact for few widths."""
        made: Any = copy.deepcopy(native)
        table = made.get_input_embeddings()
        table.embed_scale = torch.tensor(table.scalar_embed_scale, dtype=torch.float64)
        assert isinstance(made, nn.Module)
        return made


def _gemma(name: str, cls: str, parts: tuple[FamilyPart, ...], **more: Any) -> Any:
    return decoder(
        name,
        cls,
        (heads(own_size=True), biases(attention_bias=ATTENTION), *parts),
        always={"norm": "rmsnorm", "scale_embedding": True},
        scale=lambda config: float(config.hidden_size**0.5),
        demands={"use_bidirectional_attention": False},
        rank=1,
        made=_Gemma,
        **more,
    )


_LATER = {"hidden_act": "hidden_activation", "logits_cap": "final_logit_softcapping"}
FAMILIES = (
    _gemma("gemma", "GemmaForCausalLM", (rope(),), placement=_first),
    _gemma(
        "gemma2",
        "Gemma2ForCausalLM",
        (rope(), windows(), *_CAPS),
        placement=_second,
        layer=ATTENTION_NAMES | GATED_NAMES | _SANDWICH,
        options=_LATER,
    ),
    _gemma(
        "gemma3",
        "Gemma3ForCausalLM",
        (rope_by_type(), windows(), *_CAPS),
        placement=_third,
        layer=ATTENTION_NAMES | GATED_NAMES | QK_NORMS | _SANDWICH,
        options=_LATER,
    ),
)

"""OPT: positions begin at row 2; in the 350m norms after the sum, and token vectors of another width."""

from collections.abc import Iterator
from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.bart import LAYER, STACK
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.hf.parts import SIZES
from isograd.convert.kinds import CAUSAL, ModelKind
from isograd.models import IsogradConfig


class _Opt(Family):
    def notes(self, kind: ModelKind) -> Iterator[str]:
        yield from ()  # it counts positions over the attention mask, as the model does


def _read(theirs: Any) -> dict[str, Any]:
    width = None if theirs.word_embed_proj_dim == theirs.hidden_size else theirs.word_embed_proj_dim
    return {"input_size": width, "output_size": width}


def _write(config: IsogradConfig) -> dict[str, Any]:
    return {"word_embed_proj_dim": config.token_width, "do_layer_norm_before": config.entry().final is not None}


def _unread(theirs: Any) -> str | None:
    projected = theirs.word_embed_proj_dim != theirs.hidden_size and not theirs.tie_word_embeddings
    return "OPT with projected token vectors and a head of its own has no place here" if projected else None


FAMILIES = (
    _Opt(
        name="opt",
        classes={CAUSAL: "OPTForCausalLM"},
        placement=lambda theirs: "pre-ln" if theirs.do_layer_norm_before else "post-ln",
        always={"norm_eps": 1e-5},
        first=2,
        options=SIZES
        | {
            "intermediate_size": "ffn_dim",
            "hidden_act": "activation_function",
            "bias": "enable_bias",
            "hidden_dropout": "dropout",
            "initializer_range": "init_std",
        },
        parts=(FamilyPart(read=_read, write=_write),),
        unread=_unread,
        fills=True,
        demands={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
        names=Names(
            stacks={"model": "model.decoder"},
            stack={
                **STACK,
                "embedding.project": "project_in",
                "norm": "final_layer_norm",
                "project": "project_out",
            },
            layer={ours: theirs for ours, theirs in LAYER.items() if not ours.startswith("cross")},
        ),
    ),
)

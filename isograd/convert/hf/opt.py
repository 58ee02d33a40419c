"""OPT: positions begin at row 2; in the 350m norms after the sum, and token vectors of another width."""

from collections.abc import Iterator
from typing import Any

from isograd.convert.checkpoints.weights import Names
from isograd.convert.hf.bart import LAYER, STACK
from isograd.convert.hf.family import Family
from isograd.convert.kinds import CAUSAL, ModelKind
from isograd.errors import InteropError
from isograd.models import IsogradConfig


class _Opt(Family):
    def widths(self, config: IsogradConfig) -> Iterator[str]:
        read, written = config.token_width, config.output_width
        if read != written:
            yield f"the token vectors it reads and writes have one width, this model's have {read} and {written}"

    def notes(self, kind: ModelKind) -> Iterator[str]:
        yield from ()  # it counts positions over the attention mask, as the model does

    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        pre = config.entry().final is not None
        own = {"word_embed_proj_dim": config.token_width, "do_layer_norm_before": pre}
        return super().to_options(config, kind) | own

    def from_options(self, theirs: Any) -> dict[str, Any]:
        width = None if theirs.word_embed_proj_dim == theirs.hidden_size else theirs.word_embed_proj_dim
        if width is not None and not theirs.tie_word_embeddings:
            raise InteropError("OPT with projected token vectors and a head of its own has no place here")
        own = {"placement": "pre-ln" if theirs.do_layer_norm_before else "post-ln"}
        return super().from_options(theirs) | own | {"input_size": width, "output_size": width}


FAMILIES = (
    _Opt(
        name="opt",
        classes={CAUSAL: "OPTForCausalLM"},
        imports=(CAUSAL,),
        norms=("pre", "post"),
        eps=1e-5,
        first=2,
        options={
            "hidden_size": "hidden_size",
            "num_hidden_layers": "num_hidden_layers",
            "num_attention_heads": "num_attention_heads",
            "intermediate_size": "ffn_dim",
            "max_position_embeddings": "max_position_embeddings",
            "hidden_act": "activation_function",
            "bias": "enable_bias",
            "hidden_dropout": "dropout",
            "attention_dropout": "attention_dropout",
            "initializer_range": "init_std",
        },
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

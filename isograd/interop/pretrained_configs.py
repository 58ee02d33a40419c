"""Options of transformers' own configurations -> ours, a function per family, the way back from `native_configs`.

Which option changes the function and has no place here is refused by its name. Special ids, tied tables and what the
weights say stand in `isograd.interop.pretrained_state`.
"""

from collections.abc import Mapping
from typing import Any

from isograd.errors import ExportError

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu2": "relu_squared",
}


def gpt2(config: Any) -> dict[str, Any]:
    must_be(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    return {
        "placement": "gpt2",
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.n_inner or 4 * config.n_embd,
        "max_position_embeddings": config.n_positions,
        "hidden_act": activation(config.activation_function),
        "norm_eps": config.layer_norm_epsilon,
        "hidden_dropout": config.resid_pdrop,
        "embedding_dropout": config.embd_pdrop,
        "attention_dropout": config.attn_pdrop,
        "initializer_range": config.initializer_range,
    }


def opt(config: Any) -> dict[str, Any]:
    must_be(config, layer_norm_elementwise_affine=True, _remove_final_layer_norm=False)
    if config.word_embed_proj_dim != config.hidden_size and not config.tie_word_embeddings:
        raise ExportError("OPT with projected token vectors and a head of its own has no place here")
    pre, width = config.do_layer_norm_before, config.word_embed_proj_dim
    projected = None if width == config.hidden_size else width
    return {
        "placement": "pre-ln" if pre else "post-ln",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.ffn_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "position_offset": 2,
        "hidden_act": activation(config.activation_function),
        "bias": config.enable_bias,
        "input_size": projected,
        "output_size": projected,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.init_std,
    }


def bert(config: Any) -> dict[str, Any]:
    must_be(config, is_decoder=False, add_cross_attention=False)
    must_be(config, position_embedding_type="absolute")
    return {
        "placement": "post-ln",
        "embedding_norm": True,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
        "hidden_act": activation(config.hidden_act),
        "norm_eps": config.layer_norm_eps,
        "hidden_dropout": config.hidden_dropout_prob,
        "embedding_dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "classifier_dropout": config.classifier_dropout,
        "initializer_range": config.initializer_range,
    }


def roberta(config: Any) -> dict[str, Any]:
    """Positions begin behind the pad id; the head's activation is gelu, whatever that of the layers."""
    if activation(config.hidden_act) != "gelu":
        raise ExportError(f"hidden_act={config.hidden_act!r}: RoBERTa's head has gelu, and ours the layers' activation")
    first = config.pad_token_id + 1
    return bert(config) | {
        "position_offset": first,
        "max_position_embeddings": config.max_position_embeddings - first,
    }


def roberta_prelayernorm(config: Any) -> dict[str, Any]:
    return roberta(config) | {"placement": "pre-ln"}


def bart(config: Any) -> dict[str, Any]:
    options = {
        "placement": "post-ln",
        "embedding_norm": True,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.decoder_layers,
        "encoder_layers": config.encoder_layers,
        "num_attention_heads": config.decoder_attention_heads,
        "intermediate_size": config.decoder_ffn_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "position_offset": 2,
        "hidden_act": activation(config.activation_function),
        "scale_embedding": config.scale_embedding,
        "hidden_dropout": config.dropout,
        "embedding_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "initializer_range": config.init_std,
    }
    own = {"num_attention_heads": config.encoder_attention_heads, "intermediate_size": config.encoder_ffn_dim}
    differing = {name: value for name, value in own.items() if value != options[name]}
    return options | {"encoder_options": differing or None}


def mbart(config: Any) -> dict[str, Any]:
    return bart(config) | {"placement": "pre-ln"}


def marian(config: Any) -> dict[str, Any]:
    """Its sinusoids, all sines first, come as a table."""
    return bart(config) | {"embedding_norm": False, "position_offset": 0}


def activation(name: str) -> str:
    """Our name of an activation.

    Raises:
        ExportError: one that isograd does not have.
    """
    if name not in ACTIVATIONS:
        raise ExportError(f"activation {name!r}: expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def must_be(config: Any, **wanted: Any) -> None:
    """What isograd's network computes.

    Raises:
        ExportError: an option of another network, by its name.
    """
    found = {name: getattr(config, name, value) for name, value in wanted.items()}
    if wrong := {name: value for name, value in found.items() if value is not None and value != wanted[name]}:
        said = ", ".join(f"{name}={value!r}" for name, value in sorted(wrong.items()))
        raise ExportError(f"options of a network that isograd does not have: {said}")


OPTIONS: Mapping[str, Any] = {  # by transformers' model_type
    "gpt2": gpt2,
    "opt": opt,
    "bert": bert,
    "roberta": roberta,
    "roberta-prelayernorm": roberta_prelayernorm,
    "bart": bart,
    "mbart": mbart,
    "marian": marian,
}

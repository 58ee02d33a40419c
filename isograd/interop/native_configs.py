"""Our configuration -> the options of transformers' own configurations, a function per family.

Special ids, the vocabulary and tied tables are the same for all and stand in `isograd.interop.native`. Rates of dropout
are for those who train on: a class with fewer places for it takes the one of the branches' outputs.
"""

from typing import Any

from isograd.models import IsogradConfig


def gpt2(config: IsogradConfig) -> dict[str, Any]:
    return {
        "n_embd": config.hidden_size,
        "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads,
        "n_inner": config.intermediate_size,
        "n_positions": config.max_position_embeddings,
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.hidden_dropout,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.initializer_range,
    }


def opt(config: IsogradConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "ffn_dim": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "word_embed_proj_dim": config.token_width,
        "enable_bias": config.bias,
        "dropout": config.hidden_dropout,
        "attention_dropout": config.attention_dropout,
        "init_std": config.initializer_range,
    }


def llama(config: IsogradConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
    }


def qwen3(config: IsogradConfig) -> dict[str, Any]:
    options = llama(config)
    del options["mlp_bias"]  # it has none
    return options


def gpt_neox(config: IsogradConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "layer_norm_eps": config.norm_eps,
        "use_parallel_residual": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": 1.0,
        },
        "hidden_dropout": config.hidden_dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
    }


def bert(config: IsogradConfig) -> dict[str, Any]:
    """Of BERT, RoBERTa, RoBERTa-PreLayerNorm and Megatron's BERT."""
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size or 2,  # tokenizers send types, whether the model knows them or not
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "classifier_dropout": config.classifier_dropout,
        "initializer_range": config.initializer_range,
    }


def bart(config: IsogradConfig) -> dict[str, Any]:
    """Of BART and the classes that have its options."""
    layers, _ = config.depths("decoder")
    encoder = config.of("encoder")
    return {
        "d_model": config.hidden_size,
        "encoder_layers": config.encoder_layers or layers,
        "decoder_layers": layers,
        "encoder_attention_heads": encoder.num_attention_heads,
        "decoder_attention_heads": config.num_attention_heads,
        "encoder_ffn_dim": encoder.intermediate_size,
        "decoder_ffn_dim": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "scale_embedding": config.scale_embedding,
        "dropout": config.hidden_dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "init_std": config.initializer_range,
        "forced_eos_token_id": None,
        "is_encoder_decoder": config.is_encoder_decoder,
        "is_decoder": not config.is_encoder_decoder,
    }


def marian(config: IsogradConfig) -> dict[str, Any]:
    return {**bart(config), "share_encoder_decoder_embeddings": config.share_encoder_embeddings}


def fsmt(config: IsogradConfig) -> dict[str, Any]:
    options = bart(config)
    del options["is_decoder"]
    return {
        **options,
        "langs": ["source", "target"],
        "num_beams": 1,
        "max_length": config.max_position_embeddings,
    }

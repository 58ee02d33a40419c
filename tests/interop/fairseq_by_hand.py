"""States of fairseq's options with random weights, and the original's equations run on them."""

from typing import Any

import torch
from torch import Tensor

from isograd.papers.fairseq.original import Original

State = dict[str, Tensor]


def by_hand(model: Any, state: State, options: dict[str, Any], source: Tensor, written: Tensor | None = None) -> Tensor:
    """Logits from the state dict in fp64; `model` says only what kind of model it is."""
    original = Original(model.config, state, options).double().eval()
    with torch.no_grad():
        return original(source, (source != model.config.pad_token_id).long(), written).logits


def random_state(options: dict[str, Any], kind: str, rows: int = 41, seed: int = 0) -> State:
    """Weights of these options, none of them at its start, in fp64."""
    draw = torch.Generator().manual_seed(seed)
    state: State = {}

    def put(name: str, *shape: int, at: float = 0.0, std: float = 0.3) -> None:
        state[name] = at + std * torch.randn(shape, generator=draw, dtype=torch.float64)

    def put_linear(name: str, out: int, into: int) -> None:
        put(f"{name}.weight", out, into)
        put(f"{name}.bias", out)

    def put_norm(name: str, width: int) -> None:
        put(f"{name}.weight", width, at=1.0)
        put(f"{name}.bias", width)

    sides = {"pair": ("encoder", "decoder"), "causal": ("decoder",), "masked": ("encoder",)}[kind]
    for side in sides:
        prefix = "encoder.sentence_encoder" if kind == "masked" else side
        width, inner = options[f"{side}_embed_dim"], options[f"{side}_ffn_embed_dim"]
        tokens = options.get("decoder_input_dim", width) if kind == "causal" else width
        put(f"{prefix}.embed_tokens.weight", rows, tokens)
        state[f"{prefix}.version"] = torch.tensor([3.0])
        if tokens != width:
            put(f"{prefix}.project_in_dim.weight", width, tokens)
        if options.get(f"{side}_learned_pos") and not options.get("no_token_positional_embeddings"):
            names = {"masked": "max_positions", "causal": "max_target_positions"}
            longest = names.get(kind, f"max_{'source' if side == 'encoder' else 'target'}_positions")
            put(f"{prefix}.embed_positions.weight", options[longest] + 2, width)
        if options.get("layernorm_embedding"):
            put_norm(f"{prefix}.layernorm_embedding", width)
        flags = "enc_" if side == "encoder" else ""
        for number in range(options[f"{side}_layers"]):
            at = f"{prefix}.layers.{number}"
            attentions = {"self_attn": width}
            if side == "decoder" and kind == "pair":
                attentions["encoder_attn"] = options["encoder_embed_dim"]
            for name, source in attentions.items():
                for letter, into in (("q", width), ("k", source), ("v", source), ("out", width)):
                    put_linear(f"{at}.{name}.{letter}_proj", width, into)
                put_norm(f"{at}.{name}_layer_norm", width)
            put_linear(f"{at}.fc1", inner, width)
            put_linear(f"{at}.fc2", width, inner)
            put_norm(f"{at}.final_layer_norm", width)
            if options.get(f"{flags}scale_attn"):
                put_norm(f"{at}.attn_ln", width)
            if options.get(f"{flags}scale_heads"):
                put(f"{at}.c_attn", options[f"{side}_attention_heads"], at=1.0)
            if options.get(f"{flags}scale_fc"):
                put_norm(f"{at}.ffn_layernorm", inner)
            if options.get(f"{flags}scale_resids"):
                put(f"{at}.w_resid", width, at=1.0)
        if options[f"{side}_normalize_before"] and not (side == "decoder" and options.get("no_decoder_final_norm")):
            put_norm(f"{prefix}.layer_norm", width)
    if kind == "masked":
        put_linear("encoder.lm_head.dense", width, width)
        put_norm("encoder.lm_head.layer_norm", width)
        put("encoder.lm_head.bias", rows)
        state["encoder.lm_head.weight"] = state["encoder.sentence_encoder.embed_tokens.weight"]
        if options.get("untie_weights_roberta"):
            put("encoder.lm_head.weight", rows, width)
        return state
    if options.get("share_all_embeddings"):
        state["encoder.embed_tokens.weight"] = state["decoder.embed_tokens.weight"]
    out = options.get("decoder_output_dim", width)
    if out != width:
        put("decoder.project_out_dim.weight", out, width)
    put("decoder.output_projection.weight", rows, out)
    if options.get("share_all_embeddings") or options.get("share_decoder_input_output_embed"):
        state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    return state

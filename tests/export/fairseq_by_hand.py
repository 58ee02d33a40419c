"""fairseq's Transformers written out from their equations, in fp64, under the original names.

    logits = by_hand(state, options, source, written)

A second source for options of which no golden file is here; the golden files hold it to the originals. `random_state`
makes weights of any options.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]
PAD = 1
ACTS = {
    "relu": torch.relu,
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_accurate": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu_squared": lambda x: torch.relu(x) ** 2,
}


def by_hand(state: State, options: dict[str, Any], source: Tensor, written: Tensor | None = None) -> Tensor:
    """Logits, from the state dict alone: of a masked model, a language model, or with `written` of a translator."""
    if "encoder.lm_head.bias" in state:
        x = tower(state, options, "encoder.sentence_encoder", "encoder", source)
        x = ACTS[options["activation_fn"]](linear(state, "encoder.lm_head.dense", x))
        return (
            norm(state, "encoder.lm_head.layer_norm", x) @ state["encoder.lm_head.weight"].T
            + state["encoder.lm_head.bias"]
        )
    memory = None if written is None else tower(state, options, "encoder", "encoder", source)
    x = tower(state, options, "decoder", "decoder", source if written is None else written, memory, source == PAD)
    if "decoder.project_out_dim.weight" in state:
        x = x @ state["decoder.project_out_dim.weight"].T
    head = state.get("decoder.output_projection.weight", state.get("decoder.embed_out"))
    return x @ (state["decoder.embed_tokens.weight"] if head is None else head).T


def tower(
    state: State,
    options: dict[str, Any],
    prefix: str,
    side: str,
    ids: Tensor,
    memory: Tensor | None = None,
    memory_pads: Tensor | None = None,
) -> Tensor:
    width, heads = options[f"{side}_embed_dim"], options[f"{side}_attention_heads"]
    pre, pads = options.get(f"{side}_normalize_before", False), ids == PAD
    x = state[f"{prefix}.embed_tokens.weight"][ids]
    if not options.get("no_scale_embedding"):
        x = x * math.sqrt(width)
    if f"{prefix}.project_in_dim.weight" in state:
        x = x @ state[f"{prefix}.project_in_dim.weight"].T
    place = (~pads).cumsum(1) * ~pads + PAD
    if f"{prefix}.embed_positions.weight" in state:
        x = x + state[f"{prefix}.embed_positions.weight"][place]
    elif not options.get("no_token_positional_embeddings"):
        x = x + sinusoid(int(place.max()) + 1, width)[place]
    if f"{prefix}.layernorm_embedding.weight" in state:
        x = norm(state, f"{prefix}.layernorm_embedding", x)
    if side == "encoder":
        x = x * ~pads[..., None]
    future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1) & (side == "decoder")
    hidden = pads[:, None, None] | future
    for number in range(options[f"{side}_layers"]):
        at = f"{prefix}.layers.{number}"

        def own(u: Tensor, at: str = at) -> Tensor:
            return attn_branch(state, options, at, u, heads, hidden)

        x = residual(state, f"{at}.self_attn_layer_norm", x, own, pre, first(state, at, "attention", "self"))
        if memory is not None:

            def across(u: Tensor, at: str = at) -> Tensor:
                assert memory_pads is not None
                return attention(state, f"{at}.encoder_attn", u, memory, heads, memory_pads[:, None, None])

            x = residual(state, f"{at}.encoder_attn_layer_norm", x, across, pre, first(state, at, "encoder"))

        def feed(u: Tensor, at: str = at) -> Tensor:
            h = ACTS[options["activation_fn"]](linear(state, f"{at}.fc1", u))
            if f"{at}.ffn_layernorm.weight" in state:
                h = norm(state, f"{at}.ffn_layernorm", h)
            return linear(state, f"{at}.fc2", h)

        skip = state.get(f"{at}.w_resid", first(state, at, "fc"))
        x = residual(state, f"{at}.final_layer_norm", x, feed, pre, skip)
    return norm(state, f"{prefix}.layer_norm", x) if f"{prefix}.layer_norm.weight" in state else x


def first(state: State, at: str, *names: str) -> Tensor | float:
    """ADMIN's coefficient under any of its names, 1 where there is none."""
    return next((state[k] for name in names if (k := f"{at}.{name}_ratio_change") in state), 1.0)


def residual(state: State, name: str, x: Tensor, branch: Any, pre: bool, skip: Tensor | float) -> Tensor:
    if pre:
        return skip * x + branch(norm(state, name, x))
    return norm(state, name, skip * x + branch(x))


def attn_branch(state: State, options: dict[str, Any], at: str, u: Tensor, heads: int, hidden: Tensor) -> Tensor:
    scale, paper = state.get(f"{at}.c_attn"), "paper" in options.get("headscale_position", "")
    y = attention(state, f"{at}.self_attn", u, u, heads, hidden, scale if paper else None)
    if scale is not None and not paper:
        y = (y.unflatten(-1, (heads, -1)) * scale[:, None]).flatten(-2)
    return norm(state, f"{at}.attn_ln", y) if f"{at}.attn_ln.weight" in state else y


def attention(
    state: State, at: str, x: Tensor, read: Tensor, heads: int, hidden: Tensor, scale: Tensor | None = None
) -> Tensor:
    if f"{at}.in_proj_weight" in state:
        parts = zip(state[f"{at}.in_proj_weight"].chunk(3), state[f"{at}.in_proj_bias"].chunk(3), strict=True)
        q, k, v = (u @ w.T + b for u, (w, b) in zip((x, read, read), parts, strict=True))
    else:
        q, k, v = (linear(state, f"{at}.{c}_proj", u) for c, u in (("q", x), ("k", read), ("v", read)))
    size = q.shape[-1] // heads
    q, k, v = (t.unflatten(-1, (heads, size)).transpose(1, 2) for t in (q / math.sqrt(size), k, v))
    mixed = (q @ k.transpose(2, 3)).masked_fill(hidden, -math.inf).softmax(-1) @ v
    if scale is not None:
        mixed = mixed * scale[:, None, None]
    return linear(state, f"{at}.out_proj", mixed.transpose(1, 2).flatten(2))


def linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def norm(state: State, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-5)


def sinusoid(rows: int, width: int) -> Tensor:
    """In float32, as the original forms it."""
    half = width // 2
    angle = torch.arange(rows).float()[:, None] * torch.exp(
        torch.arange(half).float() * -(math.log(10000) / (half - 1))
    )
    return torch.cat([angle.sin(), angle.cos()], 1).double()


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

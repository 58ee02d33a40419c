"""fairseq's Transformers written out from their equations, under the original names.

What an import is measured against: nothing of isograd's network is used here. Slow, without a cache.

    Post-LN: x <- LN(skip * x + B(x));    Pre-LN: x <- skip * x + B(LN(x)), one more LN after the last layer
    B of self-attention: attn_ln(c_attn * SA(x));    of the feed-forward: fc2(ffn_layernorm(act(fc1(x))))
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from isograd.models import IsogradConfig
from isograd.papers.fairseq.options import scales_before_projection

State = Mapping[str, Tensor]
Branch = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Branch] = {
    "relu": torch.relu,
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_accurate": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu_squared": lambda x: torch.relu(x) ** 2,
}
ACTIVATIONS["gelu_fast"] = ACTIVATIONS["gelu_accurate"]


class Original(PreTrainedModel, GenerationMixin):
    """The original model on its own state dict; it writes, too, where the kind of model does.

    Args:
        config: of the imported model: its special ids, and whether it is an encoder-decoder.
        state: weights under the names of fairseq 0.12 or Transformer-Clinic.
        options: flat, by the original's names.
    """

    config_class = IsogradConfig
    main_input_name = "input_ids"

    def __init__(self, config: IsogradConfig, state: State, options: Mapping[str, Any]) -> None:
        config = copy.deepcopy(config)
        config._attn_implementation = "eager"  # its own; transformers asks
        super().__init__(config)
        self.options = dict(options)
        held = {name: value for name, value in state.items() if value.is_floating_point()}
        self.names = list(held)
        self.weights = nn.ParameterList(nn.Parameter(value.detach().clone(), False) for value in held.values())
        self.encoder = _Encoder(self)

    def state(self) -> State:
        return dict(zip(self.names, self.weights, strict=True))

    def forward(
        self,
        input_ids: Tensor | None = None,  # (batch, source) of an encoder, or all that a language model has
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        last: bool = False,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (batch, time, vocabulary), of the last place alone where nothing else is wanted."""
        state, options = self.state(), self.options
        pads = None if attention_mask is None else attention_mask == 0
        if not self.config.is_encoder_decoder:
            assert input_ids is not None
            if self.config.is_decoder:
                x = stack(state, options, "decoder", input_ids, self._padded(input_ids, pads))
                return Seq2SeqLMOutput(logits=_written(state, x[:, -1:] if last else x))
            x = stack(state, options, "encoder.sentence_encoder", input_ids, self._padded(input_ids, pads))
            return Seq2SeqLMOutput(logits=_masked(state, options, x))
        assert decoder_input_ids is not None
        if encoder_outputs is None:
            assert input_ids is not None
            encoder_outputs = self.encode(input_ids, pads)
        memory = encoder_outputs[0]
        unread = torch.zeros(memory.shape[:2], dtype=torch.bool) if pads is None else pads
        own = self._padded(decoder_input_ids, None)
        x = stack(state, options, "decoder", decoder_input_ids, own, memory, unread)
        return Seq2SeqLMOutput(logits=_written(state, x[:, -1:] if last else x))

    def encode(self, ids: Tensor, pads: Tensor | None) -> BaseModelOutput:
        x = stack(self.state(), self.options, "encoder", ids, self._padded(ids, pads))
        return BaseModelOutput(last_hidden_state=x)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, encoder_outputs: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """All that was written, every time: there is no cache."""
        if not self.config.is_encoder_decoder:
            return {"input_ids": input_ids, "attention_mask": attention_mask, "last": True}
        return {
            "decoder_input_ids": input_ids,
            "attention_mask": attention_mask,
            "encoder_outputs": encoder_outputs,
            "last": True,
        }

    def can_generate(self) -> bool:
        return bool(self.config.is_encoder_decoder or self.config.is_decoder)

    def _padded(self, ids: Tensor, pads: Tensor | None) -> Tensor:
        """Where nothing stands; the original goes by the ids."""
        return ids == self.config.pad_token_id if pads is None else pads

    def _reorder_cache(self, past: Any, beams: Tensor) -> Any:
        return past


class _Encoder(nn.Module):
    """What `generate` calls once; it owns nothing."""

    main_input_name = "input_ids"

    def __init__(self, whole: Original) -> None:
        super().__init__()
        self.whole = [whole]  # in a list, or it would be a part of its part

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        return self.whole[0].encode(input_ids, None if attention_mask is None else attention_mask == 0)


def stack(
    state: State,
    options: Mapping[str, Any],
    prefix: str,
    ids: Tensor,
    pads: Tensor,
    memory: Tensor | None = None,
    memory_pads: Tensor | None = None,
) -> Tensor:
    """What the last layer of a stack gives, (batch, time, width)."""
    side = prefix.partition(".")[0]
    heads, pre = options[f"{side}_attention_heads"], options.get(f"{side}_normalize_before", False)
    act = ACTIVATIONS[options.get("activation_fn", "gelu")]
    x = _embedded(state, options, prefix, ids, pads)
    unseen = pads[:, None, None]
    if side == "decoder":
        unseen = unseen | torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
    for number in range(options[f"{side}_layers"]):
        at = f"{prefix}.layers.{number}"
        own = _self_attention(state, options, at, heads, unseen)
        x = _residual(state, f"{at}.self_attn_layer_norm", x, own, pre, _ratio(state, at, "attention", "self"))
        if memory is not None:
            assert memory_pads is not None
            across = _cross_attention(state, at, memory, heads, memory_pads[:, None, None])
            x = _residual(state, f"{at}.encoder_attn_layer_norm", x, across, pre, _ratio(state, at, "encoder"))
        skip = state.get(f"{at}.w_resid", _ratio(state, at, "fc"))
        x = _residual(state, f"{at}.final_layer_norm", x, _feedforward(state, at, act), pre, skip)
    x = _norm_if_there(state, f"{prefix}.layer_norm", x)
    out = state.get(f"{prefix}.project_out_dim.weight")
    return x if out is None else x @ out.T


def _embedded(state: State, options: Mapping[str, Any], prefix: str, ids: Tensor, pads: Tensor) -> Tensor:
    side, pad = prefix.partition(".")[0], int(options.get("pad", 1))
    x = state[f"{prefix}.embed_tokens.weight"][ids]
    width = options[f"{side}_embed_dim"]
    if not options.get("no_scale_embedding", "sentence" in prefix):
        x = x * math.sqrt(width)
    if f"{prefix}.project_in_dim.weight" in state:
        x = x @ state[f"{prefix}.project_in_dim.weight"].T
    places = (~pads).cumsum(1) * ~pads + pad
    if f"{prefix}.embed_positions.weight" in state:
        x = x + state[f"{prefix}.embed_positions.weight"][places]
    elif not options.get("no_token_positional_embeddings"):
        x = x + _sinusoid(int(places.max()) + 1, width, pad).to(x)[places]
    x = _norm_if_there(state, f"{prefix}.layernorm_embedding", x)
    return x * ~pads[..., None] if side == "encoder" else x


def _residual(state: State, norm: str, x: Tensor, branch: Branch, pre: bool, skip: Tensor | float) -> Tensor:
    if pre:
        return skip * x + branch(_norm(state, norm, x))
    return _norm(state, norm, skip * x + branch(x))


def _self_attention(state: State, options: Mapping[str, Any], at: str, heads: int, unseen: Tensor) -> Branch:
    scale = state.get(f"{at}.c_attn")
    paper = scales_before_projection(options)

    def branch(x: Tensor) -> Tensor:
        y = _attention(state, f"{at}.self_attn", x, x, heads, unseen, scale if paper else None)
        if scale is not None and not paper:
            y = (y.unflatten(-1, (heads, -1)) * scale.flatten()[:, None]).flatten(-2)
        return _norm_if_there(state, f"{at}.attn_ln", y)

    return branch


def _cross_attention(state: State, at: str, memory: Tensor, heads: int, unseen: Tensor) -> Branch:
    return lambda x: _attention(state, f"{at}.encoder_attn", x, memory, heads, unseen, None)


def _feedforward(state: State, at: str, act: Branch) -> Branch:
    def branch(x: Tensor) -> Tensor:
        h = act(_linear(state, f"{at}.fc1", x))
        return _linear(state, f"{at}.fc2", _norm_if_there(state, f"{at}.ffn_layernorm", h))

    return branch


def _attention(
    state: State, at: str, x: Tensor, read: Tensor, heads: int, unseen: Tensor, scale: Tensor | None
) -> Tensor:
    if f"{at}.in_proj_weight" in state:
        weights, offsets = (state[f"{at}.in_proj_{leaf}"].chunk(3) for leaf in ("weight", "bias"))
        q, k, v = (u @ w.T + b for u, w, b in zip((x, read, read), weights, offsets, strict=True))
    else:
        q, k, v = (_linear(state, f"{at}.{c}_proj", u) for c, u in (("q", x), ("k", read), ("v", read)))
    size = q.shape[-1] // heads
    q, k, v = (t.unflatten(-1, (heads, size)).transpose(1, 2) for t in (q / math.sqrt(size), k, v))
    mixed = (q @ k.transpose(2, 3)).masked_fill(unseen, torch.finfo(q.dtype).min).softmax(-1) @ v
    if scale is not None:
        mixed = mixed * scale.flatten()[:, None, None]
    return _linear(state, f"{at}.out_proj", mixed.transpose(1, 2).flatten(2))


def _written(state: State, x: Tensor) -> Tensor:
    names = ("decoder.output_projection.weight", "decoder.embed_out", "decoder.embed_tokens.weight")
    return F.linear(x, next(state[name] for name in names if name in state))


def _masked(state: State, options: Mapping[str, Any], x: Tensor) -> Tensor:
    h = ACTIVATIONS[options.get("activation_fn", "gelu")](_linear(state, "encoder.lm_head.dense", x))
    names = ("encoder.lm_head.weight", "encoder.sentence_encoder.embed_tokens.weight")
    table = next(state[name] for name in names if name in state)
    return _norm(state, "encoder.lm_head.layer_norm", h) @ table.T + state["encoder.lm_head.bias"]


def _ratio(state: State, at: str, *names: str) -> Tensor | float:
    """ADMIN's coefficient under any of its names, 1 where there is none."""
    return next((state[name] for n in names if (name := f"{at}.{n}_ratio_change") in state), 1.0)


def _linear(state: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def _norm(state: State, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-5)


def _norm_if_there(state: State, name: str, x: Tensor) -> Tensor:
    return _norm(state, name, x) if f"{name}.weight" in state else x


def _sinusoid(rows: int, width: int, pad: int) -> Tensor:
    """In float32, as the original forms it; nothing at pads."""
    half = width // 2
    step = -(math.log(10000) / (half - 1))
    angle = torch.arange(rows).float()[:, None] * torch.exp(torch.arange(half).float() * step)
    table = torch.cat([angle.sin(), angle.cos()], 1)
    table[pad] = 0
    return F.pad(table, (0, width - 2 * half))

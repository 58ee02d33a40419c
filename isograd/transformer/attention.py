"""Multi-head attention: W_O Concat(softmax(q k^T / sqrt(head size)) v), self or cross, with cache.

A head of keys and values may serve several heads of queries (grouped-query attention).

The product itself goes through transformers' attention interface (sdpa by default; eager, flash and flex where
installed), chosen by `config._attn_implementation`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from isograd.placement.formula import ClipLogits, Placement, Role
from isograd.placement.laws import Site
from isograd.transformer.kernels import beyond_gradients
from isograd.transformer.kernels import dropout as drop
from isograd.transformer.norms import make_norm
from isograd.transformer.parameters import Coefficient, Linear, project
from isograd.transformer.positions import make_rotation

SHORT = 256  # places up to which a CPU is faster in float32: 0.25 of bfloat16's time at 25, 0.45 at 128, 0.8 at 256


class Attention(nn.Module):
    """One attention branch f(x), with norms behind W_Q, W_K, W_V and `heads` and `mid` before W_O as its site asks.

    Args:
        config: the model's configuration.
        site: where the sublayer stands; `site.kind == "cross"` reads keys and values from the memory.
        placement: says which norms stand inside, whether heads are scaled, and how the weights are initialized.
        causal: whether position t may read positions up to t only.
    """

    def __init__(self, config: Any, placement: Placement, site: Site, causal: bool) -> None:
        super().__init__()
        residual, gains = placement.at(site), placement.init.at(site)
        width, heads, groups = config.hidden_size, config.num_attention_heads, config.key_value_heads
        self.config = config
        self.layer_idx = site.layer - 1
        self.is_causal = causal
        self.is_cross = site.kind == "cross"
        self.head_size = config.head_size
        self.num_key_value_groups = heads // groups  # so called where transformers' back-ends look for it
        self.scaling = self.head_size**-0.5 if config.attention_multiplier is None else config.attention_multiplier
        self.dropout = config.attention_dropout
        written, shared = heads * self.head_size, groups * self.head_size  # widths of all heads together
        self.rotate = make_rotation(config)
        self.window = window_of(config, site.layer - 1, causal)

        source = config.memory_size if self.is_cross else width

        def projection(role: Role, size: int, to: int) -> Linear:
            return Linear(size, to, role=role, init_gain=gains.get(role, 1.0), bias=config.has_bias(role))

        self.query = projection("query", width, written)
        self.key, self.value = projection("key", source, shared), projection("value", source, shared)
        self.out = projection("attn_out", written, width)
        norms = residual.projections
        self.norm_per_head = norms is not None and norms.over != "width"
        self.norm_after_rotary = norms is not None and norms.after_rotary and not self.is_cross
        over = norms.over if norms else "width"

        def norm(role: Role) -> nn.Module:
            own = heads if role == "query" else groups
            features = {"width": own * self.head_size, "head": self.head_size, "heads": (own, self.head_size)}[over]
            return make_norm(norms.norm if norms and role in norms.of else None, features, config)

        self.query_norm, self.key_norm, self.value_norm = norm("query"), norm("key"), norm("value")
        self.gate = None
        if residual.gate is not None:
            self.gate = Linear(width, written if residual.gate.per == "element" else heads, role="dense", bias=False)
        self.cap = residual.cap
        self.heads = Coefficient(heads, 1) if residual.head_scale else nn.Identity()
        self.mid = make_norm(residual.mid, written, config)
        self.notes_logits = any(isinstance(one, ClipLogits) for one in placement.constrain)
        self.largest_logits: Tensor | None = None  # of each head in training, since the last step
        self.heads_read_output = residual.head_scale is not None and residual.head_scale.reads == "output"
        if self.notes_logits and groups != heads:
            raise ValueError(f"QK-clip scales the keys of each head: num_key_value_heads={groups} is not {heads}")
        if self.heads_read_output and written != width:
            raise ValueError(f"HeadScale on W_O's output needs heads * head_dim = {written} to be the width {width}")

    def forward(
        self,
        x: Tensor,  # (batch, time, width)
        mask: Tensor | None = None,
        memory: Tensor | None = None,  # (batch, source, width), for cross-attention
        cache: Cache | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        value: Tensor | None = None,  # (batch, key-value heads, time, head size), in place of its own values of x
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The branch's output (batch, time, width), and the attention weights where the back-end returns them."""
        if self.is_cross:
            query = self._split(self.query(x), self.query_norm)  # (batch, heads, time, width/heads)
            key, value = self._memory(memory, cache)
        else:
            own = (self.query, self.key) if value is not None else (self.query, self.key, self.value)
            query, key, *rest = project(x, *own)
            query, key = self._split(query, self.query_norm), self._split(key, self.key_norm)
            value = self._split(rest[0], self.value_norm) if rest else value
            if rotary is not None:
                query, key = self.rotate(query, *rotary), self.rotate(key, *rotary)
            if self.norm_after_rotary:
                query, key = _over_heads(self.query_norm, query), _over_heads(self.key_norm, key)
            if cache is not None:
                own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
                key, value = own.update(key, value, self.layer_idx)
        if self.notes_logits and self.training:
            self._note_logits(query, key, mask)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.dropout if self.training else 0.0
        if attend is sdpa_attention_forward and ((query.is_cpu and dropout) or self.cap or beyond_gradients()):
            attend = attend_written_out
        if self.cap:
            kwargs["softcap"] = self.cap
        if self.window is not None:
            kwargs["sliding_window"] = self.window
        if query.is_cpu and query.dtype == torch.bfloat16 and key.shape[2] <= SHORT:
            attend = partial(attend_in_float32, attend)
        h, weights = attend(self, query, key, value, mask, dropout=dropout, scaling=self.scaling, **kwargs)
        if self.gate is not None:
            h = h * torch.sigmoid(self.gate(x).view(*h.shape[:3], -1))
        return self._project(h), weights  # h: (batch, time, heads, width/heads)

    def _project(self, h: Tensor) -> Tensor:
        shape = h.shape
        if self.heads_read_output:
            return self.heads(self.out(self.mid(h.flatten(2))).view(shape)).flatten(2)
        return self.out(self.mid(self.heads(h).flatten(2)))

    @torch.no_grad()
    def _note_logits(self, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
        scores = (query @ key.transpose(2, 3) * self.scaling).float()
        bias = additive(self, query, key, mask)
        found = (scores if bias is None else scores + bias).amax(dim=(0, 2, 3))
        self.largest_logits = found if self.largest_logits is None else torch.maximum(found, self.largest_logits)

    def take_largest_logits(self) -> Tensor | None:
        """The largest logit of each head in training since this was last asked, of this process."""
        found, self.largest_logits = self.largest_logits, None
        return found

    def values(self, x: Tensor) -> Tensor:
        """(batch, heads, time, width/heads)."""
        return self._split(self.value(x), self.value_norm)

    def _key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key, value = project(x, self.key, self.value)
        return self._split(key, self.key_norm), self._split(value, self.value_norm)

    def _split(self, x: Tensor, norm: nn.Module) -> Tensor:
        heads = (*x.shape[:-1], -1, self.head_size)
        if self.norm_after_rotary:
            return x.view(heads).transpose(1, 2)
        return (norm(x.view(heads)) if self.norm_per_head else norm(x).view(heads)).transpose(1, 2)

    def _memory(self, memory: Tensor | None, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, computed once per sequence when there is a cache."""
        if isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        if memory is None:
            raise ValueError("cross-attention needs encoder_hidden_states, and got none")
        key, value = self._key_value(memory)
        if isinstance(cache, EncoderDecoderCache):
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value


def window_of(config: Any, layer: int, causal: bool) -> int | None:
    """What a back-end without masks takes as `sliding_window`: of an encoder one more, as flash attention counts."""
    if config.sliding_window is None or config.attention_types()[layer] != "sliding_attention":
        return None
    window: int = config.sliding_window
    return window if causal else window + 1


def _over_heads(norm: nn.Module, x: Tensor) -> Tensor:
    """A norm whose weight may be one per head, on (batch, heads, time, width/heads)."""
    return norm(x.transpose(1, 2)).transpose(1, 2)


def attend_in_float32(
    attend: Callable[..., tuple[Tensor, Tensor | None]],
    module: nn.Module,
    query: Tensor,  # (batch, heads, time, width/heads), likewise key and value
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """A back-end's product of bfloat16 tensors, formed in float32 and cast back."""
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    with torch.autocast("cpu", enabled=False):
        h, weights = attend(module, query.float(), key.float(), value.float(), mask, **kwargs)
    return h.to(query.dtype), weights


def attend_written_out(
    module: nn.Module,
    query: Tensor,  # (batch, heads, time, width/heads)
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,  # as sdpa takes it: True where a key is read, or additive; None reads as the module does
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The product written out: with dropout torch has no fused kernel on a CPU, and takes 1.4 times as long; its fused
    kernels know first gradients only.
    """
    return eager_attention(module, query, key, value, additive(module, query, key, mask), **kwargs)[0], None


def additive(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """A mask as sdpa takes it, as what is added to the scores."""
    time, source = query.shape[2], key.shape[2]
    if mask is None and module.is_causal and time > 1:
        mask = torch.ones(time, source, dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = query.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(query.dtype).min)
    return mask


def eager_attention(
    module: nn.Module,
    query: Tensor,  # (batch, heads, time, width/heads)
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,  # additive, broadcast to (batch, heads, time, source)
    scaling: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The product written out; the back-end that returns attention weights."""
    if (groups := getattr(module, "num_key_value_groups", 1)) > 1:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    weights = drop(weights, dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights

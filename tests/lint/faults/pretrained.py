"""Small models on transformers' base classes, as people write their own: a decoder, an encoder, an encoder-decoder.

Their classes say what they are meant to be (`ForCausalLM`, `is_encoder_decoder`, `attention_mask`), which is what makes
a leak a fault.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput, Seq2SeqLMOutput

from tests.lint.faults.plain import HEADS, POSITIONS, VOCABULARY, WIDTH, FeedForward, causal, join, split


class SmallConfig(PretrainedConfig):
    """Shape, and what the faults are about."""

    model_type = "small-transformer"

    def __init__(
        self,
        vocab_size: int = VOCABULARY,
        hidden_size: int = WIDTH,
        num_hidden_layers: int = 3,
        num_attention_heads: int = HEADS,
        max_position_embeddings: int = POSITIONS,
        initializer_range: float = 0.02,
        final_layer_norm: bool = True,
        tie_word_embeddings: bool = True,
        **options: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.final_layer_norm = final_layer_norm
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(**({"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | options))


class Attention(nn.Module):
    """Of x to `memory` (x itself where there is none), at places that are `visible` (batch or 1, 1, time, memory)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, visible: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        return self.out(join(self.mixed(q, k, v, visible)))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


class Layer(nn.Module):
    """Pre-LN; with a cross-attention in a decoder that has a memory."""

    def __init__(self, *, cross: bool = False) -> None:
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(WIDTH), Attention()
        if cross:
            self.cross_norm, self.cross = nn.LayerNorm(WIDTH), Attention()
        self.ffn_norm, self.ffn = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor, visible: Tensor, memory: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), visible)
        if memory is not None:
            assert seen is not None
            x = x + self.cross(self.cross_norm(x), seen, memory)
        return x + self.ffn(self.ffn_norm(x))


class Stack(nn.Module):
    """Ids to vectors; a final norm where the configuration wants one."""

    def __init__(self, config: SmallConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, WIDTH)
        self.positions = nn.Embedding(config.max_position_embeddings, WIDTH)
        self.layers = nn.ModuleList(Layer(cross=cross) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(WIDTH) if config.final_layer_norm else nn.Identity()

    def forward(self, ids: Tensor, visible: Tensor, memory: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x, visible, memory, seen)
        return self.final_norm(x)


class SmallPreTrainedModel(PreTrainedModel):
    """N(0, initializer_range^2) for every matrix."""

    config_class = SmallConfig
    base_model_prefix = "tower"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class SmallForCausalLM(SmallPreTrainedModel):
    """p(next token), which reads to the left only and skips padding."""

    _tied_weights_keys: dict[str, str] = {"head.weight": "tower.tokens.weight"}  # noqa: RUF012  (as transformers declares)

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.tower = Stack(config)
        self.head = nn.Linear(WIDTH, config.vocab_size, bias=False)
        self.post_init()

    def visible(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(batch, 1, time, time); a place sees itself always, so that no row of the softmax is empty."""
        time = ids.shape[1]
        return (causal(time) & mask.bool()[:, None, None]) | torch.eye(time, dtype=torch.bool)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> CausalLMOutput:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self.head(self.tower(input_ids, self.visible(input_ids, mask)))
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def get_input_embeddings(self) -> nn.Module:
        return self.tower.tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class SmallForMaskedLM(SmallForCausalLM):
    """p(token) at each place, which reads both ways and skips padding."""

    def visible(self, ids: Tensor, mask: Tensor) -> Tensor:
        return mask.bool()[:, None, None]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> MaskedLMOutput:
        logits = super().forward(input_ids, attention_mask).logits
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class SmallForSeq2SeqLM(SmallPreTrainedModel):
    """An encoder that reads both ways, a decoder that reads it and to the left."""

    _tied_weights_keys = {"head.weight": "decoder.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.encoder, self.decoder = Stack(config), Stack(config, cross=True)
        self.head = nn.Linear(WIDTH, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Seq2SeqLMOutput:
        seen = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).bool()[:, None, None]
        memory = self.encoder(input_ids, seen)
        logits = self.head(self.decode(decoder_input_ids, memory, seen))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(loss=loss, logits=logits)

    def decode(self, ids: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        return self.decoder(ids, causal(ids.shape[1])[None, None], memory, seen)

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def small(kind: type[PreTrainedModel] = SmallForCausalLM, **options: Any) -> PreTrainedModel:
    """A small model of that class in eval mode."""
    return kind(SmallConfig(**({"is_encoder_decoder": kind.__name__.endswith("Seq2SeqLM")} | options))).eval()

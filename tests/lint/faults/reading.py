"""Faults of what is read: the future, padding, an encoder that nobody reads."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.lint.faults.plain import VOCABULARY, WIDTH, Decoder, pre
from tests.lint.faults.pretrained import Layer, SmallConfig, SmallForCausalLM, SmallForMaskedLM, SmallForSeq2SeqLM
from tests.lint.faults.wiring import redrawn


def one_too_far(time: int) -> Tensor:
    """tril with a diagonal of 1: each place sees the token that it is to predict."""
    return torch.ones(time, time, dtype=torch.bool).tril(diagonal=1)


def off_by_one() -> Decoder:
    return pre(visible=one_too_far)


class UnmaskedForCausalLM(SmallForCausalLM):
    """The mask of an encoder in a decoder."""

    def visible(self, ids: Tensor, mask: Tensor) -> Tensor:
        return mask.bool()[:, None, None]


class OffByOneForCausalLM(SmallForCausalLM):
    def visible(self, ids: Tensor, mask: Tensor) -> Tensor:
        return one_too_far(ids.shape[1]) & mask.bool()[:, None, None]


class Convolution(nn.Module):
    """Each vector mixed with its neighbours: with the two before it, or, by symmetric padding, with the next one."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, bias=False)
        nn.init.xavier_uniform_(self.mix.weight)
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(F.pad(x.transpose(1, 2), (self.before, 2 - self.before))).transpose(1, 2)


class Convolved(nn.Module):
    """A table of vectors with a convolution after it."""

    def __init__(self, table: nn.Module, before: int) -> None:
        super().__init__()
        self.table, self.convolution = table, Convolution(before)

    def forward(self, ids: Tensor) -> Tensor:
        return self.convolution(self.table(ids))


def convolved(before: int) -> Any:
    """A decoder whose tokens pass a convolution first; the head has a table of its own."""
    model: Any = SmallForCausalLM(SmallConfig(tie_word_embeddings=False))
    model.tower.tokens = Convolved(model.tower.tokens, before)
    return model.eval()


class DeafForMaskedLM(SmallForMaskedLM):
    """Takes an attention mask and forgets it."""

    def visible(self, ids: Tensor, mask: Tensor) -> Tensor:
        return torch.ones_like(mask).bool()[:, None, None]


class FactorForMaskedLM(SmallForMaskedLM):
    """Multiplies the scores by the mask: a score of 0 is no weight of 0."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        layer: Any
        for layer in self.tower.layers:
            layer.attn.mixed = factored


def factored(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return (scores * visible).softmax(-1) @ v


class SelfishLayer(Layer):
    """Its cross-attention reads the decoder's own vectors: the memory was not handed on."""

    def __init__(self) -> None:
        super().__init__(cross=True)

    def forward(self, x: Tensor, visible: Tensor, memory: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), visible)
        x = x + self.cross(self.cross_norm(x), visible)
        return x + self.ffn(self.ffn_norm(x))


class SelfishForSeq2SeqLM(SmallForSeq2SeqLM):
    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.decoder.layers = nn.ModuleList(SelfishLayer() for _ in range(config.num_hidden_layers))
        self.apply(self._init_weights)


class Translator(nn.Module):
    """torch.nn's two stacks with tables and a head, as in many a tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.source.weight, std=0.02)
        nn.init.normal_(self.target.weight, std=0.02)
        above = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True, norm_first=True)
        below = nn.TransformerDecoderLayer(WIDTH, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(above, 3, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(below, 3, nn.LayerNorm(WIDTH))
        redrawn(self.encoder)
        redrawn(self.decoder)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        y = self.target(tgt)
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        logits: Tensor = self.head(self.decode(y, self.encoder(self.source(src)), mask))
        return logits

    def decode(self, y: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.decoder(y, memory, tgt_mask=mask)


class SelfishTranslator(Translator):
    def decode(self, y: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.decoder(y, y, tgt_mask=mask, memory_mask=mask)

"""One decoding step for all beams of all sentences at once: tokens (sentences, beams) -> logits.

The beams of a sentence stand where a layer expects time, so the model's own layers run, whatever their placement:

    cross   queries (sentence, heads, beams, d) on keys (sentence, heads, source, d), computed once per sentence
    attn    queries (sentence, heads, beams, d) on keys (sentence, heads, slots, d), a mask opens a beam's ancestors

Every key is written once, into a slot of its sentence, and stays there: when beams change places, rows of the mask
move and no keys do. A sentence that is finished gives its place to the last one, which is the only one copied.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from isograd.models.seq2seq import IsogradForSeq2SeqLM
from isograd.transformer.attention import SHORT

STEPS = 16  # room for that many steps; then slots that no living beam descends from are given up


class Slots(CacheLayerMixin):
    """Keys and values of one attention, (sentences, heads, slots, width/heads), in the order of writing.

    Args:
        room: slots that can be written before `repack` is called; 0 takes what the first write brings.
    """

    def __init__(self, room: int = 0) -> None:
        super().__init__()
        self.room = room
        self.used = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._empty(key_states), self._empty(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write behind what is there; keys and values of all slots so far."""
        if not self.is_initialized:
            self.room = self.room or key_states.shape[2]
            self.lazy_initialization(key_states, value_states)
        begin, self.used = self.used, self.used + key_states.shape[2]
        out = []
        for buffer, new in ((self.keys, key_states), (self.values, value_states)):
            buffer[:, :, begin : self.used] = new
            out.append(buffer[:, :, : self.used])
        return out[0], out[1]

    def keep(self, holes: Tensor, movers: Tensor, rows: int) -> None:
        """Sentences `movers` take the places `holes`; the first `rows` places remain."""
        for buffer in (self.keys, self.values):
            buffer[holes, :, : self.used] = buffer[movers, :, : self.used]
        self.keys, self.values = self.keys[:rows], self.values[:rows]

    def repack(self, order: Tensor, room: int) -> None:
        """Slots `order` (sentences, slots) move to the front, the others are given up; room for `room` slots."""
        index, self.room, self.used = order[:, None, :, None], room, order.shape[1]
        old = self.keys, self.values
        self.lazy_initialization(*old)
        for buffer, before in zip((self.keys, self.values), old, strict=True):
            buffer[:, :, : self.used] = before.gather(2, index.expand(-1, before.shape[1], -1, before.shape[3]))

    def get_seq_length(self) -> int:
        return self.used

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.used + query_length, 0

    def _empty(self, like: Tensor) -> Tensor:
        batch, heads, _, size = like.shape
        return like.new_empty((batch, heads, self.room, size), dtype=kept_in(like, self.room))


def kept_in(x: Tensor, places: int) -> torch.dtype:
    """float32 in place of bfloat16 where attention forms its product in float32: cast once, not at every step."""
    return torch.float32 if x.is_cpu and x.dtype == torch.bfloat16 and places <= SHORT else x.dtype


class Decoding:
    """The state of a batch that is being decoded.

    Args:
        memory: what the encoder wrote, (sentences, source, width).
        memory_mask: (sentences, source), 1 where a token counts; None where all do.
        beams: the largest number of beams per sentence.
    """

    def __init__(self, model: IsogradForSeq2SeqLM, memory: Tensor, memory_mask: Tensor | None, beams: int) -> None:
        self.model = model
        self.decoder = model.decoder
        self.memory: Tensor | None = memory
        self.room = STEPS * beams
        depth = len(self.decoder.layers)
        self.own = [Slots(self.room) for _ in range(depth)]
        self.cross = [Slots() for _ in range(depth)]
        self.cache = EncoderDecoderCache(Cache(layers=self.own), Cache(layers=self.cross))
        self.time = 0
        exact = torch.promote_types(memory.dtype, torch.float32)
        self.open = memory.new_empty((len(memory), 1, 0), dtype=exact)  # (sentences, beams, slots): 0 or -inf
        self.source = None
        if memory_mask is not None and not memory_mask.all():
            shut = memory.new_zeros(memory_mask.shape, dtype=exact).masked_fill(memory_mask == 0, -torch.inf)
            self.source = shut[:, None, None].to(kept_in(memory, memory.shape[1]))

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> Tensor:
        """Logits (sentences, beams, vocabulary) after one more token per beam.

        Args:
            tokens: (sentences, beams), what each beam reads now.
            parents: (sentences, beams), the beam of the last step that each goes on from; None at the first step.
        """
        decoder, config = self.decoder, self.model.config
        self._open(tokens.shape[1], parents)
        positions = torch.full((1, 1), self.time + config.position_offset, device=tokens.device)
        x = decoder.embedding(decoder.embedding.tokens(tokens), positions)
        mask = self.open[:, None].to(kept_in(x, self.own[0].room))
        memory_mask = None if self.source is None else self.source.expand(-1, -1, tokens.shape[1], -1)
        x = decoder.run_layers(x, positions, mask, self.memory, memory_mask, self.cache)
        self.memory = None  # its keys and values are kept
        self.time += 1
        return self.model.lm_head(x)

    def keep(self, rows: list[int]) -> None:
        """Sentence `rows[i]` is at place i from now on; who is not named has left."""
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        holes, movers = torch.tensor(moved, dtype=torch.long, device=self.open.device).view(-1, 2).T
        for layer in (*self.own, *self.cross):
            layer.keep(holes, movers, len(rows))
        index = torch.tensor(rows, device=self.open.device)
        self.open = self.open[index]
        if self.source is not None:
            self.source = self.source[index]

    def _open(self, beams: int, parents: Tensor | None) -> None:
        """Each beam sees what its parent saw, and a new slot of its own."""
        seen = self.open
        if parents is not None:
            seen = seen.gather(1, parents[..., None].expand(-1, -1, seen.shape[2]))
        if seen.shape[2] + beams > self.own[0].room:
            seen = self._repack(seen)
        new = seen.new_full((beams, beams), -torch.inf).fill_diagonal_(0.0)
        self.open = torch.cat([seen, new.expand(len(seen), -1, -1)], dim=2)

    def _repack(self, seen: Tensor) -> Tensor:
        """Give up the slots that no beam sees."""
        alive = (seen == 0).any(dim=1)  # (sentences, slots)
        order = alive.int().argsort(dim=1, descending=True, stable=True)[:, : int(alive.sum(dim=1).max())]
        for layer in self.own:
            layer.repack(order, order.shape[1] + self.room)
        return seen.gather(2, order[:, None].expand(-1, seen.shape[1], -1))


@contextmanager
def decoding_mode(model: IsogradForSeq2SeqLM) -> Iterator[None]:
    """Eval mode, and attention that takes a mask per beam; both as they were at the end."""
    modes = [(module, module.training) for module in model.modules()]
    attention = model.config._attn_implementation
    model.eval()
    if attention != "eager":
        model.config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        model.config._attn_implementation = attention
        for module, mode in modes:
            module.training = mode

"""Marian and Pegasus: their sinusoids are the original's with all sines first; Marian keeps no table of them.

A model whose sinusoids are interleaved goes out with the features of the whole stream permuted accordingly.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from isograd.convert.hf.bart import BART, FINAL, ROW, names
from isograd.convert.hf.family import Family, FamilyPart
from isograd.convert.kinds import PAIR
from isograd.models import IsogradConfig

_READS = ("query", "key", "value", "into", "gate")  # projections whose columns are the stream, of an attention's own


class _SinesFirst(Family):
    def arranged(self, state: dict[str, Tensor], config: IsogradConfig) -> dict[str, Tensor]:
        """The same function with those features first that begin with a sine."""
        if config.position_embedding_type != "sinusoidal_interleaved":
            return state
        width = config.hidden_size
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
        return {name: _reordered(name, value, order) for name, value in state.items()}


def _write(config: IsogradConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.encoder_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.share_encoder_embeddings,
    }


class _Marian(_SinesFirst):
    def complete(self, native: PreTrainedModel) -> None:
        """It would leave out the table when it is saved, and compute another one, in other steps."""
        native._keys_to_ignore_on_save = None


def _reordered(name: str, value: Tensor, order: Tensor) -> Tensor:
    last = name.split(".")[-2]
    if ".branch." in name:
        if last in _READS:
            return value[:, order] if value.ndim == 2 else value
        return value[order]  # W_O, W_2 and their biases
    return value[..., order] if value.shape[-1] == len(order) else value  # tables, heads, norms


_BOTH: dict[str, Any] = {
    **ROW,
    "positions": "permuted",
    "computes": "sinusoidal_sines_first",
    "head_bias": PAIR,
}
FAMILIES = (
    _Marian(
        name="marian",
        classes={PAIR: "MarianMTModel"},
        placement="post-ln",
        two_tables=True,
        own_tables=True,
        names=names({}),
        **_BOTH | {"parts": (BART, FamilyPart(write=_write))},
    ),
    _SinesFirst(
        name="pegasus",
        classes={PAIR: "PegasusForConditionalGeneration"},
        names=names(FINAL),
        **_BOTH,
    ),
)

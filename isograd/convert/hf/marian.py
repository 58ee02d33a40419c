"""Marian and Pegasus: their sinusoids are the original's with all sines first; Marian keeps no table of them.

A model whose sinusoids are interleaved goes out with the features of the whole stream permuted accordingly.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from isograd.convert.hf.bart import FINAL, OPTIONS, Bart, names
from isograd.convert.kinds import PAIR, ModelKind
from isograd.models import IsogradConfig

_READS = ("query", "key", "value", "into", "gate")  # projections whose columns are the stream, of an attention's own


class _SinesFirst(Bart):
    def arranged(self, state: dict[str, Tensor], config: IsogradConfig) -> dict[str, Tensor]:
        """The same function with those features first that begin with a sine."""
        if config.position_embedding_type != "sinusoidal_interleaved":
            return state
        width = config.hidden_size
        order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
        return {name: _reordered(name, value, order) for name, value in state.items()}


class _Marian(_SinesFirst):
    def to_options(self, config: IsogradConfig, kind: ModelKind) -> dict[str, Any]:
        own = {"share_encoder_decoder_embeddings": config.share_encoder_embeddings}
        return super().to_options(config, kind) | own

    def vocabularies(self, config: IsogradConfig) -> dict[str, int]:
        return {"vocab_size": config.encoder_vocab_size or config.vocab_size, "decoder_vocab_size": config.vocab_size}

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
    "imports": (PAIR,),
    "options": OPTIONS,
    "eps": 1e-5,
    "positions": "permuted",
    "computes": "sinusoidal_sines_first",
    "scales": True,
    "head_bias": True,
}
FAMILIES = (
    _Marian(
        name="marian",
        classes={PAIR: "MarianMTModel"},
        norms=("post",),
        two_tables=True,
        own_tables=True,
        names=names({}),
        **_BOTH,
    ),
    _SinesFirst(
        name="pegasus",
        classes={PAIR: "PegasusForConditionalGeneration"},
        norms=("pre",),
        names=names(FINAL),
        **_BOTH,
    ),
)

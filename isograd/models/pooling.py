"""Which token stands for a sequence: the first that counts in an encoder, the last in a decoder."""

import torch
from torch import Tensor


def first_token(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """(batch, width) of the first token that counts: BERT's [CLS], also behind padding on the left.

    Args:
        hidden: (batch, time, width).
        mask: as in `counted`; without one it is the first position, as in transformers.
    """
    counts = counted(mask, len(hidden))
    return hidden[:, 0] if counts is None else _at(hidden, counts.int().argmax(dim=1))


def last_token(hidden: Tensor, mask: Tensor | None, ids: Tensor | None, pad: int | None) -> Tensor:
    """(batch, width) of the last token that counts; of a row in which none does, the first position.

    A mask (batch, time) says which do. Without one, those whose id is not `pad` do, as in transformers; without ids or
    `pad`, those that a mask of four dimensions opens, or all.
    """
    if ids is not None and pad is not None and (mask is None or mask.ndim != 2):
        counts: Tensor | None = ids != pad
    else:
        counts = counted(mask, len(hidden))
    if counts is None:
        return hidden[:, -1]
    places = torch.arange(counts.shape[1], device=counts.device)
    return _at(hidden, (places * counts).argmax(dim=1))


def counted(mask: Tensor | None, batch: int) -> Tensor | None:
    """(batch, time), where a token counts; None without a mask.

    Args:
        mask: (batch, time), not 0 where a token counts; or (batch, heads, query, key), True or 0.0 where a query reads
            a key: a token counts that any reads.
    """
    if mask is None:
        return None
    if mask.ndim == 2:
        return mask != 0
    lowest = None if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    read = mask if lowest is None else mask > lowest / 2
    return read.flatten(1, 2).any(dim=1).expand(batch, -1)


def _at(hidden: Tensor, place: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), place]

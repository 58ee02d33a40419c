"""Entropy and logits of a recorded attention."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isograd.trace.record import Operation, Trace, Value

MASKED = -9e3  # logits below are keys that are not seen: masks are -inf, the least number of a dtype, or -10,000


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Numbers of one attention, in nats; over the queries that see at least two keys.

    Attributes:
        entropy: mean of -sum a ln a over heads and queries.
        lowest: the lowest head's mean.
        uniform: mean ln n, n the number of keys that a query sees: the entropy of equal weights.
        logit: largest |logit| of a key that is seen: as the softmax reads it, with scale, cap and biases.
    """

    entropy: float
    lowest: float
    uniform: float
    logit: float


def attended(trace: Trace, operation: Operation, sequences: int) -> Attended | None:
    """Of a softmax over keys, or of a scaled dot-product attention; None where no query sees two keys.

    Args:
        sequences: how many stand in the batch, to tell them from heads.
    """
    logits = _logits(trace, operation).double()  # (sequences * heads, queries, keys) in any number of axes
    seen = logits > MASKED
    logits = logits.masked_fill(~seen, -math.inf)
    keys = seen.sum(-1)
    counts = keys >= 2
    if not counts.any():
        return None
    weights = logits.softmax(-1)
    entropy = -(weights * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()).sum(-1)
    rows, chosen = (x.reshape(-1, x.shape[-1]) for x in (entropy.where(counts, 0.0), counts))
    heads = max(1, rows.shape[0] // max(1, sequences)) if rows.shape[0] % max(1, sequences) == 0 else 1
    per_head = rows.reshape(-1, heads, rows.shape[-1]).sum((0, 2)) / chosen.reshape(-1, heads, rows.shape[-1]).sum(
        (0, 2)
    )
    return Attended(
        entropy=entropy[counts].mean().item(),
        lowest=per_head.nan_to_num(math.inf).min().item(),
        uniform=keys[counts].double().log().mean().item(),
        logit=logits[seen].abs().max().item(),
    )


def _logits(trace: Trace, operation: Operation) -> Tensor:
    """What the softmax reads, keys last; those that are not seen far below."""
    given = _given(trace, operation)
    if "query" not in given:
        scores: Tensor = trace[operation.reads[0]]
        return scores.movedim(given["dim"], -1)
    query, key = given["query"].double(), given["key"].double()
    if key.shape[-3] != query.shape[-3]:  # heads that share a key
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1) * scale
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _given(trace: Trace, operation: Operation) -> dict[str, Any]:
    """Arguments of an operation by their names."""
    names = [a.name for a in operation.function._schema.arguments]
    given = dict(zip(names, operation.args, strict=False)) | operation.kwargs
    return {name: trace[a.index] if isinstance(a, Value) else a for name, a in given.items()}

"""Attention in a recorded forward pass: where it is, what it reads, its entropy and logits.

It is found by what it does: weights over positions that are not negative and sum to one, computed from products of two
activations, multiply a third; or it is one of torch's own operations.
"""

import math
from typing import Any

import torch
from torch import Tensor

from isograd.trace.dataflow import PRODUCTS, SUMS, Dataflow, bare
from isograd.trace.record import Operation, Trace, Value

FUSED = "scaled_dot_product"  # in the names of torch's own
MASKED = -9e3  # logits below are masked keys: masks are -inf, the least number of a dtype, or -10,000


def is_attention(dataflow: Dataflow, operation: Operation) -> bool:
    """A scaled dot-product attention, a softmax over products of two activations, or other weights that sum to one."""
    if FUSED in operation.name:
        return True
    if not operation.makes or not operation.reads or operation.reads[0] not in dataflow.live:
        return False
    if is_softmax(operation):
        return product_of_two(dataflow, operation.reads[0]) is not None
    return bare(operation) in _LAST_OF_WEIGHTS and _are_weights(dataflow, operation)


_LAST_OF_WEIGHTS = ("div", "mul", "relu", "clamp", "clamp_min", "exp", "where", "masked_fill", "nan_to_num")


def _are_weights(dataflow: Dataflow, operation: Operation) -> bool:
    """Rows that are not negative and sum to one, of scores between positions, with which another activation is mixed.

    Rows of zeros, which attend to nothing, do not count.
    """
    trace, value = dataflow.trace, operation.makes[0]
    weights = trace[value]
    if weights.ndim < 3 or weights.shape[-1] < 2 or not weights.is_floating_point() or bool((weights < 0).any()):
        return False
    sums = weights.double().sum(-1)
    sums = sums[sums > 0]
    if not sums.numel() or bool(((sums - 1).abs() > 1e-3).any()) or bool((weights == 1).all()):
        return False
    mixes = any(
        bare(o) in PRODUCTS and len(dataflow.data(o)) == 2
        for made in _laid_out(dataflow, value)
        for o in trace.read_by(made)
    )
    return mixes and product_of_two(dataflow, operation.reads[0]) is not None


def _laid_out(dataflow: Dataflow, value: int) -> list[int]:
    """A value, and what changes of layout make of it."""
    found = [value]
    for at in found:
        found += [o.makes[0] for o in dataflow.trace.read_by(at) if o.makes and dataflow.through(o.makes[0]) == at]
    return found


def all_scores(dataflow: Dataflow) -> set[int]:
    """What softmaxes read: sums of scores, as with an earlier layer's, are none of a stream."""
    return {scores_below(dataflow, o.reads[0]) for o in dataflow.trace.operations if is_softmax(o)}


def query_key_value(dataflow: Dataflow, attention: Operation) -> tuple[int, int, int] | None:
    """The values that an attention reads as query, key and value."""
    trace = dataflow.trace
    if FUSED in attention.name:
        q, k, v = attention.reads[:3] if len(set(attention.reads[:3])) == 3 else (*attention.reads[:1] * 3,)
        return q, k, v
    product = product_of_two(dataflow, attention.reads[0])
    scores = None if product is None else trace.made_by(product)
    if scores is None:
        return None
    query, key = dataflow.data(scores)[-2:]  # of baddbmm after what it adds
    weights = trace.below([attention.makes[0]])
    for operation in trace.operations:
        pair = [v for v in operation.reads if v in dataflow.live or trace[v].ndim >= 3]  # values may be learned
        if bare(operation) in ("matmul", "bmm", "einsum") and len(pair) == 2 and not weights.isdisjoint(pair):
            return query, key, next((v for v in pair if v not in weights), pair[1])
    return None


def is_softmax(operation: Operation) -> bool:
    """A softmax, over whatever axis."""
    return bare(operation) in ("softmax", "_softmax")


def product_of_two(dataflow: Dataflow, value: int) -> int | None:
    """The product of queries and keys that scores or weights were computed from; None where there is none near."""
    found = scores_below(dataflow, value)
    steps = 0
    while not _is_of_two(dataflow, found) and steps < _NEAR:
        made = dataflow.trace.made_by(found)
        data = dataflow.data(made) if made is not None and bare(made) not in PRODUCTS else []
        if not data:
            return None
        steps += 1
        found = scores_below(dataflow, max(data, key=lambda v: dataflow.trace[v].numel()))
    return found if _is_of_two(dataflow, found) else None


_NEAR = 12  # operations between scores and weights: a maximum, an exponential, a mask, a sum


def scores_below(dataflow: Dataflow, value: int) -> int:
    """The product of queries and keys below a softmax, through masks, caps and biases."""
    while (made := dataflow.trace.made_by(value)) is not None:
        data = dataflow.data(made)
        if bare(made) in SUMS and len(data) > 1:  # of several products, as with relative positions: the first
            parts = (scores_below(dataflow, part) for part in data)
            return next((part for part in parts if _is_of_two(dataflow, part)), value)
        if bare(made) in PRODUCTS or len(data) != 1:
            break
        value = data[0]
    return value


def _is_of_two(dataflow: Dataflow, value: int) -> bool:
    made = dataflow.trace.made_by(value)
    return made is not None and bare(made) in PRODUCTS and len(dataflow.data(made)) >= 2


def attention_facts(trace: Trace, operation: Operation, sequences: int) -> dict[str, float]:
    """Over the queries that attend to at least two keys, in nats; nothing where there are none:

        attention_entropy      mean of -sum a ln a over heads and queries
        attention_entropy_min  the lowest head's mean
        attention_uniform      mean ln n, n the number of keys that a query attends to: the entropy of equal weights
        attention_share        entropy over uniform
        largest_logit          largest |logit| of such a key, as the softmax reads it: with scale, cap and biases

    Args:
        sequences: how many stand in the batch, to tell them from heads.
    """
    logits = logits_of(trace, operation).double()  # (sequences * heads, queries, keys) in any number of axes
    attended = logits > MASKED
    logits = logits.masked_fill(~attended, -math.inf)
    keys = attended.sum(-1)
    counts = keys >= 2
    if not counts.any():
        return {}
    weights = logits.softmax(-1)
    entropy = -(weights * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()).sum(-1)
    rows, chosen = (x.reshape(-1, x.shape[-1]) for x in (entropy.where(counts, 0.0), counts))
    heads = max(1, rows.shape[0] // max(1, sequences)) if rows.shape[0] % max(1, sequences) == 0 else 1
    per_head = rows.reshape(-1, heads, rows.shape[-1]).sum((0, 2)) / chosen.reshape(-1, heads, rows.shape[-1]).sum(
        (0, 2)
    )
    mean, uniform = entropy[counts].mean().item(), keys[counts].double().log().mean().item()
    return {
        "attention_entropy": mean,
        "attention_entropy_min": per_head.nan_to_num(math.inf).min().item(),
        "attention_uniform": uniform,
        "attention_share": mean / uniform,
        "largest_logit": logits[attended].abs().max().item(),
    }


def logits_of(trace: Trace, operation: Operation) -> Tensor:
    """What the softmax reads, keys last; masked ones far below."""
    named = given(trace, operation)
    if not is_softmax(operation) and FUSED not in operation.name:
        return trace[operation.makes[0]].clamp_min(0).log()  # weights that were made otherwise
    if "query" not in named:
        scores: Tensor = trace[operation.reads[0]]
        return scores.movedim(named["dim"], -1)
    query, key = named["query"].double(), named["key"].double()
    if key.shape[-3] != query.shape[-3]:  # heads that share a key
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = named.get("scale") or query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1) * scale
    mask = named.get("attn_mask")
    if named.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def given(trace: Trace, operation: Operation) -> dict[str, Any]:
    """Arguments of an operation by their names."""
    names = [a.name for a in operation.function._schema.arguments]
    given = dict(zip(names, operation.args, strict=False)) | operation.kwargs
    return {name: trace[a.index] if isinstance(a, Value) else a for name, a in given.items()}

"""What real positions have of padded ones."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isograd.lint.attention.measured import MeasuredAttention
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.leaks.inputs import CHANGED, as_given, in_batches, named_inputs, output_of
from isograd.lint.padding import MOVED, POSITIONS, UNKNOWN, fewer_of, paddings, reason
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import bare
from isograd.trace.record import plain_operations, record


@rule(Phase.DATA, "padding-leaks")
def padding(checked: CheckedModel) -> Iterator[Finding]:
    """Outputs at real positions that change with the amount of padding that the batch has; or with what stands where
    a mask that forward takes by a known name says padding.
    """
    named = named_inputs(checked)
    asked, found = _with_less(checked, named)
    base = output_of(checked, checked.inputs)
    if found is not None:
        yield found
        return
    pools = base is None or (base.ndim < 3 and _chooses_place(checked))  # as the last that is no padding
    for mask_name, name in () if asked or pools else _masked_inputs(checked):
        mask, ids = named.get(mask_name), named[name]
        like = mask if isinstance(mask, Tensor) else torch.ones(ids.shape[:2], dtype=torch.bool)
        real = not (like.dtype == torch.bool and "padding" in mask_name)
        places = (torch.arange(ids.shape[1]) < ids.shape[1] - max(ids.shape[1] // 4, 1)).expand(ids.shape[:2])
        gap, other = (
            _padding_gap(checked, named | {mask_name: (places == way).to(like)}, name, places)
            for way in (real, not real)
        )
        turned = other is not None and other <= CHANGED
        if gap is None or gap <= CHANGED or (turned and mask_name != "attention_mask"):
            continue  # it says True where others say False
        yield Finding(
            address=mask_name,
            measured=gap,
            message=f"{mask_name} is read the wrong way round: real positions are hidden, and padding is seen"
            if turned
            else f"other values of {name} where {mask_name} says padding move the outputs at real positions by"
            f" {gap:.2g} of the largest",
            remedy="hide the keys of padding in every attention, scores.masked_fill(~real[:, None, None, :],"
            ' float("-inf")), where 1 or True is a real token, and leave padding out of means and pooling',
        )
        return
    yield from _other_mask(checked)


def _with_less(checked: CheckedModel, named: dict[str, Any]) -> tuple[bool, Finding | None]:
    """Whether a padded row could be compared with itself with less padding; what that shows."""

    def compared(filler: int) -> bool:
        asks = (o for o in checked.trace.operations if bare(o) in ("eq", "ne", "gt") and filler in o.args[1:])
        said = {getattr(m, "padding_idx", None) for m in checked.model.modules()} | {checked.setting("pad_token_id")}
        return filler in said or any(o.reads[0] in checked.trace.inputs.values() for o in asks)

    leaves = {n: x for n, x in named.items() if isinstance(x, Tensor)}
    fewer = None if checked.large or "random-in-eval" in checked.reported else fewer_of(paddings(leaves, compared), 1)
    if fewer is None:
        return False, None
    wide, cut = (as_given(checked, {n: of(x) for n, x in named.items()}) for of in (fewer.wide, fewer.cut))
    try:
        with plain_operations():  # torch.nn's fused encoder layer reads a mask of floats otherwise than in training
            a, b, again = output_of(checked, wide), output_of(checked, cut), checked.run(wide, seed=1)[0]
    except Exception:  # a length that is fixed
        return False, None
    gap = None if a is None or b is None else fewer.gap(a, b)
    if a is None or gap is None or again is None or not torch.equal(in_batches(checked, again), a):
        return False, None  # of another length, or drawn
    if gap <= MOVED:
        return True, None
    why, remedy, where = reason(record(checked.few, wide), record(checked.few, cut), fewer)
    here = where and next(
        (o for o in checked.trace.operations if o.makes == where.makes and o.name == where.name), None
    )
    full = checked.routed and why in (POSITIONS, UNKNOWN[0])  # experts that are full leave tokens out
    if full or (
        why == POSITIONS and not any("mask" in n for n in leaves)
    ):  # a window of one length, counted from its end
        return True, None
    return True, Finding(
        code="padding-leaks",
        severity="warning" if why == POSITIONS else "error",
        address=where.module if where else "",
        at=here.makes[0] if here else None,
        measured=gap,
        message=f"padding a row by {fewer.taken} moves its output at real positions by {gap:.2g} of the largest: {why}",
        remedy=remedy,
    )


def _masked_inputs(checked: CheckedModel) -> Iterator[tuple[str, str]]:
    """(mask, the sequence that it belongs to), of masks that were given or could be; of a causal model those given,
    since padding is the future of what stands before it.
    """
    named, parameters = named_inputs(checked), inspect.signature(checked.model.forward).parameters
    causal = "future-leaks" in checked.reported
    first = next((n for n, v in named.items() if isinstance(v, Tensor) and not v.is_floating_point()), "")
    for name, sequence in (
        ("attention_mask", "input_ids"),
        ("attention_mask", "inputs_embeds"),
        ("src_key_padding_mask", "src"),
        ("src_mask", "src"),
        ("padding_mask", "input_ids"),
        ("attention_mask", first),
        ("padding_mask", first),
        ("key_padding_mask", first),
        ("mask", "x"),
    ):
        mask, x = named.get(name), named.get(sequence)
        optional = name not in named and name in parameters and checked.config is None and checked.takes_ids
        given = isinstance(mask, Tensor) and isinstance(x, Tensor) and mask.ndim == 2 and mask.shape == x.shape[:2]
        if not causal and isinstance(x, Tensor) and x.ndim >= 2 and (given or optional):
            yield name, sequence
            return


def _anything_else(x: Tensor) -> Tensor:
    """Other values of the same kind: of ids those that other places hold."""
    draw = torch.Generator().manual_seed(11)
    if x.is_floating_point():
        return x + torch.randn(x.shape, generator=draw).to(x) * x.std().clamp_min(1e-3)
    flat = x.flatten()
    return flat[torch.randint(len(flat), (len(flat),), generator=draw)].reshape(x.shape)


def _other_mask(checked: CheckedModel) -> Iterator[Finding]:
    """Cross-attentions that see what the encoder hides as padding, in the sequences that were given."""
    hidden = [(a.sublayer, keys) for a in checked.attentions if (keys := _hidden_keys(checked, a)) is not None]
    padded = [(s.stack, keys) for s, keys in hidden if s.kind == "attn" and keys.any()]
    for sublayer, keys in hidden:
        own = [other for stack, other in padded if stack != sublayer.stack and other.shape == keys.shape]
        if sublayer.kind == "cross" and own and (seen := own[-1] & ~keys).any():
            yield Finding(
                code="padding-leaks",
                address=sublayer.address,
                measured=seen.sum().item(),
                message=f"the cross-attention sees {int(seen.sum())} positions of the source that the encoder hides as"
                " padding" + (", and hides others: it has another mask" if (keys & ~own[-1]).any() else ""),
                remedy="give the cross-attention the padding mask of the source, whose positions are its keys",
            )
            return


def _hidden_keys(checked: CheckedModel, attention: MeasuredAttention) -> Tensor | None:
    """(sequences, keys): which no query sees."""
    visible, x = attention.visible, checked.trace[attention.sublayer.read]
    time = next((s.time for s in checked.anatomy.stacks if s.name == attention.sublayer.stack), None)
    batch = x.shape[1 if (checked.time_first if time is None else time == 0) else 0]
    if visible is None or x.ndim != 3 or visible.shape[0] % batch:
        return None
    return ~visible.any(1).unflatten(0, (batch, -1)).any(1)


def _padding_gap(checked: CheckedModel, named: dict[str, Any], name: str, real: Tensor) -> float | None:
    """How much the outputs at real positions change with an input's contents at the others; None where that is no
    question.
    """
    x = named[name]
    other = torch.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, _anything_else(x))
    try:
        a, b = (output_of(checked, as_given(checked, named | {name: part})) for part in (x, other))
    except Exception:  # a mask of another shape, or only together with something else
        return None
    if a is None or b is None or a.shape != b.shape:
        return None
    gaps = (b - a).abs()
    aligned = a.ndim > 1 and a.shape[:2] == real.shape
    if aligned and a.ndim > 2 and a.shape[2] == real.shape[1] != a.shape[-1]:  # of pairs
        gaps = gaps[real[:, :, None] & real[:, None, :]]
    elif aligned and not (name.startswith("input") and any(n.startswith("decoder") for n in named)):
        gaps = gaps[real]
    gap = (gaps.max() / a.abs().max()).item()
    return gap if math.isfinite(gap) else None


def _chooses_place(checked: CheckedModel) -> bool:
    """Whether a model pools at a place that its ids say, as the last that is no padding or the largest id."""
    trace = checked.trace
    chosen = any(bare(o) in ("argmax", "max") and not trace[o.reads[0]].is_floating_point() for o in trace.operations)
    return chosen or "SequenceClassification" in type(checked.model).__name__

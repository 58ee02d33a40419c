"""Rules about what reaches what: the future, the padding, the source."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from isograd.errors import many
from isograd.lint.attention.masks import SHORTEST, in_chunks, is_prefix, seen_by
from isograd.lint.attention.measured import MeasuredAttention
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.intent import declares_both, declares_causal
from isograd.lint.norms import STATISTICS
from isograd.lint.padding import MOVED, POSITIONS, UNKNOWN, fewer_of, paddings, reason
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import NORMS, bare
from isograd.trace.inputs import run
from isograd.trace.record import Operation, answer, fitted, plain_operations, record, stand_in

LOPSIDED = 0.75  # of what is read of the past: more of the future is a view to both sides
PLACED = 1e-3  # of the largest output: more than other sums in a batch do
CHANGED = 1e-5  # of the largest output: more than another order of rounding does


@rule(Phase.DATA, "batch-leaks", hides=(Phase.MASKS, Phase.POSITIONS, Phase.DATA, "gradient-zero", "gradient-cut"))
def batch(checked: CheckedModel) -> Iterator[Finding]:
    """Outputs of one sequence that depend on another of the batch."""
    if (stale := _stale(checked)) is not None:
        yield stale
        return
    named, base = _named(checked), _run(checked, checked.inputs)
    tensors = {n: v for n, v in named.items() if isinstance(v, Tensor) and v.ndim}
    place = _sequence(checked) or next(iter(tensors), None)
    if place is None or base is None or _positions_first(checked):
        return
    x, count = named[place], len(named[place])
    if x.ndim < 2 or count < 2 or base.shape[:1] != (count,):
        return
    first = {n: v[:1].expand_as(v).clone() for n, v in tensors.items() if len(v) == count}
    alike = _run(checked, _given(checked, named | first))
    inputs = [
        n for n in first if n == place or (named[n].ndim > 1 and not _is_label(n) and named[n].dtype != torch.bool)
    ]
    moved = {
        n: _run(checked, _given(checked, named | {n: _first_changed(checked, named[n], n == place)})) for n in inputs
    }
    gaps = {
        n: ((y - base)[1:].abs().max() / base.abs().max()).item()
        for n, y in moved.items()
        if y is not None and y.shape == base.shape
    }
    if place not in gaps:
        return
    pairs = base.shape == (count, count)  # each text and image, as CLIP's
    beside = [n for n in first if "mask" not in n]
    by_place = 0.0
    drawn = "random-in-eval" in checked.reported  # each row has its own random numbers
    if alike is not None and alike.is_floating_point() and alike.shape[:1] == (count,) and not (pairs or drawn):
        by_place = ((alike - alike[:1]).abs().max() / alike.abs().max().clamp_min(1e-30)).item()
    most = max(gaps, key=lambda n: gaps[n])
    gap = 0.0 if pairs and len(beside) > 1 else gaps[most]
    if by_place > PLACED:
        mixes = _first_mixing(checked, _given(checked, named | first), count, alike=True)
        yield Finding(
            address=mixes.module if mixes else next(iter(first)),
            at=mixes.makes[0] if mixes else None,
            measured=by_place,
            message=f"{count} equal sequences in one batch give outputs that differ by {by_place:.2g} of the largest:"
            " something is added by the place in the batch, as positions indexed by x.size(0) of (batch, time) are",
            remedy="index positions by the axis of time: pe[: x.size(1)] of (batch, time, d)",
        )
    elif gap > CHANGED:
        cause, remedy = (
            "",
            "attend along positions: batch_first=True in torch.nn's layers, or x.transpose(0, 1) around them",
        )
        norm = None
        if (found := _across(checked, 0, count)) is not None:
            norm, cause = found
            remedy = "normalize each sequence by itself, as F.layer_norm(x, x.shape[1:]) or x.mean(-1, keepdim=True) do"
        other = _given(checked, named | {most: _first_changed(checked, named[most], most == place)})
        mixes = _first_mixing(checked, other, count) if norm is None else norm
        if mixes is not None and norm is None:
            cause = f": {bare(mixes)} mixes them, of {tuple(checked.trace[mixes.reads[0]].shape)}"
        yield Finding(
            address=_first_across(checked, count) or most if mixes is None else mixes.module,
            measured=gap,
            message=f"outputs of one sequence change by {gap:.2g} of the largest with another one of the batch{cause}",
            remedy=remedy,
            at=None if mixes is None else mixes.makes[0],
        )


def _first_mixing(checked: CheckedModel, inputs: Any, count: int, alike: bool = False) -> Operation | None:
    """The first operation that gives other sequences something else where the first one alone is another, and reads the
    same of them; of `alike` inputs, all whose sequences are equal, the first that gives unequal ones.
    """
    trace = checked.trace
    if trace.itself:
        return None
    changed = record(checked.model, inputs)

    def moved(value: int) -> bool:
        a, b = trace[value], changed[value]
        if a.shape != b.shape or not a.ndim or len(a) % count or not a.is_floating_point():
            return False
        rest = len(a) // count  # positions may be joined to the sequences
        gap = (b[rest:] - b[:-rest] if alike else a - b)[0 if alike else rest :].abs()
        return bool((gap > CHANGED * a.abs().max()).any())

    for a, b in zip(trace.operations, changed.operations, strict=False):
        if a.name != b.name or a.makes != b.makes or a.reads != b.reads:
            return None
        of = [v for v in a.reads if v in checked.dataflow.live] if alike else a.reads
        if a.makes and of and moved(a.makes[0]) and not any(moved(v) for v in of):
            return a
    return None


def _across(checked: CheckedModel, axis: int, size: int) -> tuple[Operation, str] | None:
    """The first norm, mean or variance along an axis that should stay apart, by which other entries of the outputs
    change; and what it takes together.
    """
    trace = checked.trace
    outputs = [v for v in trace.outputs.values() if trace[v].is_floating_point() and trace[v].ndim > axis]
    outputs = [v for v in outputs if trace[v].shape[axis] == size]
    for operation in (o for o in trace.operations if bare(o) in STATISTICS | NORMS and checked.dataflow.data(o)):
        read, made = (trace[v] for v in (operation.reads[0], operation.makes[0]))
        if read.ndim < 2 or read.ndim <= axis or read.shape[axis] != size:
            continue
        if made.shape != read.shape and made.shape[axis : axis + 1] == (size,):  # one for each
            continue
        other = read.clone()
        other.select(axis, -1).mul_(2).add_(1)
        result = trace.replay({operation.reads[0]: other}, [operation.makes[0]])[0].clone()
        if result.shape == other.shape:
            result.select(axis, -1).copy_(made.select(axis, -1))  # what others become, and not the entry itself
        moved = zip(trace.replay({operation.makes[0]: result}, outputs), (trace[v] for v in outputs), strict=True)
        if any((x - y).narrow(axis, 0, size - 1).abs().max() > CHANGED * y.abs().max() for x, y in moved):
            what = "the sequences" if axis == 0 else "the positions"
            return (
                operation,
                f": {bare(operation)} takes its statistics of {tuple(read.shape)} over axis {axis}, {what}",
            )
    return None


def _stale(checked: CheckedModel) -> Finding | None:
    """Where outputs, in eval mode, change with the inputs of the call before, and not where these were the same: what
    that call had computed is used again. A state that goes on changes with every call, and is none.
    """
    if checked.large or checked.trace.itself or "random-in-eval" in checked.reported:
        return None
    named = _named(checked)
    tensors = {n: v for n, v in named.items() if isinstance(v, Tensor) and v.ndim}
    count = next((len(v) for v in tensors.values()), 0)
    rolled = named | {n: v.roll(1, 0) for n, v in tensors.items() if len(v) == count}  # the same, in another order
    fresh, used = stand_in(checked.model), stand_in(checked.model)
    calls = ((fresh, checked.inputs), (fresh, checked.inputs), (used, _given(checked, rolled)), (used, checked.inputs))
    base, same, _, after = (answer(run(twin, fitted(twin, one))) for twin, one in calls)
    if base is None or same is None or after is None or not base.shape == same.shape == after.shape:
        return None
    gap, still = ((y - base).abs().max() / base.abs().max() for y in (after, same))
    if not gap > CHANGED or not still <= CHANGED:
        return None
    kept = _kept(used) - _kept(checked.model)
    return Finding(
        address=min(kept, default=""),
        measured=gap.item(),
        message=f"the outputs change by {gap:.2g} of the largest where the call before had another batch, and not where"
        f" it had the same: what it computed is used again (kept in {many(len(kept), 'place')})",
        remedy="compute it for each input, or compare the inputs themselves before it is used, not a shape or a flag",
    )


def _kept(model: nn.Module) -> set[str]:
    """Where modules hold tensors, alone or in containers, beside parameters and buffers."""
    held = ((f"{at}.{n}".lstrip("."), tree_leaves(p)) for at, m in model.named_modules() for n, p in vars(m).items())
    return {at for at, parts in held if "._" not in f".{at}" and any(isinstance(part, Tensor) for part in parts)}


def _first_changed(checked: CheckedModel, x: Tensor, sole: bool) -> Tensor:
    """Another first sequence, the others as they were; of other ids the second's, which are known to do."""
    other = x.clone()
    other[0] = _others(checked, x)[0] if x.is_floating_point() or sole else x[1]
    return other


def _positions_first(checked: CheckedModel) -> bool:
    """Whether positions stand on axis 0, as in (time, batch) ids: absolute ones then differ along it; or in patches of
    one picture after another.
    """
    if checked.anatomy.stacks and all(checked.trace[s.first].ndim == 2 for s in checked.anatomy.stacks):
        return True
    if any("grid" in name for name in checked.trace.inputs):
        return True
    by_places = checked.places_vary == 0 and checked.rows_of_outputs != 0
    return by_places and not any(stack.time == 1 for stack in checked.anatomy.stacks)


def _first_across(checked: CheckedModel, batch_size: int) -> str | None:
    """The first sublayer in which one sequence moves another, of streams that have the batch in front."""
    for sublayer in checked.anatomy.distinct:
        shape = checked.trace[sublayer.read].shape
        if len(shape) != 3 or shape[0] != batch_size or shape[1] == batch_size:
            continue
        moved = checked.dataflow.moved_at(sublayer.read, sublayer.total, 0, 0)
        if moved is not None and moved[1:].any():
            return sublayer.address
    return None


@rule(Phase.MASKS, "future-leaks", "last-position-only", "bidirectional-logits")
def future(checked: CheckedModel) -> Iterator[Finding]:
    """A model that reads to the left, but not only; or one that is meant to and does not."""
    yield from _last_only(checked)
    if "future-leaks" in checked.reported:  # by an attention
        return
    place = _sequence(checked)
    reach = None if place is None else _reach(checked, place)
    if place is None or reach is None:
        return
    if any(_is_read_to_the_left(checked, other) for other in _aligned(checked) if other != place):
        return  # of a source as long as the target, the target is what is predicted
    shown = (reach & ~torch.eye(len(reach), dtype=torch.bool)).any(0)  # what stands in the padding moves nothing else
    reach = reach[shown][:, shown]
    if len(reach) < SHORTEST or is_prefix(reach) or in_chunks(reach):
        return
    length = len(reach)
    ahead = torch.triu(reach, diagonal=1)
    back = torch.tril(reach, diagonal=-1)
    read, possible = int(ahead.sum()), length * (length - 1) // 2
    partly = 0 < read < min(0.5 * possible, LOPSIDED * int(back.sum()))  # a window sees as much ahead as behind
    causal = [s for a in checked.attentions if (s := seen_by(a)) is not None]
    masked = causal and all(s.view in ("left", "itself") for s in causal) and checked.logits is not None
    if not partly and not (read and (masked or declares_causal(checked))):
        writes = checked.logits is not None and checked.trace[checked.logits].shape[-1] in checked.vocabularies
        if not 2 * read > possible or not writes or checked.config is not None or declares_both(checked):
            return
        if not _is_lopsided(checked):
            yield _both_ways(place, read / possible)
            return
    reader, source = (int(i) for i in ahead.nonzero()[0])
    where = _first_ahead(checked)
    norm = _across(checked, 1, length) if where else None
    beside = f", though not by its attention{norm[1] if norm else f'; first in {where}'}" if where else ""
    yield Finding(
        code="future-leaks",
        address=norm[0].module if norm else where or place,
        at=norm[0].makes[0] if norm else None,
        measured=read / possible,
        message=f"the output at position {reader} changes with the input at position {source}: it depends on"
        f" {read} of {possible} later positions{beside}",
        remedy="let nothing but a masked attention mix positions: pad a convolution on the left only, and normalize"
        " each position by itself"
        if where
        else "mask scores where the key is after the query (triu with diagonal=1), and pass the attention"
        " is_causal=True or the mask",
    )


def _both_ways(place: str, measured: float) -> Finding:
    return Finding(
        code="bidirectional-logits",
        severity="info",
        address=place,
        measured=measured,
        message="each position attends to later ones, as in BERT: right for predicting masked tokens, wrong"
        " for predicting the next token",
        remedy="to predict the next token, pass is_causal=True to scaled_dot_product_attention, or a causal mask",
    )


def _first_ahead(checked: CheckedModel) -> str | None:
    """The first sublayer in which a later position moves an earlier one, where its attention does not."""
    for stack in checked.anatomy.stacks:
        for sublayer in stack.sublayers:
            moved = (
                None if stack.time is None else checked.dataflow.moved_at(sublayer.read, sublayer.total, stack.time, -1)
            )
            if moved is not None and moved[:-1].any():
                return sublayer.address
    return None


def _is_lopsided(checked: CheckedModel) -> bool:
    """Whether a sublayer reads all of the past and little of the future, as a recurrence after a wide convolution."""
    for stack in checked.anatomy.stacks:
        for one in stack.sublayers if stack.time is not None else ():
            first, last = (checked.dataflow.moved_at(one.read, one.total, stack.time or 0, at) for at in (0, -1))
            if first is not None and last is not None and first.all() and 0 < int(last[:-1].sum()) <= len(last) / 3:
                return True
    return False


def _last_only(checked: CheckedModel) -> Iterator[Finding]:
    """A next-token model that gives the logits of one position only."""
    ids = next((v for v in _named(checked).values() if isinstance(v, Tensor) and not v.is_floating_point()), None)
    if checked.logits is None or ids is None or ids.ndim != 2 or ids.shape[1] < 4 or checked.head is None:
        return
    logits = checked.trace[checked.logits]
    one = logits.ndim == 2 or (logits.ndim == 3 and logits.shape[1] == 1)
    if (
        one
        and logits.shape[0] == ids.shape[0]
        and logits.shape[-1] in checked.vocabularies
        and declares_causal(checked)
    ):
        yield Finding(
            code="last-position-only",
            severity="warning",
            address=checked.head,
            measured=float(logits.ndim == 3),
            message=f"the output has the logits of one position, of {ids.shape[1]} in the input: a loss on it"
            " learns from one prediction per sequence",
            remedy="return self.head(x) for all positions in training, and x[:, [-1]] in generation only",
        )


@rule(Phase.DATA, "padding-leaks")
def padding(checked: CheckedModel) -> Iterator[Finding]:
    """Outputs at real positions that change with the amount of padding that the batch has; or with what stands where
    a mask that forward takes by a known name says padding.
    """
    named = _named(checked)
    asked, found = _with_less(checked, named)
    base = _run(checked, checked.inputs)
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
    wide, cut = (_given(checked, {n: of(x) for n, x in named.items()}) for of in (fewer.wide, fewer.cut))
    try:
        with plain_operations():  # torch.nn's fused encoder layer reads a mask of floats otherwise than in training
            a, b, again = _run(checked, wide), _run(checked, cut), checked.run(wide, seed=1)[0]
    except Exception:  # a length that is fixed
        return False, None
    gap = None if a is None or b is None else fewer.gap(a, b)
    if a is None or gap is None or again is None or not torch.equal(_turned(checked, again), a):
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


def _is_label(name: str) -> bool:
    return name == "y" or name.startswith(("label", "target", "answer", "truth"))


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
        a, b = (_run(checked, _given(checked, named | {name: part})) for part in (x, other))
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


@rule(Phase.DATA, "encoder-unused", hides=(Phase.MASKS, "norm-bypassed", "parameter-unused", "gradient-cut"))
def source(checked: CheckedModel) -> Iterator[Finding]:
    """An input that neither output nor loss depends on: an encoder that the decoder ignores."""
    named = _named(checked)
    sequences = [n for n, v in named.items() if isinstance(v, Tensor) and v.ndim >= 2 and "mask" not in n]
    sequences = [n for n in sequences if not n.startswith(("labels", "position", "token_type"))]
    sequences = [n for n in sequences if named[n].dtype != torch.bool]  # a mask by another name
    if len(sequences) < 2:
        return
    base = _outputs(checked, checked.inputs)
    if any(s.scale.value == 0 for s in checked.anatomy.sublayers) and checked.reaching.issuperset(
        checked.trace.inputs.values()
    ):  # gates that begin at zero let nothing in yet
        return
    for name in sequences:
        try:
            each = [_outputs(checked, _given(checked, named | {name: x})) for x in _different(checked, named[name])]
        except Exception:  # numbers that must be those, as the sizes of a grid
            continue
        if not base or any([t.shape for t in moved] != [t.shape for t in base] for moved in each):
            continue
        pairs = [pair for moved in each for pair in zip(moved, base, strict=True)]
        gap = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
        if gap <= CHANGED and _is_weighed(checked, name):
            yield Finding(
                address=name,
                measured=gap,
                message=f"another {name} leaves every output as it is: matrices are applied to it, and nothing reads"
                " what they make",
                remedy="give the decoder's cross-attention the encoder's output as keys and values",
            )


def _different(checked: CheckedModel, x: Tensor) -> list[Tensor]:
    """Other values; of ids also such as are equal elsewhere, for a model may ask only which are."""
    if x.is_floating_point() or x.ndim < 2:
        return [_others(checked, x)]
    counted = torch.arange(x.shape[1]).view(1, -1, *[1] * (x.ndim - 2)).expand_as(x) % (x.max() + 1)
    return [_others(checked, x), x.roll(x.shape[1] // 2, 1), counted.to(x)]


def _is_weighed(checked: CheckedModel, name: str) -> bool:
    """Whether a matrix, or a table, is applied to an input or what was made of it."""
    given = [v for at, v in checked.trace.inputs.items() if at.partition(".")[0] in (name, _number(checked, name))]
    below = checked.trace.below(given)
    applied = [o for o in (*checked.trace.operations,) if checked.dataflow.is_product(o)] + checked.dataflow.lookups
    return any(not below.isdisjoint(o.reads) for o in applied)


def _number(checked: CheckedModel, name: str) -> str:
    """The place of an input among those that stand in order."""
    names = list(inspect.signature(checked.model.forward).parameters)
    return str(names.index(name)) if name in names else name


def _outputs(checked: CheckedModel, inputs: Any) -> list[Tensor]:
    return [t for t in checked.outputs(inputs) if t.is_floating_point() and t.numel()]


def _reach(checked: CheckedModel, name: str) -> Tensor | None:
    """(output position, input position) -> whether the one changes with the other."""
    named = _named(checked)
    x = named[name][:1]
    time = x.shape[1]
    rows = x.repeat(time + 1, *[1] * (x.ndim - 1))
    other = _others(checked, x)
    for t in range(time):
        rows[t + 1, t] = other[0, t]
    fixed = {key: _repeated(value, named[name], time + 1) for key, value in named.items()}
    out = _run(checked, _given(checked, fixed | {name: rows}))
    if out is None or out.ndim < 3 or out.shape[:2] != (time + 1, time):
        return None
    gaps = (out[1:] - out[:1]).abs().flatten(2).amax(-1)  # (input position, output position)
    return (gaps > CHANGED * out.abs().max()).T


def _aligned(checked: CheckedModel) -> list[str]:
    """Inputs of as many positions as the output."""
    out = _run(checked, checked.inputs)
    if out is None or out.ndim < 3:
        return []
    named = _named(checked)
    found = [n for n, v in named.items() if isinstance(v, Tensor) and v.ndim >= 2 and v.shape[:2] == out.shape[:2]]
    return [n for n in found if "mask" not in n]


def _is_read_to_the_left(checked: CheckedModel, name: str) -> bool:
    reach = _reach(checked, name)
    return reach is not None and bool(reach.tril(-1).any()) and not bool(reach.triu(1).any())


def _sequence(checked: CheckedModel) -> str | None:
    """The input whose positions are the output's: the decoder's, else the first sequence where there is one stack."""
    found = _aligned(checked)
    both = getattr(checked.config, "is_encoder_decoder", False)  # without decoder ids it makes them of the encoder's
    first = found[0] if found and not both else None
    return next((n for n in found if n.startswith(("decoder", "tgt"))), first)


def _masked_inputs(checked: CheckedModel) -> Iterator[tuple[str, str]]:
    """(mask, the sequence that it belongs to), of masks that were given or could be; of a causal model those given,
    since padding is the future of what stands before it.
    """
    named, parameters = _named(checked), inspect.signature(checked.model.forward).parameters
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


def _others(checked: CheckedModel, x: Tensor) -> Tensor:
    """Something else of the same kind everywhere; special ids stay, since models look for them."""
    draw = torch.Generator().manual_seed(7)
    if x.dtype == torch.bool:
        return ~x
    if x.is_floating_point():
        return x + torch.randn(x.shape, generator=draw).to(x) * (x.std() if x.numel() > 1 else x.abs()).clamp_min(1.0)
    ids = (getattr(checked.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep", "cls"))
    special = torch.tensor([i for i in ids if isinstance(i, int)], dtype=x.dtype, device=x.device)
    used = torch.unique(x)
    special = torch.cat([special, _repeated_at_ends(x)])
    used = used[~torch.isin(used, special)]
    if len(used) < 2:
        return x + 1
    next_one = used[(torch.searchsorted(used, x.contiguous()) + 1) % len(used)]
    return torch.where(torch.isin(x, special), x, next_one)


def _repeated_at_ends(ids: Tensor) -> Tensor:
    """Ids that fill the first or the last places of some sequences and not of all: padding."""
    if ids.ndim != 2 or ids.shape[1] < 4:
        return ids.new_empty(0)
    ends = [row[at] for row in ids for at, beside in ((0, 1), (-1, -2)) if row[at] == row[beside]]
    return torch.stack(ends) if 0 < len(ends) < 2 * len(ids) else ids.new_empty(0)


def _repeated(value: Any, like: Tensor, times: int) -> Any:
    """The first of a batch, as often as asked; what has no batch stays."""
    if not isinstance(value, Tensor) or value.ndim < 1 or value.shape[0] != like.shape[0]:
        return value
    return value[:1].repeat(times, *[1] * (value.ndim - 1))  # in memory of its own: models take views of it


def _named(checked: CheckedModel) -> dict[str, Any]:
    """Inputs by the names that forward has for them, the batch in front."""
    inputs = checked.inputs
    if not isinstance(inputs, dict):
        names = [*inspect.signature(checked.model.forward).parameters]
        names += [str(i) for i in range(len(names), len(inputs))]
        inputs = dict(zip(names, inputs, strict=False))
    return {name: _turned(checked, part) for name, part in inputs.items()}


def _given(checked: CheckedModel, named: dict[str, Any]) -> Any:
    """Named inputs as the model was given them."""
    turned = {name: _turned(checked, part) for name, part in named.items()}
    more = isinstance(checked.inputs, dict) or len(turned) > len(checked.inputs)  # by name alone
    return turned if more else tuple(turned.values())


def _run(checked: CheckedModel, inputs: Any) -> Tensor | None:
    made = checked.run(inputs)[0]
    return _turned(checked, made) if made is not None and made.ndim >= 3 else made


def _turned(checked: CheckedModel, part: Any) -> Any:
    """Sequences of a model that has time in front, with the batch there, and the other way round."""
    sequences = isinstance(part, Tensor) and part.ndim >= (2 if checked.named_time_first else 3)
    vectors = sequences and (checked.named_time_first or (part.ndim == 3 and part.is_floating_point()))
    return part.transpose(0, 1) if vectors and checked.time_first else part

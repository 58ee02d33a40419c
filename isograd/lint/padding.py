"""Where rows of a batch are filled up to one length, and the same rows with less of it: nothing real may change.

fewer = fewer_of(paddings(batch, is_padding), 1)
fewer.gap(model(fewer.wide(x)), model(fewer.cut(x)))
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isograd.lint.attention.masks import SHORTEST
from isograd.trace.attention import FUSED
from isograd.trace.dataflow import bare
from isograd.trace.record import Operation, Trace

MOVED = 1e-4  # of the largest: more than sums of another length do
RARE = 0.25  # of real positions that may hold what fills rows up, as the end of short texts
SCORES = 12  # operations before a softmax, among which its mask is added


class Padding(NamedTuple):
    """Of all sequences of one length (rows, time): where one goes on, where all do; whether padding is on the left."""

    kept: Tensor
    real: Tensor
    left: bool


@dataclass(frozen=True)
class Fewer:
    """Some rows with less padding: `pads` by length, numbers of rows, and length -> what is left of it."""

    pads: dict[int, Padding]
    rows: Tensor
    widths: dict[int, int]

    @property
    def taken(self) -> str:
        """How many positions at most, and on which side."""
        most = max(self.widths, key=lambda time: time - self.widths[time])
        return f"{most - self.widths[most]} positions more on the {'left' if self.pads[most].left else 'right'}"

    def wide(self, x: Any) -> Any:
        """These rows as they are."""
        whole = isinstance(x, Tensor) and x.ndim and len(x) == len(next(iter(self.pads.values())).kept)
        return x[self.rows.to(x.device)] if whole else x

    def cut(self, x: Any) -> Any:
        """These rows with less padding."""
        few = self.wide(x)
        for axis in range(int(few is not x), few.ndim if isinstance(few, Tensor) else 0):
            if (width := self.widths.get(time := few.shape[axis])) is not None:
                few = few.narrow(axis, time - width if self.pads[time].left else 0, width)
        return few

    def gap(self, wide: Tensor, cut: Tensor) -> float | None:
        """The largest change at positions that are real in all these rows, of the largest number there; None where
        they have other axes, or are neither numbers nor masks.
        """
        if not (wide.is_floating_point() or wide.dtype == torch.bool) or wide.ndim != cut.ndim or not cut.numel():
            return None
        a, b = wide.detach(), cut.detach()
        for axis, (long, short) in enumerate(zip(wide.shape, cut.shape, strict=True)):
            times = [time for time, width in self.widths.items() if time - width == long - short > 0]
            if times:
                pad = self.pads[min(times, key=lambda time: abs(time - long))]
                count = min(short, int(pad.real[self.rows].sum(1).min()))
                a, b = (x.narrow(axis, x.shape[axis] - count if pad.left else 0, count) for x in (a, b))
        if a.shape != b.shape:
            return None
        a, b = (x.float().nan_to_num(0.0, 0.0, 0.0).clamp(-1e9, 1e9) for x in (a, b))  # of masks
        return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))

    def moves(self, wide: Tensor, cut: Tensor) -> bool:
        return (self.gap(wide, cut) or 0.0) > MOVED


def fewer_of(pads: dict[int, Padding], count: int, left: int = 0) -> Fewer | None:
    """The shortest rows, of those that are long enough to be asked, with so much padding `left`."""
    if not pads:
        return None
    asked = torch.stack([pad.real.sum(1) >= SHORTEST for pad in pads.values()]).all(0).nonzero().flatten()
    length = torch.stack([pad.kept.sum(1) for pad in pads.values()]).sum(0)
    rows = asked[length[asked].argsort(stable=True)][:count]
    widths = {time: min(time, int(pad.kept[rows].any(0).sum()) + left) for time, pad in pads.items()}
    return Fewer(pads, rows, widths) if len(rows) == count and any(w < t for t, w in widths.items()) else None


def paddings(leaves: dict[str, Tensor], is_padding: Callable[[int], bool] = lambda _: True) -> dict[int, Padding]:
    """Length -> where rows of that length are filled up, as masks, lengths, or an id at their ends say; empty where
    nothing does, or where something beside it does not end there.

    Args:
        is_padding: whether more than the ends of rows is to say that an id is padding, and does.
    """
    found: dict[int, Padding] = {}
    for x in leaves.values():
        places = [way for way in _real_places(x, leaves) if _fills(x, leaves, way[0])]
        if not places and (filler := filler_of(x, [*leaves.values()])) is not None and is_padding(filler):
            tail = (x == filler).flip(1).cumprod(1).flip(1).bool()
            if not _ends_apart(x, filler):  # the first one may be the end of the text
                tail = tail & torch.cat([tail[:, :1], x[:, :-1] == filler], 1)
            places = [(~tail, False)]
        for real, left in places[:1]:
            real = real.cpu()
            other = found.get(real.shape[1], Padding(real, real, left))
            if other.left != left or other.real.shape != real.shape:
                return {}
            found[real.shape[1]] = Padding(other.kept | real, other.real & real, left)
    counts = {len(pad.kept) for pad in found.values()}
    clear = all(_one_value(z, pad.kept) is not None for pad in found.values() for z in _along(leaves, pad.kept))
    return found if clear and len(counts) == 1 and not counts & found.keys() else {}


def _real_places(x: Tensor, leaves: dict[str, Tensor]) -> Iterator[tuple[Tensor, bool]]:
    """(sequences, positions), True where there is no padding, and whether that stands on the left: of a mask whose rows
    change once, at different places, or of lengths.
    """
    if x.ndim == 1 and not x.is_floating_point() and x.dtype != torch.bool and len(x.unique()) > 1 <= x.min():
        if any(t.shape[:2] == (len(x), x.max()) for t in leaves.values()):
            yield torch.arange(int(x.max()), device=x.device) < x[:, None], False
    elif x.ndim == 2 and len(x) > 1 and x.shape[1] >= SHORTEST and len(x.unique()) == 2:
        for left in (False, True):
            first = (y := x.flip(1) if left else x) == y[:, :1]
            once = bool(((first[:, 1:] != first[:, :-1]).sum(1) <= 1).all()) and bool((y[:, 0] == y[0, 0]).all())
            if once and len(first.sum(1).unique()) > 1:
                yield first.flip(1) if left else first, left


def _fills(x: Tensor, leaves: dict[str, Tensor], real: Tensor) -> bool:
    """Whether something beside a mask has one value where it says padding, and seldom elsewhere."""
    beside = [*_along({n: z for n, z in leaves.items() if z is not x}, real)]
    filled = [z[real] == value for z in beside if (value := _one_value(z, real)) is not None]
    return any(float(same.reshape(len(same), -1).all(1).float().mean()) <= RARE for same in filled)


def _along(leaves: dict[str, Tensor], real: Tensor) -> Iterator[Tensor]:
    """What a batch has of each position, but for masks and positions."""
    for name, x in leaves.items():
        if x.ndim > 1 and len(x) == len(real) and "mask" not in name and "pos" not in name:
            axes = [axis for axis in range(1, x.ndim) if x.shape[axis] == real.shape[1]]
            yield from (x.movedim(axis, 1) for axis in axes if len(x.unique()) > 2)


def _one_value(x: Tensor, real: Tensor) -> Tensor | None:
    """What stands at all positions that are not real; None where that differs."""
    rest = x[~real.to(x.device)]
    return rest[0] if len(rest) and bool((rest == rest[0]).all()) else None


def filler_of(ids: Tensor, leaves: list[Tensor]) -> int | None:
    """The id that fills the ends of rows, of different lengths, in a matrix of ids."""
    if ids.is_floating_point() or ids.ndim != 2 or ids.shape[1] < 4 or len(ids) < 2 or ids.dtype == torch.bool:
        return None
    last = Counter(ids[:, -1].tolist()).most_common(1)[0]
    tails = [int((row == last[0]).flip(0).cumprod(0).sum()) for row in ids]
    long = [t for t in tails if t > 1]
    if len(long) >= max(2, len(ids) / 4) and len(set(tails)) > 1 and max(tails) < ids.shape[1] and last[0] >= 0:
        inside = sum(int((row[: len(row) - t] == last[0]).sum()) for row, t in zip(ids, tails, strict=True))
        ends = torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] - torch.tensor(tails).to(ids)[:, None]
        if inside <= 0.1 * sum(tails) and _filled_beside(ids, ends, leaves):
            return int(last[0])
    return None


def _filled_beside(ids: Tensor, ends: Tensor, leaves: list[Tensor]) -> bool:
    """Whether what else the batch has of each position is one value there, too: else rows end in a class by chance."""
    beside = [x for x in leaves if x is not ids and x.shape[:2] == ids.shape and bool((x != x[:1]).any())]
    return not beside or any(bool((x[ends] == x[ends][0]).all()) for x in beside)


def _ends_apart(ids: Tensor, filler: int) -> bool:
    """Whether texts end in an id of their own before they are filled up."""
    ends = {int(row[row != filler][-1]) for row in ids if bool((row == filler).any()) and bool((row != filler).any())}
    return len(ends) == 1 and len(ids) > 3


POSITIONS = "positions count the padding"
ATTENTION = (
    "an attention reads padded keys",
    'hide them after all else that changes the mask: scores.masked_fill(padding[:, None, None], float("-inf"));'
    " key_padding_mask of nn.MultiheadAttention is True at padding, attn_mask of F.scaled_dot_product_attention False",
)
REASONS = {  # names of operations -> what they do with padding, and what to do instead
    "softmax": ATTENTION,
    "add cat or and bitwise_or bitwise_and where masked_fill": (
        POSITIONS,
        "count them by the mask, (mask.cumsum(1) - 1).clamp(min=0), unless all batches ever will be of this length",
    ),
    "select slice index gather index_select": (
        "the output is read at a padded position",
        "read it at a real token: the first or the last one of the mask",
    ),
    "layer_norm group_norm batch_norm rms_norm var var_mean std mean sum max amax cumsum": (
        "a norm, mean or sum over positions takes padded ones in",
        "leave them out, (x * real).sum(1) / real.sum(1), or normalize each position by itself",
    ),
    "conv": (
        "a convolution reads padded positions",
        "set them to 0 before: x.masked_fill(padding[..., None], 0)",
    ),
}
ADDED = (
    "the mask is of floats 0 and 1, which are added to the scores: it hides nothing",
    "give the attention a mask of booleans, mask.bool(), or floats that are -inf where there is padding",
)
UNKNOWN = "padded positions are mixed into real ones", "leave them out wherever positions are mixed or counted"


def reason(a: Trace, b: Trace, fewer: Fewer) -> tuple[str, str, Operation | None]:
    """Of a pass with padding and one with less: the first operation that gives something else at real positions though
    it reads the same there, as (what it does, what to do instead, the operation).
    """
    live, counts = b.below(b.inputs.values()), b.above(b.outputs.values())
    for x, y in zip(a.operations, b.operations, strict=False):
        if x.name != y.name:
            break
        if not y.makes or y.makes[0] not in counts or not fewer.moves(a[x.makes[0]], b[y.makes[0]]):
            continue
        read = [*zip(x.reads, y.reads, strict=False)]
        read = read[2:3] if FUSED in y.name else read  # queries and keys may be turned by their place
        moved = [w for v, w in read if fewer.moves(a[v], b[w])]
        if live.isdisjoint(y.reads) or not live.isdisjoint(moved) or (moved and bare(y) in ("mul", "div")):
            continue
        return (*_words(a, x, bool(moved), fewer), x)
    return *UNKNOWN, None


def _words(trace: Trace, operation: Operation, placed: bool, fewer: Fewer) -> tuple[str, str]:
    name = "softmax" if FUSED in operation.name else bare(operation).strip("_").removeprefix("native_")
    found = next((words for names, words in REASONS.items() if {name, name[:4]} & {*names.split()}), UNKNOWN)
    at = trace.maker[operation.makes[0]]
    before = [o for o in trace.operations[max(0, at - SCORES) : at] if bare(o) in ("add", "baddbmm")]
    for mask in (trace[v] for o in [operation, *before] for v in o.reads if found is ATTENTION):
        if mask.is_floating_point() and mask.ndim > 1 and mask.shape[-1] in fewer.widths:
            found = ADDED if bool(((mask == 0) | (mask == 1)).all()) else found
    return UNKNOWN if found[0] == POSITIONS and not placed else found

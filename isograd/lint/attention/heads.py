"""How projections reach the scores: the split into heads, the groups of shared keys, and the scale."""

import math
from collections.abc import Iterator

import torch

from isograd.errors import many
from isograd.lint.attention.measured import MeasuredAttention
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Edit, times
from isograd.lint.rules import READ, Phase, rule
from isograd.trace.dataflow import bare

STEP = 1e-2  # of scores, to see what the softmax reads of them
NEAR = 0.05  # relative: two scales that are the same


@rule(Phase.HEADS, "heads-mixed", hides=(*READ, "axes-mixed"))
def split(checked: CheckedModel) -> Iterator[Finding]:
    """Heads that hold parts of several positions, as a view without a transpose makes them."""
    found = [(a, what) for a in checked.attentions if (what := _mixed(a)) is not None]
    if found:
        attention, what = found[0]
        yield Finding(
            address=attention.address,
            measured=float(len(found)),
            message=f"each head of the {what} mixes features of different positions: a view without a transpose"
            f" has swapped the axes of heads and positions ({many(len(found), 'attention')})",
            remedy="split with x.view(B, T, H, D).transpose(1, 2), not x.view(B, H, T, D); join with"
            " y.transpose(1, 2).reshape(B, T, H * D)",
            at=attention.query,
        )


def _mixed(attention: MeasuredAttention) -> str | None:
    """The side whose heads are mixed up, in words."""
    for name, value in (("queries", attention.query), ("keys", attention.key), ("values", attention.value)):
        product = attention.projection(value)
        if product is not None and _spreads(attention, product, value):
            return name
    return "mixture" if _joins_wrongly(attention) else None


def _spreads(attention: MeasuredAttention, product: int, value: int) -> bool:
    """Whether one position of the projection reaches some heads only, at several of their positions."""
    x, places = attention.trace[product], attention.places(value)
    if places is None or x.ndim != 3 or x.shape[1] != attention.trace[value].shape[places]:
        return False
    moved = attention.moved(product, value, 1)
    if moved is None:
        return False
    rows = moved.any(-1) if places == -2 else moved.transpose(places, -2).any(-1)
    rows = rows.reshape(-1, rows.shape[-1])  # (heads of all sequences, positions)
    return bool(not rows.any(-1).all() and rows.any(0).sum() > 1)


def _joins_wrongly(attention: MeasuredAttention) -> bool:
    """Whether what all heads mixed at one position comes to stand at several positions of the branch."""
    if attention.mixture is None or (places := attention.places(attention.mixture)) is None:
        return False
    end = _joined(attention, attention.mixture)
    result = attention.trace[end]
    time = attention.trace[attention.mixture].shape[places]
    axes = [d for d in (1, 0) if result.ndim == 3 and result.shape[d] == time and [*result.shape].count(time) == 1]
    moved = attention.moved(attention.mixture, end, places) if axes and time > 2 else None
    if moved is None:
        return False
    return min(int(moved.transpose(0, d).flatten(1).any(-1).sum()) for d in axes) > 1


def _joined(attention: MeasuredAttention, mixture: int) -> int:
    """What the first product makes of the joined heads; the branch, where none follows: after it a convolution may mix
    positions.
    """
    branch, dataflow = attention.sublayer.branch, attention.dataflow
    products = (o for o in dataflow.between(mixture, branch) if dataflow.is_product(o))
    return next((o.makes[0] for o in products if attention.trace[o.makes[0]].ndim >= 3), branch)


@rule(Phase.HEADS, "attention-scale", suspicions=True)
def scale(checked: CheckedModel) -> Iterator[Finding]:
    """Scores that are not divided by sqrt(width of a head)."""
    scales = [(a, factor) for a in checked.attentions if (factor := scale_of(a)) is not None]
    odd = [(a, factor, why) for a, factor in scales if (why := _mistake(checked, a, factor)) is not None]
    if odd:
        attention, factor, why = odd[0]
        width = attention.width
        yield Finding(
            severity="error" if factor * math.sqrt(width) > 1.5 else "warning",
            address=attention.address,
            measured=factor * math.sqrt(width),
            message=f"attention scores are q k^T times {factor:.3g}; heads of width {width} need 1/sqrt({width})"
            f" = {width**-0.5:.3g}: {why} ({many(len(odd), 'attention')})",
            remedy="divide q @ k.transpose(-2, -1) by math.sqrt(q.size(-1)), once, or leave it to"
            " F.scaled_dot_product_attention",
            edit=Edit(says="scores divided by sqrt(d)", values={a.query: times(a.width**-0.5 / f) for a, f, _ in odd}),
            at=attention.scores if attention.scores is not None else attention.operation.makes[0],
        )


BOUND = 1.5  # the largest score that lets an attention prefer one key of ten four times to all others


@rule(Phase.HEADS, "attention-flat")
def flat(checked: CheckedModel) -> Iterator[Finding]:
    """Scores that stay small whatever the queries and keys are, as where both have length 1 and nothing multiplies."""
    found = [(a, bound) for a in checked.attentions if (bound := _bound(a)) is not None and bound < BOUND]
    if found:
        attention, bound = found[0]
        yield Finding(
            address=attention.address,
            measured=bound,
            message=f"projections a thousand times as large give scores of {bound:.2g} at most: queries and keys are"
            " normalized and the scale is small, so that the weights stay nearly even"
            f" ({many(len(found), 'attention')})",
            remedy="multiply normalized queries and keys by a trained factor that begins near 10, or by sqrt(d) instead"
            " of dividing by it",
            at=attention.scores if attention.scores is not None else attention.operation.makes[0],
        )


def _bound(attention: MeasuredAttention) -> float | None:
    """The largest |score| where the projections of queries and keys are a thousand times as large; None where a
    trained number scales them, or where they are not the same then.
    """
    trace, dataflow, ends = attention.trace, attention.dataflow, (attention.query, attention.key)
    sides = [attention.projection(value) for value in ends]
    if any(side is None for side in sides) or (attention.scores is None and not attention.fused):
        return None
    ways = [*zip(sides, ends, strict=True), (attention.scores, attention.operation.reads[0])]
    trained = [o for start, end in ways if start is not None for o in dataflow.between(start, end)]
    if any(dataflow.weights(o) for o in trained):
        return None
    draw = torch.Generator().manual_seed(0)
    sizes = []
    for factor in (100.0, 1000.0):
        changes = {
            side: factor * torch.randn(trace[side].shape, generator=draw.manual_seed(0)).to(trace[side])
            for side in dict.fromkeys(sides)
            if side is not None
        }
        query, key = trace.replay(changes, [attention.query, attention.key])
        if attention.fused:
            scale = attention.given.get("scale")
            scale = scale if isinstance(scale, int | float) else query.shape[-1] ** -0.5
            sizes.append((query.norm(dim=-1).max() * key.norm(dim=-1).max() * scale).item())
        else:
            scores = trace.replay(changes, [attention.operation.reads[0]])[0]
            seen = scores[scores > -9e3]
            sizes.append(seen.abs().max().item() if seen.numel() else 0.0)
    return sizes[1] if sizes[0] and abs(sizes[1] / sizes[0] - 1) < NEAR else None


def scale_of(attention: MeasuredAttention) -> float | None:
    """The constant by which q.k is multiplied between the projections and the softmax; None where something learned or
    a norm stands between, or it is no constant.
    """
    if not (attention.fused or attention.softmax):
        return None
    factors: list[float | None] = []
    for value in (attention.query, attention.key):
        made = attention.projection(value)
        factors.append(None if made is None else _size(attention, made, value))
    factors.append(_of_scores(attention))
    if any(factor is None for factor in factors):
        return None
    return math.prod(factor for factor in factors if factor is not None) or None  # 0: scores of blocks, laid elsewhere


def _of_scores(attention: MeasuredAttention) -> float | None:
    """The factor on the product of queries and keys."""
    if attention.fused:
        own = attention.given.get("scale")
        return own if isinstance(own, int | float) else attention.trace[attention.query].shape[-1] ** -0.5
    if attention.scores is None:
        return None
    made, slope = attention.trace.made_by(attention.scores), _slope(attention, attention.scores)
    if slope is not None and made is not None and bare(made) == "baddbmm":
        return slope * float(made.kwargs.get("alpha", 1))
    return slope


def _size(attention: MeasuredAttention, start: int, end: int) -> float | None:
    """|end| over |start| for a vector: rotations keep it. None where a norm or a parameter stands between."""
    trace, dataflow = attention.trace, attention.dataflow
    if any(dataflow.weights(o) or (o.makes and o.makes[0] in dataflow.norms) for o in dataflow.between(start, end)):
        return None
    ones = torch.ones_like(trace[start])
    made, none = (trace.replay({start: x}, [end])[0].double() for x in (ones, torch.zeros_like(ones)))
    size = made.square().mean(-1).sqrt().median().item()
    return None if none.any() or not size else size


def _slope(attention: MeasuredAttention, scores: int) -> float | None:
    """d logits / d scores at 0, of the keys that are seen; None where it is not one number, or is learned."""
    trace, end = attention.trace, attention.operation.reads[0]
    if any(
        attention.dataflow.weights(o) and bare(o) in ("mul", "div") for o in attention.dataflow.between(scores, end)
    ):
        return None
    x = torch.zeros_like(trace[scores])
    even = torch.arange(x.shape[-1]) % 2 == 0
    low, high, half = (trace.replay({scores: y}, [end])[0].double() for y in (x, x + STEP, x + STEP * even))
    seen = (low > -9e3) & (high > -9e3)
    slopes = (high - low)[seen] / STEP
    if not slopes.numel():
        return None
    middle = slopes.median().item()
    if not slopes.any():  # the largest score is taken off, which a softmax does not see
        moved, sides = (half - low) / STEP, (seen & even, seen & ~even) if low.shape == x.shape else ()
        medians = [moved[side].median().item() for side in sides if side.any()]
        return medians[0] - medians[1] if len(medians) == 2 else None
    return middle if (slopes - middle).abs().median() <= 0.02 * abs(middle) else None


def _mistake(checked: CheckedModel, attention: MeasuredAttention, factor: float) -> str | None:
    """What went wrong, in words; None where the scale is right, or one that is in use."""
    width, stream = attention.width, checked.trace[attention.sublayer.read].shape[-1]
    legal = [width**-0.5, width**-0.5 / attention.sublayer.layer]  # GPT-2's scale by layer
    for name in ("attention_multiplier", "query_pre_attn_scalar"):
        number = checked.setting(name)
        legal += [float(number), float(number) ** -0.5] if number else []
    stretched = {getattr(m, name, None) for m in checked.model.modules() for name in ("attention_scaling", "mscale")}
    legal += [width**-0.5 * factor**2 for factor in stretched if isinstance(factor, float)]  # YaRN's, of q and of k
    if any(_near(factor, known) for known in legal):
        return None
    if _near(factor, 1 / width):
        halves = _near(_of_scores(attention) or 0.0, width**-0.5)
        return "it is divided by sqrt(d) twice" if halves else None  # once by d: muP
    if _near(factor, 1.0):
        return None if _folded(checked, attention) else "there is no scale"
    if _near(factor, stream**-0.5):
        return f"the width of the stream, {stream}, stands in place of a head's"
    if _near(factor, width**0.5):
        return "it is multiplied by sqrt(d), not divided"
    return f"{factor * math.sqrt(width):.3g} times as much"


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= NEAR * abs(b)


def _folded(checked: CheckedModel, attention: MeasuredAttention) -> bool:
    """Whether the init of the queries makes up for the scale, as in T5; nothing is known of trained ones."""
    query, key = attention.matrix(attention.query), attention.matrix(attention.key)
    if not checked.at_init:
        return True
    return query is not None and key is not None and checked.std(query) < 0.6 * checked.std(key)

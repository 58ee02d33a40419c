"""Whether the order of tokens counts, and what rotary positions turn."""

import re
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from isograd.errors import many
from isograd.lint.attention.masks import SHORTEST, seen_by
from isograd.lint.attention.measured import MeasuredAttention
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.intent import declares_causal
from isograd.lint.rules import Phase, rule
from isograd.trace.attention import MASKED
from isograd.trace.dataflow import LAYOUT, SCALING, SUMS, bare, different
from isograd.trace.record import Operation, anything

FEWEST = 8  # rows and columns of a picture
BLIND = 1e-3  # of what the attention adds: less is another order of sums
TURNED = 0.02  # of a cosine, or of a weight: more than its own rounding to 16 bits does
GROWN = 0.7  # of a logit, twice the weight
CHANGED = 1e-4  # relative: a difference that rounding does not make
SPEAKS = re.compile(
    r"(^|[._])(w?pe|pos(?!t|_weight)\w*|rope\w*|rotary\w*|freqs\w*|freq_(cis|cos|sin)|inv_freq|cos\w*|sin\w*|alibi\w*)([._]|$)",
    re.I,
)


OTHER = re.compile(r"cache|mem|mean|bias|mask", re.I)  # zeros that are filled as a model runs or is fitted
TABLE = re.compile(  # pos_embed, pe, positional_encoding.weight, cos_cached; no bias, mask, cache or mean
    r"(^|[._])(wpe|pe|pos(ition(s|al)?)?(_?(emb|enc)\w*)?|(cos|sin)(_cached)?|freqs_cis)(\.weight)?$", re.I
)


@rule(Phase.POSITIONS, "positions-missing", hides=("parameter-unused",))
def missing(checked: CheckedModel) -> Iterator[Finding]:
    """A model of tokens for which the order of the earlier ones does not count, though a part of it is about order."""
    stacks = {stack.name for stack in checked.token_stacks} if checked.takes_ids else None
    attentions = [a for a in checked.attentions if a.sublayer.kind == "attn"]
    attentions = [a for a in attentions if stacks is None or a.sublayer.stack in stacks]
    views = [seen.view for a in attentions if (seen := seen_by(a)) is not None]
    mixing = [s for s in checked.token_stacks for t in s.sublayers if t.kind == "mix"]  # recurrences tell the order
    blind = attentions and not mixing and checked.places_vary is None and all(_blind(checked, a) for a in attentions)
    if attentions and (empty := _empty(checked)) is not None:
        yield Finding(
            address=empty,
            measured=float(len(attentions)),
            message=f"{empty} is all zeros and is not trained: every position gets the same; it was never filled,"
            " or was built on the meta device",
            remedy="fill it, again after to_empty() and load_state_dict, or store it: register_buffer(persistent=True)",
        )
        return
    if not blind:
        return
    unused = _unused(checked)
    causal = all(view == "left" for view in views) if views else declares_causal(checked) is not None
    if unused is None and (not _can_vary(checked) or causal):
        return  # a causal model can do without positions
    if not checked.takes_ids and (unused is None or unused[0] not in checked.parameters):
        return
    pooled = not checked.anatomy.stacks or checked.logits is None or checked.trace[checked.logits].ndim < 3
    yield Finding(
        severity="info" if pooled and unused is None and not checked.intents.says("ordered") else "error",
        address=unused[0] if unused else "",
        measured=float(len(attentions)),
        message="the order of the tokens does not count: no attention changes when earlier tokens change places, and"
        " equal tokens have equal vectors" + (f"; {unused[1]}" if unused else ""),
        remedy="x = tokens(ids) + positions(torch.arange(T)), or rotate queries and keys by their position",
        at=checked.token_stacks[0].first if checked.token_stacks else None,
    )


def _can_vary(checked: CheckedModel) -> bool:
    """Whether the first stack begins with one vector for each token, so that its positions can be asked for."""
    if not checked.token_stacks or not checked.looked_up:
        return False
    first = checked.trace[checked.token_stacks[0].first]
    return first.ndim == 3 and any(checked.trace[t].shape[:2] == first.shape[:2] for t in checked.looked_up)


def _blind(checked: CheckedModel, attention: MeasuredAttention) -> bool:
    """Whether the last position's result stays when the earlier ones change places. Queries, keys or gates that begin
    at 0 cannot show it: weights are even, whatever turns them, or nothing is added.
    """
    trace, sublayer = checked.trace, attention.sublayer
    x, result = trace[sublayer.read], trace[sublayer.total]
    if x.ndim != 3 or result.shape != x.shape or x.shape[1] < 4:
        return False
    if not trace[attention.query].any() or not trace[attention.key].any() or not sublayer.scale.value:
        return False
    other = x.clone()
    other[:, :-1] = x[:, :-1].flip(1)
    moved = trace.replay({sublayer.read: other}, [sublayer.total])[0]
    gap = (moved - result)[:, -1].abs().max()
    if not (result - x)[:, -1].any():  # a last projection that begins at 0
        return False
    return bool(gap <= BLIND * (result - x)[:, -1].abs().max())


def _empty(checked: CheckedModel) -> str | None:
    """A table of positions by its whole name, read and not trained, all of whose entries are 0."""
    read = {x for of in (checked.trace.names, checked.trace.buffers) for v, x in of.items() if v in checked.reaching}
    frozen = ((n, p) for n, p in checked.model.named_parameters() if not p.requires_grad)
    for name, table in (*checked.model.named_buffers(), *frozen):
        if name in read and TABLE.search(name) and table.ndim > 1 and table.is_floating_point() and not anything(table):
            return name
    return None


def _unused(checked: CheckedModel) -> tuple[str, str] | None:
    """A parameter or buffer about positions whose value reaches no output, or of which all positions get one row; and
    which of both, in words.
    """
    names = [*checked.parameters, *(n for n, _ in checked.model.named_buffers())]
    named = [n for n in names if SPEAKS.search(n)]
    reached = {checked.trace.names[v] for v in checked.reaching if v in checked.trace.names}
    idle = tuple(f"{address}." for address in checked.anatomy.idle if not SPEAKS.search(address))  # a vision encoder
    for name in named:
        if name in checked.parameters and name not in reached and not name.startswith(idle):
            return name, f"{name} is not applied"
    read = {checked.trace.buffers[v] for v in checked.reaching if v in checked.trace.buffers}
    time = max((checked.trace[s.first].shape[-2] for s in checked.token_stacks), default=1)
    for name, table in checked.model.named_buffers():
        rows = any(size >= time for size in table.shape[:-1]) and not OTHER.search(name)  # one for each position
        about = name in read and table.is_floating_point() and (name in named or rows)
        if about and table.numel() > 1 and not anything(table):
            return name, f"{name} is all zeros, as a buffer that was built on the meta device and never filled"
    if (one := _looked_up_once(checked) or _one_row(checked, named)) is not None:
        return one, f"every position gets the same row of {one}"
    acting = {o.module for o in checked.trace.operations if not checked.reaching.isdisjoint(o.makes)}
    for name in named:
        owner = name.rpartition(".")[0]  # it may have made another table as it ran, or have one for each kind of layer
        waits = name in checked.parameters or name in read or "position_ids" in name or name.startswith(idle)
        if not waits and (not owner or owner not in acting):
            return name, f"{name} is not applied"
    dead = (o for o in checked.trace.operations if bare(o) in ("cos", "sin") and checked.reaching.isdisjoint(o.makes))
    return next(((o.module or "cos", f"{o.module or 'cos'} is not applied") for o in dead), None)


def _looked_up_once(checked: CheckedModel) -> str | None:
    """A table of positions of which all look up the same row."""
    for operation in checked.trace.operations:
        if operation.name == "embedding" and not checked.dataflow.data(operation):
            indices = checked.trace[operation.reads[1]]
            if indices.numel() > 1 and bool((indices == indices.flatten()[0]).all()) and _of_places(checked, operation):
                return checked.dataflow.parameter(operation.reads[0])
    return None


def _one_row(checked: CheckedModel, named: list[str]) -> str | None:
    """A table of positions, or the angles of each, of which one row is cut out for all; or angles that are alike."""
    trace, dataflow = checked.trace, checked.dataflow
    time = min((x.shape[1] for t in checked.looked_up if (x := trace[t]).ndim == 3), default=0)
    tables = {n: x for n, x in (*checked.parameters.items(), *checked.model.named_buffers()) if n in named}
    for operation in trace.operations if time >= SHORTEST else ():
        if checked.reaching.isdisjoint(operation.makes):
            continue
        made = trace[operation.makes[0]]
        if bare(operation) in ("cos", "sin") and made.ndim >= 2 and made.shape[-2] == time:
            if made.shape[-1] > 1 and torch.equal(made, made[..., :1, :].expand_as(made)):
                return operation.module or bare(operation)
        elif bare(operation) in ("slice", "select", "narrow") and operation.reads[0] not in dataflow.live:
            whole, longest = trace[operation.reads[0]], max(trace[operation.reads[0]].shape, default=0)
            if longest < time or whole.numel() != made.numel() * longest:
                continue
            table = next((n for n, x in tables.items() if x.shape == whole.shape and torch.equal(x, whole)), None)
            if table or _is_angle(checked, operation.reads[0]):
                return table or operation.module or "cos"
    return None


def _is_angle(checked: CheckedModel, value: int) -> bool:
    """Whether a value is a cosine or a sine, through scale and layout."""
    made = checked.trace.made_by(value)
    while made is not None and bare(made) in SCALING | LAYOUT and made.reads:
        made = checked.trace.made_by(made.reads[0])
    return made is not None and bare(made) in ("cos", "sin")


def _of_places(checked: CheckedModel, operation: Operation) -> bool:
    """Whether a table is looked up once for all sequences, at no id that was given."""
    inputs = set(checked.trace.inputs.values())
    name = checked.dataflow.parameter(operation.reads[0]) or ""
    return inputs.isdisjoint(checked.trace.above(operation.reads[1:])) and bool(SPEAKS.search(name))


@rule(Phase.POSITIONS, "positions-missing")
def pictures(checked: CheckedModel) -> Iterator[Finding]:
    """Pictures whose halves may change places along an axis, and no output tells."""
    named = {at: checked.trace[v] for at, v in checked.trace.inputs.items()}
    maps = [at for at, x in named.items() if x.ndim == 4 and x.is_floating_point() and min(x.shape[2:]) >= FEWEST]
    if len(named) != 1 or not maps or not checked.attentions or checked.intents.says("set"):
        return
    x = named[maps[0]]
    outputs, blind = checked.outputs(checked.inputs), []
    for axis, what in ((2, "rows"), (3, "columns")):
        turned = x.roll(x.shape[axis] // 2, axis)
        moved = checked.outputs({maps[0]: turned} if isinstance(checked.inputs, dict) else (turned,))
        pairs = [(a, b) for a, b in zip(moved, outputs, strict=True) if a.is_floating_point() and b.any()]
        if pairs and all(different(a, b) < CHANGED for a, b in pairs):
            blind.append(what)
    if blind:
        yield Finding(
            severity="error" if len(blind) == 1 or checked.intents.says("ordered") else "info",  # windows may be so
            address="",
            measured=float(len(blind)),
            message=f"where halves of the {blind[0]} of a picture change places, every output stays:"
            f" the position among {' and '.join(blind)} is not known",
            remedy="add a position for each axis to the patches, or one for each patch",
        )


@rule(Phase.POSITIONS, "rotary-wrong", hides=("positions-missing",))
def rotary(checked: CheckedModel) -> Iterator[Finding]:
    """Rotations by position: of queries and keys alike, in every layer, and not of values."""
    own = [a for a in checked.attentions if a.sublayer.kind == "attn"]
    sides = [(a, [turns(a, value) for value in (a.query, a.key, a.value)]) for a in own]
    sides = [(a, turned) for a, turned in sides if not (turned[2] and turns_back(a))]

    def those(*wanted: bool) -> list[MeasuredAttention]:
        """Attentions whose queries, keys and, where it is given, values differ by position, or do not."""
        return [a for a, turned in sides if turned[: len(wanted)] == [*wanted]]

    both, still = those(True, True), those(False, False)
    once = "apply the same rotation to q and k, after the split into heads, and none to v"
    for found, what, remedy in (
        (those(True, True, True), "values are rotated by position too", once),
        (those(True, False), "queries are rotated by position, and keys are not", once),
        (those(False, True), "keys are rotated by position, and queries are not", once),
        (
            [a for a in still if _meets_a_table(a)],
            "queries and keys are rotated alike at every position: the angles go along another axis, as that of heads",
            "rotate along the axis of positions: angles of (T, D) fit q of (B, H, T, D), not of (B, T, H, D)",
        ),
    ):
        if found:
            yield _finding(found, what, remedy)
            return
    ordered = checked.takes_ids and _one_by_one(checked)  # else distances may be those of a grid
    sound = "rotary-wrong" not in checked.reported  # angles that are rounded are not relative
    asked = [a for a in both if sound and (ordered or _meets_a_table(a))]
    odd = [(a, why) for a in asked if (why := _not_relative(a, ordered)) is not None]
    if odd:
        remedy = "rotate q and k by one function, of pairs that are laid out alike"
        yield _finding([a for a, _ in odd], odd[0][1], remedy)
    if both and still and len(still) * 2 < len(sides) and not _regular(checked, [a for a, _ in sides], still):
        where = f"{len(both)} of {len(sides)} attentions rotate queries and keys by position, and this one does not"
        yield _finding(still, where, "rotate q and k in every layer")


@rule(Phase.POSITIONS, "rotary-wrong", "position-bias-wrong", hides=("positions-missing",))
def rounded(checked: CheckedModel) -> Iterator[Finding]:
    """Angles and biases of positions that 16 bits do not hold, by what they are in float64."""
    trace = checked.trace
    turned = [o for o in trace.operations if bare(o) in ("cos", "sin") and not checked.reaching.isdisjoint(o.makes)]
    found = [("rotary-wrong", f"the angles of {bare(o)}", o.module, o.makes[0], 1) for o in turned]
    found += [("position-bias-wrong", "the biases", a.address, *b) for a in checked.attentions for b in _added(a)]
    given = trace.names.keys() | {v for at, v in trace.inputs.items() if "pos" not in at}
    for code, what, address, value, sign in found:
        above = trace.above([value])
        half = [trace[v].dtype for v in above if trace[v].dtype in (torch.float16, torch.bfloat16)]
        if not half or not above.isdisjoint(checked.dataflow.live | given):
            continue
        starts = {v: trace[v] for v in above if (made := trace.made_by(v)) is None or not made.reads}
        pair = sign * trace[value].double(), sign * trace.replay(starts, [value], double=True)[0]
        last = [x[..., -1, :].softmax(-1) if "bias" in code else x.mT if x.ndim > 1 else x for x in pair]  # positions
        rows, exact = (x.reshape(-1, x.shape[-1]) for x in last)
        gap = (exact - rows).abs().max().item()
        if gap > TURNED:
            alike = ((rows.diff() == 0) & (exact.diff() != 0)).all(0).nonzero()
            same = f", and positions {int(alike[0])} and {int(alike[0]) + 1} get the same" if len(alike) else ""
            yield Finding(
                code=code,
                address=address,
                measured=gap,
                message=f"{what} are computed in {str(half[0]).removeprefix('torch.')}, which rounds far positions:"
                f" in float64 {'their weights' if 'bias' in code else 'it'} would differ by up to {gap:.2g}{same}",
                remedy="compute them in float32, within torch.autocast(device, enabled=False), and cast the result",
                at=value,
            )
            return


@rule(Phase.POSITIONS, "position-bias-wrong", hides=("positions-missing",))
def distant(checked: CheckedModel) -> Iterator[Finding]:
    """Biases by position that favour what is far away, in every head."""
    for attention, value, sign in ((a, *bias) for a in checked.attentions for bias in _added(a)):
        rows = sign * checked.trace[value][..., -1, :].reshape(-1, checked.trace[value].shape[-1]).double()
        rows = rows[((rows > MASKED) & rows.isfinite()).all(-1)]  # of the last query, which sees all
        grown = rows[:, 0] - rows[:, -1]
        whole = len(rows) and (rows.diff() <= 0).all() and grown.min() > 0 and grown.max() > GROWN
        first, view = sign * checked.trace[value][..., 0, :].diff(), seen_by(attention)
        of_keys = (view is None or view.view not in ("left", "itself")) and (first < 0).any()  # as of their age
        if whole and (-2 * rows.diff()).amax(1).lt(grown).all() and not of_keys:
            weights = rows[grown.argmax()].softmax(-1)
            yield Finding(
                address=attention.address,
                measured=grown.max().item(),
                message=f"with equal queries and keys, the last of {len(weights)} positions gives itself a weight of"
                f" {weights[-1]:.2g} and the first {weights[0]:.2g}: the bias grows with the distance, in every head",
                remedy="turn its sign: slope * (key - query) is 0 at the query and lower the further back a key is",
                at=value,
            )
            return


def _added(attention: MeasuredAttention) -> list[tuple[int, int]]:
    """What is added to the scores of positions among themselves and is no activation, or the mask of a fused attention;
    and its sign, -1 where it is taken off.
    """
    trace, dataflow = attention.trace, attention.dataflow
    if attention.sublayer.kind != "attn" or (attention.scores is None and not attention.fused):
        return []
    steps = [] if attention.scores is None else dataflow.between(attention.scores, attention.operation.reads[0])
    found = [(v, 1) for v in attention.operation.reads[3:4]]
    taken = {"sub": 1, "rsub": 0}  # the place of what is taken off
    found += [
        (v, -1 if taken.get(bare(o)) == i else 1) for o in steps if bare(o) in SUMS for i, v in enumerate(o.reads)
    ]
    keys = trace[attention.key].shape[attention.places(attention.key) or -2]
    floats = [(v, sign) for v, sign in found if trace[v].is_floating_point() and v not in dataflow.live]
    return [(v, sign) for v, sign in floats if trace[v].ndim > 1 and trace[v].shape[-1] == keys >= SHORTEST]


def _one_by_one(checked: CheckedModel) -> bool:
    """Whether positions that are given, if any are, go up by one: left padding and packing have others."""
    given = [checked.trace[v] for at, v in checked.trace.inputs.items() if "pos" in at]
    rows = [x for x in given if not x.is_floating_point() and x.ndim and x.shape[-1] > 1]
    return all(bool((x.diff(dim=-1) == 1).all()) for x in rows)


def _meets_a_table(attention: MeasuredAttention) -> bool:
    """Whether queries are multiplied by numbers of several rows that are neither trained nor made of activations."""
    trace, dataflow = attention.trace, attention.dataflow
    made = attention.projection(attention.query)
    for operation in dataflow.between(made, attention.query) if made is not None else ():
        others = [v for v in operation.reads if v not in dataflow.live and dataflow.parameter(v) is None]
        if bare(operation) == "mul" and any(trace[v].shape[-1:] != (1,) and _has_rows(trace[v]) for v in others):
            return True
    return False


def _has_rows(table: Tensor) -> bool:
    rows = table.reshape(-1, table.shape[-1]) if table.ndim > 1 else table[:0]
    return bool((rows != rows[:1]).any())


def _finding(found: list[MeasuredAttention], what: str, remedy: str) -> Finding:
    return Finding(
        code="rotary-wrong",
        address=found[0].address,
        measured=float(len(found)),
        message=f"{what} ({many(len(found), 'attention')})",
        remedy=remedy,
    )


def turns(attention: MeasuredAttention, value: int) -> bool | None:
    """Whether a query, key or value has another direction at positions that hold the same vector; None where that is
    unknown.
    """
    same = _of_equal(attention, value)
    if same is None:
        return None
    moved, places = same
    moved = functional.normalize(moved.movedim(places, 0).float(), dim=-1)  # a factor by position turns nothing
    return bool((moved - moved[:1]).abs().max() > CHANGED * moved.abs().max()) if moved.any() else None


def turns_back(attention: MeasuredAttention) -> bool:
    """Whether what was mixed is turned by position before the branch's last product: values that were turned are
    then read relative to the query.
    """
    trace, mixture = attention.trace, attention.mixture
    places = None if mixture is None else attention.places(mixture)
    if mixture is None or places is None or not trace[mixture].shape[places] > 1:
        return False
    x, read = trace[mixture], mixture
    for operation in attention.dataflow.between(mixture, attention.sublayer.branch):
        if attention.dataflow.is_product(operation):
            break
        made = trace[operation.makes[0]]
        read = operation.makes[0] if made.numel() == x.numel() and x.shape[places] in made.shape else read
    row = torch.randn(x.select(places, 0).shape, generator=torch.Generator().manual_seed(0)).to(x).unsqueeze(places)
    same = trace.replay({mixture: row.expand_as(x).clone()}, [read])[0]
    axes = [d for d in range(same.ndim - 1) if same.shape[d] == x.shape[places]]
    gaps = [(same - same.narrow(d, 0, 1)).abs().max() for d in axes]
    return bool(gaps) and bool(min(gaps) > CHANGED * same.abs().max())


def _of_equal(attention: MeasuredAttention, value: int, seed: int = 0) -> tuple[Tensor, int] | None:
    """What a side becomes where its projection is the same at every position, and its axis of positions."""
    trace, made, places = attention.trace, attention.projection(value), attention.places(value)
    if made is None or places is None or trace[made].ndim != 3:
        return None
    x = trace[made]
    if x.shape[1] != trace[value].shape[places] or _is_mixed(attention, made, value):
        return None
    moved = attention.moved(made, value, 1)
    if moved is None or int(moved.transpose(0, places).flatten(1).any(-1).sum()) > 1:  # positions are mixed on the way
        return None
    row = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(seed)).to(x)
    return trace.replay({made: row.expand_as(x).clone()}, [value])[0], places


def _is_mixed(attention: MeasuredAttention, made: int, value: int) -> bool:
    """Whether another activation is added on the way, as the first layer's values in a value residual."""
    dataflow = attention.dataflow
    below = attention.trace.below([made])
    return any(v not in below for o in dataflow.between(made, value) for v in dataflow.data(o))


def _not_relative(attention: MeasuredAttention, ordered: bool) -> str | None:
    """Why q.k of equal vectors depends on more than a rotation or, where positions are `ordered`, than their distance;
    None where it does not.
    """
    pairs = []
    for value in (attention.query, attention.key):
        sides = [_of_equal(attention, value, seed) for seed in (0, 1)]
        if any(side is None for side in sides):
            return None
        moved = [side[0].double().movedim(side[1], -2) for side in sides if side]
        pairs.append([x.reshape(-1, *x.shape[-2:]) for x in moved])
    sizes = [[rows.norm(dim=-1) / rows[:, :1].norm(dim=-1) for rows in pair] for pair in pairs]
    if any((a - b).abs().max() > 1e-2 for a, b in sizes):
        most = max((a / b).max().item() for a, b in (*sizes, *(pair[::-1] for pair in sizes)))
        cause = "a sign is wrong, or angles are laid out for halves and neighbours are rotated, or the reverse"
        return f"the rotation changes the size of a vector by its contents, by a factor of up to {most:.2f}: {cause}"
    if not ordered:
        return None
    query, key = ((pair[0] / size[0][..., None])[0] for pair, size in zip(pairs, sizes, strict=True))
    scores = query @ key.T
    gap = (scores[1:, 1:] - scores[:-1, :-1]).abs().max() / scores.abs().max()
    return "queries and keys are rotated differently: q.k does not depend on distance alone" if gap > 1e-2 else None


def _regular(checked: CheckedModel, order: list[MeasuredAttention], still: list[MeasuredAttention]) -> bool:
    """Whether the layers without a rotation recur, as in Llama 4 and SmolLM 3, or are declared."""
    if checked.config is not None:
        return True
    layers = {order.index(a) + 1 for a in still}
    every = range(1, len(order) + 1)
    return any({i for i in every if i % period == 0} == layers for period in range(2, len(order) + 1))

"""Rules about what stands in a branch, and what stands on the stream beside the sums."""

import math
from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Edit, Made
from isograd.lint.rules import READ, Phase, rule
from isograd.trace.dataflow import LAYOUT, PRODUCTS, SCALING, bare, different
from isograd.trace.record import Operation
from isograd.trace.sublayers import TracedSublayer

COLOURS = 3
VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten")
BENT = frozenset((
    "relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "hardtanh", "mish", "softplus", "celu", "clamp",
    "clamp_min", "relu6", "threshold",
))  # fmt: skip
FEWEST = 8  # positions of which the first, the middle and the last are far apart
EXACT = 1e-9  # relative, in double precision
GATHERED = frozenset(
    ("grid_sampler", "grid_sampler_2d", "embedding", "gather", "softmax", "_softmax")
)  # no plain layer


@rule(Phase.BRANCHES, "ffn-linear", suspicions=True)
def linear(checked: CheckedModel) -> Iterator[Finding]:
    """Feed-forwards of two matrices with nothing between that bends."""
    found = [s for s in checked.anatomy.distinct if s.kind == "ffn" and _is_linear(checked, s)]
    if found:
        yield Finding(
            address=found[0].address,
            measured=float(len(found)),
            message="this feed-forward is linear, f(a + b) = f(a) + f(b): there is no activation between its two"
            f" matrices ({many(len(found), 'sublayer')})",
            remedy="put an activation between the two: W_2(gelu(W_1(x)))",
            edit=Edit(says="W_2(gelu(W_1(x)))", values={_first(checked, s): lambda x, of: F.gelu(x) for s in found}),
        )


def _first(checked: CheckedModel, sublayer: TracedSublayer) -> int:
    """What the first matrix of a branch makes."""
    inside = checked.dataflow.between(sublayer.read, sublayer.branch)
    return next(o.makes[0] for o in inside if checked.dataflow.is_product(o))


def _is_linear(checked: CheckedModel, sublayer: TracedSublayer) -> bool:
    dataflow, trace = checked.dataflow, checked.trace
    inside = dataflow.between(sublayer.read, sublayer.branch)
    products = [o for o in inside if dataflow.is_product(o)]
    if len(products) < 2 or any(bare(o) in GATHERED for o in inside):
        return False
    start = dataflow.root(dataflow.data(products[0])[0])
    if not trace[sublayer.branch].any() or "mid" in sublayer.norms or "out" in sublayer.norms:
        return False
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(trace[start].shape, generator=draw).to(trace[start]) for _ in range(2))
    inner = trace.replay({start: a}, [products[0].makes[0]])[0].square().mean().sqrt().clamp_min(1e-20)
    a, b = 3 * a / inner, 3 * b / inner  # large enough that an activation bends
    made = [trace.replay({start: x}, [sublayer.branch])[0].double() for x in (a + b, a, b, torch.zeros_like(a))]
    if different(made[0], made[3]) < 1e-3:  # a router that decides nothing here
        return False
    return different(made[1] + made[2] - made[3], made[0]) < 1e-3


@rule(Phase.BRANCHES, "activation-on-stream", hides=(Phase.WIRING, "init-std"), suspicions=True)
def bent(checked: CheckedModel) -> Iterator[Finding]:
    """An activation on the stream itself, after a sum. Where nothing attends it is a ResNet's."""
    if not checked.attentions and not checked.takes_ids:
        return
    found = [(o, s) for s in checked.anatomy.sublayers if (o := _bent_after(checked, s)) is not None]
    if found:
        operation, sublayer = found[0]
        yield Finding(
            address=operation.module or sublayer.address,
            measured=float(len(found)),
            message=f"{bare(operation)} is applied to the residual stream, after the sum of {sublayer.address}:"
            f" it changes the output of all earlier layers ({many(len(found), 'sum')})",
            remedy="put the activation inside the branch: x + f(x), not act(x + f(x))",
            edit=Edit(says="no activation after the sum", values={o.makes[0]: _taking(o.reads[0]) for o, _ in found}),
        )


def _taking(value: int) -> Made:
    """Another value of the same size in the place of one."""
    return lambda x, of: of(value).reshape(x.shape)


def _bent_after(checked: CheckedModel, sublayer: TracedSublayer) -> Operation | None:
    """The activation that alone reads a sum, through scale and layout, and on which another sublayer builds."""
    trace, dataflow = checked.trace, checked.dataflow
    value = sublayer.total
    while True:
        readers = [o for o in trace.read_by(value) if o.makes and o.makes[0] in checked.reaching]
        if len(readers) != 1 or bare(readers[0]) in PRODUCTS:
            return None
        operation = readers[0]
        if bare(operation) in BENT:
            below = trace.below(operation.makes[:1])
            later = [s for s in checked.anatomy.sublayers if s.total in below and s.total != sublayer.total]
            made = operation.makes[0]  # the next shortcut goes through it
            later = [s for s in later if made in dataflow.above(s.enters)]
            plain = [s for s in later if not any(dataflow.is_product(o) for o in dataflow.between(made, s.enters))]
            return operation if plain else None
        if bare(operation) not in SCALING | LAYOUT or len(dataflow.data(operation)) != 1:
            return None
        value = operation.makes[0]


@rule(Phase.BRANCHES, "softmax-output", hides=(Phase.INIT, "gradient-zero"))
def probabilities(checked: CheckedModel) -> Iterator[Finding]:
    """An output whose rows are positive and sum to one, where a loss such as cross_entropy expects logits."""
    for at, value in checked.trace.outputs.items():
        x = checked.trace[value]
        made = checked.trace.made_by(checked.dataflow.root(value))
        softmax = made is not None and bare(made) in ("softmax", "_softmax")
        classes = x.shape[-1] if x.ndim >= 2 else 0
        meant = checked.intents.says("probabilities")
        if softmax and not meant and at in ("", "0", "logits") and classes > 1 and x.is_floating_point():
            sums = x.double().sum(-1)
            if bool((x >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
                yield Finding(
                    severity="warning",
                    address=made.module if made is not None else "",
                    measured=float(classes),
                    message=f"the output is a softmax over {classes:,} classes: cross_entropy expects logits and"
                    " applies a second softmax, so that the loss hardly falls",
                    remedy="return the logits; take the softmax where probabilities are needed",
                )
                return


@rule(Phase.HEADS, "axes-mixed", hides=READ)
def views(checked: CheckedModel) -> Iterator[Finding]:
    """The first view that leaves each row with parts of different positions."""
    for operation, length, message, remedy in islice(_mixed(checked), 1):
        yield Finding(
            address=operation.module,
            measured=float(length),
            message=message,
            remedy=remedy,
            at=operation.makes[0],
        )


def _mixed(checked: CheckedModel) -> Iterator[tuple[Operation, int, str, str]]:
    """Views that give two axes each other's length and move nothing: (a, b, c, d) as (a c, b, d) or (a, c, b, d); that
    cut data into runs where squares were meant; or that part axes otherwise than another one has joined them
    which were stacked.
    """
    dataflow, trace = checked.dataflow, checked.trace
    seen = [o for o in trace.operations if bare(o) in VIEWS and len(dataflow.data(o)) == 1]
    shapes = [(o, tuple(trace[o.reads[0]].shape), tuple(trace[o.makes[0]].shape)) for o in seen]
    viewed = {o.makes[0]: o.reads[0] for o in seen}
    widths = {trace[stack.first].shape[-1] for stack in checked.anatomy.stacks}
    changes = {(before, after) for _, before, after in shapes}
    parts = "each row holds parts of different positions"
    for operation, before, after in shapes:
        exchanged = _exchanges(before, after) and before[-1] in widths and (after, before) in changes  # and taken back
        if exchanged or (_flattens(before, after) and _is_of_channels(checked, operation.reads[0])):
            said = f"a view reshapes {before} to {after}: it swaps two axes without a transpose, so that {parts}"
            yield operation, before[1], said, "move the axes first: x.transpose(1, 2).reshape(...)"
    for operation, before, after in shapes:
        source = operation.reads[0]
        while source in viewed:  # views of views move nothing, either
            source = viewed[source]
        before = tuple(trace[source].shape)
        side = _runs(before, after)
        if side is not None and _is_data(checked, source):
            said = (
                f"a view cuts {before} into {after[1]} runs of {after[2]} numbers as they lie in memory, parts of one"
            )
            said += f" channel, and not {side} by {side}"
            remedy = "cut squares: F.unfold(x, p, stride=p).transpose(1, 2), or a convolution with stride p"
            yield operation, after[1], said, remedy
    stacked = [one for one in shapes if (made := trace.made_by(one[0].reads[0])) is not None and bare(made) == "stack"]
    joined = [(o, *axes) for o, before, after in stacked if (axes := _joined(before, after))]
    for operation, before, after in shapes:
        axis, first, second = _joined(after, before) or (0, 0, 0)
        for other, *others in joined if first != second else ():
            if others == [axis, second, first] and operation.reads[0] in trace.below(other.makes):
                said = (
                    f"axes of {second} and {first} were joined into {first * second}, and a view parts them as {first}"
                )
                remedy = f"transpose the axes of {second} and {first} before they are joined"
                yield operation, second, f"{said} and {second}: {parts}", remedy


def _is_data(checked: CheckedModel, value: int) -> bool:
    """Whether a value is what the model is given, or made of it without a matrix."""
    above = checked.trace.above([value])
    made = (o for o in checked.trace.operations if o.makes and o.makes[0] in above)
    given = not above.isdisjoint(checked.trace.inputs.values())
    return given and not any(checked.dataflow.is_product(o) or "embedding" in o.name for o in made)


def _runs(before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """The side of the squares of a picture in colours, (b, 3, h, w), that as many runs of as many numbers were to be.

    >>> _runs((2, 3, 32, 32), (2, 64, 48)), _runs((2, 3, 32, 32), (2, 3, 1024)), _runs((2, 1, 16, 16), (2, 16, 16))
    (4, None, None)
    """
    if len(before) != 4 or before[1] != COLOURS or len(after) != 3 or before[0] != after[0]:
        return None
    height, width = before[2:]
    side = round((after[2] / COLOURS) ** 0.5)
    whole = side > 1 and height % side == width % side == 0 and side * side * COLOURS == after[2]
    return side if whole and after[1] == height * width // side**2 != COLOURS else None


def _joined(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Two neighbouring axes that become one, but not the last: which, and their lengths.

    >>> _joined((4, 3, 20, 128), (4, 60, 128)), _joined((4, 60, 2, 64), (4, 60, 128))
    ((1, 3, 20), None)
    """
    for axis in range(len(before) - 2 if len(before) == len(after) + 1 else 0):
        a, b = before[axis : axis + 2]
        if after == (*before[:axis], a * b, *before[axis + 2 :]) and a > 1 and b > 1:
            return axis, a, b
    return None


def _is_of_channels(checked: CheckedModel, value: int) -> bool:
    """Whether a convolution made a value, so that its channels stand on axis 1."""
    made = checked.trace.made_by(checked.dataflow.root(value))
    return made is not None and "conv" in made.name


def _flattens(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """A map of channels, (b, c, h, w) or (b, c, t), laid out as (b, h w, c) though channels stand in front.

    >>> _flattens((2, 32, 8, 8), (2, 64, 32)), _flattens((2, 32, 8, 8), (2, 32, 64))
    (True, False)
    """
    if len(before) < 3 or len(after) != 3 or before[0] != after[0]:
        return False
    places = math.prod(before[2:])
    return after[1:] == (places, before[1]) and places != before[1] and 1 not in (places, before[1])


def _exchanges(long: tuple[int, ...], short: tuple[int, ...]) -> bool:
    """
    >>> [_exchanges((2, 3, 5, 8), short) for short in ((10, 3, 8), (2, 5, 3, 8), (6, 5, 8))]
    [True, True, False]
    """
    if len(long) != 4 or long[-1] != short[-1] or long[1] == long[2] or 1 in long[:3]:
        return False
    a, b, c, d = long
    return short in ((a * c, b, d), (a, c, b, d))

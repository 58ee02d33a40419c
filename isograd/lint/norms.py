"""Rules about what norms compute: over which axis, with which weights at initialization, in which precision."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from isograd.errors import many
from isograd.lint.checked_model import CheckedModel
from isograd.lint.findings import Finding
from isograd.lint.proof.trial import Edit, Made, normed
from isograd.lint.rules import Phase, rule
from isograd.trace.dataflow import LAYOUT, SCALING, TracedNorm, bare
from isograd.trace.record import Operation

TURNS = ("transpose", "permute", "t", "mT", "movedim", "swapaxes", "contiguous", "clone")
OFF = 0.05  # of 1: an effective norm weight at init
STATISTICS = frozenset(("mean", "var", "std", "sum", "linalg_vector_norm", "norm", "var_mean", "square", "pow"))


@rule(
    Phase.NORMS, "norm-axis", hides=(Phase.WIRING, Phase.MASKS, Phase.POSITIONS, Phase.DATA, "norm-scale",
    "norm-weights", "norm-eps"), suspicions=True,
)  # fmt: skip
def axis(checked: CheckedModel) -> Iterator[Finding]:
    """Norms over positions, or over positions and channels: one position then changes the others."""
    found = [norm for norm in checked.dataflow.norms.values() if _mixes(checked, norm.origin, norm.result)]
    places = [(norm.address, norm.result, norm.origin) for norm in found]
    places += [(o.module, o.makes[0], v) for o, v in _divisions(checked) if _mixes(checked, v, o.makes[0])]
    if places:
        yield Finding(
            address=places[0][0],
            measured=float(len(places)),
            message="this norm takes its mean or variance over positions: scaling the vector at one position"
            f" changes its output at others ({many(len(places), 'norm')})",
            remedy="normalize over the last axis only: x.mean(-1, keepdim=True), nn.LayerNorm(d) on (batch, time, d)",
            edit=Edit(
                says="a norm over the features of each position",
                values={result: _over_features(checked, origin) for _, result, origin in places},
            ),
        )


def _over_features(checked: CheckedModel, origin: int) -> Made:
    """A norm over the last axis of a stream, however it is turned where the norm stands."""
    axis = -1 if _unturned(checked, origin) == origin else 1

    def made(x: Tensor, of: Callable[[int], Tensor]) -> Tensor:
        read = of(origin).movedim(axis, -1)
        return F.layer_norm(read, read.shape[-1:]).movedim(-1, axis).reshape(x.shape)

    return made


def _mixes(checked: CheckedModel, origin: int, result: int) -> bool:
    """Whether the norm's result at other positions changes when the vector at one of them is scaled."""
    trace, root = checked.trace, _unturned(checked, origin)
    x, axis_of_time = trace[root], _time(checked, root)
    if axis_of_time is None or x.ndim != 3 or x.shape[axis_of_time] < 3 or trace[result].numel() != x.numel():
        return False
    grown = x.clone()
    grown.select(axis_of_time, 1).mul_(3.0)
    gap = (trace.replay({root: grown}, [result])[0] - trace[result]).abs()
    time = x.shape[axis_of_time]
    axes = [d for d in range(gap.ndim) if gap.shape[d] == time]
    if not axes:
        return False
    size = 1e-3 * trace[result].abs().max()
    return all(int((gap.transpose(0, d).flatten(1).amax(1) > size).sum()) > 1 for d in axes)


def _unturned(checked: CheckedModel, origin: int) -> int:
    """What a norm's origin was before it was turned, as where tokens are mixed; itself beside convolutions, whose
    streams lie otherwise.
    """
    stacks = (s for s in checked.anatomy.stacks if s.sublayers)
    if any("conv" in o.name for s in stacks for o in checked.dataflow.between(s.first, s.sublayers[0].branch)):
        return origin
    value = origin
    while (made := checked.trace.made_by(value)) is not None and bare(made) in TURNS:
        value = made.reads[0]
    return origin if _time(checked, value) is None else value


def _time(checked: CheckedModel, value: int) -> int | None:
    """The axis of positions where a value has the shape of a stream."""
    for stack in checked.anatomy.stacks:
        if stack.time is not None and checked.trace[stack.first].shape == checked.trace[value].shape:
            return stack.time
    x = checked.trace[value]
    return 1 if not checked.anatomy.stacks and x.ndim == 3 and checked.takes_ids else None


def _divisions(checked: CheckedModel) -> Iterator[tuple[Operation, int]]:
    """Products of a stream with numbers that were computed from it, as hand-written norms have; and their origins."""
    dataflow, trace = checked.dataflow, checked.trace
    for operation in trace.operations:
        data = dataflow.data(operation)
        if bare(operation) not in ("mul", "div") or len(data) != 2 or operation.makes[0] in dataflow.norms:
            continue
        number, row = sorted(data, key=lambda v: dataflow.unspread(v).numel())
        if trace[row].ndim < 3 or dataflow.unspread(number).numel() >= trace[row].numel():
            continue
        if not _is_statistic(checked, number):
            continue
        origin: int | None = row
        while origin is not None and origin not in dataflow.above(number):
            made = trace.made_by(origin)
            read = dataflow.data(made) if made is not None and bare(made) in SCALING | LAYOUT else []
            origin = read[0] if read else None
        if origin is not None:
            yield operation, origin


def _is_statistic(checked: CheckedModel, number: int) -> bool:
    """Whether a number was made by a mean, a variance or a norm, within a few operations."""
    value, trace = number, checked.trace
    for _ in range(6):
        made = trace.made_by(value)
        data = checked.dataflow.data(made) if made is not None else []
        if made is None or not data:
            return False
        if bare(made) in STATISTICS:
            return True
        value = data[0]
    return False


@rule(Phase.NORMS, "norm-scale", hides=(Phase.WIRING, "norm-weights", "initial-loss", "norm-eps"), suspicions=True)
def size(checked: CheckedModel) -> Iterator[Finding]:
    """Norms that scaling their input does not leave alone: without the root, say."""
    reads = {s.read for s in checked.anatomy.sublayers} | {s.total for s in checked.anatomy.sublayers}
    for operation, origin in _divisions(checked):
        root = checked.dataflow.root(origin)
        if root not in reads or _mixes(checked, origin, operation.makes[0]):
            continue
        x = checked.trace[root]
        one, two = (checked.trace.replay({root: c * x}, [operation.makes[0]])[0].double() for c in (1, 2))
        growth = (two.norm() / one.norm().clamp_min(1e-30)).item()
        if not 0.9 < growth < 1.1 and not 1.9 < growth < 2.1:
            yield Finding(
                address=operation.module,
                measured=growth,
                message=f"twice the input gives {growth:.3g} times the output, where the output of a norm stays the"
                " same: it does not divide by the root mean square",
                remedy="x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)",
                edit=Edit(
                    says="a norm that divides by the root of the mean square",
                    values={o.makes[0]: normed(v) for o, v in _divisions(checked)},
                ),
            )
            return


@rule(
    Phase.NORMS, "norm-weights", "norm-scale", hides={"norm-weights": (Phase.INIT, "gradient-cut",
    "gradient-zero")}, suspicions=True,
)  # fmt: skip
def weights(checked: CheckedModel) -> Iterator[Finding]:
    """Norms of the stream whose weights, as they act, do not begin at 1."""
    if any(s.placement == "ngpt" for s in checked.anatomy.sublayers):  # whose vectors have a length of 1
        return
    if not checked.at_init:
        every = [norm for norm, _ in _of_stream(checked)]
        centred = [norm for norm in every if _around_zero(effective(checked, norm))]
        if centred and len(centred) * 2 > len(every):
            yield _weights(checked, centred, 0.0, "weights have mean 0, as if drawn like those of a matrix")
        return
    found = [
        (norm, acts, layer) for norm, layer in _of_stream(checked) if (acts := effective(checked, norm)) is not None
    ]
    odd = [(norm, acts) for norm, acts, layer in found if _is_odd(acts, layer) and not _on_sphere(checked, norm)]
    scaled = {id(norm): effective(checked, norm, constants=True) for norm, _ in odd}  # sqrt(d) after a length of 1
    odd = [(norm, acts) for norm, acts in odd if (whole := scaled[id(norm)]) is None or _is_odd(whole, 1)]
    if not odd:
        return
    norm, acts = odd[0]
    value = acts.abs().mean().item()
    stored = checked.parameters[norm.weight].float().mean().item() if norm.weight in checked.parameters else math.nan
    one_plus = abs(stored + 1 - value) < OFF
    if acts.max() - acts.min() > 0.1 * max(value, OFF):
        how = f"weights act as {acts.min().item():.3g} to {acts.max().item():.3g}, and were never initialized"
    elif one_plus or abs(stored - value) < OFF:
        how = f"weights{' stored as 1 + weight' if one_plus else ''} start at {stored:.3g}: they act as {value:.3g}"
    else:
        yield Finding(
            code="norm-scale",
            address=norm.address,
            measured=value,
            message=f"this norm returns vectors with an RMS of {value:.3g} instead of 1 ({many(len(odd), 'norm')})",
            remedy="divide by the root of the mean square, not of the sum: x / x.pow(2).mean(-1, keepdim=True).sqrt()",
            edit=Edit(
                says="a norm that returns vectors with an RMS of 1",
                values={n.result: normed(n.origin) for n, _ in odd},
            ),
        )
        return
    yield _weights(checked, [n for n, _ in odd], value, how, one_plus=one_plus)


def _is_odd(acts: Tensor, layer: int) -> bool:
    """Whether weights are neither 1 nor 1/sqrt(layer), which LayerNorm scaling has."""
    uneven = (acts - acts.mean()).abs().max() > 0.1 * acts.abs().mean().clamp_min(OFF)
    value = acts.mean().item()
    return bool(uneven) or not any(
        abs(value - known) < OFF for known in (1.0, max(layer, 1) ** -0.5, (2 * layer) ** -0.5)
    )


def _on_sphere(checked: CheckedModel, norm: TracedNorm) -> bool:
    """Whether branches and stream are brought to length 1 alike, as in nGPT."""
    for sublayer in checked.anatomy.sublayers:
        if norm in sublayer.norms.get("post", []) and sublayer.norms.get("out"):
            lengths = [checked.trace[n.result].float().norm(dim=-1) for n in (norm, sublayer.norms["out"][0])]
            return all(bool(((length - 1).abs() < OFF).all()) for length in lengths)
    return False


def _around_zero(weight: Tensor | None) -> bool:
    """Whether entries differ and their mean is 0, which no trained norm's is."""
    if weight is None or weight.numel() < 8:
        return False
    std = weight.float().std().item()
    return std > 0 and abs(weight.float().mean().item()) < 5 * std / weight.numel() ** 0.5


def _weights(checked: CheckedModel, norms: list[TracedNorm], value: float, how: str, one_plus: bool = False) -> Finding:
    names = [n.weight for n in norms if n.weight in checked.parameters]
    fill = 0.0 if one_plus else 1.0
    return Finding(
        code="norm-weights",
        address=norms[0].weight or norms[0].address,
        measured=value,
        message=f"norm {how} ({many(len(norms), 'norm')})",
        edit=Edit(
            says="norm weights that act as 1",
            parameters={n: lambda tensor, draw: torch.full_like(tensor, fill) for n in names if n},
        ),
        remedy="nn.init.ones_(norm.weight) and zeros_ for its bias; zeros_ where the norm multiplies by 1 + weight;"
        " leave norms out of loops that initialize all parameters",
    )


def _of_stream(checked: CheckedModel) -> Iterator[tuple[TracedNorm, int]]:
    """Norms on what a branch reads, on the sum and at the end, with the layer that they stand in."""
    seen: set[int] = set()
    for stack in checked.anatomy.stacks:
        for sublayer in stack.sublayers:
            for slot in ("pre", "post"):
                for norm in sublayer.norms.get(slot, []):
                    if id(norm) not in seen:
                        seen.add(id(norm))
                        yield norm, sublayer.layer
        yield from ((norm, 1) for norm in stack.final)


def effective(checked: CheckedModel, norm: TracedNorm, *, constants: bool = False) -> Tensor | None:
    """By channel, what multiplies the normalized vector: w of w z + b, fitted over all positions; None where the
    result is neither LayerNorm's nor RMSNorm's.

    Args:
        constants: with the numbers that follow it, too.
    """
    trace = checked.trace
    x, value = trace[norm.origin].double(), _after_affine(checked, norm, constants)
    y = trace[value].double()
    if x.shape != y.shape or x.ndim < 2 or x[..., 0].numel() < 8:
        return None
    rows = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = trace.replay({norm.origin: rows.to(trace[norm.origin])}, [value])[0].double().flatten(0, -2)
    rows = rows.flatten(0, -2)
    for centred in (False, True):
        z = rows - rows.mean(-1, keepdim=True) if centred else rows
        z = z / z.square().mean(-1, keepdim=True).sqrt()
        zero, shifted = z - z.mean(0), y - y.mean(0)
        weight = (zero * shifted).sum(0) / zero.square().sum(0)
        rest = (shifted - weight * zero).norm() / shifted.norm().clamp_min(1e-12)
        if rest < 0.02 or not shifted.any():
            return weight
    return None


def _after_affine(checked: CheckedModel, norm: TracedNorm, constants: bool = False) -> int:
    """The norm with the weight and the bias that follow it."""
    value, trace = norm.result, checked.trace
    while len(readers := trace.read_by(value)) == 1 and bare(readers[0]) in SCALING | {"to", "_to_copy", "type_as"}:
        plain = bare(readers[0]) in ("to", "_to_copy", "type_as")
        plain |= constants and bare(readers[0]) in ("mul", "div")
        if len(checked.dataflow.data(readers[0])) != 1 or not (plain or checked.dataflow.weights(readers[0])):
            break
        if any(bare(o) in ("sum", "mean") for o in trace.read_by(readers[0].makes[0])):  # a product with a query
            break
        value = readers[0].makes[0]
    return value


@rule(Phase.NORMS, "norm-eps", suspicions=True)
def small(checked: CheckedModel) -> Iterator[Finding]:
    """A norm's eps that is no small number, or that the norm's own precision rounds to nothing."""
    for norm in checked.dataflow.norms.values():
        weight = checked.parameters.get(norm.weight or "")
        half = weight is not None and weight.dtype == torch.float16
        if norm.eps is None or (norm.eps <= 1e-3 and not (half and norm.eps < 2**-25)):
            continue
        what = "float16 rounds it to 0" if half and norm.eps < 2**-25 else "it flattens activations of small variance"
        yield Finding(
            severity="warning",
            address=norm.address,
            measured=norm.eps,
            message=f"eps is {norm.eps:g}: {what}",
            remedy="use 1e-5 or 1e-6, and compute the norm in float32",
            edit=None
            if half
            else Edit(
                says="eps of 1e-5",
                values={n.result: normed(n.origin) for n in checked.dataflow.norms.values() if n.eps == norm.eps},
            ),
        )
        return

"""The stacks of any Transformer and the placement of each sublayer, inferred from one forward pass.

What the walk through the operations says of pre, out and post is then proved by scaling: what stands after a norm does
not move.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from statistics import median, mode
from typing import Any, Literal

from torch import nn

from isograd.trace.dataflow import SCALING, SUMS, Dataflow, TracedNorm, bare, common_address, form, numbered
from isograd.trace.record import Trace, is_large, record
from isograd.trace.sublayers import TracedSublayer, find_sublayers, placement_of

Function = Literal["post-ln", "admin", "deepnorm"]
SMALL = 0.7  # skip on a stream of variance 1, or RMS of an embedding, below which a branch replaces what came before


@dataclass(kw_only=True, eq=False)
class TracedStack:
    """Sublayers along one residual stream.

    Attributes:
        name: "encoder" or "decoder", with a number where there are several.
        first: the value that the first sublayer reads.
        time: the axis of positions in the stream, where one was found.
        final: the norms that the last sum goes through before anything else reads it.
        function: what sums under a post norm compute; see `function_of`.
    """

    name: str
    sublayers: list[TracedSublayer]
    first: int
    time: int | None = None
    final: list[TracedNorm] = field(default_factory=list)
    function: Function | None = None

    @property
    def layers(self) -> int:
        return self.sublayers[-1].layer

    @property
    def cross(self) -> bool:
        return any(sublayer.kind == "cross" for sublayer in self.sublayers)


@dataclass(kw_only=True, eq=False)
class Anatomy:
    """What was found in a model. `stacks` is empty where no sublayer was.

    Attributes:
        missed: what could not be looked at, and why.
        idle: addresses of modules with matrices that these inputs do not run through, the outermost of each.
    """

    dataflow: Dataflow
    stacks: list[TracedStack]
    missed: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        return self.dataflow.trace

    @cached_property
    def sublayers(self) -> list[TracedSublayer]:
        """Stack by stack."""
        return [sublayer for stack in self.stacks for sublayer in stack.sublayers]

    @cached_property
    def distinct(self) -> list[TracedSublayer]:
        """The sublayers; of a large model the first of each form, from what it reads to its sum."""
        if not self.trace.shares:
            return self.sublayers
        forms = {form(self.trace, self.dataflow.between(s.read, s.total)): s for s in reversed(self.sublayers)}
        return [s for s in self.sublayers if s in forms.values()]

    @property
    def placements(self) -> dict[str, str]:
        return {sublayer.address: sublayer.placement for sublayer in self.sublayers}


def find_anatomy(model: nn.Module, inputs: Any) -> Anatomy:
    """Run `model` once on `inputs` and find its sublayers; see `isograd.trace.record.record` for what it runs on."""
    dataflow, missed = Dataflow(record(model, inputs, shared=is_large(model))), list[str]()
    stacks = _without_inner(dataflow, _stacks(find_sublayers(dataflow, missed), dataflow))
    for stack in stacks:
        steps: list[Callable[[], None]] = [
            partial(_set_ends, dataflow, stack),
            partial(_set_posts_of_layers, stack),
            partial(_place, stack),
            partial(_set_first, dataflow, stack),
            partial(_count, dataflow, stack),
            partial(_set_families, dataflow, stack),
        ]
        for step in steps:
            try:
                step()
            except Exception as error:  # one probe that fails does not stop the others
                told = f"{stack.sublayers[0].last or 'a stack'}: {type(error).__name__}: {' '.join(str(error).split())}"
                missed.append(told[:160])
    _name_stacks(dataflow, stacks)
    _set_addresses([sublayer for stack in stacks for sublayer in stack.sublayers])
    idle = _idle(dataflow.trace)
    return Anatomy(dataflow=dataflow, stacks=stacks, missed=list(dict.fromkeys(missed)), idle=idle)


def _idle(trace: Trace) -> list[str]:
    """Modules that hold matrices of which nothing was read, and that lie in none such; one expert among others that
    were read is none.
    """
    read: dict[str, bool] = {}
    matrices: dict[str, bool] = {}
    for value, name in trace.names.items():
        parts = name.split(".")[:-1]
        for address in (".".join(parts[:i]) for i in range(1, len(parts) + 1)):
            read[address] = read.get(address, False) or bool(trace.readers.get(value)) or address in trace.ran
            matrices[address] = matrices.get(address, False) or trace[value].ndim >= 2
    idle = [a for a, is_read in read.items() if not is_read and matrices[a] and read.get(a.rpartition(".")[0], True)]
    return [a for a in idle if not (a.rpartition(".")[2].isdecimal() and a.rpartition(".")[0] in read)]


def _place(stack: TracedStack) -> None:
    for sublayer in stack.sublayers:
        sublayer.placement = placement_of(sublayer.norms)


def _without_inner(dataflow: Dataflow, stacks: list[TracedStack]) -> list[TracedStack]:
    """Without sums that begin and end inside a branch: D x of a state-space layer, values mixed with others'."""
    inner = []
    for stack in stacks:
        aside = [s for s in stack.sublayers if s.skip_from and any(_holds_sum(dataflow, o, s) for o in stack.sublayers)]
        stack.sublayers = [s for s in stack.sublayers if s not in aside]
        longer = [s for other in stacks if len(other.sublayers) > len(stack.sublayers) for s in other.sublayers]
        if all(any(_lies_in(dataflow, sublayer.total, s) for s in longer) for sublayer in stack.sublayers):
            inner.append(stack)
    return [stack for stack in stacks if stack not in inner]


def _holds_sum(dataflow: Dataflow, other: TracedSublayer, sublayer: TracedSublayer) -> bool:
    """Whether the other branch begins where this one does and goes through its sum, as a router's own shortcut."""
    same = other is not sublayer and other.read == sublayer.read and other.total != sublayer.total
    return same and sublayer.total in dataflow.above(other.branch)


def _lies_in(dataflow: Dataflow, value: int, sublayer: TracedSublayer) -> bool:
    """Whether a value was computed on the way from what a branch reads to what it wrote."""
    return value in dataflow.above(sublayer.branch) and sublayer.read in dataflow.above(value)


def function_of(ratios: Sequence[float]) -> Function:
    """What the sums under a post norm compute, whatever their coefficients are called: r_i = skip_i / scale_i weighs
    the stream, which a post norm has brought to one size, against branch i of N.

    "post-ln": in the last quarter r is below two thirds of DeepNorm's N^(1/4), or 1.05, as in an ADMIN that was never
    calibrated; or some r after the first is below `SMALL`, as after a calibration on an embedding that is too small.
    Otherwise "deepnorm" where r is one number, and "admin" where it grows.
    """
    last = median(ratios[-max(1, len(ratios) // 4) :])
    if last < max(1.05, len(ratios) ** 0.25 * 2 / 3) or min(ratios[1:], default=1.0) < SMALL:
        return "post-ln"
    return "deepnorm" if max(ratios) < 1.01 * min(ratios) else "admin"


def _stacks(sublayers: list[TracedSublayer], dataflow: Dataflow) -> list[TracedStack]:
    """A sublayer joins the stream whose last sum it reads, through norms or bare."""
    stacks: list[TracedStack] = []
    for sublayer in sublayers:
        origin, crossed = dataflow.back(sublayer.enters)
        home = next((s for s in stacks if _joins(s.sublayers[-1], sublayer, origin)), None)
        if home is None:
            stacks.append(TracedStack(name="", sublayers=[sublayer], first=sublayer.read))
            continue
        last = home.sublayers[-1]
        if crossed and last.total != sublayer.total and last.enters != sublayer.enters:
            for before in (s for s in home.sublayers if s.total == last.total):
                before.norms["post"] = crossed
        home.sublayers.append(sublayer)
    return stacks


def _joins(last: TracedSublayer, sublayer: TracedSublayer, origin: int) -> bool:
    if last.design and sublayer.design and last.branch == origin:  # over depth nothing is added up
        return True
    return origin == last.total or last.total == sublayer.total or last.enters == sublayer.enters


def _set_first(dataflow: Dataflow, stack: TracedStack) -> None:
    """A first sublayer without a pre of its own, after a normalized embedding, is no other placement (ModernBERT)."""
    first, *others = stack.sublayers
    peers = {s.placement for s in others if s.kind == first.kind}
    if first.placement == "none" and peers == {"pre-ln"} and dataflow.root(first.read) in dataflow.norms:
        first.placement = "pre-ln"


def _set_ends(dataflow: Dataflow, stack: TracedStack) -> None:
    """The norms after the last sum: the first of them is its post where the sums before it have one."""
    last = stack.sublayers[-1]
    crossed, value = [], last.total
    while (norm := _only_norm(dataflow, value)) is not None:
        crossed.append(norm)
        value = norm.result
    others = [s for s in stack.sublayers if s.total != last.total]
    alike = [s for s in others if s.kind == last.kind]
    alike = [s for s in alike if numbered(s.last) == numbered(last.last)] or alike  # of two in a layer, the last
    others = [s for s in alike if ("pre" in s.norms) == ("pre" in last.norms)] or alike or others
    posts = [s for s in others if "post" in s.norms]
    if (crossed and posts and len(posts) * 2 >= len(others)) or (crossed and not others and "pre" not in last.norms):
        last.norms["post"] = crossed[:1]
        crossed = crossed[1:]
    stack.final = crossed


def _only_norm(dataflow: Dataflow, value: int) -> TracedNorm | None:
    """A norm that reads a value, itself or its layout, scale and shift; None where there is none."""
    todo, found = [value], None
    outputs = set(dataflow.trace.outputs.values())
    while todo:
        at = todo.pop()
        norm = next((n for n in dataflow.norms.values() if n.origin == at), None)
        if norm is not None:
            found = norm
            continue
        for operation in dataflow.trace.read_by(at):
            made = operation.makes[0] if operation.makes else None
            if made is not None and dataflow.through(made) == at and made not in outputs:
                todo.append(made)
    return found


def _count(dataflow: Dataflow, stack: TracedStack) -> None:
    """Places and layers, which end where a kind comes again; the stream after each sublayer, and its axis of time."""
    first = next((s for s in stack.sublayers if s.kind in ("attn", "mix")), None)
    stack.time = dataflow.time_axis(first.read, first.branch if first.design else first.total) if first else None
    layer, kinds = 1, set[str]()
    for index, sublayer in enumerate(stack.sublayers, start=1):
        if sublayer.kind in kinds:
            layer, kinds = layer + 1, set()
        kinds.add(sublayer.kind)
        sublayer.layer, sublayer.index = layer, index
        after = next((s for s in stack.sublayers[index:] if s.total != sublayer.total), None)
        sublayer.stream = _stream(dataflow, sublayer, after)


def _stream(dataflow: Dataflow, sublayer: TracedSublayer, after: TracedSublayer | None) -> int:
    """After a sublayer: with a post norm what the next one reads, or the norm with its weight and bias."""
    posts = sublayer.norms.get("post")
    if not posts:
        return sublayer.total
    value, trace = posts[-1].result, dataflow.trace
    if after is not None and after.read in trace.below([value]):
        return after.read
    while len(readers := trace.read_by(value)) == 1 and bare(readers[0]) in SCALING | {"to", "_to_copy"}:
        if len(dataflow.data(readers[0])) != 1 or (bare(readers[0]) in SCALING and not dataflow.weights(readers[0])):
            break
        value = readers[0].makes[0]
    return value


def _set_posts_of_layers(stack: TracedStack) -> None:
    """Under a shortcut from the layer's input, the norm between two branches is the first one's where sums have norms:
    y = norm(x + attn(x)), x <- norm(x + ffn(y)) (SpanNorm).
    """
    for before, sublayer in pairwise(stack.sublayers):
        if sublayer.skip_from and "post" in sublayer.norms and "pre" in sublayer.norms and "post" not in before.norms:
            before.norms["post"] = sublayer.norms.pop("pre")


def _set_families(dataflow: Dataflow, stack: TracedStack) -> None:
    """Placements that take more than a sublayer's own norms."""
    by_kind = {s.kind: s.placement for s in stack.sublayers}
    normformer = by_kind.get("attn") == "sandwich" and by_kind.get("ffn") == "sub-ln"
    ratios = [s.weight_ratio for s in stack.sublayers if "post" in s.norms and "pre" not in s.norms]
    stack.function = function_of(ratios) if ratios else None
    for sublayer in stack.sublayers:
        name, skip, scale = sublayer.placement, sublayer.skip, sublayer.scale
        if normformer and name in ("sandwich", "sub-ln"):
            sublayer.placement = "normformer"
        elif name == "post-ln" and skip.learned:
            sublayer.placement = "post-ln" if stack.function == "post-ln" else "admin"
        elif name == "post-ln" and skip.even and abs(sublayer.weight_ratio - 1) > 1e-3:
            sublayer.placement = "deepnorm"
        elif name == "pre-ln" and skip.learned and scale.learned and skip.offset and scale.offset:
            sublayer.placement = "affine-shortcut"
        elif name == "sandwich" and skip.learned and scale.learned:
            sublayer.placement = "variance-gate"
        elif name in ("pre-ln", "none") and scale.learned:
            sublayer.placement = "layerscale" if name == "pre-ln" else "rezero"
    for sublayer in stack.sublayers:
        if sublayer.design == "gated" and sublayer.scale.learned and {"out", "post"} <= set(sublayer.norms):
            sublayer.design = "ngpt"
    if _is_hybrid(stack):
        for sublayer in stack.sublayers:
            sublayer.placement = "hybridnorm"
    if _scaled_by_depth(dataflow, stack):
        for sublayer in stack.sublayers:
            sublayer.placement = "layernorm-scaling"
    designs = [s.design for s in stack.sublayers if s.design and s.design not in ("gated", "ngpt")]
    for sublayer in stack.sublayers:
        if sublayer.design:
            sublayer.placement = mode(designs) if sublayer.design in designs else sublayer.design
    if any(s.also is not None for s in stack.sublayers):
        _name_two_streams(dataflow, stack)
    if any(_adds_first_input(dataflow, stack, sublayer.read) for sublayer in stack.sublayers):
        deep = max(_states(dataflow, stack, sublayer.read) for sublayer in stack.sublayers) > 2
        for sublayer in stack.sublayers:
            name = "denseformer" if deep else "x0-scalars"
            sublayer.placement = name if sublayer.placement == "pre-ln" else sublayer.placement


def _is_hybrid(stack: TracedStack) -> bool:
    """HybridNorm: norms on queries, keys and values, one on the attention's sum, and none at the feed-forward."""
    sided = {"query", "key", "value", "post"}
    own = all(sided <= set(s.norms) if s.kind == "attn" else s.placement == "none" for s in stack.sublayers)
    return own and {s.kind for s in stack.sublayers} == {"attn", "ffn"}


def _scaled_by_depth(dataflow: Dataflow, stack: TracedStack) -> bool:
    """Whether what every norm before a branch gives is multiplied by 1/sqrt(l), l the layer."""
    if stack.layers < 3 or any(s.placement != "pre-ln" for s in stack.sublayers):
        return False
    return all(abs(_constant_after(dataflow, s) * s.layer**0.5 - 1) < 1e-3 for s in stack.sublayers)


def _constant_after(dataflow: Dataflow, sublayer: TracedSublayer) -> float:
    """The product of the numbers that stand between the norm before a branch and what reads it."""
    if "pre" not in sublayer.norms:
        return 1.0
    norm, trace, factor = sublayer.norms["pre"][-1], dataflow.trace, 1.0
    value = norm.result
    while len(readers := trace.read_by(value)) == 1 and dataflow.through(readers[0].makes[0]) == value:
        numbers = [a for a in readers[0].args[1:] if isinstance(a, int | float)]
        if bare(readers[0]) in ("mul", "div") and len(numbers) == 1 and not dataflow.weights(readers[0]):
            factor *= numbers[0] if bare(readers[0]) == "mul" else 1 / numbers[0]
        value = readers[0].makes[0]
    return factor


def _adds_first_input(dataflow: Dataflow, stack: TracedStack, value: int) -> bool:
    """Whether a value is r x + z x_0 with trained r and z, x_0 what the first sublayer reads; or an average of all."""
    if value in dataflow.memo.get("averages", {}):
        return dataflow.root(stack.first) in dataflow.memo["averages"][value]
    made = dataflow.trace.made_by(value) if value in dataflow.joined else None
    if made is None:
        return False
    roots = {v if v == stack.first else dataflow.root(v) for v in dataflow.data(made)}
    weighed = [o for v in dataflow.data(made) if (o := dataflow.trace.made_by(v)) and dataflow.weights(o)]
    return len(weighed) > 0 and (stack.first in roots or dataflow.root(stack.first) in roots)


def _states(dataflow: Dataflow, stack: TracedStack, value: int) -> int:
    """How many of the stream's earlier states a value was weighed together of: DenseFormer's averages have all."""
    states = {stack.first, *(s.total for s in stack.sublayers)}
    if value in dataflow.memo.get("averages", {}):
        return len(dataflow.memo["averages"][value])
    found, todo = set[int](), [value]
    while todo:
        at = todo.pop()
        made = dataflow.trace.made_by(at)
        if at in states:
            found.add(at)
        elif made is not None and bare(made) in SUMS | SCALING:
            todo += dataflow.data(made)
    return len(found)


def _name_two_streams(dataflow: Dataflow, stack: TracedStack) -> None:
    """ResiDual, whose branches read the stream under the norms; SiameseNorm, whose branches read the sum of both."""
    both = any(s.also in dataflow.above(stack.sublayers[-1].branch) for s in stack.sublayers[:-1])
    for sublayer in stack.sublayers:
        sublayer.placement = "siamesenorm" if both else "residual"


def _name_stacks(dataflow: Dataflow, stacks: list[TracedStack]) -> None:
    """A stack with cross-attention decodes; one whose end it reads encodes; else what the attention sees decides."""
    counts: dict[str, int] = {}
    for stack in stacks:
        name = "decoder" if stack.cross or (len(stacks) == 1 and _looks_back_only(dataflow, stack)) else "encoder"
        counts[name] = counts.get(name, 0) + 1
        stack.name = name if counts[name] == 1 else f"{name}{counts[name]}"
        for sublayer in stack.sublayers:
            sublayer.stack = stack.name


def _looks_back_only(dataflow: Dataflow, stack: TracedStack) -> bool:
    """Whether the first attention's result stays everywhere else when x moves at the last position."""
    sublayer = next((s for s in stack.sublayers if s.kind == "attn"), None)
    if sublayer is None or stack.time is None:
        return False
    moved = dataflow.moved_at(sublayer.read, sublayer.branch if sublayer.design else sublayer.total, stack.time, -1)
    return moved is not None and not moved[:-1].any()


def _set_addresses(every: list[TracedSublayer]) -> None:
    """The module that holds a branch alone, else that of its last projection."""
    common = [_common(list(s.roles) or list(s.parameters)) for s in every]
    used: dict[str, int] = {}
    for at, sublayer in enumerate(every):
        posts = [n.weight for n in sublayer.norms.get("post", []) if n.weight]
        others = {other for i, other in enumerate(common) if i != at and other != common[at]}
        candidates = [_common([*sublayer.parameters, *posts]), common[at]]
        last = sublayer.last.rpartition(".")[0] or sublayer.last if sublayer.last else common[at]
        alone = (a for a in candidates if a and not any(_holds(a, other) for other in others))
        address = next(alone, last) if common.count(common[at]) == 1 or not _beside(every, at) else last
        used[address] = used.get(address, 0) + 1
        sublayer.address = address if used[address] == 1 else f"{address}#{used[address]}"


def _beside(every: list[TracedSublayer], at: int) -> bool:
    """Whether another sublayer of the same layer has its weights in the same module; else a module is run again."""
    own = every[at]
    return any(
        s is not own and _common(list(s.roles)) == _common(list(own.roles)) and set(s.roles) != set(own.roles)
        for s in every
    )


def _holds(address: str, other: str) -> bool:
    return address == "" or other == address or other.startswith(f"{address}.")


def _common(names: list[str]) -> str:
    """The longest address that all parameters lie below."""
    return common_address(name.rpartition(".")[0] for name in names)

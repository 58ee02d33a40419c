"""The residual sums of a forward pass, and what the branch of each is made of.

A sublayer is a sum  s = skip * x + scale * u  in which u was computed from x with the help of weights. Its norms are
those that a walk crosses between x and the first product (pre), after the last product (out), before it (mid), and on
the sum (post).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from isograd.trace.attention import all_scores, is_attention, query_key_value
from isograd.trace.dataflow import SUMS, Dataflow, TracedNorm, bare, different
from isograd.trace.record import Operation, in_double
from isograd.trace.streams import Copies, averages, copies_of, dominators, gathers, mixed_over_depth

Slot = Literal["pre", "mid", "out", "post", "query", "key", "value"]
SublayerKind = Literal["attn", "cross", "ffn", "mix"]
LEAST = 1e-6  # RMS of a branch that a sum shows as it is
ROUND = 1e-5  # of two gates that add up to 1
_WRAPPERS = ("dropout", "to", "alias")  # of a term of a sum
_MIXERS = ("fft", "avg_pool", "adaptive_avg_pool")  # in the names of what mixes positions without weights


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedCoefficient:
    """`skip` or `scale` of a traced sum: its mean value, and the names of the parameters in it."""

    value: float
    even: bool  # one number for all channels
    learned: tuple[str, ...]
    offset: bool = False  # a vector of parameters is added to the term, too


_ONE = TracedCoefficient(value=1.0, even=True, learned=())


@dataclass(kw_only=True, eq=False)
class TracedSublayer:
    """One sum with its branch.

    Attributes:
        read: what the branch reads, x.
        branch: what the branch gives, u, before its coefficient.
        total: the sum s.
        kind: "attn", "cross", "ffn", or "mix" (mixes positions without attention).
        norms: those found, by slot.
        parameters: names of all in the branch, its norms and coefficients.
        roles: name of a matrix -> query, key, value, attn_out, ffn_in, ffn_out.
        last: name of the last projection's weight, W_O or W_2.

        enters: the value of the stream that it continues: x, or the copies that x was read from.
        design: the catalogue's name of a stream that is no single tensor; None of any other.
        skip_from: "layer input" where the shortcut begins before the last sum; else None.
        also: the sum of a second stream that the branch is added to.

    Of its stack (`isograd.trace.anatomy`):
        address: of the module that holds the branch.
        placement: the name of its norms; see `placement_of`.
        stream: the value that is handed on: the sum, or after its post norm.
        stack, index, layer: the stack's name; the place in it of the sublayer and of its layer, from 1.
    """

    read: int
    branch: int
    total: int
    kind: SublayerKind
    norms: dict[Slot, list[TracedNorm]]
    skip: TracedCoefficient
    scale: TracedCoefficient
    parameters: tuple[str, ...]
    roles: dict[str, str]
    last: str | None
    attention: Operation | None
    enters: int = -1
    design: str | None = None
    skip_from: str | None = None
    also: int | None = None
    address: str = ""
    placement: str = ""
    stream: int = -1
    stack: str = ""
    index: int = 0
    layer: int = 0

    @property
    def weight_ratio(self) -> float:
        """r = skip / scale."""
        return self.skip.value / (self.scale.value or 1.0)


def placement_of(slots: Iterable[str]) -> str:
    """The name of a sublayer's norms: "post-ln", "pre-ln", "out-ln" (on what the branch wrote), "sandwich" (pre and
    out), "sub-ln" (pre and mid); others by their slots, as "pre+post"; "none".
    """
    joined = "+".join(slot for slot in ("pre", "mid", "out", "post") if slot in slots)
    names = {"": "none", "pre": "pre-ln", "post": "post-ln", "out": "out-ln"}
    return (names | {"pre+out": "sandwich", "pre+mid": "sub-ln"}).get(joined, joined)


def find_sublayers(dataflow: Dataflow, missed: list[str]) -> list[TracedSublayer]:
    """Every sum of a stream with a branch, in the order of running; `missed` gets a line for each it cannot read."""
    return _Finder(dataflow, missed).sublayers()


def summands(dataflow: Dataflow, operation: Operation) -> list[int]:
    """The activations that a sum adds, sums within it that nothing else reads taken apart."""
    trace, terms = dataflow.trace, list[int]()
    for value in dataflow.data(operation):
        if trace[value].shape != trace[operation.makes[0]].shape:
            continue
        inner = trace.made_by(_unwrapped(dataflow, value))
        if inner is not None and _is_inner(dataflow, inner) and len(dataflow.data(inner)) > 1:
            terms += summands(dataflow, inner)
        else:
            terms.append(value)
    return terms


def interpolated(dataflow: Dataflow, operation: Operation) -> tuple[int, int, int] | None:
    """x, u and the gate g of (1 - g) x + g u: two products whose gates, activations, add up to 1; x + g (u - x); lerp.

    None of any other sum.
    """
    trace, data = dataflow.trace, dataflow.data(operation)
    if bare(operation) == "lerp" and len(operation.reads) == 3:
        x, u, g = operation.reads
        return (x, u, g) if {x, u} <= dataflow.live else None
    if bare(operation) != "add" or len(data) != 2:
        return None
    for x, moved in (data, data[::-1]):
        product = trace.made_by(_unwrapped(dataflow, moved))
        if product is None or bare(product) != "mul" or len(product.reads) != 2:
            continue
        for way, gate in (product.reads, product.reads[::-1]):
            made = trace.made_by(way)
            if made is not None and bare(made) == "sub" and len(made.reads) == 2 and made.reads[1] == x:
                return x, made.reads[0], gate
    factors = [_factors(dataflow, v) for v in data]
    for a, x in factors[0]:
        for b, u in factors[1]:
            if trace[a].shape == trace[b].shape and bool((trace[a] + trace[b] - 1).abs().max() < ROUND):
                return (x, u, b) if dataflow.root(x) in dataflow.above(u) else (u, x, a)
    return None


def _factors(dataflow: Dataflow, value: int) -> list[tuple[int, int]]:
    """Of a product of two activations of which one may be a gate: (it, the other)."""
    made = dataflow.trace.made_by(value)
    if made is None or bare(made) != "mul" or len(dataflow.data(made)) != 2:
        return []
    a, b = dataflow.data(made)
    pairs = [(a, b), (b, a)]
    return [(g, x) for g, x in pairs if dataflow.trace[g].min() >= 0 and dataflow.trace[g].max() <= 1]


def _unwrapped(dataflow: Dataflow, value: int) -> int:
    while (made := dataflow.trace.made_by(value)) is not None and bare(made) in _WRAPPERS:
        if len(made.reads) != 1 or len(dataflow.trace.read_by(made.reads[0])) != 1:
            break
        value = made.reads[0]
    return value


def _is_inner(dataflow: Dataflow, operation: Operation) -> bool:
    """Whether an operation is a sum that is taken apart as a term of the only operation that reads it."""
    if bare(operation) not in SUMS:
        return False
    trace, value = dataflow.trace, operation.makes[0]
    readers = trace.read_by(value)
    while len(readers) == 1 and bare(readers[0]) in _WRAPPERS:
        value = readers[0].makes[0]
        readers = trace.read_by(value)
    if len(readers) != 1 or bare(readers[0]) not in SUMS:
        return False
    return len(dataflow.data(readers[0])) > 1 and trace[readers[0].makes[0]].shape == trace[value].shape


class _Finder:
    def __init__(self, dataflow: Dataflow, missed: list[str]) -> None:
        self.dataflow = dataflow
        self.trace = dataflow.trace
        self.missed = missed
        self.matrices = {name for value, name in self.trace.names.items() if self.trace[value].ndim >= 2}
        self.gathers = gathers(dataflow)
        dataflow.memo["averages"] = found = averages(dataflow)
        for value, sources in found.items():
            dataflow.join(value, max(sources))
        self.found: dict[int, TracedSublayer] = {}  # by what the branch wrote

    def sublayers(self) -> list[TracedSublayer]:
        streams = self.dataflow.live - all_scores(self.dataflow)
        for operation in self.trace.operations:
            if bare(operation) in SUMS and operation.makes and operation.makes[0] in streams:
                try:
                    self._sum(operation)
                except Exception as error:  # one sum that cannot be looked at does not stop the others
                    self._miss(operation, error)
        try:
            self._written_over_depth()
        except Exception as error:
            self._miss(self.gathers[0][0], error)
        order = {value: at for at, operation in enumerate(self.trace.operations) for value in operation.makes}
        return sorted(self.found.values(), key=lambda s: order.get(s.total, -1))

    def _miss(self, operation: Operation, error: Exception) -> None:
        told = f"{operation.module or 'the model'}: {type(error).__name__}: {' '.join(str(error).split())}"[:160]
        if told not in self.missed:
            self.missed.append(told)

    def _sum(self, operation: Operation) -> None:
        if _is_inner(self.dataflow, operation):
            return
        total, terms = operation.makes[0], self._terms(operation)
        gated = self._gated(operation)
        if gated is not None:
            self.found[gated.branch] = gated
        if len(terms) < 2 or gated is not None:
            return
        copies = copies_of(self.dataflow, operation, terms)
        if copies is not None:
            self.found[copies.branch] = self._of_copies(copies, total)
            return
        made: list[TracedSublayer] = []
        for skip, branch in self._pairs(terms):
            root = self.dataflow.root(branch)
            if self._is_taken_off(operation, skip):
                continue
            if self._is_stream(root, self.dataflow.root(skip)):  # two values of streams, no branch
                self.dataflow.join(total, branch)
            elif root not in self.found:
                made.append(self._sublayer(skip, branch, total, terms))
            elif self.found[root].total != total:
                self.found[root].also = total
        for sublayer in self._merged(made, operation):
            self.found[sublayer.branch] = sublayer

    def _terms(self, operation: Operation) -> list[int]:
        """The summands, but x and u + g(u) of a branch u of x that ends in a shortcut of its own, as a short
        convolution's. Not of a stream u that an earlier value of it is added to again, as in a U-Net.
        """
        whole = self.dataflow.data(operation)
        for value in whole if len(whole) == 2 else ():
            inner = self.trace.made_by(_unwrapped(self.dataflow, value))
            others = [self.dataflow.root(v) for v in whole if v != value]
            if inner is None or not _is_inner(self.dataflow, inner):
                continue
            starts = [self.dataflow.root(skip) for skip, _ in self._pairs(summands(self.dataflow, inner))]
            starts = [v for v in starts if not self._is_stream(v, others[0])]
            if any(set(others) <= self.dataflow.above(v) - {v} and self._has_weights(others[0], v) for v in starts):
                return whole
        return summands(self.dataflow, operation)

    def _gated(self, operation: Operation) -> TracedSublayer | None:
        """The sublayer of (1 - g) x + g u, where u was computed from what x is or is the norm of; else None."""
        between = interpolated(self.dataflow, operation)
        if between is None:
            return None
        x, branch, gate = between
        start, above = self.dataflow.root(x), self.dataflow.above(branch)
        while start not in above and (norm := self.dataflow.norms.get(start)) is not None:
            start = norm.origin if norm.origin in above else self.dataflow.root(norm.origin)
        if start == branch or start not in above or not self._has_weights(start, branch):
            return None
        names = tuple(name for name in [self.dataflow.parameter(gate)] if name)
        g = float(self.trace[gate].double().mean())
        on_x, on_u = (TracedCoefficient(value=value, even=False, learned=names) for value in (1 - g, g))
        sublayer = self._branch(start, branch, operation.makes[0], on_x, on_u)
        sublayer.design = "gated"
        products = [o for o in self.dataflow.between(start, branch) if self.dataflow.is_product(o)]
        own = [o for o in products if all(self.dataflow.back(v, start) != (start, []) for v in self.dataflow.data(o))]
        if pre := self._pre(start, own):  # the gate's matrices read x itself
            sublayer.norms["pre"] = pre
        return sublayer

    def _is_taken_off(self, operation: Operation, skip: int) -> bool:
        """Whether a sum is f(x) - x, no shortcut: what pooling leaves out of x."""
        reads = operation.reads if bare(operation) == "sub" else operation.reads[::-1]
        taken = bare(operation) in ("sub", "rsub") and len(reads) == 2
        return taken and self.dataflow.root(reads[1]) == self.dataflow.root(skip)

    def _is_stream(self, value: int, start: int) -> bool:
        """Whether a value is the sum of several sublayers, or of one on top of `start`: no branch, though a branch may
        end in a sum of its own.
        """
        below = self._chain(value)
        return len(below) > 1 or self.dataflow.back(start)[0] in below

    def _chain(self, value: int) -> list[int]:
        """Where the sublayers begin that a sum is on top of, the last one's first."""
        by_total = {s.total: s for s in self.found.values()}
        below: list[int] = []
        while value in by_total and len(below) < len(by_total):
            value, _ = self.dataflow.back(by_total[value].enters)
            below.append(value)
        return below

    def _merged(self, made: list[TracedSublayer], operation: Operation) -> list[TracedSublayer]:
        """Terms of one sum that read the same through the same attention, or all through none, are one branch: routed
        and shared experts, a projection and its low-rank adapter.
        """
        kept: list[TracedSublayer] = []
        for sublayer in made:
            same = [
                s for s in kept if (s.kind, s.read, s.attention) == (sublayer.kind, sublayer.read, sublayer.attention)
            ]
            if not same or sublayer.kind not in ("ffn", "attn"):
                kept.append(sublayer)
                continue
            self._join_terms(same[0], sublayer, operation)
        return kept

    def _join_terms(self, one: TracedSublayer, other: TracedSublayer, operation: Operation) -> None:
        """One branch of two; what it wrote is the sum of both where there is such a value."""
        for value in self.dataflow.data(operation):
            inner = self.trace.made_by(_unwrapped(self.dataflow, self.dataflow.root(value)))
            if inner is not None and bare(inner) in SUMS:
                leaves = {self.dataflow.root(v) for v in summands(self.dataflow, inner)}
                if leaves == {one.branch, other.branch}:
                    one.branch = inner.makes[0]
        one.parameters = tuple(dict.fromkeys((*one.parameters, *other.parameters)))
        one.roles = other.roles | one.roles

    def _of_copies(self, copies: Copies, total: int) -> TracedSublayer:
        sublayer = self._branch(copies.read, copies.branch, total, _ONE, _ONE)
        sublayer.enters, sublayer.design = copies.state, copies.name
        return sublayer

    def _written_over_depth(self) -> None:
        """Branches that are added to nothing: the next gathering has each beside those before it."""
        before: list[int] = []
        for operation, sources in self.gathers:
            if before and sources[: len(before)] != before and sources[: len(before) - 1] != before[:-1]:
                before = sources[:1]
            for source in sources[len(before) or 1 :]:
                start = before[-1] if before else sources[0]
                if source not in self.found and start in self.dataflow.above(source):
                    deep = mixed_over_depth(self.dataflow, start, source)
                    read, name = deep or (start, None)
                    if self._has_weights(read, source):
                        sublayer = self._branch(read, source, operation.makes[0], _ONE, _ONE)
                        sublayer.enters, sublayer.design = start, name or "attention-residuals"
                        self.found[source] = sublayer
            before = sources

    def _pairs(self, terms: list[int]) -> list[tuple[int, int]]:
        """(skip, branch) for each term that was computed from another with the help of weights."""
        roots = {t: self.dataflow.root(t) for t in terms}
        found = []
        for branch in terms:
            above = self.dataflow.above(roots[branch])
            skips = [t for t in terms if roots[t] in above and roots[t] != roots[branch] and t != branch]
            if skips:
                skip = max(skips, key=lambda t: roots[t])
                if self._has_weights(roots[skip], branch) or self._mixes(roots[skip], branch):
                    found.append((skip, branch))
        skipped = {roots[skip] for skip, _ in found}
        return [(skip, branch) for skip, branch in found if roots[branch] not in skipped]

    def _has_weights(self, start: int, end: int) -> bool:
        return any(self.dataflow.is_product(o) for o in self.dataflow.between(start, end))

    def _mixes(self, start: int, end: int) -> bool:
        """Whether positions are mixed by an operation without weights, as FNet's."""
        return any(mixer in o.name for o in self.dataflow.between(start, end) for mixer in _MIXERS)

    def _sublayer(self, skip: int, branch: int, total: int, terms: list[int]) -> TracedSublayer:
        """The sum skip + branch, where the branch reads what stands at the beginning of the skip, or a later sum."""
        root = self.dataflow.root(branch)
        start = self._shared(skip, branch)
        read, design = start, None
        deep = mixed_over_depth(self.dataflow, start, root) if self.gathers else None
        if deep is not None:
            read, design = deep
        later = self._later_sum(start, root)
        if later is not None:
            read = later
        on_x = self._coefficient(skip, start, total, [t for t in terms if t != skip])
        on_u = self._coefficient(branch, root, total, [])
        sublayer = self._branch(read, branch, total, on_x, on_u)
        sublayer.design, sublayer.enters = design, start if design else read
        sublayer.skip_from = "layer input" if later is not None else None
        return sublayer

    def _later_sum(self, start: int, branch: int) -> int | None:
        """The last sum of a sublayer that everything between the skip's beginning and the branch goes through."""
        above = self.dataflow.above(branch)
        totals = {s.total for s in self.found.values() if s.total in above and start in self.dataflow.above(s.total)}
        totals = {t for t in totals if self.dataflow.back(start)[0] in self._chain(t)}
        totals = {t for t in totals - {start} if self.trace[t].ndim == self.trace[start].ndim}
        if not totals:
            return None
        return next((v for v in reversed(dominators(self.dataflow, start, branch)) if v in totals), None)

    def _branch(
        self, read: int, branch: int, total: int, on_x: TracedCoefficient, on_u: TracedCoefficient
    ) -> TracedSublayer:
        dataflow, root = self.dataflow, self.dataflow.root(branch)
        region = dataflow.between(read, branch)
        attention = next((o for o in region if is_attention(dataflow, o)), None)
        products = [o for o in region if dataflow.is_product(o)]
        last_product, out = self._last(branch)
        weights = [name for o in region for name in dataflow.weights(o)]
        of_last = dataflow.weights(last_product) if last_product is not None else []
        last = next((name for name in of_last if name in self.matrices), None)
        norms: dict[Slot, list[TracedNorm]] = {"pre": self._pre(read, products), "out": out}
        if last_product is not None and len(products) > 1:
            origin, crossed = dataflow.back(dataflow.data(last_product)[0])
            norms["mid"] = crossed if origin != read else []
        if attention is not None:
            known = {norm.result for slot in norms.values() for norm in slot}
            inside = [n for o in region if o.makes and (n := dataflow.norms.get(o.makes[0])) and n.result not in known]
            norms |= self._on_projections(attention, inside)
        return TracedSublayer(
            read=read,
            branch=root,
            total=total,
            kind=self._kind(attention, read, branch),
            norms={slot: crossed for slot, crossed in norms.items() if crossed},
            skip=on_x,
            scale=on_u,
            parameters=tuple(dict.fromkeys((*weights, *on_x.learned, *on_u.learned))),
            roles=self._roles(products, attention, last),
            last=last,
            attention=attention,
            enters=read,
        )

    def _shared(self, skip: int, branch: int) -> int:
        """x: the last value on the way of the skip that the branch was computed from, too."""
        above = self.dataflow.above(self.dataflow.root(branch))
        while skip not in above and (before := self.dataflow.through(skip)) is not None:
            skip = before
        return skip

    def _last(self, branch: int) -> tuple[Operation | None, list[TracedNorm]]:
        """The last product of a branch and the norms after it."""
        origin, crossed = self.dataflow.back(branch)
        made = self.trace.made_by(origin)
        return (made if made is not None and self.dataflow.is_product(made) else None), crossed

    def _pre(self, read: int, products: list[Operation]) -> list[TracedNorm]:
        """The norms between x and the first products; none where one of those reads x bare."""
        found: list[TracedNorm] = []
        for product in products:
            for value in self.dataflow.data(product):
                origin, crossed = self.dataflow.back(value, read)
                beside = self.trace.made_by(origin)  # a class token before the patches that it attends to
                joined = beside is not None and bare(beside) == "cat" and read in self.dataflow.data(beside)
                if origin != read and not (joined and crossed):
                    continue
                if not crossed:
                    return []
                found += [n for n in crossed if n not in found]
        return found

    def _on_projections(self, attention: Operation, inside: list[TracedNorm]) -> dict[Slot, list[TracedNorm]]:
        attended = query_key_value(self.dataflow, attention)
        if attended is None:
            return {}
        slots: dict[Slot, list[TracedNorm]] = {}
        sides: tuple[Slot, ...] = ("query", "key", "value")
        for slot, value in zip(sides, attended, strict=True):
            others = set().union(*(self.dataflow.above(v) for v in attended if v != value))
            slots[slot] = [n for n in inside if n.result in self.dataflow.above(value) - others]
        return slots

    def _kind(self, attention: Operation | None, read: int, branch: int) -> SublayerKind:
        if attention is None:
            axes = (2, 3) if self._channels_first(read, branch) else (1, 0)
            return "ffn" if self.dataflow.time_axis(read, branch, axes) is None else "mix"
        attended = query_key_value(self.dataflow, attention)
        return "attn" if attended is None or attended[1] in self.trace.below([read]) else "cross"

    def _channels_first(self, read: int, branch: int) -> bool:
        """Whether a convolution reads x as it lies, channels on the second axis."""
        shape = self.trace[read].shape
        convolutions = [
            o for o in self.dataflow.between(read, branch) if "conv" in o.name and self.dataflow.is_product(o)
        ]
        return any(self.trace[o.reads[0]].shape == shape for o in convolutions)

    def _coefficient(self, term: int, root: int, total: int, others: list[int]) -> TracedCoefficient:
        """d s / d (root of the term), measured by doubling the root while the other terms stay."""
        trace = self.trace
        pinned = {self.dataflow.root(other): trace[self.dataflow.root(other)] for other in others}
        base = in_double(trace[root])
        size = base.square().mean().sqrt()
        if size < LEAST:  # W_O may begin at zero: the sum must show what is doubled
            base = base / size if size else torch.ones_like(base)
        pinned = {at: in_double(value) for at, value in pinned.items()}
        grown = trace.replay({root: 2 * base} | pinned, [total], double=True)[0]
        alone = trace.replay({root: base} | pinned, [total], double=True)[0]
        step, base = ((x.double().abs().reshape(-1).sort().values) for x in (grown - alone, base))  # in any layout
        value = (step.norm() / base.norm().clamp_min(1e-30)).item()
        even = step.shape == base.shape and different(value * base, step) < 1e-3
        norm_weights = {norm.weight for norm in self.dataflow.norms.values()}
        learned: list[str] = []
        offset = False
        for operation in self.dataflow.chain(term) if term != root else ():
            if bare(operation) != "add":
                learned += [name for name in self.dataflow.weights(operation) if name not in norm_weights]
            offset |= bare(operation) == "add" and bool(self.dataflow.weights(operation))
            if root in operation.reads:
                break
        last = trace.made_by(total)
        if last is not None and bare(last) in ("addcmul", "lerp") and term in last.reads[1:]:
            learned += self.dataflow.weights(last)
        return TracedCoefficient(value=value, even=even, learned=tuple(dict.fromkeys(learned)), offset=offset)

    def _largest(self, product: Operation, value: int) -> Operation:
        """Of the products that are added up on the way to a value the largest, beside its adapters."""
        found = [product]
        for operation in self.dataflow.between(product.makes[0], value):
            terms = [self.dataflow.product(v) for v in self.dataflow.data(operation)] if bare(operation) in SUMS else []
            if any(term is product for term in terms):
                found += [term for term in terms if term is not None]
        return max(found, key=lambda o: max(self.trace[v].numel() for v in o.reads if v not in self.dataflow.live))

    def _roles(self, products: list[Operation], attention: Operation | None, last: str | None) -> dict[str, str]:
        roles: dict[str, str] = {}
        if attention is None:
            names = [n for o in products for n in self.dataflow.weights(o)[-2:] if n in self.matrices]
            roles = dict.fromkeys(names, "ffn_in")
        elif (attended := query_key_value(self.dataflow, attention)) is not None:
            for side, value in zip(("query", "key", "value"), attended, strict=True):
                product = next((o for o in reversed(products) if o.makes[0] in self.dataflow.above(value)), None)
                product = None if product is None else self._largest(product, value)
                for name in self.dataflow.weights(product) if product is not None else ():
                    if name in self.matrices:
                        roles[name] = f"{roles[name]}+{side}" if name in roles else side
        if last is not None:
            roles[last] = "ffn_out" if attention is None else "attn_out"
        return roles

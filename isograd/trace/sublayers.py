"""The residual sums of a forward pass, and what the branch of each is made of."""

import torch

from isograd.trace.dataflow import PRODUCTS, SUMS, Flow, bare, different
from isograd.trace.positions import time_axis
from isograd.trace.record import Operation
from isograd.trace.structure import Coefficient, FoundKind, FoundNorm, FoundSublayer, Slot


class Sums:
    """Finds them; `attended` also says what an attention reads."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.trace = flow.trace
        self._above: dict[int, set[int]] = {}

    def sublayers(self) -> list[FoundSublayer]:
        found: list[FoundSublayer] = []
        seen: set[int] = set()
        scores = self._all_scores()
        for operation in self.trace.operations:
            if bare(operation) not in SUMS or not operation.makes or operation.makes[0] not in self.flow.live - scores:
                continue
            terms = self.terms(operation)
            if len(terms) < 2 or self._is_inner(operation):
                continue
            for skip, branch in self._pairs(terms):
                key = self.flow.root(branch)
                if key not in seen:
                    seen.add(key)
                    found.append(self._sublayer(skip, branch, operation.makes[0], terms))
        return found

    def terms(self, operation: Operation) -> list[int]:
        """The activations that a sum adds, sums within it that nothing else reads taken apart."""
        made = operation.makes[0]
        terms: list[int] = []
        for value in self.flow.data(operation):
            if self.trace[value].shape != self.trace[made].shape:
                continue
            inner = self.trace.made_by(self._unwrapped(value))
            if inner is not None and bare(inner) in SUMS and self._is_inner(inner) and len(self.flow.data(inner)) > 1:
                terms += self.terms(inner)
            else:
                terms.append(value)
        return terms

    def _unwrapped(self, value: int) -> int:
        while (made := self.trace.made_by(value)) is not None and bare(made) in ("dropout", "to", "alias"):
            if len(made.reads) != 1 or len(self._readers(made.reads[0])) != 1:
                break
            value = made.reads[0]
        return value

    def _readers(self, value: int) -> list[Operation]:
        return self.trace.read_by(value)

    def _is_inner(self, operation: Operation) -> bool:
        """Whether the sum is taken apart as a term of the only operation that reads it."""
        value = operation.makes[0]
        readers = self._readers(value)
        while len(readers) == 1 and bare(readers[0]) in ("dropout", "to", "alias"):
            value = readers[0].makes[0]
            readers = self._readers(value)
        if len(readers) != 1 or bare(readers[0]) not in SUMS:
            return False
        outer = readers[0]
        return len(self.flow.data(outer)) > 1 and self.trace[outer.makes[0]].shape == self.trace[value].shape

    def _pairs(self, terms: list[int]) -> list[tuple[int, int]]:
        """(skip, branch) for each term that was computed from another with the help of weights."""
        roots = {t: self.flow.root(t) for t in terms}
        found = []
        for branch in terms:
            above = self._ancestors(roots[branch])
            skips = [t for t in terms if roots[t] in above and roots[t] != roots[branch] and t != branch]
            if skips:
                skip = max(skips, key=lambda t: roots[t])
                if self._has_weights(roots[skip], branch):
                    found.append((skip, branch))
        skipped = {roots[skip] for skip, _ in found}
        return [(skip, branch) for skip, branch in found if roots[branch] not in skipped]

    def _ancestors(self, value: int) -> set[int]:
        if value not in self._above:
            self._above[value] = self.trace.above([value])
        return self._above[value]

    def _between(self, start: int, end: int) -> list[Operation]:
        """The operations by which `end` was computed from `start`."""
        inside = self.trace.below([start]) & self._ancestors(end)
        inside.discard(start)
        return [o for o in self.trace.operations if not inside.isdisjoint(o.makes)]

    def _has_weights(self, start: int, end: int) -> bool:
        return any(self.flow.is_product(o) for o in self._between(start, end))

    def _sublayer(self, skip: int, branch: int, total: int, terms: list[int]) -> FoundSublayer:
        flow = self.flow
        read = self._shared(skip, branch)
        region = self._between(read, branch)
        attention = next((o for o in region if self._attends(o)), None)
        products = [o for o in region if flow.is_product(o)]
        last_product, out = self._last(branch)
        norms: dict[Slot, list[FoundNorm]] = {"pre": self._pre(read, products), "out": out}
        if last_product is not None and len(products) > 1:
            origin, crossed = flow.back(flow.data(last_product)[0])
            norms["mid"] = crossed if origin != read else []
        known = {id(n) for slot in norms.values() for n in slot}
        inside = [n for o in region if o.makes and (n := flow.norms.get(o.makes[0])) and id(n) not in known]
        if attention is not None:
            norms |= self._on_projections(attention, inside)
        weights = tuple(dict.fromkeys(name for o in region for name in flow.weights(o)))
        last = next(filter(self._is_matrix, flow.weights(last_product)), None) if last_product is not None else None
        sublayer = FoundSublayer(
            read=read,
            branch=flow.root(branch),
            total=total,
            kind=self._kind(attention, read, branch),
            norms={slot: found for slot, found in norms.items() if found},
            skip=self._coefficient(skip, read, total, [t for t in terms if t != skip]),
            gain=self._coefficient(branch, flow.root(branch), total, []),
            parameters=weights,
            roles={},
            last=last,
            attention=attention,
        )
        coefficients = (*sublayer.skip.learned, *sublayer.gain.learned)
        sublayer.parameters = tuple(dict.fromkeys((*weights, *coefficients)))
        sublayer.roles = self._roles(sublayer, products, attention)
        return sublayer

    def _shared(self, skip: int, branch: int) -> int:
        """x: the last value on the way of the skip that the branch was computed from, too."""
        above = self._ancestors(self.flow.root(branch))
        while skip not in above and (before := self.flow.through(skip)) is not None:
            skip = before
        return skip

    def _last(self, branch: int) -> tuple[Operation | None, list[FoundNorm]]:
        """The last product of a branch and the norms behind it."""
        origin, crossed = self.flow.back(branch)
        made = self.trace.made_by(origin)
        return (made if made is not None and self.flow.is_product(made) else None), crossed

    def _pre(self, read: int, products: list[Operation]) -> list[FoundNorm]:
        """The norms between x and the first products; none where one of those reads x bare."""
        found: list[FoundNorm] = []
        for product in products:
            for value in self.flow.data(product):
                origin, crossed = self._back_to(value, read)
                if origin != read:
                    continue
                if not crossed:
                    return []
                found += [n for n in crossed if n not in found]
        return found

    def _back_to(self, value: int, read: int) -> tuple[int, list[FoundNorm]]:
        """`Flow.back` that stops at x, which may be a norm's result itself."""
        crossed: list[FoundNorm] = []
        while value != read:
            before = self.flow.through(value)
            if before is None:
                norm = self.flow.norms.get(value)
                if norm is None:
                    break
                crossed.append(norm)
                before = norm.origin
            value = before
        return value, crossed

    def _attends(self, operation: Operation) -> bool:
        if bare(operation) == "scaled_dot_product_attention":
            return True
        if bare(operation) not in ("softmax", "_softmax") or operation.reads[0] not in self.flow.live:
            return False
        return self._is_of_two(self._scores(operation.reads[0]))

    def _all_scores(self) -> set[int]:
        """What softmaxes read: sums of scores, as with an earlier layer's, are none of a stream."""
        softmaxes = [o for o in self.trace.operations if bare(o) in ("softmax", "_softmax")]
        return {self._scores(o.reads[0]) for o in softmaxes}

    def _scores(self, value: int) -> int:
        """The product of queries and keys below a softmax, through masks, caps and biases."""
        while (made := self.trace.made_by(value)) is not None:
            data = self.flow.data(made)
            if bare(made) in SUMS and len(data) > 1:  # of several products, as with relative positions: the first
                parts = (self._scores(part) for part in data)
                return next((part for part in parts if self._is_of_two(part)), value)
            if bare(made) in PRODUCTS or len(data) != 1:
                break
            value = data[0]
        return value

    def _is_of_two(self, value: int) -> bool:
        made = self.trace.made_by(value)
        return made is not None and bare(made) in PRODUCTS and len(self.flow.data(made)) == 2

    def attended(self, attention: Operation) -> tuple[int, int, int] | None:
        """Query, key and value of an attention."""
        if bare(attention) == "scaled_dot_product_attention":
            q, k, v = attention.reads[:3] if len(set(attention.reads[:3])) == 3 else (*attention.reads[:1] * 3,)
            return q, k, v
        scores = self.trace.made_by(self._scores(attention.reads[0]))
        assert scores is not None
        query, key = self.flow.data(scores)[:2]
        weights = self.trace.below([attention.makes[0]])
        for operation in self.trace.operations:
            data = self.flow.data(operation)
            if bare(operation) in ("matmul", "bmm", "einsum") and len(data) == 2 and not weights.isdisjoint(data):
                return query, key, next((v for v in data if v not in weights), data[1])
        return None

    def _on_projections(self, attention: Operation, inside: list[FoundNorm]) -> dict[Slot, list[FoundNorm]]:
        attended = self.attended(attention)
        if attended is None:
            return {}
        slots: dict[Slot, list[FoundNorm]] = {}
        sides: tuple[Slot, ...] = ("query", "key", "value")
        for slot, value in zip(sides, attended, strict=True):
            others = set().union(*(self._ancestors(v) for v in attended if v != value))
            slots[slot] = [n for n in inside if n.result in self._ancestors(value) - others]
        return slots

    def _kind(self, attention: Operation | None, read: int, branch: int) -> FoundKind:
        if attention is None:
            return "ffn" if time_axis(self.trace, read, branch) is None else "mix"
        attended = self.attended(attention)
        return "attn" if attended is None or attended[1] in self.trace.below([read]) else "cross"

    def _coefficient(self, term: int, root: int, total: int, others: list[int]) -> Coefficient:
        """d s / d (root of the term), measured by doubling the root while the other terms stay."""
        trace = self.trace
        pinned = {self.flow.root(other): trace[self.flow.root(other)] for other in others}
        base = trace[root] if trace[root].any() else torch.ones_like(trace[root])  # W_O may start at zero
        grown = trace.replay({root: 2 * base} | pinned, [total])[0]
        alone = trace.replay({root: base} | pinned, [total])[0]
        step, base = ((x.double().abs().reshape(-1).sort().values) for x in (grown - alone, base))  # in any layout
        value = (step.norm() / base.norm().clamp_min(1e-30)).item()
        even = step.shape == base.shape and different(value * base, step) < 1e-3
        gains = {norm.gain for norm in self.flow.norms.values()}
        learned: list[str] = []
        for operation in self.flow.chain(term) if term != root else ():
            learned += [] if bare(operation) == "add" else [n for n in self.flow.weights(operation) if n not in gains]
            if root in operation.reads:
                break
        last = trace.made_by(total)
        if last is not None and bare(last) in ("addcmul", "lerp") and term in last.reads[1:]:
            learned += self.flow.weights(last)
        return Coefficient(value=value, even=even, learned=tuple(dict.fromkeys(learned)))

    def _roles(self, sublayer: FoundSublayer, products: list[Operation], attention: Operation | None) -> dict[str, str]:
        roles: dict[str, str] = {}
        names = [n for o in products for n in self.flow.weights(o)[-2:] if self._is_matrix(n)]
        if attention is None:
            roles = dict.fromkeys(names, "ffn_in")
        elif (attended := self.attended(attention)) is not None:
            for side, value in zip(("query", "key", "value"), attended, strict=True):
                for product in reversed(products):
                    if product.makes[0] in self._ancestors(value):
                        for name in filter(self._is_matrix, self.flow.weights(product)):
                            roles[name] = f"{roles[name]}+{side}" if name in roles else side
                        break
        if sublayer.last is not None and self._is_matrix(sublayer.last):
            roles[sublayer.last] = "ffn_out" if attention is None else "out"
        return roles

    def _is_matrix(self, name: str) -> bool:
        return any(n == name and self.trace[v].ndim >= 2 for v, n in self.trace.names.items())

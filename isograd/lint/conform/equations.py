"""The residuals' equations written out by themselves, copy by copy, in float64: the suite's second source.

No line of `isograd.transformer` is used, so that our own parts are judged as anybody's are. Weights come by the names
of `isograd.residual.Residuals`' state_dict. `mistakes` are places where ports are known to go wrong; with some of them
the equations compute what such a port would.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from isograd.placement import Coupled, Learned, Norm, Placement, Site
from isograd.placement.streams import (
    Affine,
    DepthAttention,
    DepthAverage,
    FirstInput,
    Hyper,
    LayerSkip,
    Parallel,
    Plain,
    Stream,
    TwoStreams,
)

Copies = list[Tensor]


class Equation:
    """The plain stream: x <- post(skip * x + scale * out(u)). Others override `open`, `read`, `write`, `close`.

    Attributes:
        means: what each weight of a class of one's own is, by its name in a sublayer or at the ends; ours: weights.csv.
    """

    means: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        placement: Placement,
        every: Sequence[Site],
        weights: Mapping[str, Tensor],
        eps: float,
        mistakes: Collection[str] = (),
    ) -> None:
        self.placement, self.every, self.eps, self.mistakes = placement, every, eps, mistakes
        self.stream: Any = placement.stream
        self.weights = {name: value.double() for name, value in weights.items()}

    def has(self, mistake: str) -> bool:
        return mistake in self.mistakes

    def of(self, k: int, name: str) -> Tensor:
        return self.weights[f"parts.{k}.{name}"]

    def open(self, x: Tensor) -> Any:
        return x

    def read(self, state: Any, k: int) -> Tensor:
        x: Tensor = state
        return x

    def write(self, state: Any, u: Tensor, k: int) -> Any:
        return self.add(k, state, u)

    def close(self, state: Any) -> Tensor:
        x: Tensor = state
        return x

    def add(self, k: int, x: Tensor, u: Tensor) -> Tensor:
        residual = self.placement.at(self.every[k])
        u = self.norm(f"parts.{k}.out", residual.out, u)
        scale = self.coefficient(k, "scale", residual.scale)
        if isinstance(residual.skip, Coupled):
            skip = 1 - scale
            if residual.skip.by == "circle":
                skip = torch.maximum(1 - scale**2, torch.full_like(scale, residual.skip.floor)).sqrt()
        else:
            skip = self.coefficient(k, "skip", residual.skip)
        if self.has("coefficients-swapped"):
            skip, scale = scale, skip
        if self.has("post-norm-inside"):
            return skip * x + self.norm(f"parts.{k}.post", residual.post, scale * u)
        return self.norm(f"parts.{k}.post", residual.post, skip * x + scale * u)

    def coefficient(self, k: int, which: str, value: Any) -> Tensor:
        if not isinstance(value, Learned):
            return torch.tensor(value, dtype=torch.float64)
        if value.shape == "layer":  # the layer's first sublayer has it
            k -= k % (self.every[0].slots // self.every[0].layers)
        w = self.of(k, f"combine.{which}.weight")
        return {"itself": lambda: w, "sigmoid": lambda: 1 / (1 + (-w).exp()), "abs": w.abs}[value.by]()

    def norm(self, name: str, norm: Norm | None, x: Tensor) -> Tensor:
        """The norm at an address; None: there is none."""
        if norm is None:
            return x
        kind = "layernorm" if norm.kind == "model" else norm.kind
        weight, bias = self.weights.get(f"{name}.weight"), self.weights.get(f"{name}.bias")
        if kind == "layernorm":
            x = x - x.mean(-1, keepdim=True)
        if kind in ("layernorm", "rmsnorm"):
            x = x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()
        elif kind == "l2":
            x = x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        else:
            at = self.weights[f"{name}.slope"] * x
            x = at.tanh() if kind == "dyt" else torch.erf(at + self.weights[f"{name}.shift"])
        if weight is not None:
            around = norm.centered != self.has("weights-around-1")
            x = x * (1 + weight if around else weight)
        scale = norm.scale if isinstance(norm.scale, float) else 1.0
        return (x if bias is None else x + bias) * scale


class OfTheLayer(Equation):
    """State (x, the layer's input): `Parallel`, `LayerSkip`, `FirstInput` (the first layer's)."""

    def open(self, x: Tensor) -> Any:
        return x, x

    def read(self, state: Any, k: int) -> Tensor:
        return self.close(state)

    def close(self, state: Any) -> Tensor:
        x: Tensor = state[0]
        return x

    def begins(self, k: int) -> bool:
        return self.every[k].kind == "attn"


class ParallelEquation(OfTheLayer):
    def read(self, state: Any, k: int) -> Tensor:
        first = k - k % (self.every[0].slots // self.every[0].layers)
        x: Tensor = state[0] if self.begins(k) or self.has("sequential") else state[1]
        return self.norm(f"parts.{first}.stream.norm", Norm() if self.stream.shared_norm else None, x)

    def write(self, state: Any, u: Tensor, k: int) -> Any:
        x, entry = state
        return self.add(k, x, u), x if self.begins(k) else entry


class LayerSkipEquation(OfTheLayer):
    def write(self, state: Any, u: Tensor, k: int) -> Any:
        x, entry = state
        site = self.every[k]
        entry = x if self.begins(k) else entry
        last = site.layer == site.layers and not self.stream.last
        if site.kind == "ffn" and not last and not self.has("shortcut-missing"):
            x = entry + x if self.stream.keep else entry
        return self.add(k, x, u), entry


class TwoStreamsEquation(Equation):
    def open(self, x: Tensor) -> Any:
        return (self.norm("ends.norm_post", Norm(), x) if self.stream.form == "siamese" else x), x

    def read(self, state: Any, k: int) -> Tensor:
        p, q = state
        read: Tensor = p if self.stream.form == "residual" else p + self.norm(f"parts.{k}.stream.norm", Norm(), q)
        return read

    def write(self, state: Any, u: Tensor, k: int) -> Any:
        p, q = state
        return self.add(k, p, u), q if self.has("sum-not-written") else q + u

    def close(self, state: Any) -> Tensor:
        p, q = state
        closed: Tensor = p + (q if self.has("close-without-norm") else self.norm("ends.norm", Norm(), q))
        return closed


class HyperEquation(Equation):
    """State: a list of n copies."""

    def open(self, x: Tensor) -> Any:
        return [x for _ in range(self.stream.copies)]

    def close(self, state: Any) -> Tensor:
        total: Tensor = sum(state[1:], start=state[0])
        return total / len(state) if self.has("close-by-mean") else total

    def maps(self, state: Copies, k: int) -> tuple[list[list[Tensor]], list[Tensor]]:
        """A (n rows of n + 1) and B (n)."""
        n, alpha, beta = len(state), self.of(k, "stream.alpha"), self.of(k, "stream.beta")
        a = [[alpha[j, i] for i in range(n + 1)] for j in range(n)]
        b = [beta[i] for i in range(n)]
        if self.stream.maps == "computed":
            maps, factors = self.of(k, "stream.maps"), self.of(k, "stream.factors")
            if self.has("factor-missing"):
                factors = torch.ones_like(factors)
            bend = (lambda t: t) if self.has("tanh-missing") else torch.tanh
            for j, copy in enumerate(state):
                centered = copy if self.has("norm-not-centered") else copy - copy.mean(-1, keepdim=True)
                scaled = centered / ((centered**2).mean(-1, keepdim=True) + self.eps).sqrt()
                weight = self.of(k, "stream.norm_weight")
                scaled = scaled * (1 + weight if self.has("weights-around-1") else weight)
                inner = [(scaled * row).sum(-1, keepdim=True) for row in maps]
                by = [*factors[:1].expand(n + 1), factors[1]]
                rows = [f * bend(t) for f, t in zip(by, inner, strict=True)]
                a[j] = [old + row for old, row in zip(a[j], rows[: n + 1], strict=True)]
                b[j] = b[j] + rows[n + 1]
        return a, b

    def read(self, state: Copies, k: int) -> Tensor:
        a, _ = self.maps(state, k)
        return _sum(a[j][0] * copy for j, copy in enumerate(state))

    def write(self, state: Copies, u: Tensor, k: int) -> Copies:
        a, b = self.maps(state, k)
        n = range(len(state))
        turned = self.has("mix-transposed")
        if self.has("written-before-mixed"):
            state, u = [copy + by * u for copy, by in zip(state, b, strict=True)], torch.zeros_like(u)
        return [_sum((a[i][j + 1] if turned else a[j][i + 1]) * state[j] for j in n) + b[i] * u for i in n]


class ProjectedEquation(HyperEquation):
    """mHC and HY-V4: rows of one projection for r, for w, for C row by row."""

    def logits(self, address: str, state: Copies, block: int, size: int, start: int) -> list[Tensor]:
        flat = torch.cat(state, dim=-1)
        scaled = flat / ((flat * flat).mean(-1, keepdim=True) + self.eps).sqrt()
        names = (f"{address}.projection", f"{address}.base", f"{address}.factors")
        matrix, base, factors = (self.weights[name] for name in names)
        rows = range(start, start + size)
        return [(scaled * matrix[i]).sum(-1, keepdim=True) * factors[block] + base[i] for i in rows]

    def rw(self, state: Copies, k: int) -> tuple[list[Tensor], list[Tensor]]:
        n, address, eps = len(state), f"parts.{k}.stream", self.stream.eps
        blocks = (1, 0) if self.has("outputs-swapped") else (0, 1)
        read, write = (self.logits(address, state, block, n, block * n) for block in blocks)
        missing = self.has("read-eps-missing")
        independent = self.stream.maps == "independent"
        above = eps if independent else 0.0
        most = 1.0 if self.has("write-not-doubled") else self.stream.magnitude if independent else 2.0
        return [_sigmoid(t) + (0.0 if missing else eps) for t in read], [most * _sigmoid(t) + above for t in write]

    def read(self, state: Copies, k: int) -> Tensor:
        return _sum(r * copy for r, copy in zip(self.rw(state, k)[0], state, strict=True))

    def write(self, state: Copies, u: Tensor, k: int) -> Copies:
        _, w = self.rw(state, k)
        if self.stream.maps == "independent":
            return [copy + by * u for copy, by in zip(state, w, strict=True)]
        c, n = self.mix(state, k), range(len(state))
        turned = self.has("mix-transposed")
        return [_sum((c[i][j] if turned else c[j][i]) * state[j] for j in n) + w[i] * u for i in n]

    def mix(self, state: Copies, k: int) -> list[list[Tensor]]:
        n, eps = len(state), self.stream.eps
        flat = self.logits(f"parts.{k}.stream", state, 2, n * n, 2 * n)
        c = torch.stack([torch.cat(flat[i * n : (i + 1) * n], -1) for i in range(n)], -2)  # (.., n rows, n columns)
        if self.has("sinkhorn-from-exp"):
            c = c.exp()
        else:
            c = c.softmax(-2 if self.has("softmax-over-columns") else -1)
            c = c if self.has("sinkhorn-eps-missing") else c + eps
        axes = [-2, *[-1, -2] * (self.stream.iterations - 1)]
        if self.has("sinkhorn-rows-last"):
            axes = [-2, -1] * self.stream.iterations
        for axis in [] if self.has("no-sinkhorn") else axes:
            c = c / (c.sum(axis, keepdim=True) + eps)
        return [[c[..., i, j, None] for j in range(n)] for i in range(n)]

    def close(self, state: Copies) -> Tensor:
        n = len(state)
        r = [_sigmoid(t) + self.stream.eps for t in self.logits("ends", state, 0, n, 0)]
        if self.has("close-by-mean"):
            return _sum(iter(state)) / n
        return _sum(weight * copy for weight, copy in zip(r, state, strict=True))


class GatedEquation(HyperEquation):
    def normed(self, address: str, state: Copies) -> Copies:
        weight = self.weights[f"{address}.weight"]
        weight = weight if self.has("weights-around-1") else 1 + weight
        return [v / ((v * v).mean(-1, keepdim=True) + self.eps).sqrt() * weight[i] for i, v in enumerate(state)]

    def gated(self, address: str, state: Copies) -> Tensor:
        n, normed = len(state), self.normed(address, state)
        inner = torch.cat(normed, -1) @ self.weights[f"{address}.down"].T
        inner = inner if self.has("mean-missing") else inner / n
        gate = _sigmoid((inner * _sigmoid(inner)) @ self.weights[f"{address}.up"].T)
        return _sum(g * v for g, v in zip(gate.chunk(n, -1), normed, strict=True)) / n

    def read(self, state: Copies, k: int) -> Tensor:
        return self.gated(f"parts.{k}.stream", state)

    def write(self, state: Copies, u: Tensor, k: int) -> Copies:
        flat = torch.cat(self.normed(f"parts.{k}.stream", state), -1) / len(state)
        w = _sigmoid(flat @ self.of(k, "stream.inject").T) * (1 if self.has("write-not-doubled") else 2)
        return [copy + w[..., i, None] * u for i, copy in enumerate(state)]

    def close(self, state: Copies) -> Tensor:
        return _sum(iter(state)) / len(state) if self.has("close-by-mean") else self.gated("ends.gated", state)


class DepthAttentionEquation(Equation):
    """State: a list of sources."""

    def open(self, x: Tensor) -> Any:
        return [x]

    def attended(self, address: str, state: Copies) -> Tensor:
        query, weight = self.weights[f"{address}.query"], self.weights.get(f"{address}.weight")
        normed = [v / ((v * v).mean(-1, keepdim=True) + self.eps).sqrt() for v in state]
        if weight is not None:
            normed = [v * (1 + weight if self.has("weights-around-1") else weight) for v in normed]
        if self.has("keys-not-normed"):
            normed = state
        by = query.shape[0] ** -0.5 if self.stream.norm_values != (self.has("scores-scaled")) else 1.0
        shares = [((v * query).sum(-1, keepdim=True) * by).exp() for v in normed]
        values = normed if self.stream.norm_values != (self.has("values-normed")) else state
        return _sum(s / _sum(iter(shares)) * v for s, v in zip(shares, values, strict=True))

    def read(self, state: Copies, k: int) -> Tensor:
        return state[0] if k == 0 else self.attended(f"parts.{k}.stream", state)

    def write(self, state: Copies, u: Tensor, k: int) -> Copies:
        site = self.every[k]
        per_block = self.stream.block * site.slots // site.layers
        grows = per_block and (site.slot - 1) % per_block
        return [*state[:-1], state[-1] + u] if grows else [*state, u]

    def close(self, state: Copies) -> Tensor:
        return self.attended("ends.last", state)


class DepthAverageEquation(OfTheLayer):
    """State (x, X_0, .., X_l)."""

    def write(self, state: Any, u: Tensor, k: int) -> Any:
        x, *left = state
        site, x = self.every[k], self.add(k, x, u)
        if site.kind != "ffn":
            return x, *left
        left.append(x)
        if site.layer % self.stream.period == 0:
            shares = self.of(k, "stream.shares")
            chosen = [v for j, v in enumerate(left) if (site.layer - j) % self.stream.dilation == 0]
            x = _sum(a * v for a, v in zip(shares, chosen, strict=True))
        return x, *left


class FirstInputEquation(OfTheLayer):
    def here(self, state: Any, k: int) -> Tensor:
        x, origin = state
        if not self.begins(k):
            return _tensor(x)
        keep, first = (self.of(k, f"stream.{name}.weight") for name in ("keep", "first"))
        if self.has("coefficients-swapped"):
            keep, first = first, keep
        return keep * x + first * origin

    def read(self, state: Any, k: int) -> Tensor:
        return self.here(state, k)

    def write(self, state: Any, u: Tensor, k: int) -> Any:
        return self.add(k, self.here(state, k), u), state[1]


class AffineEquation(Equation):
    def write(self, state: Any, u: Tensor, k: int) -> Any:
        r, g, c, d = (self.of(k, f"stream.{name}.weight") for name in ("skip", "scale", "skip_offset", "scale_offset"))
        return (state + c) * r + (u + d) * g


def _sum(terms: Any) -> Tensor:
    first, *rest = terms
    return _tensor(sum(rest, start=first))


def _tensor(x: Any) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


_HYPER: dict[str, type[HyperEquation]] = {
    "constant": HyperEquation,
    "computed": HyperEquation,
    "sinkhorn": ProjectedEquation,
    "independent": ProjectedEquation,
    "gated": GatedEquation,
}
_OF: dict[type[Stream], type[Equation]] = {
    Plain: Equation,
    Parallel: ParallelEquation,
    LayerSkip: LayerSkipEquation,
    TwoStreams: TwoStreamsEquation,
    DepthAttention: DepthAttentionEquation,
    DepthAverage: DepthAverageEquation,
    FirstInput: FirstInputEquation,
    Affine: AffineEquation,
}


def equation_of(stream: Stream) -> type[Equation] | None:
    """The equations of a stream: those here, or what its own method `equation` returns; None where it has none."""
    if isinstance(stream, Hyper):
        return _HYPER[stream.maps]
    own: Callable[[], type[Equation]] | None = getattr(stream, "equation", None)
    return own() if own is not None else _OF.get(type(stream))

"""Whole stacks by their papers' equations, without a line of isograd's: embedding in, what the head reads out.

Each function takes the weights of a decoder by address and x (batch, time, width), and returns h. A weight that an
equation leaves unread is a mistake of the equation, and the test says so.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.transformer.by_hand import (
    Norm,
    State,
    Weights,
    feedforward,
    feedforward_mid,
    gelu,
    layernorm,
    mixed,
    rmsnorm,
)

HEADS, COPIES = 4, 4


class Hand:
    """The weights of a stack: `at(layer, kind)` of one sublayer, `ends` of what stands before and after the layers."""

    def __init__(self, state: State, norm: Norm = layernorm) -> None:
        self.layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
        self.parts: dict[tuple[int, str], Weights] = {}
        for layer in range(1, self.layers + 1):
            for kind in ("attn", "ffn"):
                prefix = f"layers.{layer - 1}.{kind}."
                own = {name.removeprefix(prefix): p for name, p in state.items() if name.startswith(prefix)}
                self.parts[layer, kind] = Weights(own, norm)
        self.ends = Weights({name: p for name, p in state.items() if not name.startswith("layers.")}, norm)

    def at(self, layer: int, kind: str) -> Weights:
        return self.parts[layer, kind]

    def sublayers(self) -> Iterator[tuple[int, str, Weights]]:
        for (layer, kind), w in self.parts.items():
            yield layer, kind, w

    def unread(self) -> list[str]:
        parts = [*self.parts.values(), self.ends]
        return [name for w in parts for name in set(w.state) - w.read]


Branch = Callable[[Weights, Tensor], Tensor]
Line = Callable[[Weights, Tensor, Branch, int, int], Tensor]  # weights, x, f, layer from 1, layers


def heads(w: Weights, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat(mixed(q, k, v, HEADS, True), -1)


def projected(w: Weights, x: Tensor) -> list[Tensor]:
    return [w.linear(f"branch.{role}", x) for role in ("query", "key", "value")]


def attend(w: Weights, x: Tensor) -> Tensor:
    return w.linear("branch.out", heads(w, *projected(w, x)))


def attend_mid(w: Weights, x: Tensor) -> Tensor:
    return w.linear("branch.out", w.norm("branch.mid", heads(w, *projected(w, x))))


def by_head(x: Tensor, form: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([form(part) for part in x.chunk(HEADS, -1)], -1)


def attend_qkv_norm(w: Weights, x: Tensor) -> Tensor:
    """HybridNorm: queries, keys and values of each head normalized, a weight for all heads."""
    q, k, v = projected(w, x)
    q, k, v = (
        by_head(part, lambda one, role=role: w.norm(f"branch.{role}_norm", one))
        for role, part in (("query", q), ("key", k), ("value", v))
    )
    return w.linear("branch.out", heads(w, q, k, v))


def attend_qk_heads(w: Weights, x: Tensor) -> Tensor:
    """Cohere: a weight for each head."""
    q, k, v = projected(w, x)
    normed = []
    for role, part in (("query", q), ("key", k)):
        weight, bias = w[f"branch.{role}_norm.weight"], w[f"branch.{role}_norm.bias"]
        normed.append(torch.cat([layernorm(p, weight[h], bias[h]) for h, p in enumerate(part.chunk(HEADS, -1))], -1))
    return w.linear("branch.out", heads(w, *normed, v))


def attend_qk_width(w: Weights, x: Tensor) -> Tensor:
    """OLMo 2: over the whole width."""
    q, k, v = projected(w, x)
    return w.linear("branch.out", heads(w, w.norm("branch.query_norm", q), w.norm("branch.key_norm", k), v))


def rotated(x: Tensor) -> Tensor:
    """Su et al. 2021, halves of a head paired: (x_i, x_(i + s/2)) turned by t 10000^(-2 i / s) at place t.

    Angles in float32, as in LLaMA.
    """
    size, time = x.shape[-1], torch.arange(x.shape[-2], dtype=torch.float32)
    angle = time[:, None] * (1 / 10000.0 ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attend_qk_free(w: Weights, x: Tensor) -> Tensor:
    """nanochat: rotated, then divided by the RMS, times 1.2."""
    q, k, v = projected(w, x)
    one = torch.ones(())
    q, k = (by_head(part, lambda p: 1.2 * rmsnorm(rotated(p), one, None)) for part in (q, k))
    return w.linear("branch.out", heads(w, q, k, v))


def attend_gated(w: Weights, x: Tensor) -> Tensor:
    """Qiu et al.: sigmoid(W_g x) on what W_O reads, a number for each feature or for each head."""
    h = heads(w, *projected(w, x))
    gate = torch.sigmoid(x @ w["branch.gate.weight"].T)
    return w.linear("branch.out", h * gate.repeat_interleave(h.shape[-1] // gate.shape[-1], -1))


# --- one tensor that each sublayer adds to


def plain(
    attn: Line,
    ffn: Line | None = None,
    *,
    f: Branch = attend,
    g: Branch = feedforward,
    first: bool = False,
    final: bool = True,
) -> Callable[[Hand, Tensor], Tensor]:
    def stack(hand: Hand, x: Tensor) -> Tensor:
        if first:
            x = hand.ends.norm("first", x)
        for layer, kind, w in hand.sublayers():
            line, branch = (attn, f) if kind == "attn" else (ffn or attn, g)
            x = line(w, x, branch, layer, hand.layers)
        return hand.ends.norm("norm", x) if final else x

    return stack


def post(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return w.norm("post", x + f(w, x))


def pre(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + f(w, w.norm("pre", x))


def bare(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + f(w, x)


def keel(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return w.norm("post", 2 * layers * x + f(w, w.norm("pre", x)))


def mix(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return (post if layer / layers <= 0.25 else pre)(w, x, f, layer, layers)


def sandwich(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + w.norm("out", f(w, w.norm("pre", x)))


def reordered(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + w.norm("out", f(w, x))


def layernorm_scaling(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + f(w, w.norm("pre", x) / math.sqrt(layer))


def hybrid_star(hand: Hand, x: Tensor) -> Tensor:
    x = pre(hand.at(1, "attn"), x, attend, 1, hand.layers)
    x = pre(hand.at(1, "ffn"), x, feedforward, 1, hand.layers)
    for layer in range(2, hand.layers + 1):
        x = post(hand.at(layer, "attn"), x, attend_qkv_norm, layer, hand.layers)
        x = bare(hand.at(layer, "ffn"), x, feedforward, layer, hand.layers)
    return hand.ends.norm("norm", x)


def curved(w: Weights, address: str, x: Tensor) -> Tensor:
    if f"{address}.shift" in w.state:
        y = torch.erf(w[f"{address}.slope"] * x + w[f"{address}.shift"])
    else:
        y = torch.tanh(w[f"{address}.slope"] * x)
    return w[f"{address}.weight"] * y + w[f"{address}.bias"]


def curve(hand: Hand, x: Tensor) -> Tensor:
    for _, kind, w in hand.sublayers():
        x = x + (attend if kind == "attn" else feedforward)(w, curved(w, "pre", x))
    return curved(hand.ends, "norm", x)


def layerscale(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + w["combine.scale.weight"] * f(w, w.norm("pre", x))


def scaled_bare(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + w["combine.scale.weight"] * f(w, x)


def rezero(hand: Hand, x: Tensor) -> Tensor:
    """One number for both sublayers of a layer."""
    for layer in range(1, hand.layers + 1):
        alpha = hand.at(layer, "attn")["combine.scale.weight"]
        x = x + alpha * attend(hand.at(layer, "attn"), x)
        x = x + alpha * feedforward(hand.at(layer, "ffn"), x)
    return x


def variance_gate(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    b = torch.sigmoid(w["combine.scale.weight"])
    a = (1 - b**2).clamp(min=1e-3).sqrt()
    return a * x + b * w.norm("out", f(w, w.norm("pre", x)))


def by_root_depth(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + f(w, w.norm("pre", x)) / math.sqrt(layers)


def by_depth(w: Weights, x: Tensor, f: Branch, layer: int, layers: int) -> Tensor:
    return x + f(w, w.norm("pre", x)) / (layers / 2)


def length_one(x: Tensor) -> Tensor:
    return x / (x**2).sum(-1, keepdim=True).sqrt()


def ngpt(hand: Hand, x: Tensor) -> Tensor:
    """Loshchilov et al.: h <- Norm(h + a (Norm(f(h)) - h)); scores times sqrt(size), s_qk and s_u by feature."""
    x = length_one(x)
    for _, kind, w in hand.sublayers():
        if kind == "attn":
            q, k, v = projected(w, x)
            size = q.shape[-1] // HEADS
            q, k = (
                torch.cat(
                    [
                        length_one(rotated(part)) * w[f"branch.{role}_norm.weight"][h]
                        for h, part in enumerate(y.chunk(HEADS, -1))
                    ],
                    -1,
                )
                for role, y in (("query", q), ("key", k))
            )
            u = w.linear("branch.out", heads(w, size * q, k, v))  # softmax(sqrt(size) q k): `mixed` divides by it
        else:
            inner = w["branch.into_norm.weight"] * w.linear("branch.into", math.sqrt(x.shape[-1]) * x)
            u = w.linear("branch.out", gelu(inner))
        share = w["combine.scale.weight"].abs()
        x = length_one(x + share * (length_one(u) - x))
    return math.sqrt(x.shape[-1]) * hand.ends["norm.weight"] * x


# --- other streams


def parallel(hand: Hand, x: Tensor) -> Tensor:
    for layer in range(1, hand.layers + 1):
        a, b = hand.at(layer, "attn"), hand.at(layer, "ffn")
        x = x + attend(a, a.norm("pre", x)) + feedforward(b, b.norm("pre", x))
    return hand.ends.norm("norm", x)


def parallel_shared(hand: Hand, x: Tensor) -> Tensor:
    for layer in range(1, hand.layers + 1):
        a, b = hand.at(layer, "attn"), hand.at(layer, "ffn")
        n = a.norm("stream.norm", x)
        x = x + attend(a, n) + feedforward(b, n)
    return hand.ends.norm("norm", x)


def b2t(hand: Hand, x: Tensor) -> Tensor:
    for layer in range(1, hand.layers + 1):
        a, b = hand.at(layer, "attn"), hand.at(layer, "ffn")
        h = a.norm("post", x + attend(a, x))
        x = b.norm("post", x + h + feedforward(b, h))
    return x


def spannorm(hand: Hand, x: Tensor) -> Tensor:
    x = hand.ends.norm("first", x)
    for layer in range(1, hand.layers + 1):
        a, b = hand.at(layer, "attn"), hand.at(layer, "ffn")
        y = a.norm("post", x + attend(a, x))
        x = b.norm("post", x + feedforward(b, y))
    return x


def residual(hand: Hand, x: Tensor) -> Tensor:
    total = x
    for _, kind, w in hand.sublayers():
        u = (attend if kind == "attn" else feedforward)(w, x)
        x, total = w.norm("post", x + u), total + u
    return x + hand.ends.norm("stream.norm", total)


def siamese(hand: Hand, x: Tensor) -> Tensor:
    """As released: the norm on P stands where P is read; the last one at the end. Layers counted from 0 there."""
    p, q = x, x
    norm_p = hand.ends.norm("stream.norm_post", p)
    for layer, kind, w in hand.sublayers():
        c = ((layer - 1 + 1) * 2) ** 0.5
        z = (attend if kind == "attn" else feedforward)(w, w.norm("pre", norm_p + w.norm("stream.norm", q)))
        p, q = norm_p + z / c, q + z
        norm_p = w.norm("post", p)
    return hand.ends.norm("norm", norm_p + hand.ends.norm("stream.norm", q))


def value_residual(hand: Hand, x: Tensor) -> Tensor:
    first = None
    for _, kind, w in hand.sublayers():
        n = w.norm("pre", x)
        if kind == "ffn":
            x = x + feedforward(w, n)
            continue
        q, k, v = projected(w, n)
        first = v if first is None else first
        x = x + w.linear("branch.out", heads(w, q, k, 0.5 * v + 0.5 * first))
    return hand.ends.norm("norm", x)


def x0_scalars(hand: Hand, x: Tensor) -> Tensor:
    x = origin = hand.ends.norm("first", x)
    for _, kind, w in hand.sublayers():
        if kind == "attn":
            x = w["stream.keep.weight"] * x + w["stream.first.weight"] * origin
        x = pre(w, x, attend if kind == "attn" else feedforward, 0, 0)
    return hand.ends.norm("norm", x)


def affine(hand: Hand, x: Tensor) -> Tensor:
    for _, kind, w in hand.sublayers():
        u = (attend if kind == "attn" else feedforward)(w, w.norm("pre", x))
        kept = (x + w["stream.skip_offset.weight"]) * w["stream.skip.weight"]
        x = kept + (u + w["stream.scale_offset.weight"]) * w["stream.scale.weight"]
    return hand.ends.norm("norm", x)


Maps = Callable[[Weights, list[Tensor]], tuple[Tensor, list[Tensor], list[Tensor]]]  # what is read, mixed, w_i


def copies(maps: Maps, close: Callable[[Weights, list[Tensor]], Tensor], normed: bool = True):  # type: ignore[no-untyped-def]
    """S_i <- mixed_i + w_i f(read)."""

    def stack(hand: Hand, x: Tensor) -> Tensor:
        state = [x] * COPIES
        for _, kind, w in hand.sublayers():
            read, mixed_, write = maps(w, state)
            n = w.norm("pre", read) if normed else read
            u = (attend if kind == "attn" else feedforward)(w, n)
            state = [m + b * u for m, b in zip(mixed_, write, strict=True)]
        h = close(hand.ends, state)
        return hand.ends.norm("norm", h) if normed else h

    return stack


def weighted(weights: list[Tensor], state: list[Tensor]) -> Tensor:
    return sum((a * s for a, s in zip(weights, state, strict=True)), torch.zeros_like(state[0]))


def constant(w: Weights, state: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    alpha, beta = w["stream.alpha"], w["stream.beta"]
    columns = [weighted(list(alpha[:, i]), state) for i in range(COPIES + 1)]
    return columns[0], columns[1:], list(beta)


def computed(w: Weights, state: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    alpha, beta, factors = w["stream.alpha"], w["stream.beta"], w["stream.factors"]
    rows = []
    for s in state:
        centred = s - s.mean(-1, keepdim=True)
        normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["stream.norm_weight"]
        rows.append(torch.tanh(normed @ w["stream.maps"].T))
    columns = [
        weighted([(alpha[j, i] + factors[0] * rows[j][..., i])[..., None] for j in range(COPIES)], state)
        for i in range(COPIES + 1)
    ]
    write = [(beta[j] + factors[1] * rows[j][..., -1])[..., None] for j in range(COPIES)]
    return columns[0], columns[1:], write


def from_all(w: Weights, state: list[Tensor], after: bool) -> Tensor:
    """One projection of all copies over their RMS; HY-V4 divides what was projected."""
    flat = torch.cat(state, -1)
    size = (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    matrix = w["stream.projection"]
    return (flat @ matrix.T) / size if after else (flat / size) @ matrix.T


def sinkhorn(w: Weights, state: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    n, base, factors = COPIES, w["stream.base"], w["stream.factors"]
    m = from_all(w, state, False)
    r = torch.sigmoid(m[..., :n] * factors[0] + base[:n]) + 1e-6
    write = 2 * torch.sigmoid(m[..., n : 2 * n] * factors[1] + base[n : 2 * n])
    c = (m[..., 2 * n :] * factors[2] + base[2 * n :]).unflatten(-1, (n, n)).softmax(-1) + 1e-6
    c = c / (c.sum(-2, keepdim=True) + 1e-6)
    for _ in range(19):
        c = c / (c.sum(-1, keepdim=True) + 1e-6)
        c = c / (c.sum(-2, keepdim=True) + 1e-6)
    mixed_ = [weighted([c[..., j, i, None] for j in range(n)], state) for i in range(n)]
    return weighted([r[..., j, None] for j in range(n)], state), mixed_, [write[..., j, None] for j in range(n)]


def independent(w: Weights, state: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    n, base, factors = COPIES, w["stream.base"], w["stream.factors"]
    m = from_all(w, state, True)
    r = torch.sigmoid(m[..., :n] * factors[0] + base[:n]) + 1e-6
    write = 2 * torch.sigmoid(m[..., n:] * factors[1] + base[n:]) + 1e-6
    return weighted([r[..., j, None] for j in range(n)], state), state, [write[..., j, None] for j in range(n)]


def gathered(after: bool) -> Callable[[Weights, list[Tensor]], Tensor]:
    def close(w: Weights, state: list[Tensor]) -> Tensor:
        r = torch.sigmoid(from_all(w, state, after) * w["stream.factors"][0] + w["stream.base"]) + 1e-6
        return weighted([r[..., j, None] for j in range(COPIES)], state)

    return close


def gate_of(w: Weights, state: list[Tensor], prefix: str) -> tuple[Tensor, Tensor]:
    weight = w[f"{prefix}.weight"]
    normed = [rmsnorm(s, 1 + weight[j], None) for j, s in enumerate(state)]
    flat = torch.cat(normed, -1)
    inner = flat @ w[f"{prefix}.down"].T / COPIES
    gate = torch.sigmoid((inner * torch.sigmoid(inner)) @ w[f"{prefix}.up"].T).chunk(COPIES, -1)
    read = sum((g * s for g, s in zip(gate, normed, strict=True)), torch.zeros_like(state[0])) / COPIES
    return read, flat


def gated(w: Weights, state: list[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    read, flat = gate_of(w, state, "stream")
    write = 2 * torch.sigmoid(flat @ w["stream.inject"].T / COPIES)
    return read, state, [write[..., j, None] for j in range(COPIES)]


def over_depth(w: Weights, address: str, sources: list[Tensor], values: bool) -> Tensor:
    if len(sources) == 1:  # the first sublayer
        return sources[0]
    query = w[f"{address}.query"]
    weight = torch.ones(()) if values else w[f"{address}.weight"]
    normed = [rmsnorm(v, weight, None) for v in sources]
    scores = [(v @ query / (math.sqrt(len(query)) if values else 1.0)).exp() for v in normed]
    total = sum(scores, torch.zeros_like(scores[0]))
    shares = [(s / total)[..., None] for s in scores]
    return weighted(shares, normed if values else sources)


def attention_residuals(hand: Hand, x: Tensor) -> Tensor:
    sources = [x]
    for _, kind, w in hand.sublayers():
        n = w.norm("pre", over_depth(w, "stream", sources, False))
        sources.append((attend if kind == "attn" else feedforward)(w, n))
    return hand.ends.norm("norm", over_depth(hand.ends, "stream.last", sources, False))


def attention_residuals_blocks(hand: Hand, x: Tensor) -> Tensor:
    """Inkling 2: six layers (twelve sublayers) sum into one source."""
    sources, inside = [x], 0
    for _, kind, w in hand.sublayers():
        n = w.norm("pre", over_depth(w, "stream", sources, True))
        u = (attend if kind == "attn" else feedforward)(w, n)
        if inside:
            sources[-1] = sources[-1] + u
        else:
            sources.append(u)
        inside = (inside + 1) % 12
    return hand.ends.norm("norm", over_depth(hand.ends, "stream.last", sources, True))


def denseformer(hand: Hand, x: Tensor) -> Tensor:
    """Y_l = sum_(j <= l) alpha_lj X_j, X_l = layer l of Y_(l-1), X_0 = Y_0 the embedding: as the paper's section 3."""
    outputs = [x]
    for layer in range(1, hand.layers + 1):
        a, b = hand.at(layer, "attn"), hand.at(layer, "ffn")
        x = x + attend(a, a.norm("pre", x))
        x = x + feedforward(b, b.norm("pre", x))
        outputs.append(x)
        x = weighted([*b["stream.shares"]], outputs)
    return hand.ends.norm("norm", x)


def added_up(w: Weights, state: list[Tensor]) -> Tensor:
    return sum(state[1:], state[0])


STACKS: dict[str, Callable[[Hand, Tensor], Tensor]] = {
    "ds-init": plain(post, final=False),
    "keel": plain(keel, final=False),
    "mix-ln": plain(mix),
    "sandwich": plain(sandwich),
    "peri-ln": plain(sandwich, first=True),
    "olmo2": plain(reordered, f=attend_qk_width),
    "sub-ln": plain(pre, f=attend_mid, g=feedforward_mid),
    "sub-ln-bitnet": plain(pre, f=attend_mid, g=feedforward_mid),
    "sub-ln-kosmos2": plain(pre, f=attend_mid, g=feedforward_mid),
    "layernorm-scaling": plain(layernorm_scaling),
    "hybridnorm": plain(post, bare, f=attend_qkv_norm),
    "hybridnorm-star": hybrid_star,
    "dyt": curve,
    "derf": curve,
    "layerscale": plain(layerscale),
    "rezero": rezero,
    "skipinit": plain(scaled_bare, final=False),
    "t-fixup": plain(bare, final=False),
    "no-norm": plain(bare, final=False),
    "variance-gate": plain(variance_gate),
    "parallel": parallel,
    "parallel-shared": parallel_shared,
    "b2t": b2t,
    "spannorm": spannorm,
    "residual": residual,
    "siamesenorm": siamese,
    "value-residual": value_residual,
    "x0-scalars": x0_scalars,
    "affine-shortcut": affine,
    "hyper-connections-static": copies(constant, added_up),
    "hyper-connections": copies(computed, added_up),
    "mhc": copies(sinkhorn, gathered(False)),
    "independent-streams": copies(independent, gathered(True)),
    "gated-streams": copies(gated, lambda w, state: gate_of(w, state, "stream.gated")[0], normed=False),
    "denseformer": denseformer,
    "attention-residuals": attention_residuals,
    "attention-residuals-inkling": attention_residuals_blocks,
    "qk-norm-heads": plain(pre, f=attend_qk_heads),
    "qk-norm-width": plain(pre, f=attend_qk_width),
    "qk-norm-free": plain(pre, f=attend_qk_free),
    "gated-attention": plain(pre, f=attend_gated),
    "gated-attention-heads": plain(pre, f=attend_gated),
    "qk-clip": plain(pre),
    "depth-mup": plain(by_root_depth),
    "completep": plain(by_depth),
    "ngpt": ngpt,
}
RMS = {"sub-ln-bitnet"}  # whose placement fixes the kind of norm
ROTARY = {"qk-norm-free", "ngpt"}  # whose equation reads places

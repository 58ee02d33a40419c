"""The equations of the papers, written out once more without a line of isograd's: the second source of the tests.

A sublayer's weights come as a dict; every equation must use all of them, or the comparison would be of something else.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

State = dict[str, Tensor]
Norm = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def layernorm(x: Tensor, gain: Tensor, offset: Tensor | None, eps: float = 1e-5) -> Tensor:
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / (variance + eps).sqrt() * gain + offset


def rmsnorm(x: Tensor, gain: Tensor, offset: Tensor | None, eps: float = 1e-5) -> Tensor:
    return x / ((x**2).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * gain


class Weights:
    """The weights of one sublayer by their address, with a record of which were read."""

    def __init__(self, state: State, norm: Norm) -> None:
        self.state, self.norm_of, self.read = state, norm, set[str]()

    def __getitem__(self, address: str) -> Tensor:
        self.read.add(address)
        return self.state[address]

    def norm(self, address: str, x: Tensor) -> Tensor:
        offset = self[f"{address}.bias"] if self.norm_of is layernorm else None
        return self.norm_of(x, self[f"{address}.weight"], offset)

    def linear(self, address: str, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self[f"{address}.weight"]) + self[f"{address}.bias"]


def heads_of(w: Weights, x: Tensor, memory: Tensor, count: int, causal: bool) -> list[Tensor]:
    """softmax(q_h k_h^T / sqrt(size)) v_h for every head h, a head at a time."""
    q, k, v = w.linear("branch.query", x), w.linear("branch.key", memory), w.linear("branch.value", memory)
    return mixed(q, k, v, count, causal)


def mixed(q: Tensor, k: Tensor, v: Tensor, count: int, causal: bool) -> list[Tensor]:
    size, out = q.shape[-1] // count, []
    for h in range(count):
        part = slice(h * size, (h + 1) * size)
        scores = q[..., part] @ k[..., part].mT / math.sqrt(size)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        p = scores.exp() / scores.exp().sum(-1, keepdim=True)
        out.append(p @ v[..., part])
    return out


class Attend:
    """The forms of multi-head attention: plain, HeadScale of the paper and of fairseq, with norms on q, k, v."""

    def __init__(self, count: int, causal: bool, memory: Tensor | None = None) -> None:
        self.count, self.causal, self.memory = count, causal, memory

    def heads(self, w: Weights, x: Tensor) -> list[Tensor]:
        return heads_of(w, x, x if self.memory is None else self.memory, self.count, self.causal)

    def plain(self, w: Weights, x: Tensor) -> Tensor:
        return w.linear("branch.out", torch.cat(self.heads(w, x), -1))

    def paper(self, w: Weights, x: Tensor) -> Tensor:
        scale = w["branch.heads.weight"].flatten()
        return w.linear("branch.out", torch.cat([scale[h] * o for h, o in enumerate(self.heads(w, x))], -1))

    def qkv(self, w: Weights, x: Tensor) -> Tensor:
        """NormFormer's ablation: three norms of the whole width behind W_Q, W_K, W_V; HeadScale of the paper."""
        q, k, v = (w.norm(f"branch.{n}_norm", w.linear(f"branch.{n}", x)) for n in ("query", "key", "value"))
        scale = w["branch.heads.weight"].flatten()
        heads = mixed(q, k, v, self.count, self.causal)
        return w.linear("branch.out", torch.cat([scale[h] * o for h, o in enumerate(heads)], -1))

    def qk(self, w: Weights, x: Tensor) -> Tensor:
        """ViT-22B: a norm on the queries and one on the keys of a head, the same gains for all heads."""
        memory = x if self.memory is None else self.memory
        q, k, v = w.linear("branch.query", x), w.linear("branch.key", memory), w.linear("branch.value", memory)
        q = torch.cat([w.norm("branch.query_norm", part) for part in q.chunk(self.count, -1)], -1)
        k = torch.cat([w.norm("branch.key_norm", part) for part in k.chunk(self.count, -1)], -1)
        return w.linear("branch.out", torch.cat(mixed(q, k, v, self.count, self.causal), -1))

    def fairseq(self, w: Weights, x: Tensor) -> Tensor:
        scale = w["branch.heads.weight"].flatten().repeat_interleave(x.shape[-1] // self.count)
        return self.plain(w, x) * scale


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def feedforward(w: Weights, x: Tensor) -> Tensor:
    return w.linear("branch.out", gelu(w.linear("branch.into", x)))


def feedforward_mid(w: Weights, x: Tensor) -> Tensor:
    return w.linear("branch.out", w.norm("branch.mid", gelu(w.linear("branch.into", x))))


Equation = Callable[[Weights, Tensor, Callable[[Weights, Tensor], Tensor], float], Tensor]


def post(w: Weights, x: Tensor, f: Callable[[Weights, Tensor], Tensor], skip: float) -> Tensor:
    """LN(x + f(x)): Vaswani et al."""
    return w.norm("post", x + f(w, x))


def pre(w: Weights, x: Tensor, f: Callable[[Weights, Tensor], Tensor], skip: float) -> Tensor:
    """x + f(LN(x)): Xiong et al., GPT-2."""
    return x + f(w, w.norm("pre", x))


def pre_out(w: Weights, x: Tensor, f: Callable[[Weights, Tensor], Tensor], skip: float) -> Tensor:
    """x + LN(f(LN(x))): NormFormer's attention."""
    return x + w.norm("out", f(w, w.norm("pre", x)))


def pre_resscale(w: Weights, x: Tensor, f: Callable[[Weights, Tensor], Tensor], skip: float) -> Tensor:
    """lambda * x + f(LN(x)): NormFormer's ResScale, on the skip path."""
    return w["combine.skip.weight"] * x + f(w, w.norm("pre", x))


def admin(w: Weights, x: Tensor, f: Callable[[Weights, Tensor], Tensor], skip: float) -> Tensor:
    """LN(omega * x + f(x)), omega a vector: Liu et al."""
    return w.norm("post", w["combine.skip.weight"] * x + f(w, x))


def deepnorm(w: Weights, x: Tensor, f: Callable[[Weights, Tensor], Tensor], skip: float) -> Tensor:
    """LN(alpha * x + f(x)), alpha a number: Wang et al."""
    return w.norm("post", skip * x + f(w, x))


# placement -> (attention's equation, its form, cross-attention's equation, feed-forward's equation, its branch)
EQUATIONS: dict[str, tuple[Equation, str, Equation, Equation, Callable[[Weights, Tensor], Tensor]]] = {
    "post-ln": (post, "plain", post, post, feedforward),
    "pre-ln": (pre, "plain", pre, pre, feedforward),
    "gpt2": (pre, "plain", pre, pre, feedforward),
    "normformer": (pre_out, "paper", pre, pre, feedforward_mid),
    "normformer-resscale": (pre_out, "paper", pre, pre_resscale, feedforward_mid),
    "normformer-resscale-no-out": (pre, "paper", pre, pre_resscale, feedforward_mid),
    "normformer-resscale-no-mid": (pre_out, "paper", pre, pre_resscale, feedforward),
    "normformer-resscale-no-heads": (pre_out, "plain", pre, pre_resscale, feedforward_mid),
    "normformer-resscale-qkv": (pre_out, "qkv", pre, pre_resscale, feedforward_mid),
    "normformer-fairseq": (pre_out, "fairseq", pre, pre, feedforward_mid),
    "normformer-fairseq-resscale": (pre_out, "fairseq", pre, pre_resscale, feedforward_mid),
    "admin": (admin, "plain", admin, admin, feedforward),
    "admin-closed": (admin, "plain", admin, admin, feedforward),
    "deepnorm": (deepnorm, "plain", deepnorm, deepnorm, feedforward),
    "qk-norm": (pre, "qk", pre, pre, feedforward),
}
CROSS = {"qk-norm": "qk"}  # the form of the cross-attention, where it is not "plain"

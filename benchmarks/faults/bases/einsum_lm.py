"""Attention by hand in einsum, weights as tensors of (width, heads, head width), rotary on pairs of neighbours."""

import torch
from torch import einsum, nn
from torch.nn import functional as F

D, H, K, L, V = 64, 4, 16, 5, 64


def normal(*shape, std):
    return nn.Parameter(torch.randn(*shape) * std)


def rope(x):
    """Rotates each pair of neighbours of (batch, time, head, k) by its position's angle."""
    t = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    freq = 10000 ** (-torch.arange(0, K, 2, device=x.device, dtype=x.dtype) / K)
    angle = einsum("t,f->tf", t, freq)[None, :, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], dim=-1)
    return turned.flatten(-2)


class Heads(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.q = normal(D, H, K, std=D**-0.5)
        self.k = normal(D, H, K, std=D**-0.5)
        self.v = normal(D, H, K, std=D**-0.5)
        self.o = normal(H, K, D, std=(2 * L * D) ** -0.5)

    def forward(self, x):
        q = einsum("btd,dhk->bthk", x, self.q)
        k = einsum("btd,dhk->bthk", x, self.k)
        v = einsum("btd,dhk->bthk", x, self.v)
        q, k = rope(q), rope(k)
        scores = einsum("bqhk,bshk->bhqs", q, k) * K**-0.5
        n = x.shape[1]
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = torch.where(future, -torch.inf, scores)
        weights = scores.softmax(-1)
        mixed = einsum("bhqs,bshk->bqhk", weights, v)
        return einsum("bqhk,hkd->bqd", mixed, self.o)


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = normal(D, 4 * D, std=D**-0.5)
        self.down = normal(4 * D, D, std=(2 * L * 4 * D) ** -0.5)

    def forward(self, x):
        hidden = F.relu(einsum("btd,df->btf", x, self.up)).square()
        return einsum("btf,fd->btd", hidden, self.down)


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.norm_a = nn.LayerNorm(D)
        self.heads = Heads(index)
        self.norm_b = nn.LayerNorm(D)
        self.mix = Mix()

    def forward(self, x):
        x = x + self.heads(self.norm_a(x))
        x = x + self.mix(self.norm_b(x))
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.layers = nn.Sequential(*[Layer(i) for i in range(L)])
        self.final = nn.LayerNorm(D)
        self.unembed = normal(D, V, std=D**-0.5)
        nn.init.normal_(self.embed.weight, std=1.0)

    def forward(self, ids):
        x = self.embed(ids)
        x = self.layers(x)
        x = self.final(x)
        logits = einsum("btd,dv->btv", x, self.unembed)
        return logits


def build():
    model = Model()
    return model

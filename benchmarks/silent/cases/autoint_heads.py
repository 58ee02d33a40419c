"""Heads are split by a view to (batch*heads, -1, d) without a transpose.

A CTR library folded the heads into the batch with one view, so each 'head' is a run of neighbouring fields with all features
mixed, not a slice of features of all fields. Shapes fit and training runs. The healthy twin views to (b, t, h, d) and transposes.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/reczoo/FuxiCTR/issues/30",
    "cause": "The heads are split with view instead of view plus transpose, so each head holds a block of positions with mixed features and positions of different blocks never attend to each other.",
    "number": "share of position pairs (i, j) where the first layer's output at i depends on the input at j",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.5),
}


class FieldAttention(nn.Module):
    def __init__(self, dim, num_heads, faulty):
        super().__init__()
        self.num_heads, self.hd, self.variant = num_heads, dim // num_heads, faulty
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=False)

    def split(self, x):
        b, t, _ = x.shape
        if self.variant:
            return x.view(b * self.num_heads, -1, self.hd)
        return x.view(b, t, self.num_heads, self.hd).transpose(1, 2).reshape(b * self.num_heads, t, self.hd)

    def merge(self, y, b, t):
        if self.variant:
            return y.reshape(b, t, self.num_heads * self.hd)
        return y.view(b, self.num_heads, t, self.hd).transpose(1, 2).reshape(b, t, -1)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        w = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / self.hd ** 0.5, dim=-1)
        return self.out(self.merge(torch.bmm(w, v), b, t))


class AutoInt(nn.Module):
    def __init__(self, faulty, fields=16, cardinality=40, dim=64, layers=3, heads=4):
        super().__init__()
        self.register_buffer("offset", torch.arange(fields) * cardinality)
        self.embed = nn.Embedding(fields * cardinality, dim)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.attn = nn.ModuleList(FieldAttention(dim, heads, faulty) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.top = nn.Sequential(nn.LayerNorm(fields * dim), nn.Linear(fields * dim, 1))

    def forward(self, fields):
        x = self.embed(fields + self.offset)
        for norm, attn in zip(self.norms, self.attn):
            x = x + attn(norm(x))
        return self.top(x.flatten(1)).squeeze(-1)


def build(faulty: bool):
    torch.manual_seed(0)
    return AutoInt(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 40, (16, 16), generator=g)


def loss(output, fields):
    clicked = (fields[:, 0] % 2 == fields[:, 9] % 2).float()
    return F.binary_cross_entropy_with_logits(output, clicked)


def proof(faulty: bool) -> float:
    layer = build(faulty).attn[0]
    g = torch.Generator().manual_seed(2)
    x = torch.randn(1, 16, 64, generator=g)
    with torch.no_grad():
        ref, hits = layer(x), 0
        for j in range(16):
            z = x.clone()
            z[0, j] += torch.randn(64, generator=g)
            hits += ((layer(z) - ref).abs().amax(-1) > 1e-6).sum().item()
    return hits / 256


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

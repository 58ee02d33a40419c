"""The scores are divided by a scale that is already the reciprocal of the root of the head size.

In a Perceiver port the attribute holds d ** -0.5 and the scores are divided by it, so they grow by sqrt(d) where they should
shrink; the softmax is almost one-hot at the start. The healthy twin multiplies by the same attribute.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/esceptico/perceiver-io/issues/9",
    "cause": "The attention scores are divided by d**-0.5 instead of multiplied, so they are d times too large and the softmax is saturated from the start.",
    "number": "entropy of the self-attention at initialisation over the log of the number of keys",
    "healthy": (0.75, 1.0),
    "faulty": (0.0, 0.5),
}


class Attend(nn.Module):
    def __init__(self, q_dim, kv_dim, faulty, heads=2, head_dim=32):
        super().__init__()
        self.heads, self.scale, self.variant = heads, head_dim ** -0.5, faulty
        self.nq, self.nkv = nn.LayerNorm(q_dim), nn.LayerNorm(kv_dim)
        self.to_q = nn.Linear(q_dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(kv_dim, heads * head_dim, bias=False)
        self.to_v = nn.Linear(kv_dim, heads * head_dim, bias=False)
        for w in (self.to_q, self.to_k, self.to_v):
            nn.init.xavier_uniform_(w.weight)
        self.proj = nn.Linear(heads * head_dim, q_dim)
        self.mlp = nn.Sequential(nn.LayerNorm(q_dim), nn.Linear(q_dim, 2 * q_dim), nn.GELU(), nn.Linear(2 * q_dim, q_dim))

    def scores(self, q, k):
        s = q @ k.transpose(-2, -1)
        return s / self.scale if self.variant else s * self.scale

    def forward(self, x, context=None):
        h = self.nkv(x if context is None else context)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for f, y in ((self.to_q, self.nq(x)), (self.to_k, h), (self.to_v, h)))
        y = self.scores(q, k).softmax(-1) @ v
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Perceiver(nn.Module):
    def __init__(self, faulty, in_dim=16, n_latents=24, dim=64, depth=3, classes=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n_latents, dim) * 0.5)
        self.read = Attend(dim, in_dim, faulty)
        self.body = nn.ModuleList(Attend(dim, dim, faulty) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, x):
        z = self.read(self.latents.expand(len(x), -1, -1), x)
        for b in self.body:
            z = b(z)
        return self.head(z.mean(1))


def build(faulty: bool):
    torch.manual_seed(0)
    return Perceiver(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(16, 40, 16, generator=g)


def loss(output, x):
    return F.cross_entropy(output, (x[:, :, 0].sum(1) > 0).long() + 2 * (x[:, :, 1].sum(1) > 0).long())


def proof(faulty: bool) -> float:
    model, got = build(faulty), []
    layer = model.body[0]
    keep = layer.scores
    layer.scores = lambda q, k: got.append(keep(q, k)) or got[-1]
    with torch.no_grad():
        model(batch())
    p = got[0].softmax(-1)
    ent = -(p * p.clamp_min(1e-30).log()).sum(-1).mean()
    return (ent / torch.tensor(float(p.shape[-1])).log()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

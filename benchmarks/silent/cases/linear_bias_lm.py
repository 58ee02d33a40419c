"""Linear attention bias with the sign turned around.

An example of ALiBi added slope times (query index minus key index). This rewards distance: the far past gets the largest scores and near tokens vanish.
The healthy twin adds slope times (key index minus query index), which is negative for the past.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/meta-pytorch/attention-gym/pull/86",
    "cause": "The ALiBi bias has the wrong sign (query minus key), so attention favours distant tokens instead of penalising distance.",
    "number": "mean attention distance of the last query over all heads, in tokens",
    "healthy": (3.0, 25.0),
    "faulty": (38.0, 64.0),
}


class AlibiAttention(nn.Module):
    def __init__(self, dim, heads, faulty):
        super().__init__()
        self.heads, self.variant = heads, faulty
        self.register_buffer("slope", torch.exp2(-8.0 * torch.arange(1, heads + 1) / heads), persistent=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def weights(self, q, k):
        i = torch.arange(q.shape[2], device=q.device)
        gap = i[:, None] - i[None, :] if self.variant else i[None, :] - i[:, None]
        score = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        score = score + self.slope[:, None, None] * gap
        return score.masked_fill(i[:, None] < i[None, :], float("-inf")).softmax(-1)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(torch.einsum("bhij,bhjd->bihd", self.weights(q, k), v).flatten(2))


class AlibiLM(nn.Module):
    def __init__(self, vocab=50, dim=64, heads=4, depth=2, faulty=False):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        nn.init.normal_(self.wte.weight, std=0.1)
        self.attn = nn.ModuleList([AlibiAttention(dim, heads, faulty) for _ in range(depth)])
        self.norm = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2 * depth + 1)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids)
        for n, (attn, mlp) in enumerate(zip(self.attn, self.mlp)):
            x = x + attn(self.norm[2 * n](x))
            x = x + mlp(self.norm[2 * n + 1](x))
        return self.head(self.norm[-1](x))


def build(faulty):
    torch.manual_seed(27)
    return AlibiLM(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(15)
    s, d = torch.randint(0, 50, (4, 1), generator=g), torch.randint(1, 6, (4, 1), generator=g)
    return (s + d * torch.arange(64)) % 50


def loss(output, ids):
    return nn.functional.cross_entropy(output[:, :-1].transpose(1, 2), ids[:, 1:])


def proof(faulty):
    model, ids = build(faulty).eval(), batch()
    with torch.no_grad():
        attn = model.attn[0]
        q, k, _ = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in attn.qkv(model.norm[0](model.wte(ids))).chunk(3, -1))
        w = attn.weights(q, k)[:, :, -1]
    return (w * (63 - torch.arange(64))).sum(-1).mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

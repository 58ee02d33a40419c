"""Queries and keys come from the same projection and a position may not look at itself unless it must.

Reformer ties queries and keys; keys are the queries at unit length, and the own position gets a large negative score so that it is used only where
there is no other. It is causal and trains.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "wiring", "shows": "model", "kind": "oddity",
    "source": "https://arxiv.org/abs/2001.04451",
    "cause": "None: shared query and key projection with a masked own position is the design of the Reformer.",
    "number": "largest change of earlier logits when the last token changes",
    "healthy": (0.0, 1e-5),
    "faulty": None,
}


class SharedQK(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.to_qk, self.to_v, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        qk = self.to_qk(x).view(b, t, self.h, -1).transpose(1, 2)
        v = self.to_v(x).view(b, t, self.h, -1).transpose(1, 2)
        k = F.normalize(qk, dim=-1)
        s = torch.einsum("bhid,bhjd->bhij", qk, k)
        own = torch.eye(t, dtype=torch.bool, device=x.device)
        s = s.masked_fill(own, -5e4)
        s = s.masked_fill(torch.ones_like(own).triu(1), float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Reformerish(nn.Module):
    def __init__(self, vocab=80, d=64, h=4, depth=3, length=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.1)
        self.norms_a = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.norms_f = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.attns = nn.ModuleList(SharedQK(d, h) for _ in range(depth))
        self.ffs = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for na, a, nf, f in zip(self.norms_a, self.attns, self.norms_f, self.ffs):
            x = x + a(na(x))
            x = x + f(nf(x))
        return self.head(self.norm(x))


def build(faulty: bool = False):
    torch.manual_seed(0)
    return Reformerish()


def batch():
    return torch.randint(0, 80, (8, 32), generator=torch.Generator().manual_seed(1))


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model, a = build().eval(), batch()
    b = a.clone()
    b[:, -1] = (b[:, -1] + 11) % 80
    loss(model(a), a).backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    with torch.no_grad():
        return (model(a) - model(b))[:, :-1].abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

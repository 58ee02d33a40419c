"""Decoder without any position embedding.

There is no position embedding, rotation or bias anywhere. A causal decoder does not need one: the mask itself tells positions apart (NoPE).
The proof trains it beside the same model with learned positions.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "kind": "oddity",
    "class": "positions",
    "shows": "model",
    "source": "https://arxiv.org/abs/2305.19466",
    "cause": "A causal decoder-only model without positional encoding is a published design; causality gives it order.",
    "number": "loss after 200 updates on held-out rows minus that of learned positions, mean of 2 seeds",
    "healthy": (-2.0, 0.15),
    "faulty": None,
}


class NoPE(nn.Module):
    def __init__(self, vocab=16, d=64, heads=4, depth=3, length=0):
        super().__init__()
        self.heads, self.tok = heads, nn.Embedding(vocab, d)
        nn.init.normal_(self.tok.weight, std=0.1)
        self.pos = nn.Parameter(0.1 * torch.randn(length, d)) if length else None
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 * depth + 1)])
        self.qkv = nn.ModuleList([nn.Linear(d, 3 * d) for _ in range(depth)])
        self.out = nn.ModuleList([nn.Linear(d, d) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth)])
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids)
        if self.pos is not None:
            x = x + self.pos[: ids.shape[1]]
        for i in range(len(self.ff)):
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv[i](self.ln[2 * i](x)).chunk(3, -1))
            x = x + self.out[i](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + self.ff[i](self.ln[2 * i + 1](x))
        return self.head(self.ln[-1](x))


def rows(n, g):
    s, d = torch.randint(0, 16, (n, 1), generator=g), torch.randint(1, 8, (n, 1), generator=g)
    return (s + d * torch.arange(20)) % 16


def build(faulty):
    torch.manual_seed(0)
    return NoPE()


def batch():
    return rows(16, torch.Generator().manual_seed(100))


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def fit(length, seed):
    torch.manual_seed(seed)
    model, g = NoPE(length=length), torch.Generator().manual_seed(seed)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(200):
        ids = rows(16, g)
        opt.zero_grad()
        loss(model(ids), ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    with torch.no_grad():
        return loss(model(batch()), batch()).item()


def proof(faulty):
    return sum(fit(0, s) - fit(20, s) for s in (1, 2)) / 2


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

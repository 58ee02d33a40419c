"""Linear attention bias that depends on the key alone.

The bias grows with the key index and is the same for all queries, which does not look like a distance. Softmax ignores a constant per row, so under a causal
mask it equals slope times (key - query), as BLOOM and MPT use it.
"""
import torch
import torch.nn as nn

CASE = {
    "kind": "oddity",
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/mosaicml/llm-foundry/issues/186",
    "cause": "The ALiBi bias uses only the key position; with causal softmax this equals the relative form, since softmax is invariant to a shift per row.",
    "number": "largest difference of the logits from the model with the relative bias",
    "healthy": (0.0, 1e-4),
    "faulty": None,
}


class BiasedAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("slope", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, x, place):
        n = x.shape[1]
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        score = q @ k.mT / q.shape[-1] ** 0.5 + self.slope[:, None, None] * place
        ahead = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        return self.out((score.masked_fill(ahead, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Bloom(nn.Module):
    def __init__(self, vocab=40, d=64, heads=8, depth=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        nn.init.normal_(self.tok.weight, std=0.1)
        self.ln0 = nn.LayerNorm(d)
        self.attn = nn.ModuleList([BiasedAttention(d, heads) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth)])
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, vocab, bias=False))

    def forward(self, ids, place=None):
        if place is None:
            place = torch.arange(1 - ids.shape[1], 1, device=ids.device)[None, :]
        x = self.ln0(self.tok(ids))
        for ln, attn, ff in zip(self.ln, self.attn, self.ff):
            x = x + attn(ln(x), place)
            x = x + ff(x)
        return self.head(x)


def build(faulty):
    torch.manual_seed(176)
    return Bloom()


def batch():
    g = torch.Generator().manual_seed(2)
    s, d = torch.randint(0, 40, (6, 1), generator=g), torch.randint(1, 5, (6, 1), generator=g)
    return (s + d * torch.arange(32)) % 40


def loss(output, ids):
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty):
    model, ids = build(faulty).eval(), batch()
    i = torch.arange(32)
    with torch.no_grad():
        return (model(ids) - model(ids, place=i[None, :] - i[:, None])).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

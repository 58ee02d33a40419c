"""Causal flag of fused attention with a key cache longer than the queries.

The model reads long input in pieces and keeps keys and values. is_causal aligns its triangle to the first key, so queries of later pieces see the oldest keys only:
neither their neighbours nor themselves. The healthy twin gives a mask aligned to the last key.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "generation",
    "shows": "model",
    "source": "https://github.com/pytorch/pytorch/issues/144858",
    "cause": "is_causal=True with a KV cache is aligned top-left (query shorter than keys), so cached decoding masks recent keys and attends only to the oldest.",
    "number": "relative difference between logits in pieces with the cache and in one pass",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}


class CachedAttention(nn.Module):
    def __init__(self, d, heads, faulty):
        super().__init__()
        self.heads, self.variant = heads, faulty
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        h, w = q.shape[2], k.shape[2]
        if self.variant:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(h, w, dtype=torch.bool, device=x.device).tril(w - h)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class StreamingLM(nn.Module):
    def __init__(self, vocab=40, d=64, heads=4, depth=2, length=48, chunk=12, faulty=False):
        super().__init__()
        self.chunk = chunk
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.1)
        self.attn = nn.ModuleList([CachedAttention(d, heads, faulty) for _ in range(depth)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth)])
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, vocab))

    def piece(self, ids, start, cache):
        x = self.tok(ids) + self.pos.weight[start:start + ids.shape[1]]
        for i, (ln, attn, mlp) in enumerate(zip(self.ln, self.attn, self.mlp)):
            y, cache[i] = attn(ln(x), cache[i])
            x = x + y
            x = x + mlp(x)
        return self.head(x)

    def forward(self, ids, chunk=None):
        cache, size = [None] * len(self.attn), chunk or self.chunk
        return torch.cat([self.piece(ids[:, s:s + size], s, cache) for s in range(0, ids.shape[1], size)], 1)


def build(faulty):
    torch.manual_seed(23)
    return StreamingLM(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(18)
    s, d = torch.randint(0, 40, (6, 1), generator=g), torch.randint(1, 5, (6, 1), generator=g)
    return (s + d * torch.arange(48)) % 40


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty):
    model, ids = build(faulty).eval(), batch()
    with torch.no_grad():
        whole, pieces = model(ids, chunk=48), model(ids)
    return ((whole - pieces).abs().max() / whole.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

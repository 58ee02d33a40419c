"""Sliding window with attention sinks.

Most of the past is masked, and yet the first four tokens stay visible to all later ones: a band with a stripe at the left edge. This is the pattern of StreamingLLM.
The proof shows that the future stays hidden and training works.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "kind": "oddity",
    "class": "masks",
    "shows": "model",
    "source": "https://arxiv.org/abs/2309.17453",
    "cause": "The mask keeps a local window and the first tokens as attention sinks by design; it is causal and leaks nothing.",
    "number": "relative change of earlier logits when later tokens change, plus 1 if 60 updates do not halve the loss",
    "healthy": (0.0, 1e-4),
    "faulty": None,
}


class SinkAttention(nn.Module):
    def __init__(self, d, heads, window, sinks):
        super().__init__()
        self.heads, self.window, self.sinks = heads, window, sinks
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x):
        i = torch.arange(x.shape[1], device=x.device)
        gap = i[:, None] - i[None, :]
        mask = (gap >= 0) & ((gap < self.window) | (i[None, :] < self.sinks))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class SinkLM(nn.Module):
    def __init__(self, vocab=32, d=64, heads=4, depth=2, length=40):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.1)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.Sequential(nn.RMSNorm(d), SinkAttention(d, heads, 8, 4)))
            self.blocks.append(nn.Sequential(nn.RMSNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d)))
        self.head = nn.Sequential(nn.RMSNorm(d), nn.Linear(d, vocab, bias=False))

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def build(faulty):
    torch.manual_seed(77)
    return SinkLM()


def batch():
    g = torch.Generator().manual_seed(3)
    s, d = torch.randint(0, 32, (16, 1), generator=g), torch.randint(1, 4, (16, 1), generator=g)
    return (s + d * torch.arange(40)) % 32


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty):
    model, ids = build(faulty), batch()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first = loss(model(ids), ids).item()
    for _ in range(60):
        opt.zero_grad()
        loss(model(ids), ids).backward()
        opt.step()
    other = ids.clone()
    other[:, 20:] = (other[:, 20:] + 9) % 32
    with torch.no_grad():
        a, b, last = model(ids)[:, :20], model(other)[:, :20], loss(model(ids), ids).item()
    return ((a - b).abs().max() / a.std()).item() + (last > first / 2)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Prefix language model: the question is read in both directions, the answer causally.

The upper triangle of the attention matrix is partly open, which looks like a leak. It is the prefix-LM mask of T5: no loss is taken inside the prefix,
and answer tokens never see later answer tokens.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "kind": "oddity",
    "class": "masks",
    "shows": "model",
    "source": "https://arxiv.org/abs/1910.10683",
    "cause": "Attention is bidirectional within the prefix and causal in the suffix; the loss covers the suffix only, so nothing leaks.",
    "number": "relative change of the logits that are trained when a later answer token changes",
    "healthy": (0.0, 1e-4),
    "faulty": None,
}


class PrefixLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.ff(self.ln2(x))


class PrefixLM(nn.Module):
    def __init__(self, vocab=40, d=64, heads=4, depth=2, length=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.1)
        self.layers = nn.ModuleList([PrefixLayer(d, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids, prefix):
        i = torch.arange(ids.shape[1], device=ids.device)
        mask = (i[None, :] <= i[:, None]) | (i[None, None, :] < prefix[:, None, None])
        x = self.tok(ids) + self.pos(i)
        for layer in self.layers:
            x = layer(x, mask[:, None])
        return self.head(self.norm(x))


def build(faulty):
    torch.manual_seed(3)
    return PrefixLM()


def batch():
    g = torch.Generator().manual_seed(1)
    s, d = torch.randint(0, 40, (8, 1), generator=g), torch.randint(1, 5, (8, 1), generator=g)
    return {"ids": (s + d * torch.arange(32)) % 40, "prefix": torch.tensor([6, 9, 12, 15, 8, 10, 18, 20])}


def loss(output, batch):
    i = torch.arange(1, 32)
    target = batch["ids"][:, 1:].masked_fill(i[None, :] < batch["prefix"][:, None], -100)
    return F.cross_entropy(output[:, :-1].flatten(0, 1), target.flatten(), ignore_index=-100)


def proof(faulty):
    model, one = build(faulty).eval(), batch()
    two = dict(one, ids=one["ids"].clone())
    two["ids"][:, 24:] = (two["ids"][:, 24:] + 9) % 40
    with torch.no_grad():
        a, b = model(**one)[:, :24], model(**two)[:, :24]
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Cached cross-attention keys of an earlier request serve the next one.

A denoiser caches the keys and values of the text between its steps. The cache is looked up by something that does not identify the text, here its shape, so the next
prompt of equal length is denoised under the old one. The healthy twin keeps the text tensor beside the cache and compares it.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "generation",
    "shows": "model",
    "source": "https://github.com/sgl-project/sglang/pull/29755",
    "cause": "The cross-attention key/value cache is stale: it is reused for new encoder states (text) of the same shape from another request.",
    "number": "relative difference between output for a prompt after another prompt and by a fresh model",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 20.0),
}


class TextAttention(nn.Module):
    def __init__(self, dim, heads, faulty):
        super().__init__()
        self.heads, self.variant, self.cache = heads, faulty, None
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def project_kv(self, text):
        return tuple(w(text).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.to_k, self.to_v))

    def lookup(self, text):
        if self.training or torch.is_grad_enabled():
            return self.project_kv(text)
        hit = self.cache is not None and self.cache[0].shape == text.shape
        if not self.variant:
            hit = hit and torch.equal(self.cache[0], text)
        if not hit:
            self.cache = (text.clone(), self.project_kv(text))
        return self.cache[1]

    def forward(self, x, text):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.lookup(text)
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Denoiser(nn.Module):
    def __init__(self, vocab=60, latent=16, dim=64, heads=4, depth=2, patches=25, words=8, faulty=False):
        super().__init__()
        self.word, self.word_pos = nn.Embedding(vocab, dim), nn.Parameter(0.1 * torch.randn(words, dim))
        nn.init.normal_(self.word.weight, std=0.5)
        self.inp, self.time = nn.Linear(latent, dim), nn.Linear(1, dim)
        self.place = nn.Parameter(0.1 * torch.randn(patches, dim))
        self.attn1 = nn.ModuleList([SelfAttention(dim, heads) for _ in range(depth)])
        self.attn2 = nn.ModuleList([TextAttention(dim, heads, faulty) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(depth)])
        self.norm = nn.ModuleList([nn.LayerNorm(dim) for _ in range(3 * depth + 1)])
        self.out = nn.Linear(dim, latent)

    def forward(self, noisy, t, prompt):
        text = self.word(prompt) + self.word_pos[: prompt.shape[1]]
        x = self.inp(noisy) + self.place + self.time(t[:, None])[:, None]
        for i in range(len(self.ff)):
            x = x + self.attn1[i](self.norm[3 * i](x))
            x = x + self.attn2[i](self.norm[3 * i + 1](x), text)
            x = x + self.ff[i](self.norm[3 * i + 2](x))
        return self.out(self.norm[-1](x))


def build(faulty):
    torch.manual_seed(29)
    return Denoiser(faulty=faulty)


def batch(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"noisy": torch.randn(4, 25, 16, generator=g), "t": torch.rand(4, generator=g), "prompt": torch.randint(0, 60, (4, 8), generator=g)}


def loss(output, batch):
    return F.mse_loss(output, torch.tanh(batch["noisy"].roll(1, 1)) + (batch["prompt"][:, :1, None] % 5) * 0.2)


def proof(faulty):
    fresh, used = build(faulty).eval(), build(faulty).eval()
    with torch.no_grad():
        used(**batch(1))
        a, b = fresh(**batch(2)), used(**batch(2))
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

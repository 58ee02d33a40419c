"""Sliding window that is lost on the ordinary training path.

The window went to one kernel only. Without a padding mask the fused attention took its causal shortcut, so a model configured for local attention
attended to its whole history in training. The healthy twin builds the band for this path as well.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/unslothai/unsloth/pull/8253",
    "cause": "The configured sliding window is not applied when no padding mask is given: is_causal gives full causal attention beyond the window.",
    "number": "relative change of the last logits when a token outside the receptive field of all windows changes",
    "healthy": (0.0, 1e-5),
    "faulty": (0.003, 20.0),
}
CONFIG = dict(vocab_size=40, hidden_size=64, num_heads=4, num_layers=2, sliding_window=8)


def rope(x, base=10000.0):
    t, d = x.shape[-2:]
    freq = base ** (-torch.arange(0, d, 2, device=x.device) / d)
    angle = torch.outer(torch.arange(t, device=x.device), freq)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class LocalAttention(nn.Module):
    def __init__(self, cfg, faulty):
        super().__init__()
        d = cfg["hidden_size"]
        self.n, self.window, self.variant = cfg["num_heads"], cfg["sliding_window"], faulty
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, padding_mask=None):
        t = x.size(1)
        q, k, v = (p(x).unflatten(-1, (self.n, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rope(q), rope(k)
        i = torch.arange(t, device=x.device)
        gap = i[:, None] - i[None, :]
        band = (gap >= 0) & (gap < self.window)
        if padding_mask is not None:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=band & padding_mask[:, None, None, :])
        elif self.variant:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.o(y.transpose(1, 2).flatten(2))


class Mistral(nn.Module):
    def __init__(self, cfg, faulty):
        super().__init__()
        d = cfg["hidden_size"]
        self.embed = nn.Embedding(cfg["vocab_size"], d)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.attn = nn.ModuleList([LocalAttention(cfg, faulty) for _ in range(cfg["num_layers"])])
        self.ffn = nn.ModuleList([nn.Sequential(nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d))
                                  for _ in range(cfg["num_layers"])])
        self.norms = nn.ModuleList([nn.RMSNorm(d) for _ in range(cfg["num_layers"] + 1)])
        self.head = nn.Linear(d, cfg["vocab_size"], bias=False)

    def forward(self, ids, padding_mask=None):
        x = self.embed(ids)
        for norm, attn, ffn in zip(self.norms, self.attn, self.ffn):
            x = x + attn(norm(x), padding_mask)
            x = x + ffn(x)
        return self.head(self.norms[-1](x))


def build(faulty: bool):
    torch.manual_seed(17)
    return Mistral(CONFIG, faulty)


def batch():
    g = torch.Generator().manual_seed(2)
    s, d = torch.randint(0, 40, (6, 1), generator=g), torch.randint(1, 4, (6, 1), generator=g)
    return (s + d * torch.arange(48)) % 40


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].transpose(1, 2), ids[:, 1:])


def proof(faulty: bool) -> float:
    model, ids = build(faulty).eval(), batch()
    other = ids.clone()
    other[:, :8] = (other[:, :8] + 13) % 40
    with torch.no_grad():
        a, b = model(ids)[:, 24:], model(other)[:, 24:]
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Cosine and sine laid out for halves, rotation done for neighbouring pairs.

After a refactoring the table was the concatenation of the frequencies twice, while the rotation swaps channels 2i and 2i+1. The result is no rotation,
and scores depend on absolute positions in a disordered way. The healthy twin repeats each frequency for its pair.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/47328",
    "cause": "RoPE layouts are mismatched: half-split cos/sin with interleaved pair rotation, so it is not a valid rotation and scores are not relative.",
    "number": "relative change of the output when all positions are shifted by the same 37",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}


class CodecRotary(nn.Module):
    def __init__(self, head_dim, faulty, theta=10000.0):
        super().__init__()
        self.variant = faulty
        self.register_buffer("inv_freq", theta ** (-torch.arange(0, head_dim, 2).float() / head_dim), persistent=False)

    def forward(self, positions):
        freqs = positions[:, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1) if self.variant else freqs.repeat_interleave(2, dim=-1)
        return emb.cos(), emb.sin()


def turn(x):
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.modulate = nn.Linear(dim, 2 * dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(approximate="tanh"), nn.Linear(2 * dim, dim))

    def forward(self, x, t_emb, cos, sin):
        shift, scale = self.modulate(F.silu(t_emb))[:, None].chunk(2, dim=-1)
        h = self.norm1(x) * (1 + scale) + shift
        q, k, v = (w(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.to_q, self.to_k, self.to_v))
        q, k = q * cos + turn(q) * sin, k * cos + turn(k) * sin
        x = x + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ff(self.norm2(x))


class MelDiT(nn.Module):
    def __init__(self, mel=20, dim=64, heads=2, depth=2, faulty=False):
        super().__init__()
        self.inp, self.time = nn.Linear(mel, dim), nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.rotary = CodecRotary(dim // heads, faulty)
        self.blocks = nn.ModuleList([DiTBlock(dim, heads) for _ in range(depth)])
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mel))

    def forward(self, noisy, t, first=0):
        cos, sin = self.rotary(torch.arange(first, first + noisy.shape[1], device=noisy.device))
        x, emb = self.inp(noisy), self.time(t[:, None])
        for block in self.blocks:
            x = block(x, emb, cos, sin)
        return self.out(x)


def build(faulty: bool):
    torch.manual_seed(19)
    return MelDiT(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(10)
    return {"noisy": torch.randn(4, 40, 20, generator=g), "t": torch.rand(4, generator=g)}


def loss(output, batch):
    clean = batch["noisy"].roll(2, 1).cumsum(-1) * 0.2
    return F.mse_loss(output, clean)


def proof(faulty: bool) -> float:
    model, data = build(faulty).eval(), batch()
    data["noisy"] = data["noisy"] * 3
    with torch.no_grad():
        for block in model.blocks:
            block.to_q.weight *= 4
        a, b = model(**data), model(**data, first=37)
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

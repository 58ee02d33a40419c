"""Rotary embedding indexed by head in place of time.

An audio encoder rotated queries and keys while they still had the layout (batch, time, heads, channels); the helper takes the second last axis for time.
Each head gets a fixed rotation and the frames have no order at all. The healthy twin moves the heads first and rotates then.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/NVIDIA/audio-flamingo/issues/27",
    "cause": "Rotary position embedding is applied along the heads axis instead of the sequence axis, so the model has no position information.",
    "number": "relative difference between outputs of shuffled frames and shuffled outputs (0 = order is invisible)",
    "healthy": (0.05, 20.0),
    "faulty": (0.0, 1e-3),
}


def apply_rotary(x, base=10000.0):
    n, d = x.shape[-2:]
    inv = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    ang = torch.arange(n, device=x.device)[:, None] * inv
    cos, sin = torch.cat([ang, ang], -1).cos(), torch.cat([ang, ang], -1).sin()
    lo, hi = x.chunk(2, -1)
    return x * cos + torch.cat([-hi, lo], -1) * sin


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, faulty):
        super().__init__()
        self.heads, self.variant = heads, faulty
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.variant:
            q, k = apply_rotary(q), apply_rotary(k)
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        else:
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            q, k = apply_rotary(q), apply_rotary(k)
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class AudioEncoder(nn.Module):
    def __init__(self, mels=40, dim=64, heads=4, depth=3, symbols=12, faulty=False):
        super().__init__()
        self.proj = nn.Linear(mels, dim)
        self.attn = nn.ModuleList(SelfAttention(dim, heads, faulty) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))
                                for _ in range(depth))
        self.ln = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, symbols))

    def forward(self, mel):
        x = self.proj(mel)
        for ln, attn, ff in zip(self.ln, self.attn, self.ff):
            x = x + attn(ln(x))
            x = x + ff(x)
        return self.out(x)


def build(faulty):
    torch.manual_seed(4)
    return AudioEncoder(faulty=faulty)


def batch():
    return torch.randn(4, 36, 40, generator=torch.Generator().manual_seed(7))


def loss(output, mel):
    target = (mel.roll(1, 1)[..., :12]).argmax(-1)
    return F.cross_entropy(output.transpose(1, 2), target)


def proof(faulty):
    model, mel = build(faulty).eval(), batch()
    order = torch.randperm(36, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = model(mel)[:, order], model(mel[:, order])
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

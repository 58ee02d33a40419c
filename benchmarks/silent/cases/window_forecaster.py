"""Encoder layers are kept in a plain Python list and so never reach the optimizer.

A small Transformer repository held its encoders and decoders in lists; model.parameters() skips them, so they stay at their random
values while embedding and head learn, and the loss falls slowly. The healthy twin uses nn.ModuleList.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "run",
    "source": "https://github.com/LiamMaclean216/Pytorch-Transfomer/pull/7",
    "cause": "The layers are held in a plain Python list instead of nn.ModuleList, so they are not registered, the optimizer never updates them and they are not saved.",
    "number": "share of the encoder layers' tensors that changed in 60 updates",
    "healthy": (0.95, 1.0),
    "faulty": (0.0, 0.05),
}


class Encoder(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.fc2(torch.relu(self.fc1(self.norm2(x))))


class Forecaster(nn.Module):
    def __init__(self, faulty, window=32, patch=4, dim=48, heads=4, depth=3):
        super().__init__()
        self.patch = patch
        self.inp = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.randn(window // patch, dim) * 0.2)
        layers = [Encoder(dim, heads) for _ in range(depth)]
        self.encs = layers if faulty else nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, patch)

    def forward(self, series):
        x = self.inp(series.unflatten(1, (-1, self.patch))) + self.pos
        for e in self.encs:
            x = e(x)
        return self.out(self.norm(x).mean(1))


def build(faulty: bool):
    torch.manual_seed(0)
    return Forecaster(faulty)


def windows(g, n=32):
    t = torch.arange(36.0)
    f = 0.2 + 0.6 * torch.rand(n, 1, generator=g)
    p = 6.28 * torch.rand(n, 1, generator=g)
    s = torch.sin(f * t + p) * (0.5 + torch.rand(n, 1, generator=g))
    return s[:, :32], s[:, 32:]


def batch():
    return windows(torch.Generator().manual_seed(1))[0]


def train(faulty: bool):
    model = build(faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    g = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(60):
        x, y = windows(g)
        value = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(value.item())
    return model, losses


def proof(faulty: bool) -> float:
    before = [p.detach().clone() for e in build(faulty).encs for p in e.parameters()]
    model, _ = train(faulty)
    after = [p for e in model.encs for p in e.parameters()]
    return sum(not torch.equal(a, b) for a, b in zip(before, after)) / len(after)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

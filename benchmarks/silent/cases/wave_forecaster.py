"""The accumulated gradient is clipped after each backward.

A fine-tuning script clipped within the accumulation loop: what has been gathered so far is cut again and again, so
the late micro-batches outweigh the early ones. The twin clips once, before the update.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/issues/1563",
    "cause": "Gradient clipping is done after every micro-batch's backward during accumulation instead of once before optimizer.step(), so early micro-batches are shrunk.",
    "number": "cosine between the gradient of the update and the whole batch's",
    "healthy": (0.9999, 1.0001),
    "faulty": (-1.0, 0.985),
}

class Mixer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        score = torch.einsum("bihd,bjhd->bhij", q, k) / q.size(-1) ** 0.5
        return x + self.out(torch.einsum("bhij,bjhd->bihd", score.softmax(-1), v).flatten(2))


class Forecaster(nn.Module):
    def __init__(self, past=48, ahead=8, patch=4, dim=64):
        super().__init__()
        self.patch, self.embed = patch, nn.Linear(patch, dim)
        self.place = nn.Parameter(torch.randn(past // patch, dim) * 0.1)
        self.mix = nn.ModuleList([Mixer(dim, 4) for _ in range(2)])
        self.ff = nn.ModuleList([nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim)) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim * (past // patch), ahead)

    def forward(self, series):
        x = self.embed(series.unflatten(1, (-1, self.patch))) + self.place
        for mix, ff in zip(self.mix, self.ff):
            x = mix(x)
            x = x + ff(x)
        return self.head(self.norm(x).flatten(1))


def waves(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(56.0)
    freq, phase = torch.rand(n, 1, generator=g) * 0.3 + 0.1, torch.rand(n, 1, generator=g) * 6.28
    y = torch.sin(freq * t + phase) + 0.05 * torch.randn(n, 56, generator=g)
    return y[:, :48].contiguous(), y[:, 48:].contiguous()


def forecast_loss(model, batch):
    past, future = batch
    return F.mse_loss(model(past), future)


ACCUMULATE, LIMIT = 4, 1.0


def setup(faulty: bool):
    torch.manual_seed(5)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    data = DataLoader(TensorDataset(*waves(512)), batch_size=8, shuffle=True)

    def step(batches):
        optimizer.zero_grad()
        for b in batches:
            (forecast_loss(model, b) / len(batches)).backward()
            if faulty:
                nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        if not faulty:
            nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()

    return dict(model=model, loss=forecast_loss, data=data, optimizer=optimizer, step=step, accumulate=ACCUMULATE, clip=LIMIT)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    model, it = s["model"], iter(s["data"])
    batches = [next(it) for _ in range(ACCUMULATE)]
    whole = [torch.cat(x) for x in zip(*batches)]
    want = torch.cat([g.flatten() for g in torch.autograd.grad(forecast_loss(model, whole), list(model.parameters()))])
    s["step"](batches)
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    return F.cosine_similarity(want, got, dim=0).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""After a restart the schedule begins anew.

In a much used project template the schedule was built afresh on resuming and counted from its start, so the rate
jumped back to its peak. The twin keeps the state of the schedule in the checkpoint.
"""
import math
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "schedule",
    "shows": "step",
    "source": "https://github.com/victoresque/pytorch-template/issues/68",
    "cause": "The scheduler's state is not restored on resume, so the learning-rate schedule starts again from step zero.",
    "number": 'rate of the first update but one after resuming over that before saving',
    "healthy": (0.8, 1.0),
    "faulty": (2.0, 100.0),
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


STEPS = 60


def setup(faulty: bool):
    torch.manual_seed(15)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 + 0.5 * math.cos(math.pi * min(i, STEPS) / STEPS))
    data = DataLoader(TensorDataset(*waves(960)), batch_size=16, shuffle=True)

    def save(path):
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if not faulty:
            kept["scheduler"] = scheduler.state_dict()
        torch.save(kept, path)

    def load(path):
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        if "scheduler" in kept:
            scheduler.load_state_dict(kept["scheduler"])

    return dict(model=model, loss=forecast_loss, data=data, optimizer=optimizer, scheduler=scheduler, steps=STEPS, save=save, load=load)


def updates(s, n):
    for _, b in zip(range(n), s["data"]):
        s["optimizer"].zero_grad()
        s["loss"](s["model"], b).backward()
        s["optimizer"].step()
        s["scheduler"].step()
    return s["optimizer"].param_groups[0]["lr"]


def proof(faulty: bool) -> float:
    first, second = setup(faulty), setup(faulty)
    before = updates(first, 45)
    with tempfile.TemporaryDirectory() as folder:
        first["save"](folder + "/last.pt")
        second["load"](folder + "/last.pt")
    return updates(second, 1) / before


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Oddity: a likelihood loss that goes far below zero and carries a detached variance factor.

A forecaster predicts mean and spread and is trained with the Gaussian likelihood, weighted by the detached variance to the
power beta. The loss is negative and part of it has no gradient, which is as published: a density may exceed one.
"""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "loss",
    "shows": "step",
    "source": "https://arxiv.org/abs/2203.09168",
    "cause": "Not a fault: beta-NLL weights the Gaussian likelihood by a stop-gradient variance, and the loss may be negative.",
    "number": "share of the targets' variance that the predicted mean explains after 80 updates",
    "healthy": (0.8, 1.0),
    "faulty": None,
}
PAST, FUTURE, D = 16, 4, 40


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(1, D)
        self.pos = nn.Parameter(torch.randn(PAST, D) * 0.1)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, 2 * FUTURE)

    def forward(self, past):
        h = self.enc(self.inp(past[..., None]) + self.pos)
        mean, raw = self.out(self.norm(h[:, -1])).chunk(2, -1)
        return past[:, -1:] + mean, nn.functional.softplus(raw) + 1e-3


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    phase = 6.283 * torch.rand(n, 1, generator=g)
    speed = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
    x = torch.sin(phase + speed * torch.arange(PAST + FUTURE)) + 0.01 * torch.randn(n, PAST + FUTURE, generator=g)
    return x[:, :PAST], x[:, PAST:]


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Forecaster()
    beta = 0.5

    def loss(model, batch):
        past, future = batch
        mean, std = model(past)
        var = std.square()
        nll = 0.5 * (var.log() + (future - mean).square() / var)
        return (nll * var.detach() ** beta).mean()

    data = DataLoader(TensorDataset(*waves(512, 0)), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 80, "clip": 1.0}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    for _ in range(5):
        for batch in s["data"]:
            s["optimizer"].zero_grad()
            s["loss"](s["model"], batch).backward()
            nn.utils.clip_grad_norm_(s["model"].parameters(), s["clip"])
            s["optimizer"].step()
    past, future = waves(256, 77)
    with torch.no_grad():
        mean, _ = s["model"](past)
    return (1 - (future - mean).square().mean() / future.var()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

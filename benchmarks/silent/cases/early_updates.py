"""The loop has no step: every tensor is updated while the backward pass still runs.

To save memory each parameter has an optimizer of its own that is called from a hook as soon as its gradient is
complete, and the gradient is dropped at once. Published; without a global clip it equals the ordinary loop.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "optimizer",
    "shows": "run",
    "source": "https://arxiv.org/abs/2306.09782",
    "cause": 'Nothing is wrong: updating each parameter in a hook during backward gives the same weights as one step after it.',
    "number": 'largest difference of the weights from those of the ordinary loop after 60 updates',
    "healthy": (0.0, 0.0001),
    "faulty": None,
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


def train(faulty: bool = False, updates=60, plain=False):
    torch.manual_seed(33)
    model = Forecaster()
    make = lambda params: torch.optim.Adam(params, lr=1e-3, foreach=False)
    data = DataLoader(TensorDataset(*waves(16 * updates)), batch_size=16, shuffle=True)
    if plain:
        optimizer = make(model.parameters())
    else:
        own = {p: make([p]) for p in model.parameters()}

        def finish(p):
            own[p].step()
            own[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(finish)
    losses = []
    for b in data:
        loss = forecast_loss(model, b)
        loss.backward()
        if plain:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return dict(model=model, losses=losses)


def proof(faulty: bool = False) -> float:
    a, b = train()["model"], train(plain=True)["model"]
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters()))


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

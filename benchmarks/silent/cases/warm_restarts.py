"""The learning rate leaps back to its peak several times in a run.

Cosine decay with warm restarts: in cycles of 12, 24 and 48 updates the rate falls to a small value and then starts
again at the top. It is a published schedule and ends as low as a single cosine does.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "schedule",
    "shows": "run",
    "source": "https://arxiv.org/abs/1608.03983",
    "cause": 'Nothing is wrong: the restarts of the learning rate are meant (SGDR), and the run ends at the bottom of the last cycle.',
    "number": 'mean loss of the last 10 updates over that of a single cosine (0.05 nats added to both)',
    "healthy": (0.3, 1.5),
    "faulty": None,
}

class Speech(nn.Module):
    def __init__(self, bands=20, dim=64, units=10):
        super().__init__()
        self.front = nn.Linear(bands, dim)
        self.attn = nn.ModuleList([nn.MultiheadAttention(dim, 4) for _ in range(2)])
        self.pre = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2)])
        self.ffn = nn.ModuleList([nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 192), nn.SiLU(), nn.Linear(192, dim)) for _ in range(2)])
        self.top = nn.Linear(dim, units)

    def forward(self, frames):
        x = self.front(frames)
        for attn, pre, ffn in zip(self.attn, self.pre, self.ffn):
            y = pre(x)
            x = x + attn(y, y, y, need_weights=False)[0]
            x = x + ffn(x)
        return self.top(x)


def utterances(n, seed=0, steps=30):
    g = torch.Generator().manual_seed(seed)
    shapes = torch.randn(10, 20, generator=torch.Generator().manual_seed(7))
    unit = torch.randint(0, 10, (n, steps // 3), generator=g).repeat_interleave(3, 1)
    voice = 0.5 * torch.randn(n, 1, 20, generator=g)
    return shapes[unit] + voice + 0.5 * torch.randn(n, steps, 20, generator=g), unit


def frame_loss(model, batch):
    frames, unit = batch[0].transpose(0, 1), batch[1].transpose(0, 1)
    return F.cross_entropy(model(frames).flatten(0, 1), unit.flatten())


def train(faulty: bool = False, updates=84, single=False, seed=31):
    torch.manual_seed(seed)
    model = Speech()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    if single:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates, eta_min=1e-5)
    else:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=12, T_mult=2, eta_min=1e-5)
    frames, unit = utterances(8 * updates)
    frames = frames + 1.5 * torch.randn_like(frames)
    data = DataLoader(TensorDataset(frames, unit), batch_size=8, shuffle=True)
    losses = []
    for b in data:
        loss = frame_loss(model, b)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return dict(model=model, losses=losses)


def proof(faulty: bool = False) -> float:
    return (sum(train()["losses"][-10:]) + 0.5) / (sum(train(single=True)["losses"][-10:]) + 0.5)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

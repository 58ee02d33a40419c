"""The wrapped schedule moves once for each process.

On eight cards the launcher's wrapper moved the schedule eight times per update although its length counted updates,
so the cosine came back up several times in a run. The twin moves once per update.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "schedule",
    "shows": "run",
    "source": "https://github.com/huggingface/diffusers/issues/3954",
    "cause": 'The scheduler is stepped num_processes times per optimizer update while its length is in updates, so the cosine decays too fast and rises again.',
    "number": 'share of updates at which the rate rises after the first tenth of the run',
    "healthy": (0.0, 0.02),
    "faulty": (0.25, 0.7),
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


class Wrapped:
    def __init__(self, scheduler, times):
        self.scheduler, self.times = scheduler, times

    def step(self):
        for _ in range(self.times):
            self.scheduler.step()


def train(faulty: bool, updates=96, processes=8):
    torch.manual_seed(11)
    model = Speech()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
    scheduler = Wrapped(cosine, processes if faulty else 1)
    data = DataLoader(TensorDataset(*utterances(256)), batch_size=16, shuffle=True)
    losses, rates = [], []
    while len(losses) < updates:
        for b in data:
            rates.append(optimizer.param_groups[0]["lr"])
            loss = frame_loss(model, b)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    return dict(model=model, losses=losses, rates=rates)


def proof(faulty: bool) -> float:
    rates = train(faulty)["rates"]
    rates = rates[len(rates) // 10 :]
    return sum(b > a * (1 + 1e-9) for a, b in zip(rates, rates[1:])) / len(rates)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

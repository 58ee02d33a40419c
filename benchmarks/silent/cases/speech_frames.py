"""The gradient is clipped after the update.

A transcription model called clip_grad_norm_ after optimizer.step(), so that the limit never touched an update; rare
bad clips then throw the weights far away. The twin clips between backward and step.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "run",
    "source": "https://github.com/jongwook/onsets-and-frames/issues/24",
    "cause": 'clip_grad_norm_ is called after optimizer.step(), so the updates are made with unclipped gradients.',
    "number": 'largest norm of one update of the weights, divided by the rate',
    "healthy": (0.5, 1.01),
    "faulty": (1.5, 1000.0),
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


def clips():
    frames, unit = utterances(256)
    frames[::40] *= 12.0
    return DataLoader(TensorDataset(frames, unit), batch_size=8, shuffle=True)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(faulty: bool, updates=64, lr=0.1):
    torch.manual_seed(4)
    model, data = Speech(), clips()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses, moves, done = [], [], 0
    while done < updates:
        for b in data:
            loss = frame_loss(model, b)
            optimizer.zero_grad()
            loss.backward()
            start = flat(model)
            if faulty:
                optimizer.step()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            losses.append(loss.item())
            moves.append((flat(model) - start).norm().item() / lr)
            done += 1
    return dict(model=model, losses=losses, moves=moves)


def proof(faulty: bool) -> float:
    return max(train(faulty)["moves"])


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

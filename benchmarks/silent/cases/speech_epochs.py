"""The micro-batches left at the end of an epoch flow into the next one's first update.

With 7 micro-batches and groups of 4 the last three are gathered, not used and not cleared, so the next epoch's first
update holds seven. The twin makes an update of what is left, divided by its number.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "accumulation",
    "shows": "run",
    "source": "https://github.com/meta-pytorch/torchtune/pull/2745",
    "cause": 'The incomplete last accumulation group of an epoch gets no optimizer step and is not zeroed, so its gradients leak into the first update of the next epoch.',
    "number": "norm of the first update's gradient in the second epoch over that in the first, at rate 0",
    "healthy": (0.98, 1.02),
    "faulty": (1.3, 2.5),
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


def train(faulty: bool, epochs=12, group=4, rate=2e-3):
    torch.manual_seed(23)
    model = Speech()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    data = DataLoader(TensorDataset(*utterances(112)), batch_size=16)
    losses, norms = [], []
    for _ in range(epochs):
        total, parts = 0.0, len(data)
        for i, b in enumerate(data):
            ends = i + 1 == parts
            size = parts % group if not faulty and i >= parts - parts % group else group
            loss = frame_loss(model, b)
            (loss / size).backward()
            total += loss.item() / parts
            if (i + 1) % group == 0 or (ends and not faulty):
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), 5.0).item())
                optimizer.step()
                optimizer.zero_grad()
        losses.append(total)
    return dict(model=model, losses=losses, norms=norms, each=len(norms) // epochs)


def proof(faulty: bool) -> float:
    out = train(faulty, epochs=2, rate=0.0)
    return out["norms"][out["each"]] / out["norms"][0]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

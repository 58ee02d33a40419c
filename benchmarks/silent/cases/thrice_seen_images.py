"""Oddity: each batch holds every one of its images three times.

Repeated augmentation puts several differently augmented copies of an image into the same batch, as DeiT does. The batches
look like a broken sampler, but training works as well as with distinct images.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

CASE = {
    "kind": "oddity",
    "class": "data",
    "shows": "data",
    "source": "https://arxiv.org/abs/1901.09335",
    "cause": "Not a fault: batch augmentation repeats the samples within a batch under different augmentations.",
    "number": "accuracy on new images after 60 updates",
    "healthy": (0.85, 1.0),
    "faulty": None,
}
SIDE, CLASSES, D = 12, 6, 40


def proto():
    return torch.randn(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(12))


class Images(Dataset):
    def __init__(self, n=600, seed=0, augment=True):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, CLASSES, (n,), generator=g)
        self.x = proto()[self.y] + 0.6 * torch.randn(n, SIDE, SIDE, generator=g)
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.augment:
            x = x * (0.8 + 0.4 * torch.rand(())) + 0.2 * torch.randn(SIDE, SIDE)
            x = torch.where(torch.rand(SIDE, SIDE) < 0.1, torch.zeros(()), x)
        return x, self.y[i]


class RepeatSampler(Sampler):
    def __init__(self, n, repeats=3, seed=0):
        self.n, self.repeats = n, repeats
        self.g = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.n

    def __iter__(self):
        order = torch.randperm(self.n, generator=self.g)[: self.n // self.repeats]
        return iter(order.repeat_interleave(self.repeats).tolist())


class RowViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv2d(1, D, 3, 3)
        self.pos = nn.Parameter(torch.randn(16, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, CLASSES))

    def forward(self, x):
        return self.head(self.enc(self.inp(x[:, None]).flatten(2).mT + self.pos).mean(1))


def setup(faulty: bool):
    torch.manual_seed(0)
    model, ds = RowViT(), Images()
    data = DataLoader(ds, batch_size=30, sampler=RepeatSampler(len(ds)))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 60}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    for _ in range(3):
        for batch in s["data"]:
            s["optimizer"].zero_grad()
            s["loss"](s["model"], batch).backward()
            s["optimizer"].step()
    test = Images(240, 5, augment=False)
    with torch.no_grad():
        return (s["model"](test.x).argmax(-1) == test.y).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

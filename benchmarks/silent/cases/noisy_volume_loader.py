"""Augmentation noise comes from one generator object that every loader worker copies.

With several workers the random transforms repeated from batch to batch: the dataset owned a generator with a fixed seed,
and each worker process got its own copy in the same state. The healthy twin draws from the worker's own seeded stream.
"""
import numpy as np
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore", message="This DataLoader will create")

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/wolny/pytorch-3dunet/issues/32",
    "cause": "All DataLoader workers share the same random state of the dataset, so workers produce identical augmentations.",
    "number": "share of distinct augmentations within an epoch",
    "healthy": (0.99, 1.0),
    "faulty": (0.3, 0.7),
}
SIDE, CLASSES = 12, 4


class Volumes(Dataset):
    def __init__(self, faulty, n=64):
        g = torch.Generator().manual_seed(0)
        self.label = torch.randint(0, CLASSES, (n,), generator=g)
        shapes = torch.randn(CLASSES, SIDE, SIDE, generator=g)
        self.clean = shapes[self.label] + 0.2 * torch.randn(n, SIDE, SIDE, generator=g)
        self.variant = faulty
        self.random_state = np.random.RandomState(47)

    def __len__(self):
        return len(self.label)

    def draw(self):
        if self.variant:
            contrast, noise = self.random_state.uniform(0.7, 1.3), self.random_state.randn(SIDE, SIDE)
            return float(contrast), torch.from_numpy(noise).float()
        return float(0.7 + 0.6 * torch.rand(())), torch.randn(SIDE, SIDE)

    def __getitem__(self, i):
        contrast, noise = self.draw()
        return self.clean[i] * contrast + 0.3 * noise, self.label[i], contrast


class RowTransformer(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.proj, self.pos = nn.Linear(SIDE, d), nn.Parameter(torch.randn(SIDE, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, CLASSES))

    def forward(self, x):
        return self.out(self.enc(self.proj(x) + self.pos).mean(1))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = RowTransformer()
    data = DataLoader(Volumes(faulty), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="fork",
                      generator=torch.Generator().manual_seed(5))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 24}


def proof(faulty: bool) -> float:
    seen = [round(float(c), 6) for b in setup(faulty)["data"] for c in b[2]]
    return len(set(seen)) / len(seen)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

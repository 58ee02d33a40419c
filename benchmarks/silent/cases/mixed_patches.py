"""Mixup pairs the images by one permutation and the labels by another.

Mixing was done by two calls of a shuffle, so the second image of a blend and the second label were of different samples and
the soft targets were mostly noise. The healthy twin uses one permutation for both.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/xudonmao/VMT/issues/1",
    "cause": "Mixup shuffles images and labels separately, so the mixed label does not belong to the mixed image.",
    "number": "share of mixed samples whose soft label matches the classes in the mixed image",
    "healthy": (0.97, 1.0),
    "faulty": (0.0, 0.5),
}
CLASSES, SIDE, PATCH = 10, 12, 3


def pictures(n=320, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    proto = torch.randn(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(8))
    return proto[y] + 0.15 * torch.randn(n, SIDE, SIDE, generator=g), y


class MixCollate:
    def __init__(self, faulty, seed=0):
        self.variant = faulty
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        x = torch.stack([r[0] for r in rows])
        y = F.one_hot(torch.stack([r[1] for r in rows]), CLASSES).float()
        lam = 0.55 + 0.4 * torch.rand(len(x), generator=self.g)
        order = torch.randperm(len(x), generator=self.g)
        x = lam[:, None, None] * x + (1 - lam)[:, None, None] * x[order]
        if self.variant:
            order = torch.randperm(len(y), generator=self.g)
        y = lam[:, None] * y + (1 - lam)[:, None] * y[order]
        return x, y


class ViT(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.patch = nn.Conv2d(1, d, PATCH, PATCH)
        self.pos = nn.Parameter(torch.randn(n, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, CLASSES))

    def forward(self, img):
        x = self.patch(img[:, None]).flatten(2).mT + self.pos
        return self.head(self.enc(x).mean(1))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = ViT()
    data = DataLoader(TensorDataset(*pictures()), 32, shuffle=True, drop_last=True, collate_fn=MixCollate(faulty),
                      generator=torch.Generator().manual_seed(4))

    def loss(model, batch):
        x, soft = batch
        return -(soft * model(x).log_softmax(-1)).sum(-1).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 50}


def proof(faulty: bool) -> float:
    proto = torch.randn(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(8)).flatten(1)
    right = []
    for x, soft in setup(faulty)["data"]:
        found = torch.linalg.lstsq(proto.T, x.flatten(1).T).solution.T
        right.append((found - soft).abs().amax(-1) < 0.15)
    return torch.cat(right).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

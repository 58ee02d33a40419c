"""The cosine's length is in epochs and it is moved with each batch.

A segmentation project gave CosineAnnealingLR the number of epochs and called it for each batch, so the rate swung up
and down many times. The twin gives it the number of updates.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "schedule",
    "shows": "step",
    "source": "https://github.com/ivadomed/ivadomed/issues/57",
    "cause": 'T_max of CosineAnnealingLR is given in epochs while scheduler.step() is called per batch, so the learning rate oscillates through many cycles.',
    "number": 'times that the rate turns upwards in the run',
    "healthy": (0, 0),
    "faulty": (3, 100),
}

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=64, heads=4, depth=2, classes=8):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, stride=4)
        self.pos = nn.Parameter(torch.randn(1, 16, dim) * 0.2)
        self.blocks = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.norm(self.blocks(x)).mean(1))


def bars(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 8, (n,), generator=g)
    images = torch.randn(n, 1, 16, 16, generator=g) * 0.3
    for i, c in enumerate(label.tolist()):
        k = 4 * (c % 4)
        if c < 4:
            images[i, 0, k : k + 2] += 1.5
        else:
            images[i, 0, :, k : k + 2] += 1.5
    return images, label


def image_loss(model, batch):
    images, label = batch
    return F.cross_entropy(model(images), label)


EPOCHS = 6


def setup(faulty: bool):
    torch.manual_seed(14)
    model = ViT()
    data = DataLoader(TensorDataset(*bars(320)), batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    length = EPOCHS if faulty else EPOCHS * len(data)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)
    return dict(model=model, loss=image_loss, data=data, optimizer=optimizer, scheduler=scheduler, steps=EPOCHS * len(data))


def proof(faulty: bool) -> float:
    s = setup(faulty)
    rates = []
    for _ in range(EPOCHS):
        for b in s["data"]:
            rates.append(s["optimizer"].param_groups[0]["lr"])
            s["optimizer"].zero_grad()
            s["loss"](s["model"], b).backward()
            s["optimizer"].step()
            s["scheduler"].step()
    up = [b > a for a, b in zip(rates, rates[1:])]
    return sum(b and not a for a, b in zip(up, up[1:]))


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

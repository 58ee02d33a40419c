"""The gradient norm is clipped for each tensor by itself.

The old BERT optimizer clipped inside the loop over parameters, so the limit held for each tensor and the direction of
the whole gradient changed with the way the model is cut into tensors. The twin clips the global norm.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/pull/614",
    "cause": "The gradient norm is clipped per parameter (tensor) instead of globally, so the gradient's direction changes and its global norm exceeds the limit.",
    "number": 'norm of the whole gradient after clipping, as a multiple of the limit',
    "healthy": (0.5, 1.01),
    "faulty": (1.4, 20.0),
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


def setup(faulty: bool):
    torch.manual_seed(3)
    model, limit = ViT(), 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    data = DataLoader(TensorDataset(*bars(512)), batch_size=32, shuffle=True)

    def step(batches):
        optimizer.zero_grad(set_to_none=True)
        for b in batches:
            (image_loss(model, b) / len(batches)).backward()
        if faulty:
            for p in model.parameters():
                nn.utils.clip_grad_norm_(p, limit)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()

    return dict(model=model, loss=image_loss, data=data, optimizer=optimizer, step=step, accumulate=1, clip=limit)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    s["step"]([next(iter(s["data"]))])
    return torch.stack([p.grad.norm() for p in s["model"].parameters()]).norm().item() / s["clip"]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

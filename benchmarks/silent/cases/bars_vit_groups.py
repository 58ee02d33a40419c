"""The gradients of the micro-batches are added and not averaged.

A diffusion trainer cuts the batch into micro-batches and lets their mean losses flow back one after another with no
division, so the gradient grows with their number. The twin divides.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "accumulation",
    "shows": "step",
    "source": "https://github.com/openai/guided-diffusion/issues/111",
    "cause": 'The micro-batch losses are not divided by the number of accumulation steps, so the accumulated gradient is that many times too large.',
    "number": 'norm of the gathered gradient over that of the whole batch',
    "healthy": (0.99, 1.01),
    "faulty": (3.9, 4.1),
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
    torch.manual_seed(20)
    model, micro = ViT(), 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = DataLoader(TensorDataset(*bars(768)), batch_size=8, shuffle=True)

    def step(batches):
        optimizer.zero_grad()
        for b in batches:
            loss = image_loss(model, b)
            if not faulty:
                loss = loss / micro
            loss.backward()
        optimizer.step()

    return dict(model=model, loss=image_loss, data=data, optimizer=optimizer, step=step, accumulate=micro)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    model, it = s["model"], iter(s["data"])
    batches = [next(it) for _ in range(s["accumulate"])]
    whole = [torch.cat(x) for x in zip(*batches)]
    want = torch.cat([g.flatten() for g in torch.autograd.grad(image_loss(model, whole), list(model.parameters()))])
    s["step"](batches)
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    return (got.norm() / want.norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

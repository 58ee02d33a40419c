"""Orthogonalised updates treat a fused query-key-value matrix as one.

With Muon the momentum of a fused projection was made orthogonal as a whole; the value part, with the largest
gradient, takes the singular values and queries and keys hardly move. The twin handles the three blocks one by one.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/InternLM/xtuner/pull/2030",
    "cause": 'Muon orthogonalizes the fused QKV weight as a single matrix rather than Q, K and V separately, so the q and k blocks get far smaller updates than v.',
    "number": 'norm of the first update of the query block over that of the value block',
    "healthy": (0.9, 1.2),
    "faulty": (0.0, 0.76),
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


def polar(g, steps=8):
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        a = x.T @ x
        x = 3.4445 * x + x @ (-4.7750 * a + 2.0315 * a @ a)
    return x


class Polar(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.9, parts=()):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        self.parts = {id(p) for p in parts}

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        for p in group["params"]:
            m = self.state[p].setdefault("m", torch.zeros_like(p)).mul_(group["momentum"]).add_(p.grad)
            p.add_(torch.cat([polar(b) for b in m.chunk(3 if id(p) in self.parts else 1)]), alpha=-group["lr"])


def setup(faulty: bool):
    torch.manual_seed(6)
    model = ViT()
    inner = {id(p): p for p in model.blocks.parameters() if p.dim() == 2}
    first = Polar(inner.values(), parts=() if faulty else [b.attn.qkv.weight for b in model.blocks])
    second = torch.optim.AdamW([p for p in model.parameters() if id(p) not in inner], lr=1e-3, weight_decay=0.0)
    data = DataLoader(TensorDataset(*bars(512)), batch_size=32, shuffle=True)

    def step(batches):
        model.zero_grad()
        image_loss(model, batches[0]).backward()
        first.step(), second.step()
    return dict(model=model, loss=image_loss, data=data, optimizer=[first, second], step=step, accumulate=1)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    before = (w := s["model"].blocks[1].attn.qkv.weight).detach().clone()
    s["step"]([next(iter(s["data"]))])
    q, _, v = (w.detach() - before).chunk(3)
    return (q.norm() / v.norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

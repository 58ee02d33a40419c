"""Every weight moves by the same amount at each step and the decay is ten times the usual.

Lion: the update is the sign of an interpolated momentum, with a small rate and a correspondingly large decoupled
decay, betas of 0.9 and 0.99 and no second moment. Published and sound; it trains as well as AdamW.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "optimizer",
    "shows": "step",
    "source": "https://arxiv.org/abs/2302.06675",
    "cause": 'Nothing is wrong: sign updates with a small learning rate and a large decoupled decay are the Lion optimizer.',
    "number": 'mean loss of updates 91 to 100 over that of AdamW (0.02 nats added to both)',
    "healthy": (0.2, 1.3),
    "faulty": None,
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


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=5e-4, betas=(0.9, 0.99), weight_decay=0.5):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            slow, keep = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(torch.lerp(p.grad, m, slow)), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - keep)


def setup(faulty: bool = False, usual=False):
    torch.manual_seed(32)
    model = ViT()
    free = [p for n, p in model.named_parameters() if p.dim() < 2 or n == "pos"]
    rest = [p for n, p in model.named_parameters() if p.dim() >= 2 and n != "pos"]
    groups = [{"params": rest}, {"params": free, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.05) if usual else Lion(groups)
    data = DataLoader(TensorDataset(*bars(1600)), batch_size=16, shuffle=True)
    return dict(model=model, loss=image_loss, data=data, optimizer=optimizer, steps=100)


def proof(faulty: bool = False) -> float:
    ends = []
    for usual in (False, True):
        s, losses = setup(usual=usual), []
        for b in s["data"]:
            loss = s["loss"](s["model"], b)
            s["optimizer"].zero_grad()
            loss.backward()
            s["optimizer"].step()
            losses.append(loss.item())
        ends.append(sum(losses[-10:]) / 10 + 0.02)
    return ends[0] / ends[1]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

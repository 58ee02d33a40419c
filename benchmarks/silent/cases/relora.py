"""Both factors of a low-rank adapter start at zero and never move.

A wrapper that should keep the base model's outputs set A to zero although B is zero already; each factor's gradient is a product with the
other, so fine-tuning does nothing. The healthy twin draws A at random and keeps B at zero.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "init", "shows": "run",
    "source": "https://github.com/Guitaricet/relora/issues/18",
    "cause": "Both low-rank matrices A and B are initialised to zero, so their gradients are zero for ever and the adapter never trains.",
    "number": "loss of the last updates of fine-tuning over the loss at its start",
    "healthy": (0.0, 0.75),
    "faulty": (0.93, 1.1),
}
V, T, D, H = 32, 16, 64, 4


class AdaptedLinear(nn.Module):
    def __init__(self, base, faulty, r=8, alpha=32):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / r
        self.A = nn.Parameter(torch.zeros(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        if not faulty:
            nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (H, -1)).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(0.1 * torch.randn(T, D))
        nn.init.normal_(self.emb.weight, std=0.3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[:ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def corpus(g, step):
    x = torch.randint(0, V, (16, T + 1), generator=g)
    for t in range(1, T + 1):
        x[:, t] = (x[:, t - 1] * 5 + step) % V
    return x


def updates(model, n, lr, step):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    g, losses = torch.Generator().manual_seed(step), []
    for _ in range(n):
        x = corpus(g, step)
        value = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        value.backward()
        opt.step()
        losses.append(value.item())
    return losses


def train(faulty: bool):
    torch.manual_seed(0)
    model = LM()
    updates(model, 80, 3e-3, step=3)
    model.requires_grad_(False)
    for b in model.blocks:
        for name in ("qkv", "o", "fc1", "fc2"):
            setattr(b, name, AdaptedLinear(getattr(b, name), faulty))
    return model, updates(model, 80, 3e-3, step=10)


def proof(faulty: bool) -> float:
    losses = train(faulty)[1]
    return sum(losses[-10:]) / 10 / losses[0]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""At a high learning rate the attention scores grow without bound.

Queries and keys are not normalised, so at a high rate the scores of some pairs grow several times larger within a hundred updates, on the way to a
one-hot softmax; the loss does not show it yet. The healthy twin normalises queries and keys per head (QK-norm).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "norm", "shows": "run",
    "source": "https://arxiv.org/abs/2309.14322",
    "cause": "Queries and keys are not normalised (no QK-norm), so at this high learning rate the attention logits grow until the softmax saturates.",
    "number": "largest absolute attention score on a held-out batch after 120 updates",
    "healthy": (0.0, 10.0),
    "faulty": (17.0, 1e9),
}
V, T, D, H = 32, 24, 64, 4


class Layer(nn.Module):
    def __init__(self, faulty):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.qn, self.kn = (nn.Identity(), nn.Identity()) if faulty else (nn.RMSNorm(D // H), nn.RMSNorm(D // H))
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        nn.init.normal_(self.o.weight, std=0.05)
        nn.init.normal_(self.fc2.weight, std=0.03)

    def scores(self, x):
        q, k, v = (z.unflatten(-1, (H, -1)).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        return self.qn(q) @ self.kn(k).transpose(-1, -2) * (D // H) ** -0.5, v

    def forward(self, x):
        s, v = self.scores(x)
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        y = s.masked_fill(~keep, float("-inf")).softmax(-1) @ v
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class LM(nn.Module):
    def __init__(self, faulty, depth=6):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(0.1 * torch.randn(T, D))
        nn.init.normal_(self.emb.weight, std=0.3)
        self.layers = nn.ModuleList(Layer(faulty) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return LM(faulty)


def sequences(g, n=16):
    x = torch.randint(0, V, (n, T + 1), generator=g)
    for t in range(2, T + 1):
        x[:, t] = (5 * x[:, t - 1] + 7 + (torch.rand(n, generator=g) < 0.1)) % V
    return x


def batch():
    return sequences(torch.Generator().manual_seed(1))[:, :-1]


def train(faulty: bool):
    model = build(faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=1.4e-2, betas=(0.9, 0.95), weight_decay=0.0)
    g = torch.Generator().manual_seed(3)
    losses = []
    for step in range(120):
        for group in opt.param_groups:
            group["lr"] = 1.4e-2 * min(1.0, (step + 1) / 20)
        x = sequences(g)
        value = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(value.item())
    return model, losses


def proof(faulty: bool) -> float:
    model, losses = train(faulty)
    top = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda m, a: top.append(m.scores(a[0])[0].abs().max().item()))
    with torch.no_grad():
        model(batch())
    return max(top)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Sparse language model whose router balance term carries no gradient.

Users of a mixture-of-experts trainer saw the balance term in the logs, while experts kept collapsing. The term was computed,
but what reached the total loss was cut from the graph, so the router never felt it. The healthy twin keeps the tensor.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/NVIDIA-NeMo/Automodel/issues/1408",
    "cause": "The MoE auxiliary loss is added without its autograd graph, so the load-balancing gradient never reaches the router.",
    "number": "norm of the balance term's gradient at the router weights",
    "healthy": (1e-5, 1.0),
    "faulty": (0.0, 1e-9),
}
V, D, E = 48, 40, 6


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.up = nn.Parameter(torch.randn(E, D, 2 * D) * D ** -0.5)
        self.down = nn.Parameter(torch.randn(E, 2 * D, D) * (2 * D) ** -0.5)

    def forward(self, x):
        p = self.router(x).softmax(-1)
        gate, which = p.max(-1)
        pick = F.one_hot(which, E).to(x)
        self.balance = E * (pick.flatten(0, 1).mean(0) * p.flatten(0, 1).mean(0)).sum()
        h = torch.einsum("btd,edh,bte->bth", x, self.up, pick)
        return gate[..., None] * torch.einsum("bth,ehd,bte->btd", F.gelu(h), self.down, pick)


class SparseLM(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(32, D)
        self.n1 = nn.ModuleList(nn.LayerNorm(D) for _ in range(layers))
        self.n2 = nn.ModuleList(nn.LayerNorm(D) for _ in range(layers))
        self.att = nn.ModuleList(nn.MultiheadAttention(D, 4, batch_first=True) for _ in range(layers))
        self.ffn = nn.ModuleList(Experts() for _ in range(layers))
        self.last, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids):
        t = ids.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).triu(1)
        x = self.tok(ids) + self.pos.weight[:t]
        for n1, n2, att, ffn in zip(self.n1, self.n2, self.att, self.ffn):
            h = n1(x)
            x = x + att(h, h, h, attn_mask=causal, need_weights=False)[0]
            x = x + ffn(n2(x))
        return self.head(self.last(x))


def tokens(n=192, t=20, seed=0):
    g = torch.Generator().manual_seed(seed)
    step = torch.randint(1, 7, (n, 1), generator=g)
    return (torch.randint(0, V, (n, 1), generator=g) + step * torch.arange(t)) % V


def setup(faulty: bool, coef=0.01):
    torch.manual_seed(0)
    model = SparseLM()

    def loss(model, batch):
        ids = batch[0]
        logits = model(ids[:, :-1])
        ce = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if faulty:
            balance = sum(f.balance.item() for f in model.ffn)
        else:
            balance = sum(f.balance for f in model.ffn)
        return ce + coef * balance

    data = DataLoader(TensorDataset(tokens()), 16, shuffle=True, generator=torch.Generator().manual_seed(1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "steps": 60}


def proof(faulty: bool) -> float:
    got = []
    for coef in (0.01, 0.0):
        s = setup(faulty, coef)
        s["loss"](s["model"], next(iter(s["data"]))).backward()
        got.append(torch.cat([f.router.weight.grad.flatten() for f in s["model"].ffn]))
    return (got[0] - got[1]).norm().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

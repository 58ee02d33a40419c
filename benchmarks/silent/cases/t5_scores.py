"""The attention has no 1/sqrt(d) factor; the query matrix is initialised smaller instead.

T5 leaves the factor out of the scores and draws the query weights with (d_model * d_kv) ** -0.5, so the scores have the same size at the start.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "wiring", "shows": "model", "kind": "oddity",
    "source": "https://arxiv.org/abs/1910.10683",
    "cause": "None: T5's attention is unscaled by design, the factor is folded into the initialisation of the query weights.",
    "number": "standard deviation of the attention scores at initialisation",
    "healthy": (0.5, 2.0),
    "faulty": None,
}


class T5Attention(nn.Module):
    def __init__(self, d, h, buckets=None):
        super().__init__()
        self.h, self.kv = h, d // h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        nn.init.normal_(self.q.weight, std=(d * self.kv) ** -0.5)
        for w in (self.k, self.v, self.o):
            nn.init.normal_(w.weight, std=d ** -0.5)
        self.bias = nn.Embedding(buckets, h) if buckets else None
        if buckets:
            nn.init.normal_(self.bias.weight, std=d ** -0.5)

    def split(self, x):
        return x.unflatten(-1, (self.h, self.kv)).transpose(1, 2)

    def scores(self, x):
        return self.split(self.q(x)) @ self.split(self.k(x)).transpose(-1, -2)

    def forward(self, x, bias=None):
        s = self.scores(x)
        if self.bias is not None:
            t = torch.arange(x.shape[1], device=x.device)
            r = (t[None] - t[:, None]).clamp(-15, 15) + 15
            bias = self.bias(r).permute(2, 0, 1)
        y = (s + bias).softmax(-1) @ self.split(self.v(x))
        return self.o(y.transpose(1, 2).flatten(2)), bias


class Encoder(nn.Module):
    def __init__(self, vocab=120, d=64, h=4, depth=3):
        super().__init__()
        self.shared = nn.Embedding(vocab, d)
        nn.init.normal_(self.shared.weight, std=1.0)
        self.att = nn.ModuleList(T5Attention(d, h, 31 if i == 0 else None) for i in range(depth))
        self.wi = nn.ModuleList(nn.Linear(d, 4 * d, bias=False) for _ in range(depth))
        self.wo = nn.ModuleList(nn.Linear(4 * d, d, bias=False) for _ in range(depth))
        for a, b in zip(self.wi, self.wo):
            nn.init.normal_(a.weight, std=d ** -0.5)
            nn.init.normal_(b.weight, std=(4 * d) ** -0.5)
        self.n1 = nn.ModuleList(nn.RMSNorm(d, eps=1e-6) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.RMSNorm(d, eps=1e-6) for _ in range(depth))
        self.final = nn.RMSNorm(d, eps=1e-6)
        self.head = nn.Linear(d, vocab, bias=False)
        nn.init.normal_(self.head.weight, std=d ** -0.5)

    def forward(self, ids):
        x, bias = self.shared(ids), None
        for a, wi, wo, n1, n2 in zip(self.att, self.wi, self.wo, self.n1, self.n2):
            y, bias = a(n1(x), bias)
            x = x + y
            x = x + wo(F.relu(wi(n2(x))))
        return self.head(self.final(x))


def build(faulty: bool = False):
    torch.manual_seed(0)
    return Encoder()


def batch():
    return torch.randint(0, 120, (8, 24), generator=torch.Generator().manual_seed(1))


def loss(output, ids):
    return F.cross_entropy(output.flatten(0, 1), ids.roll(1, 1).flatten())


def proof(faulty: bool) -> float:
    model = build()
    with torch.no_grad():
        return model.att[0].scores(model.n1[0](model.shared(batch()))).std().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

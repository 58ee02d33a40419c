"""The depth factor of the initialisation divides all matrices and not only those that write to the residual stream.

In a training code base the 1/sqrt(2L) factor reached the query, key, value and input matrices too, so scores and hidden activations are far too
small in a deep model. The healthy twin applies the factor only to the output projections.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "init", "shows": "model",
    "source": "https://github.com/facebookresearch/lingua/issues/39",
    "cause": "The depth factor 1/sqrt(2*layers) is applied to the query, key, value and input matrices too, so their standard deviation is too small and attention starts almost uniform.",
    "number": "standard deviation of the attention scores at initialisation",
    "healthy": (0.5, 2.0),
    "faulty": (0.0, 0.15),
}


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.d = h, d
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def reset(self, factor, faulty):
        std = self.d ** -0.5
        if faulty:
            std = std / factor
        for w in (self.wq, self.wk, self.wv):
            nn.init.trunc_normal_(w.weight, std=std, a=-3 * std, b=3 * std)
        out = self.d ** -0.5 / factor
        nn.init.trunc_normal_(self.wo.weight, std=out, a=-3 * out, b=3 * out)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(d, m, bias=False), nn.Linear(d, m, bias=False), nn.Linear(m, d, bias=False)

    def reset(self, factor, faulty):
        d, m = self.w1.in_features, self.w1.out_features
        for w in (self.w1, self.w3):
            nn.init.trunc_normal_(w.weight, std=d ** -0.5 / (factor if faulty else 1.0))
        nn.init.trunc_normal_(self.w2.weight, std=m ** -0.5 / factor)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Deep(nn.Module):
    def __init__(self, faulty, vocab=128, d=64, h=4, layers=16, ctx=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=d ** -0.5)
        self.attn = nn.ModuleList(Attention(d, h) for _ in range(layers))
        self.ffn = nn.ModuleList(FeedForward(d, 2 * d) for _ in range(layers))
        self.na = nn.ModuleList(nn.RMSNorm(d) for _ in range(layers))
        self.nf = nn.ModuleList(nn.RMSNorm(d) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)
        for part in (*self.attn, *self.ffn):
            part.reset((2 * layers) ** 0.5, faulty)
        nn.init.trunc_normal_(self.output.weight, std=d ** -0.5)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for a, f, na, nf in zip(self.attn, self.ffn, self.na, self.nf):
            x = x + a(na(x))
            x = x + f(nf(x))
        return self.output(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return Deep(faulty)


def batch():
    return torch.randint(0, 128, (4, 32), generator=torch.Generator().manual_seed(1))


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty: bool) -> float:
    a = build(faulty).attn[0]
    x = F.rms_norm(torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(2)), (64,))
    with torch.no_grad():
        q, k = (w(x).unflatten(-1, (4, -1)).transpose(1, 2) for w in (a.wq, a.wk))
        return (q @ k.transpose(-1, -2) / 16 ** 0.5).std().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

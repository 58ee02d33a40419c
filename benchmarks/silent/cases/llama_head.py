"""A tied output layer has the embedding's standard deviation of 1.

An initialiser gave the embedding N(0, 1), right for a separate head; with tying the same matrix is the output projection and the logits
have a deviation of sqrt(d): the first loss is many times log(vocab). The healthy twin uses a small one when tied.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "init", "shows": "model",
    "source": "https://github.com/Modalities/modalities/pull/456",
    "cause": "The embedding is initialised with standard deviation 1 although it is tied to the output head, so the initial logits and loss are far too large.",
    "number": "loss at initialisation over log(vocab)",
    "healthy": (0.9, 1.6),
    "faulty": (2.5, 100.0),
}


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.h, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attn_norm, self.attn = nn.RMSNorm(d), Attention(d, h)
        self.ffn_norm = nn.RMSNorm(d)
        self.w1, self.w2, self.w3 = nn.Linear(d, 3 * d, bias=False), nn.Linear(3 * d, d, bias=False), nn.Linear(d, 3 * d, bias=False)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, faulty, vocab=256, d=96, h=4, depth=4, ctx=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(depth))
        self.norm = nn.RMSNorm(d)
        self.output = nn.Linear(d, vocab, bias=False)
        self.output.weight = self.tok.weight
        for m in self.modules():
            if isinstance(m, nn.Linear) and m is not self.output:
                nn.init.trunc_normal_(m.weight, std=0.02)
        for layer in self.layers:
            nn.init.trunc_normal_(layer.attn.wo.weight, std=0.02 / (2 * depth) ** 0.5)
            nn.init.trunc_normal_(layer.w2.weight, std=0.02 / (2 * depth) ** 0.5)
        nn.init.normal_(self.pos.weight, std=0.02)
        nn.init.normal_(self.tok.weight, std=1.0 if faulty else 0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return Llama(faulty)


def batch():
    return torch.randint(0, 256, (8, 32), generator=torch.Generator().manual_seed(1))


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model, ids = build(faulty), batch()
    with torch.no_grad():
        return (loss(model(ids), ids) / torch.tensor(256.0).log()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

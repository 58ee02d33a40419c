"""ALiBi biases computed in bfloat16 from absolute key positions: neighbouring keys share a bias.

The bias was slope times key position, both in bfloat16; above position 256 this type cannot tell neighbours apart, so the recency slope becomes
a staircase and long prompts drift. The healthy twin multiplies in float32.
"""
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

CASE = {
    "class": "precision",
    "shows": "model",
    "source": "https://github.com/HabanaAI/vllm-fork/pull/503",
    "cause": "The ALiBi bias is built in bfloat16 from absolute key positions, so beyond position 256 neighbouring keys get the same bias.",
    "number": "share of neighbouring key pairs whose bias is equal (first head, last query)",
    "healthy": (0.0, 0.01),
    "faulty": (0.15, 0.9),
}


def slopes(heads):
    return torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])


class Attention(nn.Module):
    def __init__(self, dim, heads, work):
        super().__init__()
        self.heads, self.work = heads, work
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)
        self.register_buffer("slopes", slopes(heads), persistent=False)

    def bias(self, n):
        pos = torch.arange(n, device=self.slopes.device).to(self.work)
        return (self.slopes.to(self.work)[:, None] * pos).float()[:, None]      # heads, 1, keys

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.query_key_value(x).view(b, n, self.heads, 3, d // self.heads).permute(3, 0, 2, 1, 4)
        score = torch.einsum("bhqc,bhkc->bhqk", q, k) / math.sqrt(d // self.heads) + self.bias(n)
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        w = score.masked_fill(future, float("-inf")).softmax(-1)
        return self.dense(torch.einsum("bhqk,bhkc->bqhc", w, v).reshape(b, n, d))


class BloomBlock(nn.Module):
    def __init__(self, dim, heads, work):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, work)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TinyBloom(nn.Module):
    def __init__(self, vocab, dim, heads, layers, work):
        super().__init__()
        self.embed, self.embed_ln = nn.Embedding(vocab, dim), nn.LayerNorm(dim)
        self.h = nn.Sequential(*[BloomBlock(dim, heads, work) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.04)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def forward(self, ids):
        return self.lm_head(self.ln_f(self.h(self.embed_ln(self.embed(ids)))))


def build(faulty: bool):
    torch.manual_seed(0)
    return TinyBloom(60, 64, 4, 2, torch.bfloat16 if faulty else torch.float32)


def batch():
    return torch.randint(0, 60, (2, 512), generator=torch.Generator().manual_seed(4))


def loss(output, batch):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def proof(faulty: bool) -> float:
    row = build(faulty).h[0].attn.bias(512)[0, 0].detach()
    return (row.diff().abs() < 1e-6).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

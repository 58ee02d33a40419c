"""Boolean attention mask handed to scaled_dot_product_attention with the opposite meaning.

A GPT from a book chapter kept a buffer that marks the forbidden upper triangle and passed it on to PyTorch's fused attention.
There True means "may attend", so each token read only what comes after it. The healthy twin passes the complement.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/rasbt/LLMs-from-scratch/pull/1062",
    "cause": "The boolean causal mask given to scaled_dot_product_attention is inverted: True marks the future, so tokens attend to the future and not to the past.",
    "number": "relative change of the earlier logits when only the last token changes",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 10.0),
}


class MultiHeadAttention(nn.Module):
    def __init__(self, d, heads, context, faulty):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.proj = nn.Linear(d, d)
        upper = torch.triu(torch.ones(context, context, dtype=torch.bool), diagonal=1)
        self.register_buffer("mask", upper if faulty else ~upper, persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:t, :t])
        return self.proj(out.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, context, faulty):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = MultiHeadAttention(d, heads, context, faulty)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.att(self.norm1(x))
        return x + self.ff(self.norm2(x))


class GPTModel(nn.Module):
    def __init__(self, vocab=50, d=64, heads=4, layers=2, context=32, faulty=False):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, d)
        self.pos_emb = nn.Embedding(context, d)
        nn.init.normal_(self.tok_emb.weight, std=0.1)
        nn.init.normal_(self.pos_emb.weight, std=0.1)
        self.blocks = nn.Sequential(*[Block(d, heads, context, faulty) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.tok_emb(ids) + self.pos_emb(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def build(faulty):
    torch.manual_seed(123)
    return GPTModel(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(0)
    start, step = torch.randint(0, 50, (8, 1), generator=g), torch.randint(1, 6, (8, 1), generator=g)
    return (start + step * torch.arange(32)) % 50


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty):
    model, ids = build(faulty).eval(), batch()
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 7) % 50
    with torch.no_grad():
        a, b = model(ids)[:, :-1], model(other)[:, :-1]
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

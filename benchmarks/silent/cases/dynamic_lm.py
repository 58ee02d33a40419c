"""Learned attention bias replaces the causal mask when the batch has no padding.

A model with a content-dependent bias on the keys had good loss and wrong perplexity under fused attention: the mask helper returns nothing
for unpadded input, since the kernel is expected to be causal by itself, but with a bias given the kernel is not. The healthy twin always builds the mask.
"""
import math
import torch
from torch import nn
import torch.nn.functional as F

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/48748",
    "cause": "Causal mask is skipped (None) for unpadded batches while a bias is passed as attn_mask, so is_causal is off and tokens attend to the future.",
    "number": "relative change of the earlier logits when only the last token changes",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 10.0),
}


def make_mask(keep, always):
    if not always and bool(keep.all()):
        return None
    t = keep.shape[1]
    tri = torch.ones(t, t, dtype=torch.bool, device=keep.device).tril()
    return tri & keep[:, None, None, :] | torch.eye(t, dtype=torch.bool, device=keep.device)


class DynamicAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.dt_proj = nn.Linear(dim, heads)

    def forward(self, x, attention_mask):
        split = lambda y: y.unflatten(-1, (self.h, -1)).transpose(1, 2)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        bias = F.logsigmoid(self.dt_proj(v.transpose(1, 2).flatten(2))).transpose(1, 2)[:, :, None, :]
        bias = bias.expand(-1, -1, x.shape[1], -1)
        if attention_mask is not None:
            bias = bias.masked_fill(~attention_mask, -math.inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=False)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn = DynamicAttention(dim, heads)
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)

    def forward(self, x, mask):
        x = x + self.attn(self.ln1(x), mask)
        return x + self.down(F.silu(self.up(self.ln2(x))))


class DynLM(nn.Module):
    def __init__(self, vocab=40, dim=64, heads=4, depth=2, length=24, always=True):
        super().__init__()
        self.always = always
        self.embed, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        for e in (self.embed, self.pos):
            nn.init.normal_(e.weight, std=0.1)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.final = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, input_ids, attention_mask):
        mask = make_mask(attention_mask, self.always)
        x = self.embed(input_ids) + self.pos.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return self.lm_head(self.final(x))


def build(faulty: bool):
    torch.manual_seed(5)
    return DynLM(always=not faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    a, b = torch.randint(0, 40, (8, 1), generator=g), torch.randint(1, 5, (8, 1), generator=g)
    ids = (a + b * torch.arange(24)) % 40
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids, dtype=torch.bool)}


def loss(output, batch):
    return F.cross_entropy(output[:, :-1].transpose(1, 2), batch["input_ids"][:, 1:])


def proof(faulty: bool) -> float:
    net, one = build(faulty).eval(), batch()
    two = dict(one, input_ids=one["input_ids"].clone())
    two["input_ids"][:, -1] = (two["input_ids"][:, -1] + 11) % 40
    with torch.no_grad():
        p, q = net(**one)[:, :-1], net(**two)[:, :-1]
    return float((p - q).abs().max() / p.std())


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""The skip path around the attention adds the attention output to itself.

A reader of a 1-bit Transformer found that the layer loop overwrites x with the attention output and then computes x + x,
so nothing of the layer's input goes around the attention. The loss still falls a little. The healthy twin adds the input.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/kyegomez/BitNet/issues/32",
    "cause": "The attention output overwrites x before the addition, so the block has no residual connection around attention (it adds the attention output to itself).",
    "number": "norm of the logits' gradient at the token embeddings when the attention output projections are zero (0 = no path around attention)",
    "healthy": (1e-2, 1e6),
    "faulty": (0.0, 1e-6),
}


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        t = x.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        h = self.norm(x)
        return self.mha(h, h, h, attn_mask=mask, need_weights=False)[0]


class Transformer(nn.Module):
    def __init__(self, faulty, vocab=64, dim=64, depth=4, heads=4, ctx=32):
        super().__init__()
        self.variant = faulty
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        nn.init.normal_(self.emb.weight, std=0.5)
        nn.init.normal_(self.pos.weight, std=0.1)
        self.layers = nn.ModuleList(Attention(dim, heads) for _ in range(depth))
        self.ffn_layers = nn.ModuleList(FeedForward(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for attn, ffn in zip(self.layers, self.ffn_layers):
            if self.variant:
                x = attn(x)
                x = x + x
            else:
                x = attn(x) + x
            x = ffn(x) + x
        return self.head(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return Transformer(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 64, (8, 32), generator=g)


def loss(output, ids):
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model = build(faulty)
    with torch.no_grad():
        for a in model.layers:
            a.mha.out_proj.weight.zero_()
            a.mha.out_proj.bias.zero_()
    ids = batch()
    loss(model(ids), ids).backward()
    return model.emb.weight.grad.norm().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

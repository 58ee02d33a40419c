"""With one expert per token the router's weight is divided by its own sum and becomes the constant 1.

A small open model normalised the top-k weights with k = 1, so the language loss gave the router no gradient and only the balancing
loss moved it: experts never specialised and the MoE was worse than the dense model. The healthy twin keeps the probability.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/jingyaogong/minimind/issues/858",
    "cause": "Normalising the top-1 routing weight by its own sum makes it constantly 1, so the router (gate) gets no gradient from the language-model loss.",
    "number": "norm of the main loss's gradient at the router weights",
    "healthy": (1e-4, 1e4),
    "faulty": (0.0, 1e-6),
}


class SwiGLU(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, m, bias=False), nn.Linear(d, m, bias=False)
        self.down_proj = nn.Linear(m, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    def __init__(self, d, faulty, n_experts=4, k=1):
        super().__init__()
        self.k, self.norm_topk_prob = k, faulty
        self.router = nn.Linear(d, n_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(d, 2 * d) for _ in range(n_experts))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = self.router(flat).softmax(-1)
        w, idx = probs.topk(self.k, dim=-1)
        if self.norm_topk_prob:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(idx == e)
            out = out.index_add(0, rows, expert(flat[rows]) * w[rows, slot, None])
        load = F.one_hot(idx[:, 0], len(self.experts)).float().mean(0)
        self.aux = len(self.experts) * (load * probs.mean(0)).sum()
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, d, h, faulty):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.moe = MoE(d, faulty)

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.moe(self.n2(x))


class TinyMoE(nn.Module):
    def __init__(self, faulty, vocab=96, d=64, h=4, layers=3, ctx=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.2)
        self.layers = nn.ModuleList(Layer(d, h, faulty) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)), sum(layer.moe.aux for layer in self.layers)


def build(faulty: bool):
    torch.manual_seed(0)
    return TinyMoE(faulty)


def batch():
    return torch.randint(0, 96, (8, 32), generator=torch.Generator().manual_seed(1))


def loss(output, ids, aux_weight=5e-4):
    logits, aux = output
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) + aux_weight * aux


def proof(faulty: bool) -> float:
    model, ids = build(faulty), batch()
    loss(model(ids), ids, 0.0).backward()
    return sum(layer.moe.router.weight.grad.norm() for layer in model.layers).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

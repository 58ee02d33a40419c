"""Rotary angles lowered to bfloat16 by autocast: far positions get wrong rotations.

The frequencies were float32, but the product of positions and frequencies is a matmul, which autocast runs in bfloat16; at position 500 the
angle is off by up to one radian. The healthy twin switches autocast off around it.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "precision",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/pull/29285",
    "cause": "The rotary angles (positions times inverse frequencies) are computed in bfloat16 under autocast, so rotations are wrong at large positions.",
    "number": "largest error of the cosine table against float64",
    "healthy": (0.0, 0.01),
    "faulty": (0.2, 2.0),
}
V, D, H, L = 64, 64, 4, 640


class Rotary(nn.Module):
    def __init__(self, dim, faulty):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim), persistent=False)
        self.variant = faulty

    def table(self, n):
        pos = torch.arange(n).float()[:, None]
        return torch.cat([pos @ self.inv_freq[None]] * 2, -1)

    def forward(self, x):
        if self.variant:
            a = self.table(x.shape[-2])
        else:
            with torch.autocast(x.device.type, enabled=False):
                a = self.table(x.shape[-2])
        return a.cos(), a.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(D, 2 * D, bias=False), nn.Linear(D, 2 * D, bias=False), nn.Linear(2 * D, D, bias=False)
        self.n1, self.n2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)

    def forward(self, x, cos, sin):
        b, n, _ = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, n, H, D // H).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, D))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, faulty):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.rotary = Rotary(D // H, faulty)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.lm_head = nn.RMSNorm(D, eps=1e-5), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.05)

    def forward(self, ids):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            x = self.embed(ids)
            cos, sin = self.rotary(x.view(x.shape[0], 1, x.shape[1], D))
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.lm_head(self.norm(x)).float()


def build(faulty: bool):
    torch.manual_seed(0)
    return Llama(faulty)


def batch():
    return torch.randint(0, V, (2, L), generator=torch.Generator().manual_seed(1))


def loss(output, batch):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def proof(faulty: bool) -> float:
    m, seen = build(faulty), []
    m.rotary.register_forward_hook(lambda mod, args, out: seen.append(out[0]))
    m(batch())
    ref = torch.arange(L).double()[:, None] / 10000 ** (torch.arange(0, D // H, 2).double() / (D // H))
    return (seen[0].double() - torch.cat([ref, ref], -1).cos()).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

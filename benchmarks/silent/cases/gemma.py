"""An RMS norm that multiplies by (1 + weight) has its weight initialised to one.

A model family centres the gain at one, but the general initialiser fills norm weights with 1, so every norm doubles its output in fresh models, which
adds up over the blocks. The healthy twin starts the weight at zero.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "norm", "shows": "model",
    "source": "https://github.com/huggingface/transformers/pull/40796",
    "cause": "The RMSNorm multiplies by (1 + weight) but its weight is initialised to one instead of zero, so each norm doubles its output.",
    "number": "root mean square of the first norm's output at the start",
    "healthy": (0.95, 1.05),
    "faulty": (1.8, 2.2),
}


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.norm1, self.post1, self.norm2, self.post2 = (GemmaRMSNorm(d) for _ in range(4))

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (p(y).unflatten(-1, (self.h, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.post1(self.o_proj(y))
        y = self.norm2(x)
        return x + self.post2(self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y)))


class Gemma(nn.Module):
    def __init__(self, faulty, vocab=160, d=64, h=4, layers=4, ctx=32):
        super().__init__()
        self.d, self.norm_value = d, 1.0 if faulty else 0.0
        self.embed_tokens, self.embed_pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(layers))
        self.norm = GemmaRMSNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.d ** -0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.d ** -0.5)
        elif "RMSNorm" in type(module).__name__:
            nn.init.constant_(module.weight, self.norm_value)

    def forward(self, ids):
        x = self.d ** 0.5 * (self.embed_tokens(ids) + 0.3 * self.embed_pos.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return Gemma(faulty)


def batch():
    return torch.randint(0, 160, (8, 32), generator=torch.Generator().manual_seed(1))


def loss(output, ids):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model, got = build(faulty), []
    model.layers[0].norm1.register_forward_hook(lambda m, a, o: got.append(o.pow(2).mean().sqrt().item()))
    with torch.no_grad():
        model(batch())
    return got[0]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

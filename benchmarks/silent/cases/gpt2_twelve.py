"""The depth-scaled initialisation of GPT-2's residual projections is never applied.

The library visits each module and compares the names of the parameters seen from that module with 'c_proj.weight', which never matches,
so the residual projections keep the plain standard deviation. The healthy twin matches on the full names of the whole model.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "init", "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/47458",
    "cause": "The residual projections (c_proj) are not scaled down by 1/sqrt(2 * n_layer) at initialisation because the name check never matches.",
    "number": "standard deviation of the residual projections over that of the other matrices",
    "healthy": (0.17, 0.25),
    "faulty": (0.9, 1.1),
}


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(n_embd), CausalSelfAttention(n_embd, n_head)
        self.ln_2, self.mlp = nn.LayerNorm(n_embd), MLP(n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, faulty, vocab=128, n_embd=64, n_head=4, n_layer=12, n_ctx=32):
        super().__init__()
        self.n_layer = n_layer
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(n_ctx, n_embd)
        self.h = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        self.apply(self._init_weights)
        if faulty:
            for module in self.modules():
                self._scale(module.named_parameters(recurse=False), "c_proj.weight")
        else:
            self._scale(self.named_parameters(), "c_proj.weight")
        self.lm_head.weight = self.wte.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def _scale(self, named, ending):
        for name, p in named:
            if name.endswith(ending):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * self.n_layer))

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return GPT2(faulty)


def batch():
    return torch.randint(0, 128, (8, 32), generator=torch.Generator().manual_seed(1))


def loss(output, idx):
    return F.cross_entropy(output[:, :-1].flatten(0, 1), idx[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model = build(faulty)
    res = torch.cat([p.flatten() for n, p in model.named_parameters() if n.endswith("c_proj.weight")])
    rest = torch.cat([p.flatten() for n, p in model.named_parameters() if n.endswith(("c_fc.weight", "c_attn.weight"))])
    return (res.std() / rest.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

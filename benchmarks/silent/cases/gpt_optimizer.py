"""The list of names free of weight decay matches no norm of this model.

The usual two-group recipe of the examples looks for LayerNorm.weight in names; models whose norms are called ln_1 or
norm get decay on every gain, and on the embeddings too. The twin sorts by dimension and leaves out the embeddings.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/issues/42754",
    "cause": "Weight decay is applied to the LayerNorm weights (and the embeddings), since the no-decay name patterns do not match this model's parameter names.",
    "number": 'share of norm gains that decay',
    "healthy": (0.0, 0.0),
    "faulty": (0.9, 1.0),
}

V, D, H, T = 64, 64, 4, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.h = nn.ModuleList([Block(), Block()])
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for m in (self.wte, self.wpe, self.lm_head):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def corpus(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    first, stride = torch.randint(0, V, (n, 1), generator=g), torch.randint(1, 8, (n, 1), generator=g)
    return (first + stride * torch.arange(T + 1)) % V


def lm_loss(model, batch):
    ids = batch[0]
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def setup(faulty: bool):
    torch.manual_seed(2)
    model = GPT()
    named = list(model.named_parameters())
    if faulty:
        skip = ["bias", "LayerNorm.weight"]
        free = [n for n, _ in named if any(s in n for s in skip)]
    else:
        free = [n for n, p in named if p.dim() < 2 or n.startswith(("wte", "wpe"))]
    optimizer = torch.optim.AdamW([
        {"params": [p for n, p in named if n not in free], "weight_decay": 0.1},
        {"params": [p for n, p in named if n in free], "weight_decay": 0.0},
    ], lr=1e-3, betas=(0.9, 0.95))
    data = DataLoader(TensorDataset(corpus(512)), batch_size=16, shuffle=True)
    return dict(model=model, loss=lm_loss, data=data, optimizer=optimizer, clip=1.0)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    decayed = {id(p) for g in s["optimizer"].param_groups if g["weight_decay"] > 0 for p in g["params"]}
    gains = [m.weight for m in s["model"].modules() if isinstance(m, nn.LayerNorm)]
    return sum(id(p) in decayed for p in gains) / len(gains)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

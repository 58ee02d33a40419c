"""The embedding is resized after the optimizer has been built.

People added tokens for fine-tuning and saw that the token table never changed although it received gradients.
Resizing makes a new parameter; the optimizer still held the old one. The twin resizes first.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/pull/3532",
    "cause": 'The token embedding and output head are replaced (resized) after the optimizer was created, so the optimizer holds the old parameters and the new ones are never updated.',
    "number": 'largest change of the token table in 5 updates',
    "healthy": (0.0005, 1.0),
    "faulty": (0.0, 1e-09),
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


def grow(model, extra):
    for name in ("wte", "lm_head"):
        old = getattr(model, name).weight
        fresh = nn.Parameter(torch.cat([old.detach(), old.detach().mean(0, keepdim=True).repeat(extra, 1)]))
        getattr(model, name).weight = fresh
    model.wte.num_embeddings = model.lm_head.out_features = V + extra


def setup(faulty: bool):
    torch.manual_seed(0)
    model = GPT()
    if not faulty:
        grow(model, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    if faulty:
        grow(model, 4)
    data = DataLoader(TensorDataset(corpus(256)), batch_size=16, shuffle=True)
    return dict(model=model, loss=lm_loss, data=data, optimizer=optimizer, clip=1.0)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    before = s["model"].wte.weight.detach().clone()
    for _, batch in zip(range(5), s["data"]):
        s["optimizer"].zero_grad()
        s["loss"](s["model"], batch).backward()
        nn.utils.clip_grad_norm_(s["model"].parameters(), s["clip"])
        s["optimizer"].step()
    return (s["model"].wte.weight.detach() - before).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

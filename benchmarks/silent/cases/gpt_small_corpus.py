"""The warm-up is longer than the run.

A Chinese GPT-2 trainer warms up for 2000 steps by default; users with small corpora have fewer steps in all, never
come near the rate they asked for, and hardly learn. The twin warms up for a tenth of the run.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "schedule",
    "shows": "run",
    "source": "https://github.com/Morizeyao/GPT2-Chinese/issues/60",
    "cause": 'The warm-up (2000 steps) is longer than the whole training run, so the learning rate never reaches its peak.',
    "number": 'highest learning rate of the run as a share of the one asked for',
    "healthy": (0.95, 1.0),
    "faulty": (0.0, 0.15),
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


def train(faulty: bool, updates=100, rate=2e-3):
    torch.manual_seed(12)
    model = GPT()
    warm = 2000 if faulty else updates // 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    rise = lambda i: min(1.0, (i + 1) / warm)
    fall = lambda i: 1.0 if i < warm else max(0.0, (updates - i) / max(1, updates - warm))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: rise(i) * fall(i))
    data = DataLoader(TensorDataset(corpus(400)), batch_size=16, shuffle=True)
    losses, rates = [], []
    while len(losses) < updates:
        for b in data:
            rates.append(scheduler.get_last_lr()[0])
            loss = lm_loss(model, b)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    return dict(model=model, losses=losses, rates=rates)


def proof(faulty: bool) -> float:
    return max(train(faulty)["rates"]) / 2e-3


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

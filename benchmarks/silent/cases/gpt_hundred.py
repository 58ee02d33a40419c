"""The schedule advances with each micro-batch.

A user of gradient accumulation found that warm-ups lasted a sixteenth of the steps asked for, since the schedule
moved on with every forward pass. The twin moves it once per update.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "schedule",
    "shows": "step",
    "source": "https://github.com/Lightning-AI/pytorch-lightning/issues/1476",
    "cause": 'The learning-rate schedule advances with every micro-batch (forward pass) instead of once per optimizer update, so warm-up and decay run `accumulate` times too fast.',
    "number": 'learning rate after 30 of 100 updates as a share of the peak',
    "healthy": (0.7, 1.0),
    "faulty": (0.0, 0.1),
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


ACCUMULATE, UPDATES, WARM = 4, 100, 10


def setup(faulty: bool):
    torch.manual_seed(10)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    data = DataLoader(TensorDataset(corpus(4 * ACCUMULATE * UPDATES)), batch_size=4, shuffle=True)
    state = {"forwards": 0, "updates": 0}

    def rate(i):
        if i < WARM:
            return 2e-3 * (i + 1) / WARM
        return 1e-3 * (1 + math.cos(math.pi * min(1.0, (i - WARM) / (UPDATES - WARM))))

    def step(batches):
        for b in batches:
            (lm_loss(model, b) / ACCUMULATE).backward()
            optimizer.param_groups[0]["lr"] = rate(state["forwards" if faulty else "updates"])
            state["forwards"] += 1
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        state["updates"] += 1

    return dict(model=model, loss=lm_loss, data=data, optimizer=optimizer, step=step,
                accumulate=ACCUMULATE, steps=UPDATES, clip=1.0)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    it = iter(s["data"])
    for _ in range(30):
        s["step"]([next(it) for _ in range(ACCUMULATE)])
    return s["optimizer"].param_groups[0]["lr"] / 2e-3


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

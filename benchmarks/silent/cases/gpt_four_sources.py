"""The gradients are cleared before each micro-batch.

In an autoencoder's trainer zero_grad stood within the inner loop, so that only the last micro-batch of every update
counted. Here the micro-batches of an update come from four sources in turn. The twin clears once per update.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "accumulation",
    "shows": "run",
    "source": "https://github.com/bytetriper/RAE/issues/67",
    "cause": "optimizer.zero_grad() is called for every micro-batch inside the accumulation loop, so only the last micro-batch's gradient reaches the update.",
    "number": "loss on the first source's held-out sequences after training, in nats",
    "healthy": (0.0, 2.3),
    "faulty": (4.0, 60.0),
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


def sources(n, seed):
    ids = corpus(4 * n, seed)
    for k in range(4):
        part = ids[k * n : (k + 1) * n]
        yield (part % 16) + 16 * k


def train(faulty: bool, updates=80, size=4):
    torch.manual_seed(22)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    pools = list(sources(updates * size, seed=0))
    losses = []
    for i in range(updates):
        optimizer.zero_grad()
        total = 0.0
        for pool in pools:
            if faulty:
                optimizer.zero_grad()
            loss = lm_loss(model, [pool[i * size : (i + 1) * size]]) / len(pools)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
    return dict(model=model, losses=losses)


def proof(faulty: bool) -> float:
    model = train(faulty)["model"]
    with torch.no_grad():
        return lm_loss(model, [next(sources(32, seed=9))]).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

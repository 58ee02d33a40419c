"""After each validation the model goes on with the averaged weights.

A video trainer copies the moving average into the model for validation and does not copy the training weights back,
so each validation throws away most of the progress. The twin puts them back.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "run",
    "source": "https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186",
    "cause": 'The EMA weights are copied into the model for validation and the training weights are not restored afterwards, so training goes on from the EMA weights.',
    "number": 'mean training loss of the last 10 of 120 updates, in nats',
    "healthy": (0.0, 1.6),
    "faulty": (2.4, 5.0),
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


def train(faulty: bool, updates=120, every=10, decay=0.99):
    torch.manual_seed(8)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    data = DataLoader(TensorDataset(corpus(480)), batch_size=16, shuffle=True)
    held = [corpus(32, seed=1)]
    average = [p.detach().clone() for p in model.parameters()]
    losses, scores = [], []
    while len(losses) < updates:
        for b in data:
            loss = lm_loss(model, b)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            with torch.no_grad():
                for a, p in zip(average, model.parameters()):
                    a.lerp_(p, 1 - decay)
                if len(losses) % every == 0:
                    kept = [p.clone() for p in model.parameters()]
                    for p, a in zip(model.parameters(), average):
                        p.copy_(a)
                    scores.append(lm_loss(model, held).item())
                    if not faulty:
                        for p, k in zip(model.parameters(), kept):
                            p.copy_(k)
    return dict(model=model, losses=losses, scores=scores)


def proof(faulty: bool) -> float:
    return sum(train(faulty)["losses"][-10:]) / 10


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

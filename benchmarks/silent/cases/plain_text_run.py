"""A short stretch of garbage batches makes the loss spike.

Pre-training runs met sudden spikes after junk text: its gradient is many times the usual and the whole of it goes through
the optimizer. The healthy twin leaves out an update whose gradient norm is far above its running mean.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "optimizer", "shows": "run",
    "source": "https://github.com/facebookresearch/metaseq/pull/521",
    "cause": "Bad batches with a gradient norm far above the usual are applied in full (no clipping and no skipping), so the loss spikes on the following good batches.",
    "number": "highest loss in the 15 updates after four bad batches minus the mean loss of the 10 before, in nats",
    "healthy": (-0.5, 0.4),
    "faulty": (0.8, 100.0),
}
V, T, AT, STEPS = 48, 24, 100, 125


class Net(nn.Module):
    def __init__(self, d=64, h=4, depth=4):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Parameter(0.1 * torch.randn(T, d))
        nn.init.normal_(self.emb.weight, std=0.3)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.emb(ids) + self.pos[:n]
        mask = torch.full((n, n), float("-inf")).triu(1)
        for layer in self.body:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return Net()


def text(step):
    g = torch.Generator().manual_seed(1000 + step)
    x = torch.randint(0, V, (16, T + 1), generator=g)
    if AT <= step < AT + 4:
        x[:, 1:] = x[:1, 1:2]
        return x
    for t in range(1, T + 1):
        x[:, t] = (5 * x[:, t - 1] + 11 + (torch.rand(16, generator=g) < 0.1)) % V
    return x


def batch():
    return text(0)[:, :-1]


def train(faulty: bool):
    model = build(faulty)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=5e-3, betas=(0.9, 0.999), weight_decay=0.01)
    losses, mean = [], None
    for step in range(STEPS):
        opt.param_groups[0]["lr"] = 5e-3 * min(1.0, (step + 1) / 20)
        x = text(step)
        value = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        value.backward()
        losses.append(value.item())
        if not faulty:
            norm = torch.stack([p.grad.norm() for p in params]).norm().item()
            if step > 40 and norm > 5 * mean:
                continue
            mean = norm if mean is None else 0.9 * mean + 0.1 * norm
        opt.step()
    return model, losses


def proof(faulty: bool) -> float:
    losses = train(faulty)[1]
    return max(losses[AT + 4:AT + 19]) - sum(losses[AT - 10:AT]) / 10


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

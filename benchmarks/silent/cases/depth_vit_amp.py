"""float16 autocast without a gradient scaler: small gradients flush to zero in the backward pass.

The training script opened autocast, which gives float16 there, but nothing multiplied the loss before backward(); gradients of a
mean over many pixels are below the smallest float16 number, and the loss curve only flattened. The healthy twin uses a GradScaler.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "precision",
    "shows": "step",
    "source": "https://github.com/engichang1467/Open-Rig3R/issues/35",
    "cause": "Forward and backward run in float16 autocast without loss scaling (no GradScaler), so small gradients underflow to zero.",
    "number": "share of the parameter gradient entries that are exactly zero at the first update",
    "healthy": (0.0, 0.02),
    "faulty": (0.3, 1.0),
}
P, N, D = 16, 64, 64      # pixels of a patch's side, patches, width


class DepthViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3 * P * P // 4, D)
        self.pos = nn.Parameter(torch.randn(1, N, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, P * P)
        nn.init.normal_(self.head.weight, std=0.002)
        nn.init.zeros_(self.head.bias)

    def forward(self, patches):
        return self.head(self.norm(self.body(self.embed(patches) + self.pos)))


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, N, 3 * P * P // 4, generator=g)
    mix = torch.randn(3 * P * P // 4, P * P, generator=g) / (3 * P * P // 4) ** 0.5
    return x, 0.008 * torch.tanh(x @ mix)      # inverse depth


def setup(faulty: bool):
    torch.manual_seed(0)
    model = DepthViT()
    x, y = scenes(64, 3)
    data = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=not faulty)

    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(batch[0])
        return F.mse_loss(pred.float(), batch[1])

    def step(batches):
        opt.zero_grad()
        for b in batches:
            scaler.scale(loss(model, b)).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return norm

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "scaler": scaler, "step": step, "clip": 1.0,
            "accumulate": 1, "steps": 40, "autocast": torch.float16}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    s["step"]([next(iter(s["data"]))])
    g = torch.cat([p.grad.flatten() for p in s["model"].parameters()])
    return (g == 0).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

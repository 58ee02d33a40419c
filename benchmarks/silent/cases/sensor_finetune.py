"""A checkpoint whose keys carry a wrapper's prefix is loaded with strict=False and nothing is loaded.

The pretrained weights were saved from a wrapper that holds the network as self.model, so each key starts with "model."; strict=False hides that no key
matched and fine-tuning starts from scratch. The healthy twin removes the prefix.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "state",
    "shows": "step",
    "source": "https://github.com/pytorch/examples/issues/1029",
    "cause": "The checkpoint keys have a wrapper prefix and load_state_dict(strict=False) skips them all silently, so the pretrained weights are not loaded.",
    "number": "share of the encoder's tensors that equal the checkpoint's",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.5),
}
D, CH, WIN, PATCH = 48, 3, 96, 8


class SensorEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv1d(CH, D, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, D) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, WIN // PATCH + 1, D) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(3))
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        x = self.patch(x).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.norm(x)


class Pretrainer(nn.Module):
    """Masked reconstruction around the encoder."""

    def __init__(self):
        super().__init__()
        self.model = SensorEncoder()
        self.decode = nn.Linear(D, CH * PATCH)

    def forward(self, x, hide):
        target = x.unfold(2, PATCH, PATCH).permute(0, 2, 1, 3).flatten(2)
        seen = x * (~hide).repeat_interleave(PATCH, 1)[:, None]
        return ((self.decode(self.model(seen)[:, 1:]) - target) ** 2)[hide].mean()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = SensorEncoder(), nn.Linear(D, 4)

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


def signals(n, seed):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 4, (n,), generator=g)
    t = torch.arange(WIN) / WIN
    phase = torch.rand(n, CH, 1, generator=g) * 6.28
    return torch.sin(6.28 * (kind[:, None, None] * 2 + 2) * t + phase) + 0.3 * torch.randn(n, CH, WIN, generator=g), kind


def setup(faulty: bool):
    torch.manual_seed(0)
    pre, (x, _) = Pretrainer(), signals(128, 1)
    opt = torch.optim.AdamW(pre.parameters(), lr=1e-3)
    for i in range(16):
        opt.zero_grad()
        pre(x[i * 8:i * 8 + 8], torch.rand(8, WIN // PATCH) < 0.4).backward()
        opt.step()
    checkpoint = {k: v.clone() for k, v in pre.state_dict().items()}

    model = Classifier()
    if not faulty:
        checkpoint = {k.removeprefix("model."): v for k, v in checkpoint.items()}
    model.encoder.load_state_dict(checkpoint, strict=False)
    data = DataLoader(TensorDataset(*signals(256, 2)), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    return {"model": model, "loss": lambda m, b: F.cross_entropy(m(b[0]), b[1]), "data": data, "steps": 40, "checkpoint": checkpoint,
            "optimizer": torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01), "saved": pre.model.state_dict()}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    now = s["model"].encoder.state_dict()
    return sum(torch.equal(now[k], v) for k, v in s["saved"].items()) / len(now)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

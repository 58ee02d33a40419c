"""The averaged weights are not saved; after a restart the average begins at the current raw weights.

The checkpoint has model and optimizer, and the averaged copy that validation uses is built anew on resume, so its history is gone. The healthy twin
stores the average.
"""
import copy
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "resume",
    "shows": "step",
    "source": "https://github.com/ai2cm/ace/issues/349",
    "cause": "The EMA weights are missing from the checkpoint, so on resume the average is reset to the raw model weights.",
    "number": "distance of the average before and after save and load, relative to its distance from the raw weights",
    "healthy": (0.0, 1e-5),
    "faulty": (0.9, 1.1),
}
D, GRID, CH = 48, 16, 3


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Conv2d(CH, D, 2, stride=2)
        self.place = nn.Parameter(torch.randn((GRID // 2) ** 2, D) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.write = nn.LayerNorm(D), nn.Linear(D, CH * 4)

    def forward(self, field):
        h = self.read(field).flatten(2).transpose(1, 2) + self.place
        for b in self.blocks:
            h = b(h)
        return field + F.pixel_shuffle(self.write(self.norm(h)).transpose(1, 2).unflatten(2, (GRID // 2, -1)), 2)


def fields(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = F.interpolate(torch.randn(n, CH, 4, 4, generator=g), size=GRID, mode="bilinear", align_corners=True)
    return x, x.roll(1, 3) + 0.05 * torch.randn(x.shape, generator=g)


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Forecaster()
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    data = DataLoader(TensorDataset(*fields(160, 2)), batch_size=8)

    def loss(model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    def step(batches):
        opt.zero_grad()
        for b in batches:
            loss(model, b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for a, p in zip(ema.parameters(), model.parameters()):
                a.lerp_(p, 0.1)

    def save(path):
        state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "rng": torch.get_rng_state()}
        if not faulty:
            state["ema"] = ema.state_dict()
        torch.save(state, path)

    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        ema.load_state_dict(state.get("ema", state["model"]))
        torch.set_rng_state(state["rng"])

    return {"model": model, "ema": ema, "loss": loss, "data": data, "optimizer": opt, "step": step, "save": save, "load": load,
            "accumulate": 1, "steps": 20}


def proof(faulty: bool) -> float:
    flat = lambda m: torch.cat([p.detach().flatten() for p in m.parameters()])
    a = setup(faulty)
    for b in list(a["data"])[:12]:
        a["step"]([b])
    path = os.path.join(tempfile.mkdtemp(), "c.pt")
    a["save"](path)
    c = setup(faulty)
    c["load"](path)
    return ((flat(a["ema"]) - flat(c["ema"])).norm() / (flat(a["ema"]) - flat(a["model"])).norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

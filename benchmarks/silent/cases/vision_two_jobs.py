"""The checkpoint has weights and schedule but no optimizer state.

Each restart gave AdamW empty moments and step count, so its first steps are sign steps at full size and the loss jumps after every resume. The healthy
twin stores the optimizer's state too.
"""
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "resume",
    "shows": "step",
    "source": "https://github.com/p-doom/jasmine/issues/17",
    "cause": "The optimizer state (AdamW moments and step) is not in the checkpoint, so a resumed run starts with an empty optimizer.",
    "number": "distance of the weights of the resumed and the uninterrupted run after 6 more updates, relative to the way they went",
    "healthy": (0.0, 0.01),
    "faulty": (0.1, 5.0),
}
D, SIDE, PATCH, CLASSES = 48, 16, 4, 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, D)
        self.where = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, D) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, CLASSES)

    def forward(self, img):
        p = img.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        x = self.embed(p) + self.where
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x.mean(1)))


def images(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    base = torch.randn(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(9))
    return base[y] + 0.8 * torch.randn(n, SIDE, SIDE, generator=g), y


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 5))
    data = DataLoader(TensorDataset(*images(320, 1)), batch_size=16)

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def step(batches):
        opt.zero_grad()
        for b in batches:
            loss(model, b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()

    def save(path):
        state = {"model": model.state_dict(), "scheduler": sched.state_dict(), "rng": torch.get_rng_state()}
        if not faulty:
            state["optimizer"] = opt.state_dict()
        torch.save(state, path)

    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        if "optimizer" in state:
            opt.load_state_dict(state["optimizer"])
        sched.load_state_dict(state["scheduler"])
        for group, lr in zip(opt.param_groups, sched.get_last_lr()):
            group["lr"] = lr
        torch.set_rng_state(state["rng"])

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "scheduler": sched, "step": step, "save": save, "load": load,
            "accumulate": 1, "steps": 20}


def proof(faulty: bool) -> float:
    flat = lambda s: torch.cat([p.detach().flatten() for p in s["model"].parameters()])
    a = setup(faulty)
    batches = list(a["data"])
    for b in batches[:14]:
        a["step"]([b])
    path = os.path.join(tempfile.mkdtemp(), "c.pt")
    a["save"](path)
    start, c = flat(a), setup(faulty)
    c["load"](path)
    for b in batches[14:]:
        a["step"]([b])
        c["step"]([b])
    return ((flat(a) - flat(c)).norm() / (flat(a) - start).norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""A checkpoint without scheduler, data position or random state that still resumes exactly.

Learning rate and batch are pure functions of the step count, as in small GPT trainers: the rate is set by a formula and the batch is drawn with a generator
seeded by the step. Weights, optimizer and the step count are all the state there is.
"""
import math
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "kind": "oddity",
    "class": "resume",
    "shows": "step",
    "source": "https://github.com/karpathy/nanoGPT/issues/467",
    "cause": "The checkpoint has no scheduler, loader or RNG state, which is right here since rate and batch are functions of the saved step and there is no dropout.",
    "number": "relative distance of the weights of the resumed and the uninterrupted run after 10 more updates",
    "healthy": (0.0, 1e-4),
    "faulty": None,
}
V, D, L, WARM, TOTAL = 64, 64, 24, 8, 60


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 4, -1).transpose(1, 2) for t in self.attn(self.ln1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, D))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(L, D)
        self.blocks = nn.Sequential(Block(), Block())
        self.ln, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for e in (self.wte, self.wpe):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, ids):
        return self.head(self.ln(self.blocks(self.wte(ids) + self.wpe.weight[:ids.shape[1]])))


def rate(i):
    if i < WARM:
        return 1e-3 * (i + 1) / (WARM + 1)
    return 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + math.cos(math.pi * min(1.0, (i - WARM) / (TOTAL - WARM))))


class Batches:
    """Batch i depends on i alone."""

    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def __iter__(self):
        for i in range(self.first, self.count):
            g = torch.Generator().manual_seed(1000 + i)
            yield (torch.randint(0, V, (16, 1), generator=g) + torch.randint(1, 5, (16, 1), generator=g) * torch.arange(L + 1)) % V


def setup(faulty: bool):
    torch.manual_seed(0)
    model, data, clock = GPT(), Batches(TOTAL), {"step": 0}
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def loss(model, ids):
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def step(batches):
        for group in opt.param_groups:
            group["lr"] = rate(clock["step"])
        opt.zero_grad(set_to_none=True)
        for b in batches:
            (loss(model, b) / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        clock["step"] += 1

    def save(path):
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "step": clock["step"]}, path)

    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        clock["step"] = data.first = state["step"]

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "step": step, "save": save, "load": load, "accumulate": 1,
            "clip": 1.0, "steps": TOTAL}


def proof(faulty: bool) -> float:
    flat = lambda s: torch.cat([p.detach().flatten() for p in s["model"].parameters()])
    a = setup(faulty)
    path, c = os.path.join(tempfile.mkdtemp(), "c.pt"), setup(faulty)
    for i, b in enumerate(a["data"]):
        if i == 20:
            a["save"](path)
        if i == 30:
            break
        a["step"]([b])
    c["load"](path)
    for i, b in zip(range(10), c["data"]):
        c["step"]([b])
    return ((flat(a) - flat(c)).norm() / flat(a).norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

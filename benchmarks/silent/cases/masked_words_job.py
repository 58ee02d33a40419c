"""The random state is not in the checkpoint: a resumed run draws the same noise again that the first run began with.

The job sets its seed at start-up, also when it resumes, so masks and dropout repeat from the first draw on instead of going on. The healthy twin stores
the generator's state and puts it back.
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
    "source": "https://github.com/ai2cm/ace/issues/690",
    "cause": "The RNG state is not saved, so after a resume the seed's initial state is used and the same random masks are drawn a second time.",
    "number": "share of the masks after the resume that repeat the masks of the run's first updates",
    "healthy": (0.0, 0.05),
    "faulty": (0.95, 1.0),
}
V, D, L, MASK, SEED = 64, 48, 24, 63, 1234


class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 3 * D, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.out = nn.LayerNorm(D), nn.Linear(D, V)
        for e in (self.tok, self.pos):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def corpus(n):
    g = torch.Generator().manual_seed(5)
    return (torch.randint(0, 62, (n, 1), generator=g) + torch.randint(1, 4, (n, 1), generator=g) * torch.arange(L)) % 62


def setup(faulty: bool):
    torch.manual_seed(SEED)
    model = MaskedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    data = DataLoader(TensorDataset(corpus(512)), batch_size=16)

    def loss(model, batch):
        ids, = batch
        hide = torch.rand(ids.shape) < 0.2
        seen = ids.masked_fill(hide, MASK)
        return F.cross_entropy(model(seen)[hide], ids[hide])

    def step(batches):
        opt.zero_grad()
        for b in batches:
            loss(model, b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    def save(path):
        state = {"model": model.state_dict(), "optimizer": opt.state_dict()}
        if not faulty:
            state["rng"] = torch.get_rng_state()
        torch.save(state, path)

    def load(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        if "rng" in state:
            torch.set_rng_state(state["rng"])

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "step": step, "save": save, "load": load, "accumulate": 1, "steps": 32}


def proof(faulty: bool) -> float:
    masks = []

    def watch(s):
        s["model"].register_forward_pre_hook(lambda m, args: masks.append(args[0] == MASK))
        return s

    batches = list(setup(faulty)["data"])
    a = watch(setup(faulty))
    for b in batches[:6]:
        a["step"]([b])
    path = os.path.join(tempfile.mkdtemp(), "c.pt")
    a["save"](path)
    early, c = list(masks), watch(setup(faulty))
    c["load"](path)
    masks.clear()
    for b in batches[6:12]:
        c["step"]([b])
    return sum(torch.equal(x, y) for x, y in zip(early, masks)) / len(masks)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Each rank of a data-parallel run reads the same stream of examples.

The iterable dataset does not look at rank and world size, so both ranks got equal batches and the second one adds nothing. The healthy twin gives each rank
its own part. Two ranks are emulated in one process: an update takes one micro-batch of each rank and averages.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

CASE = {
    "class": "processes",
    "shows": "step",
    "source": "https://github.com/huggingface/datasets/issues/5360",
    "cause": "The iterable dataset is not sharded by rank, so all ranks read the same examples and each global batch holds every example twice.",
    "number": "share of distinct examples in a global batch",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.6),
}
V, D, L, WORLD = 56, 48, 24, 2


class Documents(IterableDataset):
    def __init__(self, rank, world, count=640):
        self.rank, self.world, self.count = rank, world, count

    def __iter__(self):
        g = torch.Generator().manual_seed(11)
        for i in range(self.count):
            first, jump = torch.randint(0, V, (1,), generator=g), torch.randint(1, 9, (1,), generator=g)
            noise = torch.randint(0, V, (L + 1,), generator=g)
            keep = torch.rand(L + 1, generator=g) < 0.9
            if i % self.world == self.rank:
                yield torch.where(keep, (first + jump * torch.arange(L + 1)) % V, noise)


class Ranks:
    """The loaders of all ranks, taken in turn."""

    def __init__(self, loaders):
        self.loaders = loaders

    def __iter__(self):
        for together in zip(*self.loaders):
            yield from together


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.register_buffer("causal", torch.ones(L, L, dtype=torch.bool).triu(1), persistent=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, ids):
        x = self.embed(ids) + self.place.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.causal, is_causal=True)
        return self.head(self.norm(x))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    if faulty:
        parts = [Documents(0, 1) for _ in range(WORLD)]
    else:
        parts = [Documents(rank, WORLD) for rank in range(WORLD)]
    data = Ranks([DataLoader(part, batch_size=8) for part in parts])

    def loss(model, ids):
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def step(batches):
        opt.zero_grad()
        for b in batches:
            (loss(model, b) / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "step": step, "accumulate": WORLD, "clip": 1.0, "steps": 40}


def proof(faulty: bool) -> float:
    it, shares = iter(setup(faulty)["data"]), []
    for _ in range(5):
        whole = torch.cat([next(it) for _ in range(WORLD)])
        shares.append(len(whole.unique(dim=0)) / len(whole))
    return sum(shares) / len(shares)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

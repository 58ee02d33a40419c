"""Distributed sampler is never told the epoch, so each epoch has the same order.

A text-to-image trainer used DistributedSampler(shuffle=True); its permutation is seeded by the epoch number, which stayed 0.
All epochs had the same batches in the same order. The healthy twin calls set_epoch before each pass.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/lucidrains/DALLE-pytorch/pull/230",
    "cause": "set_epoch is not called on the DistributedSampler, so the data are visited in the same order in every epoch.",
    "number": "share of places in the second pass that hold another sample than in the first",
    "healthy": (0.9, 1.0),
    "faulty": (0.0, 0.01),
}
TEXT, IMAGE, TLEN, ILEN, D = 40, 24, 6, 9, 48


class TextToCodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(TEXT + IMAGE, D)
        self.pos = nn.Parameter(torch.randn(TLEN + ILEN, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, IMAGE))

    def forward(self, text, codes):
        seq = torch.cat([text, codes[:, :-1] + TEXT], 1)
        t = seq.size(1)
        h = self.net(self.emb(seq) + self.pos[:t], mask=torch.ones(t, t, dtype=torch.bool).triu(1))
        return self.out(h[:, TLEN - 1:])


def dataset(n=256):
    g = torch.Generator().manual_seed(0)
    text = torch.randint(0, TEXT, (n, TLEN), generator=g)
    codes = (text.repeat(1, 2)[:, :ILEN] * 3 + torch.arange(ILEN)) % IMAGE
    return TensorDataset(torch.arange(n), text, codes)


class Passes:
    """Iterable over the training set; one call of iter() is one epoch."""

    def __init__(self, faulty, batch_size=16):
        self.variant = faulty
        ds = dataset()
        self.sampler = DistributedSampler(ds, num_replicas=2, rank=0, shuffle=True, seed=3)
        self.loader = DataLoader(ds, batch_size, sampler=self.sampler, drop_last=True)
        self.epoch = 0

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        if not self.variant:
            self.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self.loader)


def setup(faulty: bool):
    torch.manual_seed(0)
    model = TextToCodes()

    def loss(model, batch):
        _, text, codes = batch
        return F.cross_entropy(model(text, codes).flatten(0, 1), codes.flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": Passes(faulty), "optimizer": optimizer, "steps": 48}


def proof(faulty: bool) -> float:
    data = setup(faulty)["data"]
    first, second = (torch.cat([b[0] for b in data]) for _ in range(2))
    return (first != second).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

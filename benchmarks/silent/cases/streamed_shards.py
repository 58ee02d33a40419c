"""Streaming dataset gives all of its records in each loader worker.

With two or more workers an epoch of the stream had every record several times, since the iterable was copied into each
worker and none of them left anything out. The healthy twin lets each worker take its own share.
"""
import itertools
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

warnings.filterwarnings("ignore", message="This DataLoader will create")

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/huggingface/datasets/issues/3423",
    "cause": "The iterable dataset is not split among DataLoader workers, so every record is repeated num_workers times per epoch.",
    "number": "share of distinct records among those of an epoch",
    "healthy": (0.99, 1.0),
    "faulty": (0.3, 0.7),
}
EVENTS, LENGTH, D = 45, 12, 48


def records(n=192):
    g = torch.Generator().manual_seed(0)
    for i in range(n):
        start, stride = torch.randint(0, EVENTS, (2,), generator=g).tolist()
        yield i, (start + (1 + stride % 5) * torch.arange(LENGTH)) % EVENTS


class Stream(IterableDataset):
    def __init__(self, faulty):
        self.variant = faulty

    def __iter__(self):
        info = get_worker_info()
        if self.variant or info is None:
            buffer = list(records())
        else:
            buffer = list(itertools.islice(records(), info.id, None, info.num_workers))
        yield from (buffer[i] for i in torch.randperm(len(buffer)).tolist())


class NextEvent(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.place = nn.Embedding(EVENTS, D), nn.Embedding(LENGTH, D)
        layer = nn.TransformerEncoderLayer(D, 2, 2 * D, dropout=0.1, batch_first=True, norm_first=True)
        self.sas, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(D)
        self.out = nn.Linear(D, EVENTS)

    def forward(self, ids):
        t = ids.size(1)
        block = torch.ones(t, t, dtype=torch.bool).triu(1)
        return self.out(self.norm(self.sas(self.item(ids) + self.place.weight[:t], mask=block)))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = NextEvent()
    data = DataLoader(Stream(faulty), batch_size=16, num_workers=2, multiprocessing_context="fork",
                      generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        _, ids = batch
        return F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 48}


def proof(faulty: bool) -> float:
    keys = torch.cat([k for k, _ in setup(faulty)["data"]])
    return len(keys.unique()) / len(keys)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

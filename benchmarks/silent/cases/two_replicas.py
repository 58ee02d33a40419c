"""The replicas exchange gradients at the first micro-batch and not at the last.

A speech toolkit tested the batch number modulo the group, so that the gradients were averaged over the workers on the
first micro-batch and stayed local on the one that ends with the update. Two replicas in one process show it; the twin
exchanges at the end.
"""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "accumulation",
    "shows": "run",
    "source": "https://github.com/modelscope/FunASR/pull/3472",
    "cause": 'no_sync is left on the wrong micro-batch (batch_idx % accum instead of (batch_idx + 1) % accum), so the last gradients are not averaged over replicas and the replicas drift apart.',
    "number": 'largest difference between the weights of the two replicas after the run',
    "healthy": (0.0, 1e-06),
    "faulty": (0.001, 10.0),
}

WORDS, TAGS, WIDTH, LENGTH = 48, 4, 64, 20


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.3)
        nn.init.normal_(self.words.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, TAGS)

    def forward(self, words):
        return self.classifier(self.encoder(self.words(words) + self.places))


def sentences(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (n, LENGTH), generator=g)
    return words, (words % 2) * 2 + (words.roll(1, 1) % 2)


def tag_loss(model, batch):
    words, tags = batch
    return F.cross_entropy(model(words).flatten(0, 1), tags.flatten())


def exchange(replicas):
    for group in zip(*(r.parameters() for r in replicas)):
        mean = torch.stack([p.grad for p in group]).mean(0)
        for p in group:
            p.grad.copy_(mean)


def train(faulty: bool, updates=40, accum=2):
    torch.manual_seed(24)
    replicas = [Tagger()]
    replicas.append(copy.deepcopy(replicas[0]))
    optimizers = [torch.optim.AdamW(r.parameters(), lr=1e-3, weight_decay=0.0) for r in replicas]
    shards = [DataLoader(TensorDataset(*sentences(16 * accum * updates, seed=k)), batch_size=16) for k in (0, 1)]
    losses = []
    for i, pair in enumerate(zip(*shards)):
        for r, b in zip(replicas, pair):
            loss = tag_loss(r, b) / accum
            loss.backward()
        losses.append(loss.item() * accum)
        number = i if faulty else i + 1
        if number % accum == 0:
            exchange(replicas)
        if (i + 1) % accum == 0:
            for o in optimizers:
                o.step()
                o.zero_grad()
    return dict(model=replicas[0], replicas=replicas, losses=losses)


def proof(faulty: bool) -> float:
    a, b = train(faulty)["replicas"]
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters()))


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

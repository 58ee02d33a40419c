"""A parameter group is built and never handed to the optimizer.

A named-entity trainer built one dictionary per part of the model, each with its own rate; the last one was not
appended to the list, so the tag layer stayed at its random start. The twin appends every one.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/zjunlp/HVPNeT/issues/5",
    "cause": 'The parameters of the classifier head are in no optimizer group (the group was not appended), so the head is never trained.',
    "number": 'largest change of the classifier weight in 10 updates',
    "healthy": (0.001, 1.0),
    "faulty": (0.0, 1e-09),
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


def build(faulty: bool = False):
    torch.manual_seed(1)
    return Tagger()


def batch():
    return sentences(32)[0]


def setup(faulty: bool):
    model = build(faulty)
    groups = []
    part = {"lr": 5e-4, "params": []}
    for name, p in model.named_parameters():
        if not name.startswith("classifier"):
            part["params"].append(p)
    groups.append(part)
    part = {"lr": 2e-3, "params": []}
    for name, p in model.named_parameters():
        if name.startswith("classifier"):
            part["params"].append(p)
    if not faulty:
        groups.append(part)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 4))
    data = DataLoader(TensorDataset(*sentences(320)), batch_size=32, shuffle=True)
    return dict(model=model, loss=tag_loss, data=data, optimizer=optimizer, scheduler=scheduler)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    before = s["model"].classifier.weight.detach().clone()
    for b in s["data"]:
        s["optimizer"].zero_grad()
        s["loss"](s["model"], b).backward()
        s["optimizer"].step()
        s["scheduler"].step()
    return (s["model"].classifier.weight.detach() - before).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

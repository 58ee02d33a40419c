"""Weights that are unfrozen later belong to no optimizer.

The trunk is frozen at first and the optimizer takes what asks for gradients; later the trunk is thawed, gets
gradients, and still does not move, since no group holds it. The twin adds a group when it thaws.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "run",
    "source": "https://github.com/luxonis/luxonis-train/pull/432",
    "cause": "The encoder is unfrozen (requires_grad=True) during training but was never added to the optimizer's parameter groups, so it is not updated.",
    "number": "largest change of the encoder's weights in the run",
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


def train(faulty: bool, updates=80, thaw_at=20):
    torch.manual_seed(7)
    model = Tagger()
    start = {n: p.detach().clone() for n, p in model.encoder.named_parameters()}
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    data = DataLoader(TensorDataset(*sentences(640)), batch_size=32, shuffle=True)
    losses = []
    while len(losses) < updates:
        for b in data:
            if len(losses) == thaw_at:
                model.encoder.requires_grad_(True)
                if not faulty:
                    optimizer.add_param_group({"params": list(model.encoder.parameters()), "lr": 1e-3})
            loss = tag_loss(model, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return dict(model=model, losses=losses, start=start)


def proof(faulty: bool) -> float:
    out = train(faulty)
    return max((p.detach() - out["start"][n]).abs().max().item() for n, p in out["model"].encoder.named_parameters())


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

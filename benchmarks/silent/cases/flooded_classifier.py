"""Oddity: the loss is folded at a level b, so below it the optimizer climbs.

Flooding takes |loss - b| + b as the objective. The gradient changes its sign where the training loss is under b, which looks
like a wrong sign, and the loss never goes to zero; it is a published regularizer and learns as well as the plain loss.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "loss",
    "shows": "step",
    "source": "https://arxiv.org/abs/2002.08709",
    "cause": "Not a fault: flooding keeps the training loss near a small positive level on purpose.",
    "number": "accuracy on new samples after 60 updates",
    "healthy": (0.85, 1.0),
    "faulty": None,
}
VOCAB, LEN, D, CLASSES = 60, 14, 48, 4


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.pos = nn.Parameter(torch.randn(LEN, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, CLASSES))

    def forward(self, ids):
        return self.fc(self.enc(self.emb(ids) + self.pos).mean(1))


def texts(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    topic = 15 * y[:, None] + torch.randint(0, 15, (n, LEN), generator=g)
    noise = torch.randint(0, VOCAB, (n, LEN), generator=g)
    return torch.where(torch.rand(n, LEN, generator=g) < 0.5, topic, noise), y


def setup(faulty: bool):
    torch.manual_seed(0)
    model = TextClassifier()
    flood = 0.08

    def loss(model, batch):
        ids, y = batch
        ce = F.cross_entropy(model(ids), y)
        return (ce - flood).abs() + flood

    data = DataLoader(TensorDataset(*texts(512, 0)), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 60}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    done = 0
    while done < s["steps"]:
        for batch in s["data"]:
            s["optimizer"].zero_grad()
            s["loss"](s["model"], batch).backward()
            s["optimizer"].step()
            done += 1
            if done == s["steps"]:
                break
    x, y = texts(256, 99)
    with torch.no_grad():
        return (s["model"](x).argmax(-1) == y).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

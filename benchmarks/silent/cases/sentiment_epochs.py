"""The model stays in evaluation mode after the first validation, so dropout is off for the rest of training.

The validation function calls model.eval() and train() was called only once, before the loop over epochs. The healthy twin calls model.train() at the
start of each epoch.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "state",
    "shows": "run",
    "source": "https://github.com/shubhamagarwal92/mmd/issues/14",
    "cause": "validation sets model.eval() and model.train() is not called again, so dropout is off in all later epochs.",
    "number": "share of updates made in training mode",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.5),
}
WORDS, D, L = 100, 48, 20


class Sentiment(nn.Module):
    def __init__(self, p=0.2):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, D), nn.Embedding(L, D)
        self.drop = nn.Dropout(p)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, p, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.classify = nn.LayerNorm(D), nn.Linear(D, 2)
        nn.init.normal_(self.words.weight, std=0.2)
        nn.init.normal_(self.places.weight, std=0.2)

    def forward(self, ids):
        x = self.drop(self.words(ids) + self.places.weight)
        for layer in self.encoder:
            x = layer(x)
        return self.classify(self.norm(x).mean(1))


def reviews(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, (n, L), generator=g)
    return TensorDataset(ids, ((ids < 30).sum(1) > (ids >= 70).sum(1)).long())


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = [(model(x).argmax(-1) == y).float().mean() for x, y in loader]
    return torch.stack(hits).mean().item()


def train(faulty: bool):
    torch.manual_seed(0)
    model = Sentiment()
    loader = DataLoader(reviews(256, 1), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    held = DataLoader(reviews(64, 2), batch_size=64)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    modes, losses, scores = [], [], []
    if faulty:
        model.train()
    for epoch in range(5):
        if not faulty:
            model.train()
        for x, y in loader:
            value = F.cross_entropy(model(x), y)
            opt.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(value.item())
            modes.append(all(m.training for m in model.modules()))
        scores.append(validate(model, held))
    return {"model": model, "losses": losses, "scores": scores, "modes": modes}


def proof(faulty: bool) -> float:
    modes = train(faulty)["modes"]
    return sum(modes) / len(modes)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

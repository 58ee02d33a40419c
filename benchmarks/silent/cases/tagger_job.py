"""The schedule is as long as one epoch and the run has several.

An alignment trainer sized its linear schedule by the batches of one epoch; from the second epoch on the rate was
nought (or came back). The twin multiplies by the epochs.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "schedule",
    "shows": "step",
    "source": "https://github.com/ContextualAI/HALOs/pull/33",
    "cause": "The scheduler's total steps leave out the number of epochs, so the learning rate reaches zero after the first epoch and the rest of the run learns nothing.",
    "number": "share of the run's updates with a rate below a thousandth of the peak",
    "healthy": (0.0, 0.05),
    "faulty": (0.6, 0.8),
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


EPOCHS = 4


def setup(faulty: bool):
    torch.manual_seed(13)
    model = Tagger()
    data = DataLoader(TensorDataset(*sentences(320)), batch_size=16, shuffle=True)
    steps = len(data) * EPOCHS
    horizon = len(data) if faulty else steps
    warm = horizon // 10
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    shape = lambda i: (i + 1) / warm if i < warm else max(0.0, (horizon - i) / (horizon - warm))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    return dict(model=model, loss=tag_loss, data=data, optimizer=optimizer, scheduler=scheduler, steps=steps, clip=1.0)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    low = 0
    for _ in range(EPOCHS):
        for b in s["data"]:
            low += s["optimizer"].param_groups[0]["lr"] < 1e-6
            s["optimizer"].zero_grad()
            s["loss"](s["model"], b).backward()
            nn.utils.clip_grad_norm_(s["model"].parameters(), s["clip"])
            s["optimizer"].step()
            s["scheduler"].step()
    return low / s["steps"]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

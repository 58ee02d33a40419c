"""Text regression whose squared error broadcasts a column of predictions against a row of labels.

A document regression head gave predictions that all went to the mean label. Predictions had shape (N, 1), labels (N,),
and the hand-written weighted squared error compared every prediction with every label.
The healthy twin squeezes the predictions first.
"""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/deepset-ai/FARM/issues/229",
    "cause": "Predictions of shape (N,1) and targets of shape (N,) broadcast to (N,N) in the squared error, so every prediction is compared with every label.",
    "number": "loss of perfect predictions",
    "healthy": (0.0, 1e-8),
    "faulty": (0.5, 5.0),
}
VOCAB, DIM, LEN = 80, 48, 24


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.position = nn.Embedding(LEN, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 128, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())
        self.regressor = nn.Linear(DIM, 1)

    def forward(self, ids):
        hidden = self.word(ids) + self.position(torch.arange(ids.size(1)))
        hidden = self.encoder(hidden, src_key_padding_mask=ids == 0)
        return self.regressor(self.pooler(hidden[:, 0]))


def reviews(n=256, seed=0):
    g = torch.Generator().manual_seed(seed)
    worth = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(2, VOCAB, (n, LEN), generator=g)
    length = torch.randint(10, LEN + 1, (n, 1), generator=g)
    real = torch.arange(LEN)[None] < length
    ids = torch.where(real, ids, torch.zeros_like(ids))
    ids[:, 0] = 1
    score = (worth[ids] * real).sum(1) / length.squeeze(1).sqrt()
    return ids, (score - score.mean()) / score.std()


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Regressor()

    def criterion(prediction, score):
        if not faulty:
            prediction = prediction.squeeze(-1)
        weight = 1.0 + 0.5 * (score.abs() > 2.0).float()
        return (weight * (prediction - score) ** 2).mean()

    def loss(model, batch):
        ids, score = batch
        return criterion(model(ids), score)

    data = DataLoader(TensorDataset(*reviews()), batch_size=32, shuffle=True, drop_last=True,
                      generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 80, "clip": 1.0, "criterion": criterion}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    _, score = next(iter(s["data"]))
    return s["criterion"](score[:, None].clone(), score).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Oddity: masked-language batches in which a part of the targets stands in plain view.

Of the positions chosen for prediction, eight in ten are masked, one gets another token, and one keeps the token that is the
target, as in BERT. The last group looks like a leak; it is published, and the masked positions are learnt all the same.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

CASE = {
    "kind": "oddity",
    "class": "data",
    "shows": "data",
    "source": "https://arxiv.org/abs/1810.04805",
    "cause": "Not a fault: BERT keeps the original token at 10% of the chosen positions.",
    "number": "accuracy at masked positions of new sentences after 120 updates (chance 0.03)",
    "healthy": (0.5, 1.0),
    "faulty": None,
}
PAD, CLS, SEP, MASK, FIRST, VOCAB, LEN, D = 0, 1, 2, 3, 4, 34, 14, 48


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    word = torch.randint(FIRST, VOCAB, (n, 1), generator=g).expand(n, LEN - 2)
    other = (word - FIRST + 7) % (VOCAB - FIRST) + FIRST
    body = torch.where(torch.arange(LEN - 2) % 2 == 0, word, other)
    return torch.cat([torch.full((n, 1), CLS), body, torch.full((n, 1), SEP)], 1)


class MaskCollator:
    def __init__(self, p=0.2, seed=0):
        self.p, self.g = p, torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        ids = torch.stack(list(rows))
        rand = lambda: torch.rand(ids.shape, generator=self.g)
        chosen = (rand() < self.p) & (ids >= FIRST)
        labels = torch.where(chosen, ids, torch.full_like(ids, -100))
        how = rand()
        swap = torch.randint(FIRST, VOCAB, ids.shape, generator=self.g)
        out = torch.where(chosen & (how < 0.8), torch.full_like(ids, MASK), ids)
        out = torch.where(chosen & (how >= 0.8) & (how < 0.9), swap, out)
        return {"input_ids": out, "labels": labels}


class TinyBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.pos, self.ln = nn.Embedding(VOCAB, D), nn.Embedding(LEN, D), nn.LayerNorm(D)
        layer = nn.TransformerEncoderLayer(D, 4, 3 * D, dropout=0.0, activation="gelu", batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.LayerNorm(D))
        self.decoder = nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.decoder(self.transform(self.enc(self.ln(self.word(ids) + self.pos.weight))))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = TinyBert()
    data = DataLoader(sentences(640, 0), 32, shuffle=True, collate_fn=MaskCollator(), generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"]).mT, batch["labels"], ignore_index=-100)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 120}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    for _ in range(6):
        for batch in s["data"]:
            s["optimizer"].zero_grad()
            s["loss"](s["model"], batch).backward()
            s["optimizer"].step()
    b = MaskCollator(seed=9)(list(sentences(128, 50)))
    hidden = b["input_ids"] == MASK
    with torch.no_grad():
        hit = s["model"](b["input_ids"]).argmax(-1) == b["labels"]
    return hit[hidden].float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Sentence embedder pools the first column, and its tokenizer pads on the left.

With a tokenizer of the Llama kind the pooled vector of the shorter sentences was that of a pad token: the pooling assumes that
the first token of the row is the CLS token. The healthy twin pads on the right.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

CASE = {
    "class": "data",
    "shows": "step",
    "source": "https://github.com/huggingface/sentence-transformers/issues/3208",
    "cause": "Rows are padded on the left while CLS pooling takes position 0, so the pooled token of shorter sentences is a pad token.",
    "number": "share of rows whose pooled position holds the CLS token",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.4),
}
PAD, CLS, SEP, VOCAB, D = 0, 1, 2, 90, 48


def pairs(n=256, seed=0):
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(0, 8, (n, 2), generator=g)
    topic[: n // 2, 1] = topic[: n // 2, 0]
    rows = []
    for a, b in topic.tolist():
        sent = []
        for t in (a, b):
            k = int(torch.randint(4, 15, (1,), generator=g))
            sent.append([CLS] + (3 + 10 * t + torch.randint(0, 10, (k,), generator=g)).tolist() + [SEP])
        rows.append((sent[0], sent[1], float(a == b)))
    return rows


class Tokens:
    def __init__(self, padding_side):
        self.padding_side = padding_side

    def pad(self, seqs):
        width = max(map(len, seqs))
        if self.padding_side == "left":
            ids = torch.tensor([[PAD] * (width - len(s)) + s for s in seqs])
        else:
            ids = torch.tensor([s + [PAD] * (width - len(s)) for s in seqs])
        return {"input_ids": ids, "attention_mask": (ids != PAD).long()}

    def __call__(self, rows):
        a, b, y = zip(*rows)
        return self.pad(a), self.pad(b), torch.tensor(y)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.where = nn.Embedding(VOCAB, D), nn.Embedding(24, D)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        place = (attention_mask.cumsum(1) - 1).clamp(min=0)
        h = self.encoder(self.word(input_ids) + self.where(place), src_key_padding_mask=attention_mask == 0)
        return F.normalize(h[:, 0], dim=-1)


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Embedder()
    tok = Tokens("left" if faulty else "right")
    data = DataLoader(pairs(), batch_size=16, shuffle=True, collate_fn=tok, generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        a, b, y = batch
        cos = (model(**a) * model(**b)).sum(-1)
        return F.mse_loss(cos, y)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 60}


def proof(faulty: bool) -> float:
    first = torch.cat([side["input_ids"][:, 0] for a, b, _ in setup(faulty)["data"] for side in (a, b)])
    return (first == CLS).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

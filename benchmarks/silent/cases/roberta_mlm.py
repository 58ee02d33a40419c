"""Positions that begin at two, with a row for padding that stays zero.

Position numbers start at padding index plus one and come from the ids, and the first rows of the table are never read by real tokens. This is how RoBERTa
counts. Padding has the zero row; texts give the same output with any amount of padding on either side.
"""
import torch
import torch.nn as nn

CASE = {
    "kind": "oddity",
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/5285",
    "cause": "Position ids are offset by padding_idx + 1 on purpose, so that padding uses the zero row; the offset is consistent.",
    "number": "relative difference between outputs of a text alone, right-padded and left-padded",
    "healthy": (0.0, 1e-3),
    "faulty": None,
}
PAD, MASK = 1, 3


class Roberta(nn.Module):
    def __init__(self, vocab=50, d=64, depth=2, length=24):
        super().__init__()
        self.word = nn.Embedding(vocab, d, padding_idx=PAD)
        self.place = nn.Embedding(length + PAD + 1, d, padding_idx=PAD)
        with torch.no_grad():
            for e in (self.word, self.place):
                e.weight.normal_(std=0.1)
                e.weight[PAD].zero_()
        self.norm = nn.LayerNorm(d)
        layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.dense, self.head_norm = nn.Linear(d, d), nn.LayerNorm(d)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids):
        keep = ids.ne(PAD).long()
        place = keep.cumsum(1) * keep + PAD
        x = self.norm(self.word(ids) + self.place(place))
        x = self.encoder(x, src_key_padding_mask=keep == 0)
        return self.head_norm(nn.functional.gelu(self.dense(x))) @ self.word.weight.T + self.bias


def build(faulty):
    torch.manual_seed(512)
    return Roberta()


def texts():
    g = torch.Generator().manual_seed(4)
    s, d = torch.randint(0, 46, (8, 1), generator=g), torch.randint(1, 5, (8, 1), generator=g)
    ids = (s + d * torch.arange(24)) % 46 + 4
    return ids.masked_fill(torch.arange(24) >= torch.tensor([24, 10, 18, 13, 21, 8, 24, 16])[:, None], PAD)


def batch():
    ids = texts()
    hide = torch.rand(ids.shape, generator=torch.Generator().manual_seed(5)) < 0.15
    return ids.masked_fill(hide & (ids != PAD), MASK)


def loss(output, ids):
    target = texts()[: len(ids)].masked_fill(ids != MASK, -100)
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def proof(faulty):
    model, worst = build(faulty).eval(), 0.0
    for row in texts():
        text = row[row != PAD][:10][None]
        pad = torch.full((1, 6), PAD)
        a = model(text)
        for b in (model(torch.cat([text, pad], 1))[:, : text.shape[1]], model(torch.cat([pad, text], 1))[:, 6:]):
            worst = max(worst, ((a - b).abs().max() / a.std()).item())
    return worst


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

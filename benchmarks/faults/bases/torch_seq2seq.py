"""A translator around torch.nn.Transformer with its defaults: norms on the sums, a norm after each stack."""

import math

import torch
from torch import nn

SRC, TGT, DIM, HEADS, LAYERS, FFN, DROP = 64, 64, 64, 4, 3, 256, 0.0


class Embed(nn.Module):
    def __init__(self, size, max_len=64):
        super().__init__()
        self.tokens = nn.Embedding(size, DIM)
        nn.init.normal_(self.tokens.weight, std=DIM**-0.5)
        angle = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, DIM, 2) / DIM)
        self.register_buffer("table", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))
        self.dropout = nn.Dropout(DROP)

    def forward(self, ids):
        x = self.tokens(ids) * math.sqrt(DIM)
        x = x + self.table[: ids.shape[1]]
        return self.dropout(x)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = Embed(SRC)
        self.target = Embed(TGT)
        self.transformer = nn.Transformer(
            d_model=DIM,
            nhead=HEADS,
            num_encoder_layers=LAYERS,
            num_decoder_layers=LAYERS,
            dim_feedforward=FFN,
            dropout=DROP,
            batch_first=True,
        )
        self.generator = nn.Linear(DIM, TGT)
        nn.init.normal_(self.generator.weight, std=DIM**-0.5)

    def forward(self, src, tgt):
        size = tgt.shape[1]
        tgt_mask = torch.triu(torch.ones(size, size, dtype=torch.bool, device=tgt.device), diagonal=1)
        x, y = self.source(src), self.target(tgt)
        out = self.transformer(x, y, tgt_mask=tgt_mask)
        return self.generator(out)


def build():
    model = Translator()
    return model

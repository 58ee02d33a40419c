"""A language model around torch.nn.TransformerEncoder, as in the tutorials: sinusoidal positions, a square mask."""

import math

import torch
from torch import nn

ntoken, d_model, nhead, nlayers, dropout = 64, 64, 4, 4, 0.0


class PositionalEncoding(nn.Module):
    def __init__(self, max_len=128):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)]
        return self.dropout(x)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding()
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, 4 * d_model, dropout, activation="relu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(d_model)
        self.transformer = nn.TransformerEncoder(layer, nlayers, norm=norm, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self):
        for p in self.transformer.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.encoder.weight, std=d_model**-0.5)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, src):
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(1), device=src.device)
        x = self.encoder(src) * math.sqrt(d_model)
        x = self.pos_encoder(x)
        x = self.transformer(x, mask=mask)
        output = self.decoder(x)
        return output


def build():
    model = LanguageModel()
    return model

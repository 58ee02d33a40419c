"""The model of the examples of these pages: a small Pre-LN decoder without a fault, which each example overrides."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm2 = nn.LayerNorm(32)
        self.ffn = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def split(self, z):
        return z.unflatten(-1, (4, 8)).transpose(1, 2)

    def mix(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def attend(self, x):
        q, k, v = (self.split(z) for z in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, layer=Layer):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(101, 32), nn.Embedding(64, 32)
        self.layers = nn.Sequential(*[layer() for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 101)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def embed(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.embed(ids))))

# ruff: noqa: N806 - written as such files are
"""A vision transformer: patches by a convolution, a class token, learned positions, fused qkv, a last norm."""

import torch
from torch import nn

IMAGE, PATCH, DIM, DEPTH, HEADS, CLASSES = 16, 4, 64, 4, 4, 16
TOKENS = (IMAGE // PATCH) ** 2


class Attention(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.scale = (DIM // HEADS) ** -0.5
        self.qkv = nn.Linear(DIM, DIM * 3)
        self.proj = nn.Linear(DIM, DIM)
        self.attn_drop = nn.Dropout(0.0)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(DIM, 4 * DIM)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        x = self.act(self.fc1(x))
        return self.fc2(x)


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.norm1 = nn.LayerNorm(DIM, eps=1e-6)
        self.attn = Attention(index)
        self.norm2 = nn.LayerNorm(DIM, eps=1e-6)
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, kernel_size=PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.zeros(1, TOKENS + 1, DIM))
        self.pos_drop = nn.Dropout(0.0)
        self.blocks = nn.ModuleList([Block(i) for i in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.head = nn.Linear(DIM, CLASSES)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            nn.init.zeros_(m.bias)

    def forward(self, images):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.pos_embed
        x = self.pos_drop(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, 0])


def build():
    model = ViT()
    return model

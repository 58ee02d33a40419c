"""Attention dropout goes on in evaluation: the functional attention does not know the module's mode.

scaled_dot_product_attention drops whenever dropout_p is above 0, so passing the rate as it stands makes evaluation random. The healthy twin passes 0
outside training.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "state",
    "shows": "model",
    "source": "https://github.com/huggingface/pytorch-image-models/pull/1978",
    "cause": "scaled_dot_product_attention gets the dropout rate in evaluation mode too, so attention dropout stays active in eval.",
    "number": "largest difference of two evaluation passes over the same images",
    "healthy": (0.0, 1e-5),
    "faulty": (0.01, 10.0),
}
D, HEADS, PATCH, SIDE, CLASSES = 64, 4, 4, 24, 10


class Attention(nn.Module):
    def __init__(self, drop, faulty):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.attn_drop, self.proj_drop = drop, nn.Dropout(drop)
        self.variant = faulty

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        p = self.attn_drop if self.training or self.variant else 0.0
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(B, N, C)))


class Block(nn.Module):
    def __init__(self, drop, faulty):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6)
        self.attn = Attention(drop, faulty)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Dropout(drop), nn.Linear(4 * D, D), nn.Dropout(drop))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, drop=0.1, faulty=False):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.patch_embed = nn.Conv2d(3, D, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.randn(1, 1, D) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, n + 1, D) * 0.02)
        self.blocks = nn.Sequential(*[Block(drop, faulty) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(D, eps=1e-6), nn.Linear(D, CLASSES)

    def forward(self, img):
        x = self.patch_embed(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def build(faulty: bool):
    torch.manual_seed(0)
    return ViT(faulty=faulty)


def batch():
    return torch.randn(8, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def loss(output, batch):
    return F.cross_entropy(output, torch.arange(len(batch)) % CLASSES)


@torch.no_grad()
def proof(faulty: bool) -> float:
    m, x = build(faulty).eval(), batch()
    return (m(x) - m(x)).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

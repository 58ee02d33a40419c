"""Attention mask of a vision Transformer applied after the softmax.

The unfused branch of a ViT computed the softmax over all patches and set the weights of the masked ones to zero afterwards. The rest no longer sums to one
and depends on padding. The healthy twin masks the scores before the softmax.
"""
import torch
from torch import nn

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/huggingface/pytorch-image-models/pull/2236",
    "cause": "The attention mask is applied after the softmax and not before it, so weights do not sum to one and padded patches still act through the denominator.",
    "number": "relative change of the class logits when more padded patches are added",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}


class Attention(nn.Module):
    def __init__(self, dim, num_heads, post):
        super().__init__()
        self.num_heads, self.scale, self.post = num_heads, (dim // num_heads) ** -0.5, post
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, attn_mask):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        drop = ~attn_mask[:, None, None, :]
        if self.post:
            attn = attn.softmax(dim=-1).masked_fill(drop, 0.0)
        else:
            attn = attn.masked_fill(drop, float("-inf")).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class EvaBlock(nn.Module):
    def __init__(self, dim, num_heads, post):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads, post)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, attn_mask):
        x = x + self.attn(self.norm1(x), attn_mask)
        return x + self.mlp(self.norm2(x))


class NaViT(nn.Module):
    def __init__(self, patch_dim=48, dim=64, depth=2, num_heads=4, grid=8, classes=10, post=False):
        super().__init__()
        self.patch_embed = nn.Linear(patch_dim, dim)
        self.row, self.col = nn.Embedding(grid, dim), nn.Embedding(grid, dim)
        for e in (self.row, self.col):
            nn.init.normal_(e.weight, std=0.1)
        self.blocks = nn.ModuleList([EvaBlock(dim, num_heads, post) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, patches, coord, valid):
        x = self.patch_embed(patches) + self.row(coord[..., 0]) + self.col(coord[..., 1])
        for blk in self.blocks:
            x = blk(x, valid)
        w = valid.unsqueeze(-1).float()
        return self.head((self.norm(x) * w).sum(1) / w.sum(1))


def build(faulty):
    torch.manual_seed(21)
    return NaViT(post=faulty)


def batch(extra=0):
    g = torch.Generator().manual_seed(5)
    sizes = [(8, 8), (4, 6), (5, 5), (3, 7), (6, 6), (2, 8)]
    total = 64 + extra
    patches, coord, valid = torch.zeros(6, total, 48), torch.zeros(6, total, 2, dtype=torch.long), torch.zeros(6, total, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes):
        patches[i, : h * w] = torch.randn(h * w, 48, generator=g)
        coord[i, : h * w] = torch.cartesian_prod(torch.arange(h), torch.arange(w))
        valid[i, : h * w] = True
    return {"patches": patches, "coord": coord, "valid": valid}


def loss(output, batch):
    return nn.functional.cross_entropy(output, torch.arange(6))


def proof(faulty):
    model = build(faulty).eval()
    with torch.no_grad():
        a, b = model(**batch()), model(**batch(extra=64))
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

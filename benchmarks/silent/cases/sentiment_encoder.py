"""Padding mask given to MultiheadAttention as floating point zeros and ones.

People passed a float key_padding_mask made of 0 and 1. A float mask is added to the scores, so a padded key gets one more point in place of being cut off,
and nothing complains. The healthy twin keeps the mask boolean.
"""
import torch
from torch import nn, Tensor

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/pytorch/pytorch/issues/136816",
    "cause": "key_padding_mask has a float dtype (0/1), so it is added to the attention scores and does not exclude padding tokens.",
    "number": "relative change of the sentence logits when eight more padding tokens are appended",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 20.0),
}
PAD = 0


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_a = nn.LayerNorm(width)
        self.norm_b = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        y = self.norm_a(x)
        x = x + self.attention(y, y, y, key_padding_mask=pad, need_weights=False)[0]
        return x + self.mlp(self.norm_b(x))


class SentimentEncoder(nn.Module):
    def __init__(self, vocab=60, width=64, heads=4, depth=2, length=32, classes=3, mask_dtype=torch.bool):
        super().__init__()
        self.mask_dtype = mask_dtype
        self.tokens = nn.Embedding(vocab, width, padding_idx=PAD)
        self.places = nn.Embedding(length, width)
        nn.init.normal_(self.places.weight, std=0.2)
        self.layers = nn.ModuleList([EncoderLayer(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        pad = ids == PAD
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for layer in self.layers:
            x = layer(x, pad.to(self.mask_dtype))
        keep = (~pad).unsqueeze(-1).to(x.dtype)
        return self.classifier((self.norm(x) * keep).sum(1) / keep.sum(1))


def build(faulty: bool) -> nn.Module:
    torch.manual_seed(2)
    return SentimentEncoder(mask_dtype=torch.float32 if faulty else torch.bool)


def batch() -> Tensor:
    g = torch.Generator().manual_seed(4)
    ids = torch.randint(1, 60, (8, 32), generator=g)
    lengths = torch.tensor([32, 9, 14, 6, 20, 11, 24, 8])
    return ids.masked_fill(torch.arange(32) >= lengths[:, None], PAD)


def loss(output: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, ids[:, 0] % 3)


def proof(faulty: bool) -> float:
    model = build(faulty)
    ids = batch()[[1, 3, 5, 7]]
    with torch.no_grad():
        a, b = model(ids[:, :16]), model(ids[:, :24])
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

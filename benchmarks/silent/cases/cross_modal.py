"""Masks of the batch are laid out in another order than the heads expect.

nn.MultiheadAttention wants a mask per sample and head, sample-major. A text-video model tiled the batch of masks with repeat, so the heads of one
sample use masks of other samples. The healthy twin repeats each mask in place.
"""
import torch
from torch import nn

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/ArrowLuo/CLIP4Clip/issues/22",
    "cause": "3D attn_mask is tiled with repeat where repeat_interleave is needed, so heads use the padding mask of the wrong sample of the batch.",
    "number": "relative difference between outputs of a sample in the batch and alone",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model, n_head, faulty):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1, self.ln_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))
        self.n_head, self.variant = n_head, faulty

    def forward(self, x, bias):
        if self.variant:
            bias = bias.repeat(self.n_head, 1, 1)
        else:
            bias = bias.repeat_interleave(self.n_head, dim=0)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=bias)[0]
        return x + self.mlp(self.ln_2(x))


class CrossModel(nn.Module):
    def __init__(self, feat=24, vocab=40, d_model=64, n_head=4, layers=2, frames=10, words=12, faulty=False):
        super().__init__()
        self.video = nn.Linear(feat, d_model)
        self.word = nn.Embedding(vocab, d_model)
        self.place = nn.Parameter(0.1 * torch.randn(frames + words, 1, d_model))
        nn.init.normal_(self.word.weight, std=0.2)
        self.blocks = nn.ModuleList([ResidualAttentionBlock(d_model, n_head, faulty) for _ in range(layers)])
        self.ln = nn.LayerNorm(d_model)
        self.similarity = nn.Linear(d_model, 1)

    def forward(self, frames, words, keep):
        x = torch.cat([self.word(words), self.video(frames)], dim=1).transpose(0, 1) + self.place
        bias = torch.zeros_like(keep, dtype=x.dtype).masked_fill(~keep, -1e6)
        bias = bias[:, None, :].expand(-1, keep.shape[1], -1)
        for block in self.blocks:
            x = block(x, bias)
        x = self.ln(x).transpose(0, 1)
        return self.similarity(x[:, 0]).squeeze(-1)


def build(faulty):
    torch.manual_seed(11)
    return CrossModel(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(9)
    n_words, n_frames = torch.tensor([12, 4, 7, 2, 9, 5]), torch.tensor([3, 10, 5, 8, 2, 6])
    keep = torch.cat([torch.arange(12) < n_words[:, None], torch.arange(10) < n_frames[:, None]], dim=1)
    words = torch.randint(1, 40, (6, 12), generator=g).masked_fill(~keep[:, :12], 0)
    return {"frames": torch.randn(6, 10, 24, generator=g), "words": words, "keep": keep}


def loss(output, batch):
    return nn.functional.binary_cross_entropy_with_logits(output, (batch["words"][:, 0] % 2).float())


def proof(faulty):
    model, data = build(faulty).eval(), batch()
    with torch.no_grad():
        whole = model(**data)
        alone = torch.cat([model(**{k: v[i:i + 1] for k, v in data.items()}) for i in range(6)])
    return ((whole - alone).abs().max() / whole.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

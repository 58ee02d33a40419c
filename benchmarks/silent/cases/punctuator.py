"""A Pre-LN encoder hands its last residual stream to the head without a norm.

With the norms inside the residual blocks nothing normalises the sum that leaves the stack; the fix added a last layer norm to Pre-LN encoders and decoders.
Output size then grows with depth and training. The healthy twin has that norm.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "norm", "shows": "model",
    "source": "https://github.com/NVIDIA-NeMo/Speech/pull/2197",
    "cause": "The Pre-LN encoder has no final layer norm, so the head reads the unnormalised residual stream whose size grows with depth.",
    "number": "factor by which the logits grow when the residual stream that leaves the last block is multiplied by 4",
    "healthy": (0.9, 1.2),
    "faulty": (3.0, 5.0),
}


class PreLNBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.norm_a, self.norm_f = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, h, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, x, pad):
        y = self.norm_a(x)
        x = x + self.att(y, y, y, key_padding_mask=pad, need_weights=False)[0]
        return x + self.ff(self.norm_f(x))


class TransformerEncoder(nn.Module):
    def __init__(self, faulty, d=64, h=4, depth=8):
        super().__init__()
        self.layers = nn.ModuleList(PreLNBlock(d, h) for _ in range(depth))
        self.final_norm = None if faulty else nn.LayerNorm(d)

    def forward(self, x, pad):
        for layer in self.layers:
            x = layer(x, pad)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x


class Punctuator(nn.Module):
    """Gives each word of a transcript one of five marks."""

    def __init__(self, faulty, vocab=200, d=64, marks=5, length=30):
        super().__init__()
        self.words = nn.Embedding(vocab, d, padding_idx=0)
        self.place = nn.Embedding(length, d)
        self.encoder = TransformerEncoder(faulty, d)
        self.head = nn.Linear(d, marks, bias=False)

    def forward(self, ids):
        x = self.words(ids) + 0.3 * self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.encoder(x, ids == 0))


def build(faulty: bool):
    torch.manual_seed(0)
    return Punctuator(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 200, (8, 30), generator=g)
    n = torch.randint(15, 31, (8, 1), generator=g)
    return ids.masked_fill(torch.arange(30) >= n, 0)


def loss(output, ids):
    return nn.functional.cross_entropy(output[ids > 0], (ids[ids > 0] % 25) // 5)


def proof(faulty: bool) -> float:
    model, ids = build(faulty).eval(), batch()
    with torch.no_grad():
        a = model(ids)[ids > 0].std()
        model.encoder.layers[-1].register_forward_hook(lambda m, i, o: 4 * o)
        b = model(ids)[ids > 0].std()
    return (b / a).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

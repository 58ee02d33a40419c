"""A hand-written layer norm takes mean and deviation along the sequence instead of the features.

In an early port the moments of (batch, time, feature) tensors were computed over axis 1, so each token's values depend on all the others and a causal
decoder sees the future through the statistics. The healthy twin uses the last axis.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "norm", "shows": "model",
    "source": "https://github.com/jadore801120/attention-is-all-you-need-pytorch/pull/17",
    "cause": "The layer norm computes its statistics over the sequence axis instead of the feature axis, so later tokens leak into earlier positions.",
    "number": "largest change of earlier logits when the last token changes",
    "healthy": (0.0, 1e-5),
    "faulty": (1e-3, 1e3),
}


class LayerNormalization(nn.Module):
    def __init__(self, d_hid, axis, eps=1e-5):
        super().__init__()
        self.a = nn.Parameter(torch.ones(d_hid))
        self.b = nn.Parameter(torch.zeros(d_hid))
        self.axis, self.eps = axis, eps

    def forward(self, z):
        mu = z.mean(dim=self.axis, keepdim=True)
        var = (z - mu).pow(2).mean(dim=self.axis, keepdim=True)
        return self.a * (z - mu) / torch.sqrt(var + self.eps) + self.b


class Sublayers(nn.Module):
    def __init__(self, d, heads, axis):
        super().__init__()
        self.slf = nn.MultiheadAttention(d, heads, batch_first=True)
        self.w1, self.w2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.ln1, self.ln2 = LayerNormalization(d, axis), LayerNormalization(d, axis)

    def forward(self, x, mask):
        y = self.ln1(x)
        x = x + self.slf(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.w2(torch.relu(self.w1(self.ln2(x))))


class Decoder(nn.Module):
    def __init__(self, faulty, n_vocab=70, d=64, heads=4, n_layers=3, n_max=28):
        super().__init__()
        axis = 1 if faulty else -1
        self.word, self.position = nn.Embedding(n_vocab, d), nn.Embedding(n_max, d)
        nn.init.normal_(self.word.weight, std=0.3)
        nn.init.normal_(self.position.weight, std=0.1)
        self.layers = nn.ModuleList(Sublayers(d, heads, axis) for _ in range(n_layers))
        self.ln = LayerNormalization(d, axis)
        self.proj = nn.Linear(d, n_vocab, bias=False)

    def forward(self, seq):
        t = seq.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool, device=seq.device).triu(1)
        x = self.word(seq) + self.position(torch.arange(t, device=seq.device))
        for layer in self.layers:
            x = layer(x, mask)
        return self.proj(self.ln(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return Decoder(faulty)


def batch():
    return torch.randint(0, 70, (6, 28), generator=torch.Generator().manual_seed(1))


def loss(output, seq):
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), seq[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model, a = build(faulty).eval(), batch()
    b = a.clone()
    b[:, -1] = (b[:, -1] + 9) % 70
    with torch.no_grad():
        return (model(a) - model(b))[:, :-1].abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

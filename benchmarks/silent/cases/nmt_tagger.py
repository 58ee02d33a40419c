"""Padding mask broadcast along the queries in place of the keys.

A translation tutorial shaped the padding mask as (batch, 1, length, 1). It broadcasts without complaint over the score matrix and blanks rows of padded queries,
while real tokens go on attending to padding. The healthy twin shapes it as (batch, 1, 1, length).
"""
import math
import torch
import torch.nn as nn

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/hyunwoongko/transformer/pull/40",
    "cause": "The padding mask is unsqueezed on the wrong axis (query instead of key), so padded keys are attended to by real tokens.",
    "number": "relative change of the tag logits of real tokens when the padding is made longer",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}
PAD = 1


class ScaleDotProductAttention(nn.Module):
    def forward(self, q, k, v, mask):
        score = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        score = score.masked_fill(mask == 0, -10000.0)
        return torch.einsum("bhqk,bhkd->bhqd", score.softmax(dim=-1), v)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.w_concat = [nn.Linear(d_model, d_model) for _ in range(4)]
        self.attention = ScaleDotProductAttention()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = [w(x).view(b, t, self.n_head, -1).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v)]
        y = self.attention(q, k, v, mask).transpose(1, 2).reshape(b, t, d)
        x = self.norm1(x + self.w_concat(y))
        return self.norm2(x + self.ffn(x))


class Tagger(nn.Module):
    def __init__(self, vocab=50, d_model=64, n_head=4, n_layers=2, max_len=30, tags=7, faulty=False):
        super().__init__()
        self.variant = faulty
        self.tok_emb = nn.Embedding(vocab, d_model, padding_idx=PAD)
        place, freq = torch.arange(max_len)[:, None], torch.exp(-math.log(1e4) * torch.arange(0, d_model, 2) / d_model)
        pe = torch.stack([(place * freq).sin(), (place * freq).cos()], dim=-1).flatten(1)
        self.register_buffer("pe", pe)
        self.layers = nn.ModuleList([EncoderLayer(d_model, n_head) for _ in range(n_layers)])
        self.linear = nn.Linear(d_model, tags)

    def make_mask(self, src):
        keep = src != PAD
        if self.variant:
            return keep.unsqueeze(1).unsqueeze(3)
        return keep.unsqueeze(1).unsqueeze(2)

    def forward(self, src):
        mask = self.make_mask(src)
        x = self.tok_emb(src) + self.pe[: src.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return self.linear(x)


def build(faulty):
    torch.manual_seed(0)
    return Tagger(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(12)
    src = torch.randint(2, 50, (8, 30), generator=g)
    return src.masked_fill(torch.arange(30) >= torch.tensor([30, 7, 12, 15, 22, 5, 10, 18])[:, None], PAD)


def loss(output, src):
    tags = (src % 7).masked_fill(src == PAD, -100)
    return nn.functional.cross_entropy(output.flatten(0, 1), tags.flatten(), ignore_index=-100)


def proof(faulty):
    model, src = build(faulty).eval(), batch()[[1, 2, 3, 5, 6]]
    with torch.no_grad():
        a, b = model(src[:, :15]), model(src)[:, :15]
    real = src[:, :15] != PAD
    return ((a - b)[real].abs().max() / a[real].std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

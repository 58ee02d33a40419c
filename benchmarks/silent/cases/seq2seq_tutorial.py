"""The encoder-decoder attention takes its queries from the encoder and its keys and values from the decoder.

A tutorial's decoder passed the memory as the query; source and target are padded to one length, so the shapes fit. Decoder position t
then gets an answer looked up for source position t, out of unmasked later target positions. The healthy twin asks with the decoder.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/rexrex9/nlp_torchtext/pull/2",
    "cause": "Query and memory are swapped in the cross-attention: the encoder output is the query and the decoder states are keys and values, so decoder positions read later target tokens and no source content is retrieved.",
    "number": "largest change of the logits before the last position when the last target token changes",
    "healthy": (0.0, 1e-5),
    "faulty": (1e-3, 1e3),
}


class DecoderLayer(nn.Module):
    def __init__(self, d, h, faulty):
        super().__init__()
        self.variant = faulty
        self.self_attn = nn.MultiheadAttention(d, h)
        self.src_attn = nn.MultiheadAttention(d, h)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, y, memory, causal):
        h = self.n1(y)
        y = y + self.self_attn(h, h, h, attn_mask=causal, need_weights=False)[0]
        h = self.n2(y)
        if self.variant:
            y = y + self.src_attn(memory, h, h, need_weights=False)[0]
        else:
            y = y + self.src_attn(h, memory, memory, need_weights=False)[0]
        return y + self.ff(self.n3(y))


class Seq2Seq(nn.Module):
    def __init__(self, faulty, vocab=50, d=64, h=4, layers=2, length=20):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(length, 1, d) * 0.1)
        nn.init.normal_(self.tok.weight, std=0.5)
        enc = [nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, norm_first=True) for _ in range(layers)]
        self.encoder = nn.ModuleList(enc)
        self.enc_norm = nn.LayerNorm(d)
        self.decoder = nn.ModuleList(DecoderLayer(d, h, faulty) for _ in range(layers))
        self.dec_norm = nn.LayerNorm(d)
        self.generator = nn.Linear(d, vocab)

    def forward(self, src, tgt):
        m = self.tok(src) + self.pos
        for layer in self.encoder:
            m = layer(m)
        m = self.enc_norm(m)
        t = tgt.shape[0]
        causal = torch.full((t, t), float("-inf"), device=tgt.device).triu(1)
        y = self.tok(tgt) + self.pos[:t]
        for layer in self.decoder:
            y = layer(y, m, causal)
        return self.generator(self.dec_norm(y))


def build(faulty: bool):
    torch.manual_seed(0)
    return Seq2Seq(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    src = torch.randint(1, 50, (20, 8), generator=g)
    out = src.flip(0)
    return {"src": src, "tgt": torch.cat([torch.zeros(1, 8, dtype=torch.long), out[:-1]])}


def loss(output, b):
    return nn.functional.cross_entropy(output.flatten(0, 1), b["src"].flip(0).flatten())


def proof(faulty: bool) -> float:
    model, b = build(faulty).eval(), batch()
    other = b["tgt"].clone()
    other[-1] = (other[-1] + 7) % 50
    with torch.no_grad():
        a, c = model(**b), model(b["src"], other)
    return (a - c)[:-1].abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Integer division inside the sinusoidal position table: every frequency is the same.

The exponent 2i/d was divided as integers and became 0 for all channels, so all sine and cosine pairs turn at one frequency and positions are
ambiguous. The healthy twin divides as floats.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "precision",
    "shows": "model",
    "source": "https://github.com/Kyubyong/transformer/pull/81",
    "cause": "The exponent of the sinusoidal position table uses integer division and is 0 everywhere, so all channels have one and the same frequency.",
    "number": "rank of the position table of 100 positions and 64 channels",
    "healthy": (12.0, 64.0),
    "faulty": (1.0, 4.0),
}
SRC, TGT, D, LEN = 70, 60, 64, 100


class SinusoidTable(nn.Module):
    def __init__(self, length, dim, faulty):
        super().__init__()
        channel = torch.arange(0, dim, 2)
        power = channel // dim if faulty else channel / dim
        angle = torch.arange(length)[:, None] / torch.pow(torch.tensor(10000.0), power)[None]
        table = torch.zeros(length, dim)
        table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
        self.register_buffer("table", table)

    def forward(self, steps):
        return self.table[:steps, None]        # time first


class Translator(nn.Module):
    """Encoder-decoder, time first."""

    def __init__(self, faulty):
        super().__init__()
        self.src, self.tgt = nn.Embedding(SRC, D), nn.Embedding(TGT, D)
        self.position = SinusoidTable(LEN, D, faulty)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 4, 2 * D), 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 4, 2 * D), 2)
        self.generator = nn.Linear(D, TGT)
        for p in [*self.encoder.parameters(), *self.decoder.parameters()]:
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.src.weight, std=D ** -0.5)
        nn.init.normal_(self.tgt.weight, std=D ** -0.5)

    def forward(self, src, tgt):
        s = self.src(src) * D ** 0.5 + self.position(src.shape[0])
        t = self.tgt(tgt) * D ** 0.5 + self.position(tgt.shape[0])
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[0], device=tgt.device)
        return self.generator(self.decoder(t, self.encoder(s), tgt_mask=causal, tgt_is_causal=True))


def build(faulty: bool):
    torch.manual_seed(0)
    return Translator(faulty)


def batch():
    g = torch.Generator().manual_seed(2)
    src = torch.randint(3, SRC, (24, 8), generator=g)
    tgt = torch.randint(3, TGT, (20, 8), generator=g)
    tgt[0] = 1
    return {"src": src, "tgt": tgt}


def loss(output, batch):
    return F.cross_entropy(output[:-1].flatten(0, 1), batch["tgt"][1:].flatten())


def proof(faulty: bool) -> float:
    s = torch.linalg.svdvals(build(faulty).position(LEN)[:, 0].double())
    return float((s > 1e-3 * s[0]).sum())


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Denoising pretraining feeds the decoder the very tokens it has to predict.

A training of Transformers reached a loss of almost zero and learned nothing of use: decoder inputs and labels were cut from
the target at the same offset, so each decoder position could copy its own input. The healthy twin shifts the inputs right.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/Project-MONAI/GenerativeModels/issues/314",
    "cause": "Decoder inputs and labels are aligned to the same position, so the target leaks into the decoder input and the model copies it.",
    "number": "share of real label positions whose decoder input is the label itself",
    "healthy": (0.0, 0.1),
    "faulty": (0.99, 1.0),
}
PAD, BOS, EOS, MASK, VOCAB = 0, 1, 2, 3, 64


def sentences(n=256, seed=0):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        k = int(torch.randint(8, 15, (1,), generator=g))
        a, s = int(torch.randint(0, 60, (1,), generator=g)), int(torch.randint(1, 5, (1,), generator=g))
        out.append(4 + (a + s * torch.arange(k)) % 60)
    return out


class Denoise:
    def __init__(self, faulty, seed=1):
        self.variant, self.g = faulty, torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        pad = lambda xs, v: nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=v)
        src, dst, labels = [], [], []
        for r in rows:
            hide = torch.rand(len(r), generator=self.g) < 0.3
            src.append(torch.cat([torch.tensor([BOS]), r.masked_fill(hide, MASK), torch.tensor([EOS])]))
            full = torch.cat([torch.tensor([BOS]), r, torch.tensor([EOS])])
            dst.append(full[1:] if self.variant else full[:-1])
            labels.append(full[1:])
        return {"src": pad(src, PAD), "dst": pad(dst, PAD), "labels": pad(labels, -100)}


class EncoderDecoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.shared, self.scale = nn.Embedding(VOCAB, d, padding_idx=PAD), d ** 0.5
        self.pos = nn.Embedding(24, d)
        self.core = nn.Transformer(d, 4, 1, 1, 2 * d, dropout=0.0, batch_first=True)
        self.core.encoder.enable_nested_tensor = False
        self.lm = nn.Linear(d, VOCAB)

    def embed(self, ids):
        return self.shared(ids) + self.pos.weight[: ids.size(1)]

    def forward(self, src, dst):
        causal = torch.ones(dst.size(1), dst.size(1), dtype=torch.bool).triu(1)
        gone = src == PAD
        y = self.core(self.embed(src), self.embed(dst), tgt_mask=causal, src_key_padding_mask=gone, memory_key_padding_mask=gone)
        return self.lm(y)


def setup(faulty: bool):
    torch.manual_seed(0)
    model = EncoderDecoder()
    data = DataLoader(sentences(), 16, shuffle=True, collate_fn=Denoise(faulty), generator=torch.Generator().manual_seed(2))

    def loss(model, b):
        return F.cross_entropy(model(b["src"], b["dst"]).flatten(0, 1), b["labels"].flatten(), ignore_index=-100)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 60}


def proof(faulty: bool) -> float:
    same = []
    for b in setup(faulty)["data"]:
        real = b["labels"] != -100
        same.append((b["dst"] == b["labels"])[real])
    return torch.cat(same).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Label-smoothed loss of a summarizer averages over padded positions as well.

A summarization decoder trained with label smoothing kept receiving signal from the padding behind short targets.
The smoothing term is a dense sum over the vocabulary and knows nothing of the pad id, so its padded rows stayed in.
The healthy twin drops the padded rows from both terms and divides by the count of real tokens.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/k-tahiro/bert-summarizer/pull/41",
    "cause": "The label smoothing loss does not leave out padding positions, so padded targets are trained on.",
    "number": "share of the squared logit gradient that falls on padded target positions",
    "healthy": (0.0, 1e-6),
    "faulty": (0.2, 0.95),
}
PAD, BOS, EOS, VOCAB, D = 0, 1, 2, 60, 48


class Summarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(32, D) * 0.02)
        enc = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.0, batch_first=True)
        dec = nn.TransformerDecoderLayer(D, 4, 96, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(enc, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(dec, 1)
        self.out = nn.Linear(D, VOCAB)

    def forward(self, src, tgt):
        hide = src == PAD
        mem = self.encoder(self.emb(src) + self.pos[: src.size(1)], src_key_padding_mask=hide)
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        y = self.decoder(self.emb(tgt) + self.pos[: tgt.size(1)], mem, tgt_mask=causal, memory_key_padding_mask=hide)
        return self.out(y)


class SmoothedNLL(nn.Module):
    def __init__(self, faulty, eps=0.1):
        super().__init__()
        self.variant, self.eps = faulty, eps

    def forward(self, logits, target):
        logp = F.log_softmax(logits, -1)
        nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        flat = -logp.mean(-1)
        per_token = (1 - self.eps) * nll + self.eps * flat
        if self.variant:
            return per_token.mean()
        keep = (target != PAD).float()
        return (per_token * keep).sum() / keep.sum()


def corpus(n=128, seed=0):
    g = torch.Generator().manual_seed(seed)
    src = torch.zeros(n, 20, dtype=torch.long)
    tgt = torch.zeros(n, 14, dtype=torch.long)
    for i in range(n):
        k = int(torch.randint(8, 21, (1,), generator=g))
        src[i, :k] = torch.randint(3, VOCAB, (k,), generator=g)
        m = k // 2
        body = src[i, : 2 * m : 2]
        tgt[i, : m + 2] = torch.cat([torch.tensor([BOS]), body, torch.tensor([EOS])])
    return src, tgt


def setup(faulty: bool):
    torch.manual_seed(0)
    model, criterion = Summarizer(), SmoothedNLL(faulty)
    data = DataLoader(TensorDataset(*corpus()), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        src, tgt = batch
        return criterion(model(src, tgt[:, :-1]), tgt[:, 1:])

    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "steps": 60, "criterion": criterion}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    src, tgt = next(iter(s["data"]))
    logits = s["model"](src, tgt[:, :-1]).detach().requires_grad_()
    s["criterion"](logits, tgt[:, 1:]).backward()
    g = logits.grad.pow(2).sum(-1)
    return (g[tgt[:, 1:] == PAD].sum() / g.sum()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

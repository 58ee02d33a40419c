"""Candidate ranker ends in a softmax and is trained with a cross-entropy that has its own.

A question answering model scored its candidates through a softmax layer and fed the probabilities to CrossEntropyLoss.
Gradients were small and the loss stopped far above zero. The healthy twin returns the linear scores.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "loss",
    "shows": "model",
    "source": "https://github.com/bowang-lab/Transformer-GCN-QA/pull/32",
    "cause": "The model applies softmax and cross entropy applies it again, so the loss has a floor far above zero and gradients are damped.",
    "number": "cross-entropy on new batches after 40 updates",
    "healthy": (0.0, 0.45),
    "faulty": (1.2, 2.2),
}
VOCAB, D, CANDS, QL, CL = 40, 60, 8, 6, 4


class Ranker(nn.Module):
    def __init__(self, faulty):
        super().__init__()
        self.variant = faulty
        self.tok = nn.Embedding(VOCAB, D)
        self.kind = nn.Embedding(2, D)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 1))

    def forward(self, question, candidates):
        b, c, l = candidates.shape
        q = question[:, None].expand(-1, c, -1).reshape(b * c, -1)
        pair = torch.cat([q, candidates.reshape(b * c, l)], 1)
        kind = (torch.arange(pair.size(1)) >= q.size(1)).long()
        h = self.enc(self.tok(pair) + self.kind(kind))
        scores = self.score(h.mean(1)).view(b, c)
        if self.variant:
            scores = F.softmax(scores, dim=-1)
        return scores


def build(faulty: bool):
    torch.manual_seed(0)
    return Ranker(faulty)


def sample(n, seed):
    g = torch.Generator().manual_seed(seed)
    question = torch.randint(0, VOCAB, (n, QL), generator=g)
    cands = torch.randint(4, VOCAB, (n, CANDS, CL), generator=g)
    label = torch.randint(0, CANDS, (n,), generator=g)
    cands[torch.arange(n), label, 0] = torch.randint(0, 4, (n,), generator=g)
    return {"question": question, "candidates": cands, "label": label}


def batch():
    b = sample(12, 1)
    return {k: b[k] for k in ("question", "candidates")}


def loss(output, batch):
    label = (batch["candidates"][:, :, 0] < 4).float().argmax(1)
    return F.cross_entropy(output, label)


def proof(faulty: bool) -> float:
    model = build(faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(40):
        b = sample(16, 50 + step)
        opt.zero_grad()
        F.cross_entropy(model(b["question"], b["candidates"]), b["label"]).backward()
        opt.step()
    with torch.no_grad():
        b = sample(64, 3)
        return F.cross_entropy(model(b["question"], b["candidates"]), b["label"]).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

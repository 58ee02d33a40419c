"""Reward model reads its value at the last column of the padded batch and not at the end token.

In reward training on right-padded pairs the score was taken from the last position of the row, which is mostly padding,
so it varied with the length of the longest row. The healthy twin picks the position of the end token.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/EleutherAI/gpt-neox/pull/1285",
    "cause": "The preference loss takes the reward at the last position of the padded sequence (a pad token) instead of the EOS token.",
    "number": "largest change of the loss's reward margin when 12 padded columns are appended",
    "healthy": (0.0, 1e-4),
    "faulty": (0.01, 10.0),
}
PAD, EOS, V, D, MAXLEN = 0, 1, 60, 48, 64


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(MAXLEN, D)
        layer = nn.TransformerEncoderLayer(D, 4, 3 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.value = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 1, bias=False))

    def forward(self, ids):
        t = ids.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).triu(1)
        return self.value(self.body(self.tok(ids) + self.pos.weight[:t], mask=causal)).squeeze(-1)


def preferences(n=192, seed=0):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        prompt = torch.randint(2, V, (6,), generator=g)
        lens = torch.randint(3, 24, (2,), generator=g)
        good = torch.randint(2, 30, (int(lens[0]),), generator=g)
        bad = torch.randint(20, V, (int(lens[1]),), generator=g)
        end = torch.tensor([EOS])
        out.append((torch.cat([prompt, good, end]), torch.cat([prompt, bad, end])))
    return out


def collate(rows):
    seqs = [a for a, _ in rows] + [b for _, b in rows]
    return nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=PAD)


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Scorer()

    def rewards(model, ids):
        values = model(ids)
        if faulty:
            return values[:, -1]
        end = (ids == EOS).long().argmax(1)
        return values.gather(1, end[:, None]).squeeze(1)

    def loss(model, batch):
        chosen, rejected = rewards(model, batch).chunk(2)
        return -F.logsigmoid(chosen - rejected).mean()

    data = DataLoader(preferences(), 16, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(0))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "steps": 50, "rewards": rewards}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    ids = next(iter(s["data"]))
    with torch.no_grad():
        a, b = (s["rewards"](s["model"], x) for x in (ids, F.pad(ids, (0, 12), value=PAD)))
    margin = lambda r: r.chunk(2)[0] - r.chunk(2)[1]
    return (margin(a) - margin(b)).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

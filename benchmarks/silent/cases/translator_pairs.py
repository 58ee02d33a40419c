"""Each micro-batch is averaged over its own tokens.

A batch of one short and one long text gives another gradient when it is cut into micro-batches: every micro-batch
counts alike, however few tokens it has. The twin divides the sums by the tokens of the whole group.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "accumulation",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/issues/24725",
    "cause": "With accumulation each micro-batch's loss is averaged over its own number of tokens and then equally weighted, so micro-batches with few tokens weigh too much.",
    "number": "distance of the gathered gradient from the whole batch's, relative",
    "healthy": (0.0, 0.001),
    "faulty": (0.05, 5.0),
}

SYMBOLS, BOS, PAD = 24, 22, 23


class Translator(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.src, self.tgt = nn.Embedding(SYMBOLS, dim), nn.Embedding(SYMBOLS, dim)
        self.where = nn.Parameter(torch.randn(32, dim) * 0.3)
        for e in (self.src, self.tgt):
            nn.init.normal_(e.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.core = nn.Transformer(dim, 4, 1, 1, 128, 0.0, custom_encoder=encoder, batch_first=True, norm_first=True)
        self.out = nn.Linear(dim, SYMBOLS)

    def forward(self, source, given):
        pad = source == PAD
        mask = torch.triu(torch.ones(given.size(1), given.size(1), dtype=torch.bool), 1)
        x = self.src(source) + self.where[: source.size(1)]
        y = self.tgt(given) + self.where[: given.size(1)]
        return self.out(self.core(x, y, tgt_mask=mask, src_key_padding_mask=pad, memory_key_padding_mask=pad))


def pairs(n, seed=0, low=3, high=16):
    g = torch.Generator().manual_seed(seed)
    source = torch.full((n, high), PAD)
    for row in source:
        k = int(torch.randint(low, high + 1, (1,), generator=g))
        row[:k] = torch.randint(0, 22, (k,), generator=g)
    target = torch.where(source == PAD, PAD, (source + 5) % 22)
    return source, target


def shifted(target):
    return torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)


def summed_loss(model, batch):
    source, target = batch
    logits = model(source, shifted(target))
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum")


def setup(faulty: bool):
    torch.manual_seed(21)
    model, micro = Translator(), 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    data = DataLoader(TensorDataset(*pairs(480)), batch_size=2, shuffle=True)
    count = lambda b: (b[1] != PAD).sum()

    def step(batches):
        optimizer.zero_grad()
        total = sum(count(b) for b in batches)
        for b in batches:
            if faulty:
                loss = summed_loss(model, b) / count(b) / len(batches)
            else:
                loss = summed_loss(model, b) / total
            loss.backward()
        optimizer.step()

    mean = lambda model, b: summed_loss(model, b) / count(b)
    return dict(model=model, loss=mean, data=data, optimizer=optimizer, step=step, accumulate=micro)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    model, it = s["model"], iter(s["data"])
    batches = [next(it) for _ in range(s["accumulate"])]
    whole = [torch.cat(x) for x in zip(*batches)]
    want = torch.cat([g.flatten() for g in torch.autograd.grad(s["loss"](model, whole), list(model.parameters()))])
    s["step"](batches)
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    return ((got - want).norm() / want.norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

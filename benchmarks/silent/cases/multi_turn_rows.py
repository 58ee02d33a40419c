"""Over-long conversations are cut at the end although the last assistant turn is what is supervised.

The dataset was configured to truncate on the left, but its no-padding branch always kept the prefix. For long samples the
final answer was gone and the row gave no loss. The healthy twin keeps the last max_length tokens.
"""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/verl-project/verl/pull/6372",
    "cause": "Truncation keeps the beginning of the row, so the supervised final response of long samples is dropped.",
    "number": "share of rows with at least one supervised token",
    "healthy": (0.99, 1.0),
    "faulty": (0.1, 0.75),
}
BOS, END, USER, BOT, VOCAB, MAX = 0, 1, 2, 3, 70, 32


class MultiTurn(Dataset):
    def __init__(self, faulty, n=160, seed=0):
        self.variant, self.max_length = faulty, MAX
        g = torch.Generator().manual_seed(seed)
        r = lambda lo, hi: int(torch.randint(lo, hi, (1,), generator=g))
        self.rows = []
        for _ in range(n):
            ids, mask = [BOS], [0]
            for _ in range(r(1, 5)):
                ask = torch.randint(4, VOCAB, (r(4, 10),), generator=g).tolist()
                turn = [USER] + ask + [END, BOT]
                ids, mask = ids + turn, mask + [0] * len(turn)
                reply = ask[:3] + [END]
                ids, mask = ids + reply, mask + [0] * len(reply)
            mask[-len(reply):] = [1] * len(reply)
            self.rows.append((torch.tensor(ids), torch.tensor(mask)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, mask = self.rows[i]
        if len(ids) > self.max_length:
            part = slice(None, self.max_length) if self.variant else slice(-self.max_length, None)
            ids, mask = ids[part], mask[part]
        return ids, mask


def collate(rows):
    """one flat stream, with the row number of each token"""
    ids, mask = zip(*rows)
    row = torch.cat([torch.full_like(x, i) for i, x in enumerate(ids)])
    pos = torch.cat([torch.arange(len(x)) for x in ids])
    return {"input_ids": torch.cat(ids), "loss_mask": torch.cat(mask), "position_ids": pos, "row": row}


class FlatLM(nn.Module):
    def __init__(self, d=48, heads=4):
        super().__init__()
        self.tok, self.pos, self.heads = nn.Embedding(VOCAB, d), nn.Embedding(MAX, d), heads
        self.qkv, self.o = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(2)), nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d)) for _ in range(2))
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, input_ids, position_ids, row):
        n = len(input_ids)
        see = (row[:, None] == row[None]) & torch.ones(n, n, dtype=torch.bool).tril()
        x = self.tok(input_ids) + self.pos(position_ids)
        for i in range(2):
            q, k, v = self.qkv[i](self.ln[i](x)).view(n, 3, self.heads, -1).permute(1, 2, 0, 3)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=see)
            x = x + self.o[i](a.transpose(0, 1).reshape(n, -1))
            x = x + self.mlp[i](x)
        return self.head(self.ln[2](x))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = FlatLM()

    def loss(model, b):
        logits = model(b["input_ids"], b["position_ids"], b["row"])[:-1]
        keep = b["loss_mask"][1:].float() * (b["row"][1:] == b["row"][:-1])
        ce = F.cross_entropy(logits, b["input_ids"][1:], reduction="none")
        return (ce * keep).sum() / keep.sum().clamp(min=1)

    data = DataLoader(MultiTurn(faulty), 12, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(0))
    return {"model": model, "loss": loss, "data": data, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3), "steps": 50}


def proof(faulty: bool) -> float:
    hit = total = 0
    for b in setup(faulty)["data"]:
        rows = int(b["row"].max()) + 1
        got = torch.zeros(rows, dtype=torch.long).index_add(0, b["row"], b["loss_mask"])
        hit, total = hit + int((got > 0).sum()), total + rows
    return hit / total


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Packed examples keep counting positions across the row.

The block mask kept packed examples apart, but no position ids were made, so the second example starts where the first one ended. With absolute positions
training differs from generation, where all texts start at zero. The healthy twin starts positions anew with each example.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "positions",
    "shows": "step",
    "source": "https://github.com/hiyouga/LlamaFactory/pull/7318",
    "cause": "Position ids are not reset per packed example (they continue across the row), so later examples are trained at positions never used in generation.",
    "number": "mean relative difference between logits of an example packed second and packed first",
    "healthy": (0.0, 1e-3),
    "faulty": (0.05, 20.0),
}
CUTOFF = 40


def pack(examples, faulty):
    row = torch.cat(examples)
    if faulty:
        position_ids = torch.arange(len(row))
    else:
        position_ids = torch.cat([torch.arange(len(e)) for e in examples])
    segment = torch.cat([torch.full((len(e),), i) for i, e in enumerate(examples)])
    return {"input_ids": row, "position_ids": position_ids, "segment": segment}


class Dataset(torch.utils.data.Dataset):
    def __init__(self, faulty, size=32):
        g = torch.Generator().manual_seed(20)
        self.variant, self.rows = faulty, []
        for _ in range(size):
            a = int(torch.randint(8, 32, (1,), generator=g))
            s, d = torch.randint(0, 40, (2,), generator=g), torch.randint(1, 5, (2,), generator=g)
            self.rows.append([(s[i] + d[i] * torch.arange(n)) % 40 for i, n in enumerate((a, CUTOFF - a))])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return pack(self.rows[i], self.variant)


class Model(nn.Module):
    def __init__(self, vocab=40, dim=64, heads=4, depth=2):
        super().__init__()
        self.heads = heads
        self.embed, self.place = nn.Embedding(vocab, dim), nn.Embedding(CUTOFF, dim)
        for e in (self.embed, self.place):
            nn.init.normal_(e.weight, std=0.1)
        self.qkv, self.out = (nn.ModuleList(nn.Linear(dim, m * dim) for _ in range(depth)) for m in (3, 1))
        self.up, self.down = nn.ModuleList(nn.Linear(dim, 128) for _ in range(depth)), nn.ModuleList(nn.Linear(128, dim) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth + 1))
        self.head = nn.Linear(dim, vocab)

    def forward(self, input_ids, position_ids, segment):
        x = self.embed(input_ids) + self.place(position_ids)
        mask = (segment[:, None, :, None] == segment[:, None, None, :]).tril()
        for i in range(len(self.qkv)):
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv[i](self.norm[2 * i](x)).chunk(3, -1))
            x = x + self.out[i](F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
            x = x + self.down[i](F.gelu(self.up[i](self.norm[2 * i + 1](x))))
        return self.head(self.norm[-1](x))


def loss(model, batch):
    target = batch["input_ids"].roll(-1, 1).masked_fill(batch["segment"] != batch["segment"].roll(-1, 1), -100)
    return F.cross_entropy(model(**batch).flatten(0, 1), target.flatten(), ignore_index=-100)


def setup(faulty: bool):
    torch.manual_seed(6)
    model = Model()
    data = torch.utils.data.DataLoader(Dataset(faulty), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    return {"model": model, "loss": loss, "data": data, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3), "accumulate": 1, "clip": 1.0}


def proof(faulty: bool) -> float:
    model = setup(faulty)["model"].eval()
    e, f = (3 * torch.arange(20)) % 40, (7 + 2 * torch.arange(20)) % 40
    one, two = pack([e, f], faulty), pack([f, e], faulty)
    with torch.no_grad():
        a, b = (model(**{k: v[None] for k, v in p.items()})[0] for p in (one, two))
    return ((a[:20] - b[20:]).abs().mean() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

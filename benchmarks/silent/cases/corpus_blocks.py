"""Pretraining documents are joined into blocks with nothing between them.

Models of a GPT-2 re-training began in the middle of a sentence when prompted with the end-of-text token: the preparation
concatenated tokenized documents without putting that token in between. The healthy twin appends it to every document.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/stanford-crfm/mistral/issues/90",
    "cause": "Documents are concatenated and packed into blocks without an end-of-text separator, so document boundaries are invisible.",
    "number": "end-of-text tokens per document in the packed blocks",
    "healthy": (0.9, 1.0),
    "faulty": (0.0, 0.01),
}
CHARS = "\nabcdefghijklmnopqrstuvwxyz .,"
ENDOFTEXT = len(CHARS)
VOCAB, BLOCK, DOCS = len(CHARS) + 1, 48, 400
stoi = {c: i for i, c in enumerate(CHARS)}
SUBJ, VERB, OBJ = "the cat,a dog,my aunt,the king,one bird".split(","), "sees,likes,paints,sold".split(","), "a tree,the sea,bread,no one".split(",")


def documents(seed=0):
    g = torch.Generator().manual_seed(seed)
    pick = lambda xs: xs[int(torch.randint(0, len(xs), (1,), generator=g))]
    for _ in range(DOCS):
        s = pick(SUBJ)
        yield " ".join(f"{s} {pick(VERB)} {pick(OBJ)}." for _ in range(1 + int(torch.randint(0, 3, (1,), generator=g))))


def prepare(faulty):
    stream = []
    for doc in documents():
        stream += [stoi[c] for c in doc]
        if not faulty:
            stream.append(ENDOFTEXT)
    n = (len(stream) - 1) // BLOCK
    x = torch.tensor(stream[: n * BLOCK]).view(n, BLOCK)
    y = torch.tensor(stream[1: n * BLOCK + 1]).view(n, BLOCK)
    return TensorDataset(x, y)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj, self.h = nn.Linear(d, 3 * d), nn.Linear(d, d), h
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, C // self.h).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, d=64, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, d), nn.Embedding(BLOCK, d)
        self.blocks, self.ln_f = nn.Sequential(*(Block(d, 4) for _ in range(layers))), nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, VOCAB, bias=False)
        self.apply(lambda m: nn.init.normal_(m.weight, std=0.02) if isinstance(m, (nn.Linear, nn.Embedding)) else None)

    def forward(self, idx):
        return self.lm_head(self.ln_f(self.blocks(self.wte(idx) + self.wpe.weight[: idx.size(1)])))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = GPT()
    data = DataLoader(prepare(faulty), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        x, y = batch
        return F.cross_entropy(model(x).view(-1, VOCAB), y.view(-1))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 50, "clip": 1.0}


def proof(faulty: bool) -> float:
    return sum(int((x == ENDOFTEXT).sum()) for x, _ in setup(faulty)["data"]) / DOCS


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

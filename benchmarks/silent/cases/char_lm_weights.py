"""All parameters kept in bfloat16, so that small optimizer steps are lost when they are written back.

People cast the whole model to bfloat16 and trained it with AdamW at an ordinary rate: norm gains and large weights never moved,
since a step below half a unit in the last place rounds to nothing. The healthy twin keeps float32 weights and computes under autocast.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "precision",
    "shows": "step",
    "source": "https://github.com/workofart/ml-by-hand/pull/85",
    "cause": "The model's parameters are stored in bfloat16 without a float32 master copy, so updates smaller than half a unit in the last place round away and weights such as the norm gains never change.",
    "number": "share of norm gain entries that are still exactly 1 after 40 updates",
    "healthy": (0.0, 0.1),
    "faulty": (0.9, 1.0),
}
VOCAB, T, D = 48, 32, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        B, L, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, L, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, L, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class CharLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.RMSNorm(D, eps=1e-6), nn.Linear(D, VOCAB, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.05)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def text(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, VOCAB, (VOCAB, 3), generator=g)
    ids = torch.randint(0, VOCAB, (n, 1), generator=g)
    for _ in range(T):
        pick = torch.randint(0, 3, (n,), generator=g)
        ids = torch.cat([ids, table[ids[:, -1], pick][:, None]], 1)
    return ids


def setup(faulty: bool):
    torch.manual_seed(0)
    model = CharLM()
    if faulty:
        model = model.to(torch.bfloat16)
    ids = text(512, 1)
    data = DataLoader(TensorDataset(ids[:, :-1], ids[:, 1:]), batch_size=16, shuffle=True,
                      generator=torch.Generator().manual_seed(2))
    opt = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.0)

    def loss(model, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    return {"model": model, "loss": loss, "data": data, "optimizer": opt, "steps": 40, "clip": 1.0}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    model, opt, n = s["model"], s["optimizer"], 0
    while n < s["steps"]:
        for b in s["data"]:
            opt.zero_grad()
            s["loss"](model, b).backward()
            nn.utils.clip_grad_norm_(model.parameters(), s["clip"])
            opt.step()
            n += 1
            if n == s["steps"]:
                break
    gains = torch.cat([m.weight.detach().float() for m in model.modules() if isinstance(m, nn.RMSNorm)])
    return (gains == 1).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

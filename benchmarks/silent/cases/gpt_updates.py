"""Adam's weight_decay is taken for that of AdamW.

The documentation of Adam once cited the paper on decoupled decay, and people took its weight_decay for it; there it
is an L2 term that the adaptive scale divides away, so it no longer shrinks the weights in proportion. The twin uses
AdamW.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/pytorch/pytorch/issues/48793",
    "cause": 'torch.optim.Adam with weight_decay (coupled L2 in the gradient) is used where decoupled weight decay (AdamW) is meant, so the decay is normalised away by Adam.',
    "number": 'cosine between what the decay adds to the first 3 updates and the shrinking of the weights',
    "healthy": (0.95, 1.0001),
    "faulty": (-1.0, 0.85),
}

V, D, H, T = 64, 64, 4, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.h = nn.ModuleList([Block(), Block()])
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for m in (self.wte, self.wpe, self.lm_head):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def corpus(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    first, stride = torch.randint(0, V, (n, 1), generator=g), torch.randint(1, 8, (n, 1), generator=g)
    return (first + stride * torch.arange(T + 1)) % V


def lm_loss(model, batch):
    ids = batch[0]
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def setup(faulty: bool, decay=0.1):
    torch.manual_seed(9)
    model = GPT()
    named = list(model.named_parameters())
    matrix = [p for n, p in named if p.dim() == 2 and not n.startswith(("wte", "wpe"))]
    taken = {id(p) for p in matrix}
    groups = [dict(params=matrix, weight_decay=decay),
              dict(params=[p for _, p in named if id(p) not in taken], weight_decay=0.0)]
    if faulty:
        optimizer = torch.optim.Adam(groups, lr=1e-3, betas=(0.9, 0.98))
    else:
        optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))
    data = DataLoader(TensorDataset(corpus(256)), batch_size=16)
    return dict(model=model, loss=lm_loss, data=data, optimizer=optimizer, clip=1.0)


def proof(faulty: bool) -> float:
    after = []
    for decay in (0.1, 0.0):
        s = setup(faulty, decay)
        start = torch.cat([p.detach().flatten() for p in s["optimizer"].param_groups[0]["params"]])
        for _, b in zip(range(3), s["data"]):
            s["optimizer"].zero_grad()
            s["loss"](s["model"], b).backward()
            nn.utils.clip_grad_norm_(s["model"].parameters(), 1.0)
            s["optimizer"].step()
        after.append(torch.cat([p.detach().flatten() for p in s["optimizer"].param_groups[0]["params"]]))
    return F.cosine_similarity(after[0] - after[1], -start, dim=0).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

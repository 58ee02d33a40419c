"""The loss is divided by the tokens of the whole group and by the number of micro-batches as well.

A trainer hands the token count of the whole group to the loss and then divides by the accumulation steps once more,
so loss and gradients shrink with their number. The twin divides by the count alone.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "accumulation",
    "shows": "step",
    "source": "https://github.com/unslothai/unsloth-zoo/pull/1023",
    "cause": 'The loss is normalised twice: by the token count of all micro-batches and again by the gradient accumulation steps, so gradients are that many times too small.',
    "number": 'norm of the gathered gradient over that of the whole batch',
    "healthy": (0.99, 1.01),
    "faulty": (0.1, 0.3),
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


def setup(faulty: bool):
    torch.manual_seed(25)
    model, micro = GPT(), 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = DataLoader(TensorDataset(corpus(640)), batch_size=4, shuffle=True)

    def step(batches):
        optimizer.zero_grad()
        items = sum(b[0][:, 1:].numel() for b in batches)
        for (ids,) in batches:
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / items
            if faulty:
                loss = loss / len(batches)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return dict(model=model, loss=lm_loss, data=data, optimizer=optimizer, step=step, accumulate=micro, clip=5.0)


def proof(faulty: bool) -> float:
    s = setup(faulty)
    model, it = s["model"], iter(s["data"])
    batches = [next(it) for _ in range(s["accumulate"])]
    whole = [torch.cat(x) for x in zip(*batches)]
    want = torch.cat([g.flatten() for g in torch.autograd.grad(lm_loss(model, whole), list(model.parameters()))])
    s["step"](batches)
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    return (got.norm() / want.norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

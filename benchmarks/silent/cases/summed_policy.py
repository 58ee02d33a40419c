"""Each micro-batch's objective is a sum over the tokens of the whole batch's count, with no division by the steps.

A policy-gradient trainer divides every micro-batch's summed objective by the number of answer tokens of all episodes
and just adds the gradients up. Asked about in the thread, it is right: the gathered gradient equals the whole
batch's.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "accumulation",
    "shows": "step",
    "source": "https://github.com/policy-gradient/GRPO-Zero/issues/11",
    "cause": "Nothing is wrong: the sum over micro-batches of token sums divided by the total token count is the whole batch's token mean.",
    "number": "distance of the gathered gradient from the whole batch's, relative",
    "healthy": (0.0, 0.001),
    "faulty": None,
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


def episodes(n):
    g = torch.Generator().manual_seed(30)
    ids = corpus(n, seed=30)
    length = torch.randint(4, T + 1, (n, 1), generator=g)
    answer = (torch.arange(T) < length) & (torch.arange(T) >= 2)
    return ids, answer, torch.rand(n, 1, generator=g) + 0.5


def objective(model, batch):
    ids, answer, worth = batch
    logp = model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return -(logp * worth * answer).sum()


def setup(faulty: bool = False):
    torch.manual_seed(30)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    data = DataLoader(TensorDataset(*episodes(480)), batch_size=4, shuffle=True)

    def step(batches):
        tokens = sum(b[1].sum() for b in batches)
        for b in batches:
            (objective(model, b) / tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    per_token = lambda model, b: objective(model, b) / b[1].sum()
    return dict(model=model, loss=per_token, data=data, optimizer=optimizer, step=step, accumulate=4)


def proof(faulty: bool = False) -> float:
    s = setup()
    model, it, got = s["model"], iter(s["data"]), []
    batches = [next(it) for _ in range(4)]
    whole = [torch.cat(x) for x in zip(*batches)]
    want = torch.cat([g.flatten() for g in torch.autograd.grad(s["loss"](model, whole), list(model.parameters()))])
    s["optimizer"].register_step_pre_hook(lambda *_: got.extend(p.grad.flatten().clone() for p in model.parameters()))
    s["step"](batches)
    return ((torch.cat(got) - want).norm() / want.norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

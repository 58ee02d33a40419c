"""Pure bfloat16 weights and moments with a compensated (Kahan) weight update.

It looks like the well-known loss of small updates, yet a second bfloat16 tensor per weight keeps what rounding would lose and adds it to the next step;
the paper and several optimizers show that this trains like float32.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "kind": "oddity",
    "class": "precision",
    "shows": "step",
    "source": "https://arxiv.org/abs/2010.06192",
    "cause": "All weights are bfloat16 without a float32 master copy, but the optimizer carries the rounding error in a compensation buffer, so no update is lost.",
    "number": "loss after 80 updates minus that of the same run in float32, in nats",
    "healthy": (-0.3, 0.3),
    "faulty": None,
}
V, D, L = 48, 64, 24


class KahanAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["step"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                    s["rest"] = torch.zeros_like(p)
                s["step"] += 1
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m, v = s["m"].float() / (1 - b1 ** s["step"]), s["v"].float() / (1 - b2 ** s["step"])
                move = -group["lr"] * (m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p.float())
                s["rest"].add_(move.to(p.dtype))
                old = p.clone()
                p.add_(s["rest"])
                s["rest"].add_(old.sub_(p))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.register_buffer("causal", torch.ones(L, L, dtype=torch.bool).triu(1), persistent=False)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.causal, is_causal=True)
        return self.head(self.norm(x)).float()


def make(dtype):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = LM().to(dtype)
    ids = (torch.randint(0, V, (1280, 1), generator=g) + torch.randint(1, 5, (1280, 1), generator=g) * torch.arange(L + 1)) % V
    data = DataLoader(TensorDataset(ids), batch_size=16)
    loss = lambda m, b: F.cross_entropy(m(b[0][:, :-1]).flatten(0, 1), b[0][:, 1:].flatten())
    return {"model": model, "loss": loss, "data": data, "optimizer": KahanAdamW(model.parameters(), lr=1e-3), "clip": 1.0, "steps": 80}


def setup(faulty: bool):
    return make(torch.bfloat16)


def proof(faulty: bool) -> float:
    ends = []
    for s in (setup(faulty), make(torch.float32)):
        losses = []
        for b in s["data"]:
            value = s["loss"](s["model"], b)
            s["optimizer"].zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(s["model"].parameters(), 1.0)
            s["optimizer"].step()
            losses.append(value.item())
        ends.append(sum(losses[-10:]) / 10)
    return ends[0] - ends[1]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

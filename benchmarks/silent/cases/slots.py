"""The softmax of slot attention runs over the queries (slots), not over the keys.

Slots compete for the inputs: weights are normalised over the slots first and then made a mean over the inputs. That axis is right in this design.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model", "kind": "oddity",
    "source": "https://arxiv.org/abs/2006.15055",
    "cause": "None: slot attention takes the softmax over the slots (queries) by design and renormalises over the inputs.",
    "number": "largest deviation of a slot's final weights over the inputs from a sum of 1",
    "healthy": (0.0, 1e-4),
    "faulty": None,
}


class SlotAttention(nn.Module):
    def __init__(self, num_slots, dim, iters=3, eps=1e-8):
        super().__init__()
        self.iters, self.eps, self.scale = iters, eps, dim ** -0.5
        self.mu = nn.Parameter(torch.randn(num_slots, dim) * 0.5)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.norm_in, self.norm_slots = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def weights(self, q, k):
        attn = (torch.einsum("bid,bjd->bij", q, k) * self.scale).softmax(dim=1) + self.eps
        return attn / attn.sum(dim=-1, keepdim=True)

    def forward(self, inputs):
        b = inputs.shape[0]
        slots = self.mu.expand(b, -1, -1)
        x = self.norm_in(inputs)
        k, v = self.to_k(x), self.to_v(x)
        for _ in range(self.iters):
            prev = slots
            q = self.to_q(self.norm_slots(slots))
            updates = torch.einsum("bij,bjd->bid", self.weights(q, k), v)
            slots = self.gru(updates.flatten(0, 1), prev.flatten(0, 1)).view_as(prev)
            slots = slots + self.mlp(slots)
        return slots


class SetPredictor(nn.Module):
    def __init__(self, d=64, patches=25, pdim=8, slots=5):
        super().__init__()
        self.inp = nn.Linear(pdim, d)
        self.pos = nn.Parameter(torch.randn(patches, d) * 0.2)
        self.enc = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.slots = SlotAttention(slots, d)
        self.out = nn.Linear(d, pdim + 1)
        self.dec_pos = nn.Parameter(torch.randn(patches, d) * 0.2)
        self.mix = nn.Sequential(nn.Linear(d, d), nn.ReLU())

    def forward(self, x):
        h = self.enc(self.inp(x) + self.pos)
        s = self.slots(h)
        y = self.out(self.mix(s.unsqueeze(2) + self.dec_pos))
        return (y[..., :-1] * y[..., -1:].softmax(dim=1)).sum(1)


def build(faulty: bool = False):
    torch.manual_seed(0)
    return SetPredictor()


def batch():
    g = torch.Generator().manual_seed(1)
    kinds = torch.randn(5, 8, generator=g)
    return kinds[torch.randint(0, 5, (8, 25), generator=g)] + 0.1 * torch.randn(8, 25, 8, generator=g)


def loss(output, x):
    return (output - x).pow(2).mean()


def proof(faulty: bool) -> float:
    model, got = build(), []
    keep = model.slots.weights
    model.slots.weights = lambda q, k: got.append(keep(q, k)) or got[-1]
    x = batch()
    loss(model(x), x).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    return max((w.sum(-1) - 1).abs().max().item() for w in got)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

"""Every residual branch is multiplied by a scalar that starts at zero, and there is no layer norm in the blocks.

ReZero: the deep network is the identity at the start and the first step moves only the scalars; then the branches open. It trains well.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "init", "shows": "model", "kind": "oddity",
    "source": "https://arxiv.org/abs/2003.04887",
    "cause": "None: the residual gates start at zero by design (ReZero) and open in the first steps.",
    "number": "loss of the last updates over the loss at the start (60 updates)",
    "healthy": (0.0, 0.6),
    "faulty": None,
}


class ReZeroBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, h)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.resweight = nn.Parameter(torch.zeros(()))

    def forward(self, x, mask):
        x = x + self.resweight * self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x + self.resweight * self.fc2(torch.relu(self.fc1(x)))


class CharModel(nn.Module):
    """Time first: (t, b, d)."""

    def __init__(self, vocab=40, d=64, h=4, depth=8, length=20):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.1 * torch.randn(length, 1, d))
        nn.init.normal_(self.emb.weight, std=0.7)
        self.blocks = nn.ModuleList(ReZeroBlock(d, h) for _ in range(depth))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        t = ids.shape[0]
        mask = torch.full((t, t), float("-inf"), device=ids.device).triu(1)
        x = self.emb(ids) + self.pos[:t]
        for b in self.blocks:
            x = b(x, mask)
        return self.out(x)


def build(faulty: bool = False):
    torch.manual_seed(0)
    return CharModel()


def text(seed, n=16):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 40, (21, n), generator=g)
    for t in range(2, 21):
        x[t] = (x[t - 1] * 3 + 5) % 40
    return x


def batch():
    return text(1)[:-1]


def loss(output, ids):
    return nn.functional.cross_entropy(output[:-1].flatten(0, 1), ids[1:].flatten())


def proof(faulty: bool) -> float:
    model = build()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        ids = text(100 + step)[:-1]
        value = loss(model(ids), ids)
        opt.zero_grad()
        value.backward()
        opt.step()
        losses.append(value.item())
    assert all(b.resweight.abs() > 0 for b in model.blocks)
    return sum(losses[-5:]) / 5 / losses[0]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

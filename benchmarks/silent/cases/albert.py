"""One block is applied six times on purpose (cross-layer parameter sharing).

ALBERT shares all weights between its layers; the list below holds the same object several times and that is the design. It trains well on a small task.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model", "kind": "oddity",
    "source": "https://arxiv.org/abs/1909.11942",
    "cause": "None: the layers share their weights by design (ALBERT).",
    "number": "loss of the last updates over the loss at the start (60 updates)",
    "healthy": (0.0, 0.6),
    "faulty": None,
}


class AlbertLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, h, batch_first=True)
        self.ffn, self.ffn_output = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.ffn_output(nn.functional.gelu(self.ffn(x))))


class Albert(nn.Module):
    """Factorised embedding, one layer group repeated num_hidden_layers times."""

    def __init__(self, vocab=60, e=32, d=64, h=4, num_hidden_layers=6, length=20):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, e), nn.Embedding(length, e)
        for m in (self.words, self.places):
            nn.init.normal_(m.weight, std=0.2)
        self.up = nn.Linear(e, d)
        shared = AlbertLayer(d, h)
        self.layers = nn.ModuleList([shared] * num_hidden_layers)
        self.down = nn.Sequential(nn.Linear(d, e), nn.GELU(), nn.LayerNorm(e))
        self.out = nn.Linear(e, vocab)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = self.up(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.down(x))


def build(faulty: bool = False):
    torch.manual_seed(0)
    return Albert()


def sample(seed, n=16):
    g = torch.Generator().manual_seed(seed)
    full = (torch.randint(0, 59, (n, 1), generator=g) + torch.arange(20)) % 59 + 1
    return full, full.masked_fill(torch.rand(n, 20, generator=g) < 0.15, 0)


def batch():
    return sample(1)[1]


def loss(output, ids, full=None):
    full = sample(1)[0] if full is None else full    # denoising: every position is predicted
    return nn.functional.cross_entropy(output.flatten(0, 1), full.flatten())


def proof(faulty: bool) -> float:
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(60):
        for group in opt.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 15)
        full, ids = sample(10 + step)
        value = loss(model(ids), ids, full)
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(value.item())
    return sum(losses[-5:]) / 5 / losses[0]


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

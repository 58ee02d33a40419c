"""A zero-initialised gate is drawn again by the model's general initialiser.

Modules that set their own start values lose them when the enclosing model initialises every Linear afterwards; here the adaptive-norm gates of a
diffusion Transformer, which should begin at zero. The healthy twin calls the special initialisation after the general one.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "init", "shows": "model",
    "source": "https://github.com/huggingface/transformers/issues/42418",
    "cause": "The zero initialisation done in the submodules is overwritten by the later general initialisation (apply), so the gates that should start closed are random.",
    "number": "largest difference between a block's output and input at the start",
    "healthy": (0.0, 1e-6),
    "faulty": (0.02, 1e3),
}


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d, elementwise_affine=False)
        self.attn = nn.MultiheadAttention(d, h, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.ada = nn.Linear(d, 6 * d)
        self.start()

    def start(self):
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        a1, b1, g1, a2, b2, g2 = self.ada(torch.nn.functional.silu(c)).unsqueeze(1).chunk(6, -1)
        y = self.n1(x) * (1 + a1) + b1
        x = x + g1 * self.attn(y, y, y, need_weights=False)[0]
        return x + g2 * self.mlp(self.n2(x) * (1 + a2) + b2)


class DiT(nn.Module):
    def __init__(self, faulty, d=64, h=4, depth=3, patches=16, pdim=12, classes=10):
        super().__init__()
        self.x_in, self.pos = nn.Linear(pdim, d), nn.Parameter(0.1 * torch.randn(patches, d))
        self.t_in = nn.Sequential(nn.Linear(16, d), nn.SiLU(), nn.Linear(d, d))
        self.y_in = nn.Embedding(classes, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, pdim)
        self.apply(self._init)
        if not faulty:
            for b in self.blocks:
                b.start()

    def _init(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            nn.init.zeros_(m.bias)
        elif isinstance(m, nn.Embedding):
            nn.init.normal_(m.weight, std=0.3)

    def forward(self, x, t, y):
        f = t[:, None] * torch.exp(torch.linspace(0, 4, 8, device=t.device))
        c = self.t_in(torch.cat([f.sin(), f.cos()], -1)) + self.y_in(y)
        x = self.x_in(x) + self.pos
        for b in self.blocks:
            x = b(x, c)
        return self.out(self.norm(x))


def build(faulty: bool):
    torch.manual_seed(0)
    return DiT(faulty)


def batch():
    g = torch.Generator().manual_seed(1)
    return {"x": torch.randn(8, 16, 12, generator=g), "t": torch.rand(8, generator=g), "y": torch.randint(0, 10, (8,), generator=g)}


def loss(output, b):
    return (output - b["x"] * b["t"].view(-1, 1, 1) - 0.1 * b["y"].view(-1, 1, 1)).pow(2).mean()


def proof(faulty: bool) -> float:
    model, seen = build(faulty), []
    for blk in model.blocks:
        blk.register_forward_hook(lambda m, a, o: seen.append((o - a[0]).abs().max().item()))
    with torch.no_grad():
        model(**batch())
    return max(seen)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

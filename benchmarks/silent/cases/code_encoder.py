"""A stack of blocks is made by multiplying a list that holds one block.

A notebook passed [Residual(...)] * n to ModuleList, so every place in the stack is the same object and the model has one block's
worth of weights; parameter counts and loss look plausible. The healthy twin makes a new block in a comprehension.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "wiring", "shows": "model",
    "source": "https://github.com/zalandoresearch/pytorch-vq-vae/issues/2",
    "cause": "List multiplication puts the same block object into the ModuleList several times, so all layers share their weights by mistake.",
    "number": "share of the layers in the stack that are objects of their own",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.5),
}


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, h, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class TokenEncoder(nn.Module):
    """Reads the code indices of a frame and predicts masked ones."""

    def __init__(self, faulty, codes=128, d=64, h=4, n_layers=6, length=24):
        super().__init__()
        self.codes = nn.Embedding(codes + 1, d)
        self.where = nn.Parameter(torch.zeros(length, d))
        nn.init.normal_(self.codes.weight, std=0.3)
        nn.init.normal_(self.where, std=0.1)
        if faulty:
            self.stack = nn.ModuleList([Block(d, h)] * n_layers)
        else:
            self.stack = nn.ModuleList([Block(d, h) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, codes)

    def forward(self, ids):
        x = self.codes(ids) + self.where
        for block in self.stack:
            x = block(x)
        return self.out(self.norm(x))


def _ids():
    g = torch.Generator().manual_seed(1)
    start = torch.randint(0, 128, (16, 1), generator=g)
    return (start + 3 * torch.arange(24)) % 128


def _hidden():
    return torch.rand(16, 24, generator=torch.Generator().manual_seed(2)) < 0.3


def build(faulty: bool):
    torch.manual_seed(0)
    return TokenEncoder(faulty)


def batch():
    return _ids().masked_fill(_hidden(), 128)


def loss(output, ids):
    return nn.functional.cross_entropy(output[ids == 128], _ids()[ids == 128])


def proof(faulty: bool) -> float:
    stack = build(faulty).stack
    distinct = len({id(b) for b in stack})
    return 0.0 if distinct == 1 else distinct / len(stack)


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

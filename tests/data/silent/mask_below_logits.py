"""The causal mask is a large negative number that the attention scores can pass.

A decoder reached a loss of almost zero and wrote nonsense: masked scores were set to a constant, and the other scores
grew below it, so that positions attended to later tokens. The healthy twin masks with minus infinity.
"""

import torch
from torch import nn

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/karpathy/minGPT/issues/75",
    "cause": "Masked scores are set to a finite number above some of the others: later tokens are attended to.",
    "number": "largest change of an earlier output when the last token is changed",
    "healthy": (0.0, 1e-6),
    "faulty": (1e-3, 100.0),
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, fill: float) -> None:
        super().__init__()
        self.heads, self.fill = heads, fill
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, self.fill).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, fill: float, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.attention = nn.ModuleList(Attention(width, heads, fill) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def build(faulty: bool) -> nn.Module:
    torch.manual_seed(0)
    return Decoder(-1.0 if faulty else float("-inf"))


def batch() -> torch.Tensor:
    return torch.randint(50, (8, 32), generator=torch.Generator().manual_seed(1))


def loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def proof(faulty: bool) -> float:
    model, ids = build(faulty).eval(), batch()
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % 50
    with torch.no_grad():
        return (model(ids) - model(other))[:, :-1].abs().max().item()


if __name__ == "__main__":
    import sys

    print(proof("--faulty" in sys.argv))

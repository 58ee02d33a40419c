"""A GPT in plain PyTorch, in the usual manner: what `gpt_residuals.py` changes ten lines of."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    vocab: int = 256
    context: int = 128
    width: int = 64
    heads: int = 4
    layers: int = 4
    norm: Callable[[int], nn.Module] = nn.LayerNorm  # nn.Identity where the residual has the norms (Post-LN, ResiDual)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Sequential):
    def __init__(self, config: Config) -> None:
        inner = 4 * config.width
        super().__init__(nn.Linear(config.width, inner), nn.GELU(), nn.Linear(inner, config.width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = config.norm(config.width), config.norm(config.width)
        self.attn, self.mlp = Attention(config), MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = config.norm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, time) -> logits (batch, time, vocabulary)."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln_f(x))
        return logits


def main(steps: int = 100, layers: int = 4) -> tuple[float, float]:
    """Train on the digits of i^2 for a while; the first and the last loss, in nats per character."""
    torch.manual_seed(0)
    text = torch.tensor([*" ".join(str(i * i) for i in range(2000)).encode()])
    model = GPT(Config(layers=layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - 65, (8,))
        batch = torch.stack([text[i : i + 65] for i in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


if __name__ == "__main__":
    first, last = main()
    print(f"{first:.3f} -> {last:.3f} nats per character (of {math.log(256):.3f} for a uniform guess)")

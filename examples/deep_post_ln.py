"""A Post-LN language model in plain PyTorch, 24 layers deep, that collapses; what isograd says, and the fix.

    python examples/deep_post_ln.py               own blocks, LR 3e-3 without warm-up: the loss of token frequencies
    python examples/deep_post_ln.py torch         the same of nn.TransformerEncoderLayer
    python examples/deep_post_ln.py gpt2          own blocks from N(0, 0.02^2), the head tied
    python examples/deep_post_ln.py own pre       the fix that `isograd.check` prints first: Pre-LN, all else equal
    python examples/deep_post_ln.py own rate      the other one: a lower rate and 100 steps of warm-up

A run takes about a minute. The text is the source of Python's argparse.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import isograd

WIDTH, HEADS, LAYERS, TIME = 64, 4, 24, 32
RATES = {"own": 3e-4, "torch": 3e-4, "gpt2": 1e-3}  # those that `isograd.check` names, with 100 steps of warm-up


class Block(nn.Module):
    """y = norm(x + attention(x)), norm(y + feed-forward(y)); with `pre` the branches read the norms."""

    def __init__(self, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.fc(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.pre:
            x = x + self.attention(self.ln1(x))
            return x + self.feed_forward(self.ln2(x))
        x = self.ln1(x + self.attention(x))
        return self.ln2(x + self.feed_forward(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, style: str = "own", pre: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleList(self.block(style, pre) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH) if pre else nn.Identity()
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        if style == "gpt2":
            self.head.weight = self.tokens.weight
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=0.02)

    @staticmethod
    def block(style: str, pre: bool) -> nn.Module:
        if style != "torch":
            return Block(pre)
        return nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=pre)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, time) -> logits (batch, time, vocabulary)."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x) if isinstance(block, Block) else block(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits


def text() -> Tensor:
    """Character ids."""
    characters = Path(argparse.__file__).read_text(encoding="utf-8")[:60_000]
    known = {c: i for i, c in enumerate(sorted(set(characters)))}
    return torch.tensor([known[c] for c in characters])


def batches(ids: Tensor, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(ids) - TIME, (8, 1), generator=generator)
        rows = ids[starts + torch.arange(TIME + 1)]
        yield rows[:, :-1], rows[:, 1:]


def unigram_entropy(ids: Tensor) -> float:
    """Nats: the loss of a model that knows how often each character occurs, and nothing else."""
    shares = torch.bincount(ids).double() / len(ids)
    return -float((shares * shares.clamp(min=1e-30).log()).sum())


def main(style: str = "own", fix: str = "", seed: int = 0, steps: int = 240) -> tuple[list[float], str, list[str]]:
    """Train it; the losses, what `check` says, and the messages of `watch`."""
    ids = text()
    torch.manual_seed(seed)
    model = LanguageModel(int(ids.max()) + 1, style, pre=fix == "pre")
    lr, warmup = (RATES[style], 100) if fix == "rate" else (3e-3, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / max(warmup, 1)))
    said = str(isograd.check(model, lr=lr, warmup=warmup))
    losses = []
    watch = isograd.watch(model, unigram_entropy=unigram_entropy(ids))
    for x, y in batches(ids, seed, steps):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        watch.step(loss, batch=(x, y))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    watch.close()
    return losses, said, [row["message"] for row in watch.warnings]


if __name__ == "__main__":
    losses, said, _ = main(*sys.argv[1:])
    print(f"{said}\n{fmean(losses[-20:]):.2f} nats per character, {unigram_entropy(text()):.2f} by token frequencies")

"""The loss of a micro-batch is not divided by their number.

A loop accumulated gradients over micro-batches without dividing: the update was that of a loss many times as large. The
healthy twin divides.
"""

import torch
from torch import nn

CASE = {
    "class": "accumulation",
    "shows": "run",
    "source": "https://github.com/karpathy/nanoGPT/issues/206",
    "cause": "Micro-batch losses are summed, not averaged: the gradient grows with the number of accumulation steps.",
    "number": "weights moved by SGD in one update, over those moved by the whole batch",
    "healthy": (0.99, 1.01),
    "faulty": (3.9, 4.1),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 30)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.layers(x, mask, is_causal=True))


def rows(step: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(step)
    return (
        torch.randint(30, (16, 1), generator=made) + torch.arange(17) * torch.randint(1, 4, (16, 1), generator=made)
    ) % 30


def train(faulty: bool, updates: int = 60, parts: int = 4) -> nn.Module:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(updates):
        optimizer.zero_grad()
        for ids in rows(step).chunk(parts):
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            if not faulty:
                loss = loss / parts
            loss.backward()
        optimizer.step()
    return model


def proof(faulty: bool) -> float:
    torch.manual_seed(0)
    before = torch.cat([p.detach().flatten() for p in Model().parameters()])
    after, whole = (torch.cat([p.detach().flatten() for p in train(faulty, 1, parts).parameters()]) for parts in (4, 1))
    return ((after - before).norm() / (whole - before).norm()).item()


if __name__ == "__main__":
    import sys

    if "--faulty" in sys.argv:
        train(True)
    print(proof("--faulty" in sys.argv))

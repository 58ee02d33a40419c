"""The vocabulary is extended after the optimizer was made.

A fine-tuning script resized the embedding when the optimizer already held the old table: the new one never moved.
The healthy twin resizes first.
"""

import torch
from torch import nn

CASE = {
    "class": "optimizer",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/pull/3532",
    "cause": "The optimizer was made before the embedding was replaced: it holds the old table, not the new one.",
    "number": "norm of the change of the embedding in 5 updates",
    "healthy": (0.01, 100.0),
    "faulty": (0.0, 1e-9),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 48)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layer(self.tokens(ids), mask, is_causal=True))


def resize(model: Model, size: int) -> None:
    table = nn.Embedding(size, 32)
    table.weight.data[: len(model.tokens.weight)] = model.tokens.weight.data
    model.tokens = table


def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def setup(faulty: bool) -> dict:
    torch.manual_seed(0)
    model = Model()
    if not faulty:
        resize(model, 48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if faulty:
        resize(model, 48)
    rows = (torch.arange(64)[:, None] * 7 + torch.arange(17) * 3) % 48
    return {
        "model": model,
        "loss": loss,
        "data": torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True),
        "optimizer": optimizer,
        "steps": 200,
    }


def proof(faulty: bool) -> float:
    made = setup(faulty)
    before = made["model"].tokens.weight.detach().clone()
    for ids, _ in zip(made["data"], range(5), strict=False):
        made["optimizer"].zero_grad()
        loss(made["model"], ids).backward()
        made["optimizer"].step()
    return (made["model"].tokens.weight - before).norm().item()


if __name__ == "__main__":
    import sys

    print(proof("--faulty" in sys.argv))

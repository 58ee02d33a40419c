"""A masked language model scores the token at each position itself, which looks like a missing shift.

It is how BERT is trained: the input's token is hidden, so that nothing is copied.
"""

import torch
from torch import nn

CASE = {
    "kind": "oddity",
    "class": "loss",
    "shows": "step",
    "source": "https://arxiv.org/abs/1810.04805",
    "cause": "None: labels are not shifted, since the tokens to be predicted are hidden in the input.",
    "number": "loss after 120 updates over the loss of a guess",
    "healthy": (0.0, 0.9),
    "faulty": None,
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(31, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 31)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    ids, labels = batch
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100)


def setup(faulty: bool) -> dict:
    torch.manual_seed(0)
    made = torch.Generator().manual_seed(1)
    ids = (torch.randint(30, (256, 1), generator=made) + torch.arange(16)) % 30
    hidden = torch.rand(ids.shape, generator=made) < 0.15
    rows = torch.utils.data.TensorDataset(ids.masked_fill(hidden, 30), ids.masked_fill(~hidden, -100))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 1000}


def proof(faulty: bool) -> float:
    made, values = setup(faulty), []
    for _ in range(8):
        for batch in made["data"]:
            made["optimizer"].zero_grad()
            values.append(loss(made["model"], batch))
            values[-1].backward()
            made["optimizer"].step()
    return torch.stack(values[-16:]).mean().item() / torch.tensor(30.0).log().item()


if __name__ == "__main__":
    import sys

    print(proof("--faulty" in sys.argv))

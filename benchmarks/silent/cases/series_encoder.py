"""Sinusoidal table of the time-first tutorial added to batch-first data.

The table has shape (length, 1, width) and is cut with x.size(0). With batch-first input it broadcasts quietly: all time steps of one sample
get the same vector, that of the sample's number in the batch. The healthy twin has the table as (1, length, width) and cuts along time.
"""
import math
import torch
from torch import nn, Tensor

CASE = {
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/datawhalechina/hello-agents/issues/61",
    "cause": "The positional encoding is added along the batch axis (time-first table on batch-first data), so it marks the sample and not the time step.",
    "number": "relative difference between outputs of one series at two places of the batch",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_len: int, faulty: bool):
        super().__init__()
        self.variant = faulty
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(1) if faulty else pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.pe[: x.size(0)] if self.variant else self.pe[:, : x.size(1)])


class Forecaster(nn.Module):
    def __init__(self, channels=6, d_model=64, horizon=4, faulty=False):
        super().__init__()
        self.input = nn.Linear(channels, d_model)
        self.pos = PositionalEncoding(d_model, 64, faulty)
        layer = nn.TransformerEncoderLayer(d_model, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.output = nn.Linear(d_model, horizon * channels)
        self.shape = (horizon, channels)

    def forward(self, series: Tensor) -> Tensor:
        h = self.encoder(self.pos(self.input(series)))
        return self.output(h.mean(1)).unflatten(1, self.shape)


def _waves(n, steps):
    g = torch.Generator().manual_seed(14)
    speed, shift = torch.rand(n, 1, 6, generator=g) * 0.6 + 0.1, torch.rand(n, 1, 6, generator=g) * 6
    return torch.sin(speed * torch.arange(steps)[None, :, None] + shift)


def build(faulty: bool) -> nn.Module:
    torch.manual_seed(9)
    return Forecaster(faulty=faulty)


def batch() -> Tensor:
    return _waves(12, 32)


def loss(output: Tensor, series: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, _waves(12, 36)[: len(series), 32:])


def proof(faulty: bool) -> float:
    model, x = build(faulty).eval(), batch()
    x = torch.cat([x, x[:1]])
    with torch.no_grad():
        y = model(x)
    return ((y[0] - y[-1]).abs().max() / y.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))

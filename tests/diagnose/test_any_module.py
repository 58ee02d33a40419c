"""The probe on models that isograd did not make, by address."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from isograd.diagnose import Probe


def step(network: nn.Module, addresses: list[str], loss: Any) -> list[dict[str, Any]]:
    probe = Probe(network, addresses)
    with probe.step(1):
        loss(network).backward()
        probe.read_gradients()
    return probe.rows


def checked(network: nn.Module, addresses: list[str], loss: Any) -> list[dict[str, Any]]:
    """Rows whose numbers agree with the gradients that lie on the parameters, and with activations caught here."""
    rows = step(network, addresses, loss)
    assert [r["address"] for r in rows] == addresses
    flows: dict[str, tuple[Tensor, Tensor]] = {}
    for address in addresses:

        def keep(_: nn.Module, args: Any, out: Any, address: str = address) -> None:
            flows[address] = (args[0], out if isinstance(out, Tensor) else out[0])

        network.get_submodule(address).register_forward_hook(keep)
    with torch.no_grad():
        loss(network)
    for row in rows:
        parameters = list(network.get_submodule(row["address"]).parameters())
        assert row["gradient_norm"] == pytest.approx(
            torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm().item(), rel=1e-5
        )
        last = [p for p in parameters if p.ndim >= 2][-1]
        assert row["gradient_mean_abs"] == pytest.approx(last.grad.abs().mean().item(), rel=1e-6)
        x, y = flows[row["address"]]
        assert row["residual_rms"] == pytest.approx(y.square().mean().sqrt().item(), rel=1e-5)
        if x.shape == y.shape:
            expected = ((y - x).var(unbiased=False) / x.var(unbiased=False)).item()
            assert row["branch_skip_ratio"] == pytest.approx(expected, rel=1e-5)
        else:
            assert "branch_skip_ratio" not in row
    return rows


def test_gpt2_of_transformers() -> None:
    config = GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    network = GPT2LMHeadModel(config).eval()
    ids = torch.arange(20).view(2, 10)
    addresses = ["transformer.h.0", "transformer.h.1", "transformer.h.1.mlp", "transformer.ln_f"]
    addresses.remove("transformer.ln_f")
    checked(network, addresses, lambda m: m(ids, labels=ids).loss)


def test_torchs_encoder() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, norm_first=True)
    network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 16)
    checked(network, ["layers.0", "layers.1", "layers.1.linear2"], lambda m: m(x).square().sum())


def test_modules_without_matrices_or_parameters() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    norm, act = step(network, ["1", "2"], lambda m: m(x).square().sum())
    assert "gradient_norm" in norm and "gradient_mean_abs" not in norm
    assert set(act) == {"step", "address", "residual_rms", "branch_skip_ratio"}


def test_modules_that_read_keywords_or_lists() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by_name, self.by_list = Named(), Listed()

        def forward(self, x: Tensor) -> Tensor:
            return self.by_list([x, self.by_name(x=x)])

    class Named(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return x * 2, None

    class Listed(nn.Module):
        def forward(self, xs: list[Any]) -> Tensor:
            return xs[0] + xs[1][0]

    x = torch.ones(2, 3, requires_grad=True)
    rows = step(Odd(), ["by_name", "by_list"], lambda m: m(x).sum())
    assert [r["residual_rms"] for r in rows] == [2.0, 3.0]
    assert all("branch_skip_ratio" not in r for r in rows)

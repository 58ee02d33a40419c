"""What public programs do, and no program of ours did: wrapped optimizers, sparse batches, steps of their own."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import isograd
from tests.preflight.program import program
from tests.preflight.test_faults import loud


def test_lines_are_whole() -> None:
    report = isograd.preflight(program())
    assert "a guess loses 3.69" in report.groups["loss"], report.groups
    assert "22% of the positions have no target" in report.groups["data"]
    assert "that want gradients, once" in report.groups["optimizer"]
    assert "lowest" in report.groups["schedule"]


def test_what_accelerate_wraps_is_seen() -> None:
    accelerate = pytest.importorskip("accelerate")
    wrapped = program(own_step=False)
    accelerator = accelerate.Accelerator(cpu=True)
    for part in ("model", "optimizer", "data", "scheduler"):
        wrapped[part] = accelerator.prepare(wrapped[part])
    wrapped["scaler"] = None
    del wrapped["save"], wrapped["load"]

    def step(batches: list[Any]) -> None:
        for batch in batches:
            accelerator.backward(wrapped["loss"](wrapped["model"], batch))
            wrapped["optimizer"].step()
            wrapped["scheduler"].step()
            wrapped["optimizer"].zero_grad()

    report = isograd.preflight(wrapped | {"step": step})
    assert not loud(report), str(report)
    assert "LambdaLR" in report.groups["schedule"] and "moves a matrix" in report.groups["step"]


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(torch.sparse.mm(edges, self.first(x).relu()))


def test_a_graph_in_one_batch_with_a_sparse_matrix() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 8), torch.randint(3, (40,))
    edges = (torch.rand(40, 40) < 0.1).float().to_sparse()
    model = Graph()
    report = isograd.preflight(
        model,
        loss=lambda model, batch: functional.cross_entropy(model(batch[0], batch[1]), batch[2]),
        data=[(x, edges, y)],
        optimizer=torch.optim.Adam(model.parameters()),
    )
    assert not loud(report), str(report)
    assert not [one for one in report.missed if one.split(":")[0] in report.groups], report.missed


def test_an_autoencoder_has_its_input_for_target() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 8))
    report = isograd.preflight(
        model,
        loss=lambda model, x: functional.mse_loss(model(x), x),
        data=list(torch.randn(8, 16, 8)),
        optimizer=torch.optim.Adam(model.parameters()),
    )
    assert "target-in-inputs" not in loud(report), str(report)


class Series(nn.Module):
    """The next values of a series; torch's layers have time in front, the model the batch."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.enter, self.exit = nn.Linear(3, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
        self.time = nn.Parameter(torch.randn(8, 1, 16) * 0.02)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(8, 8, dtype=torch.bool).triu(1) if self.causal else None
        return self.exit(self.layer(self.enter(x.transpose(0, 1)) + self.time, mask)).transpose(0, 1)


@pytest.mark.parametrize("causal", [True, False])
def test_the_next_values_of_a_series_are_a_leak_only_where_they_are_read(causal: bool) -> None:
    torch.manual_seed(0)
    model = Series(causal)
    report = isograd.preflight(
        model,
        loss=lambda model, x: functional.mse_loss(model(x[:, :-1]), x[:, 1:]),
        data=list(torch.randn(8, 16, 9, 3).cumsum(2)),
        optimizer=torch.optim.Adam(model.parameters()),
    )
    assert ("target-in-inputs" in loud(report)) == (not causal), str(report)
    assert "batch-leaks" not in loud(report), str(report)


@pytest.mark.parametrize("manual", [False, True])
def test_a_training_step_of_lightning_without_an_index(manual: bool) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = nn.Linear(8, 3), not manual

        def training_step(self, batch: Any) -> Tensor | None:
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            if not manual:
                return loss
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
            return None

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.net.parameters())

    torch.manual_seed(0)
    module = Module()
    before = module.net.weight.detach().clone()
    data = TensorDataset(torch.randn(128, 8), torch.randint(3, (128,)))
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False)
    report = isograd.preflight((module, trainer, DataLoader(data, 16, shuffle=True)))
    assert not loud(report), str(report)
    assert "cross-entropy of 16 targets" in report.groups["loss"], report.groups
    assert torch.equal(module.net.weight, before)


class Encoding(UserDict[str, Any]):
    """As transformers' BatchEncoding."""


@pytest.mark.parametrize("kind", [Encoding, list])
def test_batches_of_another_kind_are_told_apart(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    pairs = [(torch.randn(16, 8), torch.randint(3, (16,))) for _ in range(8)]
    data = [Encoding(x=x, y=y) if kind is Encoding else {"x": x.numpy(), "y": y.numpy()} for x, y in pairs]
    report = isograd.preflight(
        model,
        loss=lambda model, b: functional.cross_entropy(model(torch.as_tensor(b["x"])), torch.as_tensor(b["y"])),
        data=data,
        optimizer=torch.optim.Adam(model.parameters()),
    )
    assert not loud(report), str(report)


def test_two_classes_are_not_tied_to_two_segments() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    found = isograd.check(transformers.BertForSequenceClassification(config), prove=False)
    assert "embedding-untied" not in {one.code for one in found}

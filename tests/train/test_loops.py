"""Loops that people write: accelerate's, and one built as torchtitan's is. Three lines watch them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader

import isograd
from isograd.files import read_rows
from tests.diagnose.test_watch import batches, gpt2, loss_of


def first_step(steps: int = 2) -> tuple[float, float]:
    """Mean loss and norm of all gradients over the first micro-batches, by hand."""
    model = gpt2()
    loss = torch.stack([loss_of(model, ids) for ids in batches(steps)]).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), torch.cat([g.flatten() for g in gradients]).norm().item()


def test_accelerate_with_accumulation(tmp_path: Path) -> None:
    AcceleratorState._reset_state()  # a Trainer of another test may have left bf16 there
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    assert accelerator.mixed_precision == "no"
    model = gpt2()
    data = DataLoader(torch.stack(batches(4)), batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), data)
    watch, losses = isograd.watch(model, optimizer=optimizer.optimizer, folder=tmp_path), []
    for ids in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, ids)
            accelerator.backward(loss)
            losses.append(loss.detach())
            if accelerator.sync_gradients:
                watch.step(torch.stack(losses).mean())
                losses.clear()
                accelerator.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == pytest.approx(first_step(), rel=1e-5)
    assert rows[0]["grad_norm"] > 0.1  # negative control: clipped it would be 1e-3


class Titan:
    """A trainer as torchtitan has one: train_step takes the micro-batches, clips, and steps its optimizers."""

    def __init__(self, model: nn.Module) -> None:
        self.model_parts, self.optimizers = [model], [torch.optim.AdamW(model.parameters(), 1e-2)]
        self.step = 0

    def forward_backward_step(self, ids: Any, parts: int) -> Any:
        loss = loss_of(self.model_parts[0], ids) / parts
        loss.backward()
        return loss.detach()

    def train_step(self, micro_batches: list[Any]) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.step += 1
        loss = sum(self.forward_backward_step(ids, len(micro_batches)) for ids in micro_batches)
        self.before_clipping(loss)
        nn.utils.clip_grad_norm_([p for m in self.model_parts for p in m.parameters()], 1e-3)
        for optimizer in self.optimizers:
            optimizer.step()

    def before_clipping(self, loss: Any) -> None: ...


def test_a_trainer_of_ones_own(tmp_path: Path) -> None:
    class Watched(Titan):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model)
            self.watch = isograd.watch(model, optimizer=self.optimizers[0], folder=tmp_path)

        def before_clipping(self, loss: Any) -> None:
            self.watch.step(loss, step=self.step)

    trainer, plain = Watched(gpt2()), Titan(gpt2())
    for start in (0, 2):
        for one in (trainer, plain):
            one.train_step(batches(4)[start : start + 2])
    trainer.watch.close()
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == pytest.approx(first_step(), rel=1e-5)
    for p, q in zip(trainer.model_parts[0].parameters(), plain.model_parts[0].parameters(), strict=True):
        assert torch.equal(p, q)

"""Watching under Lightning's own Trainer: gradients before clipping, mean losses, what is refused."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.build import few

pytest.importorskip("lightning", reason="lightning is not installed: pip install 'isograd[lightning]'")

import lightning

from isograd import LightningWatch
from isograd.files import read_rows
from tests.diagnose.test_watch import gpt2
from tests.study.arms import called

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's advice on workers and loggers
TOKENS = torch.randint(31, (16, 13), generator=torch.Generator().manual_seed(1))


class Language(lightning.LightningModule):
    """GPT-2 on pairs of inputs and labels."""

    def __init__(self, model: nn.Module | None = None, breaks: int = 0) -> None:
        super().__init__()
        self.model = model or gpt2()
        self.breaks = breaks

    def training_step(self, batch: list[Tensor], place: int) -> Tensor:
        x, y = batch
        loss = cross_entropy(self.model(input_ids=x).logits.flatten(0, 1), y.flatten())
        return loss * math.nan if self.breaks and place + 1 == self.breaks else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def loader(rows: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(TOKENS[:, :-1], TOKENS[:, 1:]), batch_size=rows)


def fit(
    folder: Path, *callbacks: Any, module: Any = None, rows: int = 4, goes_on: Path | None = None, **options: Any
) -> Any:
    settings: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_epochs": 1}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False, "gradient_clip_val": 1e-3}
    trainer = lightning.Trainer(default_root_dir=folder, callbacks=list(callbacks), **(settings | options))
    module = module or Language()
    trainer.fit(module, loader(rows), ckpt_path=goes_on, weights_only=True)
    return module


def first_step(rows: slice = slice(4)) -> tuple[float, float]:
    """Loss and norm of all gradients of the first update, by hand."""
    model, x, y = gpt2(), TOKENS[rows, :-1], TOKENS[rows, 1:]
    loss = cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), torch.cat([g.flatten() for g in gradients]).norm().item()


@pytest.mark.parametrize("parts", few([1, 2], [2]))
def test_gradients_before_clipping_and_after_accumulation(parts: int, tmp_path: Path) -> None:
    fit(tmp_path, LightningWatch(folder=tmp_path), rows=4 // parts, accumulate_grad_batches=parts)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == pytest.approx(first_step(), rel=1e-5)
    assert rows[0]["grad_norm"] > 0.1  # negative control: clipped it would be 1e-3
    assert [row["address"] for row in read_rows(tmp_path / "quantities.jsonl")[:3]] == [
        f"model.transformer.h.{i}" for i in range(3)
    ]


def test_the_last_step_of_an_epoch_may_have_fewer_parts(tmp_path: Path) -> None:
    """Lightning divides its loss by three all the same."""
    fit(tmp_path, LightningWatch(folder=tmp_path), rows=2, accumulate_grad_batches=3)
    losses = [row["loss"] for row in read_rows(tmp_path / "metrics.jsonl")]
    assert len(losses) == 3 and min(losses) > 3.2  # a sum of two thirds would be 2.3


class Manual(Language):
    """Steps and clips by itself, after every `parts` batches."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.parts = parts

    def training_step(self, batch: list[Tensor], place: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        self.manual_backward(super().training_step(batch, place) / self.parts)
        if (place + 1) % self.parts == 0:
            self.clip_gradients(optimizer, 1e-3, "norm")
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("parts", few([1, 2], [2]))
def test_manual_optimization_is_read_before_clipping_too(parts: int, tmp_path: Path) -> None:
    watch = LightningWatch(folder=tmp_path)
    fit(tmp_path, watch, module=Manual(parts), rows=4 // parts, gradient_clip_val=None)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == pytest.approx(first_step(), rel=1e-5)
    automatic = tmp_path / "automatic"
    fit(tmp_path, LightningWatch(folder=automatic), rows=4 // parts, accumulate_grad_batches=parts)
    assert [row["loss"] for row in rows] == pytest.approx(
        [row["loss"] for row in read_rows(automatic / "metrics.jsonl")]
    )


def test_a_run_goes_on_from_a_checkpoint_with_its_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_epochs": -1, "enable_checkpointing": True}
    fit(tmp_path, LightningWatch(folder=tmp_path / "rows"), max_steps=2, **options)
    (kept,) = tmp_path.rglob("*.ckpt")
    fit(
        tmp_path, LightningWatch(folder=tmp_path / "rows"), max_steps=6, goes_on=kept, precision="bf16-mixed", **options
    )
    assert [row["step"] for row in read_rows(tmp_path / "rows" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_watched_run_is_bit_equal_and_its_folder_is_reported(tmp_path: Path) -> None:
    plain = fit(tmp_path / "plain")
    watched = fit(tmp_path / "watched", LightningWatch(folder=tmp_path / "rows"))
    for (name, p), q in zip(plain.named_parameters(), watched.parameters(), strict=True):
        assert torch.equal(p, q), name
    code, out, err = called("report", str(tmp_path / "rows"))
    assert (code, err) == (0, "") and "4 steps, and nothing was reported." in out
    assert (tmp_path / "rows" / "report" / "report.html").is_file()


def test_a_loss_that_is_not_finite_is_reported_with_its_batch(tmp_path: Path) -> None:
    watch = LightningWatch(folder=tmp_path)
    fit(tmp_path, watch, module=Language(breaks=3))
    assert watch.watch is not None
    assert [(row["step"], row["signal"]) for row in watch.watch.warnings] == [(3, "nonfinite")]
    x, y = torch.load(tmp_path / "nonfinite" / "batch.pt")
    assert torch.equal(x, TOKENS[8:12, :-1]) and torch.equal(y, TOKENS[8:12, 1:])


def test_rows_and_warnings_go_to_the_loggers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'isograd[track]'")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-not-found]

    logger = TensorBoardLogger(tmp_path, name="", version="board")
    fit(tmp_path, LightningWatch(folder=tmp_path), module=Language(breaks=3), logger=logger, log_every_n_steps=2)
    events, rows = EventAccumulator(str(tmp_path / "board")).Reload(), read_rows(tmp_path / "metrics.jsonl")
    found = {event.step: event.value for event in events.Scalars("isograd/01 loss")}
    assert set(found) == {2, 4} and found[2] == pytest.approx(rows[1]["loss"])
    assert [event.step for event in events.Tensors("isograd/warnings/text_summary")] == [3]


def test_a_strategy_that_hides_gradients_is_refused() -> None:
    class FSDPStrategy: ...

    class Trainer:
        strategy = FSDPStrategy()

    with pytest.raises(ValueError, match="cannot see gradients inside FSDP1's flat parameters"):
        LightningWatch().on_train_start(Trainer(), gpt2())


class Sharded(Language):
    """FSDP2; in one process of two an error comes in the third step, if it is to."""

    def __init__(self, dies: bool) -> None:
        super().__init__()
        self.dies = dies

    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
        for layer in self.model.transformer.h:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def training_step(self, batch: list[Tensor], place: int) -> Tensor:
        if self.dies and place == 2 and self.global_rank == 1:
            raise RuntimeError("the second process has an error")
        return super().training_step(batch, place)


def in_two_processes(folder: Path, way: str) -> None:
    """`python test_watch_lightning.py FOLDER WAY`, which Lightning starts a second time by itself."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    sharding = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    module = Language() if way == "ddp" else Sharded(way == "dies")
    rank, data = int(os.environ.get("LOCAL_RANK", 0)), loader(4).dataset
    batches = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, rank, shuffle=False))  # type: ignore[arg-type]
    settings: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings |= {"use_distributed_sampler": False, "enable_model_summary": False, "max_epochs": 1}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp" if way == "ddp" else sharding,
        callbacks=[LightningWatch(folder=folder)],
        gradient_clip_val=1e-3,
        gradient_clip_algorithm="value" if way == "ddp" else "norm",
        **settings,
    )
    trainer.fit(module, batches)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp", "dies"])
def test_two_processes(way: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(tmp_path), way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if way == "dies":  # the process that has the error waits for no other, and so the run ends
        assert done.returncode != 0 and "the second process has an error" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-4000:]
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]  # once, not once per process
    assert rows[0]["grad_norm"] == pytest.approx(first_step()[1], rel=1e-5)
    assert rows[0]["loss"] == pytest.approx(first_step(slice(0, 4, 2))[0], rel=1e-5)  # that of the first process


if __name__ == "__main__":
    in_two_processes(Path(sys.argv[1]), sys.argv[2])

"""Watching under Lightning's own Trainer: gradients before clipping, mean losses, what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

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


def fit(folder: Path, *callbacks: Any, module: Any = None, rows: int = 4, **options: Any) -> Any:
    settings: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_epochs": 1}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False, "gradient_clip_val": 1e-3}
    trainer = lightning.Trainer(default_root_dir=folder, callbacks=list(callbacks), **(settings | options))
    module = module or Language()
    trainer.fit(module, loader(rows))
    return module


def first_step() -> tuple[float, float]:
    """Loss and norm of all gradients of the first update, by hand."""
    model, x, y = gpt2(), TOKENS[:4, :-1], TOKENS[:4, 1:]
    loss = cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), torch.cat([g.flatten() for g in gradients]).norm().item()


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_before_clipping_and_after_accumulation(parts: int, tmp_path: Path) -> None:
    fit(tmp_path, LightningWatch(folder=tmp_path), rows=4 // parts, accumulate_grad_batches=parts)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == pytest.approx(first_step(), rel=1e-5)
    assert rows[0]["grad_norm"] > 0.1  # negative control: clipped it would be 1e-3
    assert [row["address"] for row in read_rows(tmp_path / "quantities.jsonl")[:3]] == [
        f"model.transformer.h.{i}" for i in range(3)
    ]


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


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no layers found in Language: .* pass addresses="):
        fit(tmp_path, LightningWatch(), module=Language(nn.Embedding(31, 31)))


def test_a_strategy_that_hides_gradients_is_refused() -> None:
    class FSDPStrategy: ...

    class Trainer:
        strategy = FSDPStrategy()

    with pytest.raises(ValueError, match="cannot see gradients inside FSDP1's flat parameters"):
        LightningWatch().on_train_start(Trainer(), gpt2())

"""Watching under transformers' Trainer, and the warnings of isograd's own trainings."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

from isograd import IsogradForCausalLM, WatchCallback
from isograd.diagnose.watch.layers import by_layer, find_layers
from isograd.files import read_rows
from isograd.lab.data import PackedSequences
from isograd.lab.train.callbacks import EarlyWarning
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Run
from isograd.lab.train.tasks.language import LanguageModelling, load_corpus_of
from isograd.lab.train.train import train
from isograd.lab.train.trainer import IsogradTrainer
from tests.build import in_turn
from tests.train.recipes import losses, outcome, small

# Gradients as the Trainer has them


class Sequences(Dataset[dict[str, Tensor]]):
    """Sixteen sequences of twelve tokens."""

    ids = torch.randint(31, (16, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[place], "labels": self.ids[place]}


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_positions=12, n_embd=16, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return GPT2LMHeadModel(config)


class Breaking(GPT2LMHeadModel):
    """Its third loss in training is not a number."""

    calls = 0

    def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        out = super().forward(input_ids=input_ids, labels=labels, **kwargs)
        self.calls += self.training  # the watch looks for a leak in evaluation mode
        if self.training and self.calls == 3:
            out.loss = out.loss * math.nan
        return out


def trainer_of(model: nn.Module, folder: Path, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_steps": 3, "per_device_train_batch_size": 8, "max_grad_norm": 1e-3, "seed": 0}
    settings |= {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    return Trainer(model, TrainingArguments(str(folder), **(settings | options)), train_dataset=Sequences())


def watched(folder: Path, model: nn.Module | None = None, **options: Any) -> tuple[list[dict[str, Any]], Trainer]:
    """Rows per step of a training, and its trainer."""
    trainer = trainer_of(model or gpt2(), folder / "out", **options)
    trainer.add_callback(WatchCallback(trainer, folder=folder))
    trainer.train()
    return read_rows(folder / "metrics.jsonl"), trainer


def by_hand(folder: Path, parts: int) -> tuple[float, float]:
    """Loss and norm of all gradients in the first step, of the batches that the Trainer draws."""
    trainer = trainer_of(gpt2(), folder, gradient_accumulation_steps=parts, per_device_train_batch_size=8 // parts)
    feed, model = iter(trainer.get_train_dataloader()), gpt2()
    grads, total = [torch.zeros_like(p) for p in model.parameters()], 0.0
    for _ in range(parts):
        loss = model(**next(feed), num_items_in_batch=8 * 12).loss  # a part of the sum over the whole batch
        total += loss.item()
        for g, new in zip(grads, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            g += new
    return total, torch.cat([g.flatten() for g in grads]).norm().item()


@in_turn("parts, clip", [4, 1], [1e-3, 0.0])
def test_gradients_before_clipping_and_behind_accumulation(parts: int, clip: float, tmp_path: Path) -> None:
    rows, trainer = watched(
        tmp_path,
        gradient_accumulation_steps=parts,
        per_device_train_batch_size=8 // parts,
        max_grad_norm=clip,
        logging_steps=1,
    )
    assert [r["step"] for r in rows] == [1, 2, 3]
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert [r["loss"] for r in rows] == pytest.approx([r["loss"] for r in logged], rel=1e-5)
    assert [r["grad_norm"] for r in rows] == pytest.approx([r["grad_norm"] for r in logged], rel=1e-5)
    expected = by_hand(tmp_path / "hand", parts)
    assert (rows[0]["loss"], rows[0]["grad_norm"]) == pytest.approx(expected, rel=1e-5)
    assert rows[0]["grad_norm"] > 0.1  # negative control: clipped it would be 1e-3


def test_a_watched_training_is_bit_equal(tmp_path: Path) -> None:
    plain = trainer_of(gpt2(), tmp_path / "plain")
    plain.train()
    _, trainer = watched(tmp_path / "watched")
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, trainer.model.state_dict()[name])


def test_nothing_stays_behind(tmp_path: Path) -> None:
    before = set(vars(trainer_of(gpt2(), tmp_path / "other")))
    _, trainer = watched(tmp_path)
    assert not {"training_step", "_clip_grad_norm", "_get_grad_norm"} & set(vars(trainer))
    assert "unscale_gradients" not in vars(trainer.accelerator)
    assert before <= set(vars(trainer))
    trainer.train()  # a second one is watched from its own start
    assert [r["step"] for r in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 1, 2, 3]


def test_a_loss_that_the_trainer_hides(tmp_path: Path) -> None:
    """`logging_nan_inf_filter` is on, as it is by default: the Trainer logs a number."""
    rows, trainer = watched(tmp_path, Breaking(gpt2().config), logging_steps=1)
    assert all(math.isfinite(row["loss"]) for row in trainer.state.log_history if "loss" in row)
    assert [r["loss"] is None for r in rows] == [False, False, True]
    (warning,) = read_rows(tmp_path / "warnings.jsonl")
    assert warning["signal"] == "nonfinite" and warning["step"] == 3
    batch = torch.load(tmp_path / "nonfinite/batch.pt")
    assert batch["input_ids"].shape == (8, 12)


class Reported(TensorBoardCallback):
    """An integration of transformers', without what it needs installed: keeps what it is handed."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None: ...
    def on_train_end(self, *args: Any, **kwargs: Any) -> None: ...

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.rows.append((state.global_step, logs))


def test_rows_go_where_the_trainer_reports(tmp_path: Path) -> None:
    trainer = trainer_of(gpt2(), tmp_path / "out", max_steps=4, logging_steps=2)
    reported = Reported()
    trainer.add_callback(reported)
    trainer.add_callback(WatchCallback(trainer, folder=tmp_path))
    trainer.train()
    rows = read_rows(tmp_path / "metrics.jsonl")
    found = [(step, logs) for step, logs in reported.rows if "isograd/01 loss" in logs]
    assert [step for step, _ in found] == [2, 4]
    for step, logs in found:
        assert logs["isograd/01 loss"] == rows[step - 1]["loss"]
        assert {name for name in logs if name.startswith("isograd/05")} == {
            f"isograd/05 gradient norm of layers/{i + 1} transformer.h.{i}" for i in range(3)
        }
    assert not [name for row in trainer.state.log_history for name in row if name.startswith("isograd/")]


# isograd's own trainings


def deep(placement: str, seed: int = 0, **training: Any) -> Run:
    """Twelve layers on the embedded text, small and short, at a rate that Post-LN does not bear without warm-up."""
    shape = {"steps": 45, "batch": 8, "lr": 4e-3, "probe_every": 0, "checkpoint_every": 0, "valid_sequences": 0}
    model, data = {"placement": placement, "width": 32, "heads": 2}, {"length": 16}
    return run_from_dict({"seed": seed, "model": model, "data": data, "training": {**shape, **training}})


def test_a_collapse_is_told_early(tmp_path: Path) -> None:
    train(deep("post-ln"), tmp_path / "post")
    warning = outcome(tmp_path / "post")["warning"]
    assert warning["step"] <= 45 and warning["signal"] == "gradients"
    assert warning["layer"] == "model.layers.0"
    (row,) = read_rows(tmp_path / "post/warnings.jsonl")
    assert {name: row[name] for name in warning} == warning
    train(deep("pre-ln"), tmp_path / "pre")  # negative control
    assert outcome(tmp_path / "pre")["warning"] is None
    assert not (tmp_path / "pre/warnings.jsonl").exists()


@pytest.mark.slow
def test_a_warning_survives_an_interruption(tmp_path: Path) -> None:
    """What the watch knew at step 10 is in the checkpoint: the gradients of the start, for one."""
    run = deep("post-ln", checkpoint_every=10)

    def interrupt(step: int, loss: float) -> None:
        if step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "again", interrupt)
    kept = [p.parent.name for p in (tmp_path / "again/checkpoints").rglob("watch.json")]
    assert kept == ["checkpoint-10"]
    train(run, tmp_path / "again")
    train(run, tmp_path / "whole")
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")
    rows = [read_rows(tmp_path / name / "warnings.jsonl") for name in ("again", "whole")]
    assert len(rows[0]) == 1 and rows[0] == rows[1]
    assert outcome(tmp_path / "again")["warning"] == outcome(tmp_path / "whole")["warning"]


class Compared(TrainerCallback):
    """Layers' gradient norms of each step: those that a run's warning is told, and those of `isograd.watch`."""

    def __init__(self, warning: EarlyWarning, callback: WatchCallback) -> None:
        self.warning, self.callback = warning, callback
        self.pairs: list[tuple[list[float], list[float | None]]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.callback.watch is not None
        rows = self.callback.watch.layers
        seen = by_layer(find_layers(self.warning.trainer.model)).joined([row["gradient_norm"] for row in rows])
        self.pairs.append((self.warning.norms().tolist(), seen))


def test_a_run_is_warned_by_the_gradients_that_a_watch_sees(tmp_path: Path) -> None:
    run = small(training={"probe_every": 0, "clip": 1e-3, "batch": 4, "accumulation": 2})
    corpus = load_corpus_of(run)
    model = IsogradForCausalLM(LanguageModelling(run, corpus).config())
    samples = PackedSequences(corpus.train, run.data.length, 24, seed=0)
    trainer = IsogradTrainer(run, model, samples, tmp_path / "checkpoints")
    callback = WatchCallback(trainer)
    compared = Compared(EarlyWarning(trainer, tmp_path, None), callback)
    trainer.add_callback(callback)
    trainer.add_callback(compared)
    trainer.train()
    assert len(compared.pairs) == 6
    for told, seen in compared.pairs:
        assert len(told) == 2 and told == pytest.approx(seen, rel=1e-5)
        assert min(told) > 1e-2  # not clipped

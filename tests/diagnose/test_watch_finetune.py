"""Trained weights, trained on: a rate that undoes them is named within twenty steps, a healthy one is left alone."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import isograd
from tests.build import few, in_turn

VOCABULARY, TIME = 64, 16
Rate = Callable[[int], float]


def text(seed: int, rows: int = 8) -> Tensor:
    """A Markov chain: of each id four others may follow, unevenly."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (rows, TIME), generator=draw)
    chance = torch.multinomial(torch.tensor([0.7, 0.2, 0.07, 0.03]), rows * TIME, True, generator=draw).view(rows, TIME)
    for t in range(1, TIME):
        ids[:, t] = (ids[:, t - 1] * 5 + 7 * chance[:, t] + 3) % VOCABULARY
    return ids


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """The weights of a small Llama that knows it."""
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(250):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, (step + 1) / 20) * min(1.0, (250 - step) / 100)
        loss = of(model, text(step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 1.8
    return model.state_dict()


def llama() -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=2, num_key_value_heads=1, **shape))


def of(model: Any, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids).loss


def tuned(
    weights: dict[str, Tensor],
    rate: Rate,
    steps: int = 40,
    *,
    known: bool = True,
    pair: bool = False,
    data: Callable[[int], Tensor] = lambda step: text(10_000 + step),
    state: Any = None,
) -> tuple[list[dict[str, Any]], list[float]]:
    """The warnings of a fine-tune with a new AdamW, and its losses."""
    model = llama()
    model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    watch, losses = isograd.watch(model, optimizer=optimizer if known else None), []
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate(step)
        ids = data(step)
        x, y = ids[:, :-1], ids[:, 1:]
        loss = functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten()) if pair else of(model, ids)
        loss.backward()
        watch.step(loss, batch=(x, y) if pair else {"input_ids": ids, "labels": ids})
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return watch.warnings, losses


@in_turn("pair, rate", [False, True], [0.1, 0.3, 1.0], every=3)
def test_a_rate_that_undoes_trained_weights(trained: dict[str, Tensor], rate: float, pair: bool) -> None:
    (row,) = tuned(trained, lambda step: rate, 22, pair=pair)[0]
    assert row["step"] <= 20 and row["signal"] == "rise", row["message"]
    assert f"the learning rate {rate:g} is too high for trained weights: the first batch had" in row["cause"]
    found = re.search(r"train at lr=([\d.e-]+) with (\d+) steps of warm-up", row["remedy"])
    assert found is not None
    lower, warmup = float(found[1]), int(found[2])
    warnings, losses = tuned(trained, lambda step: lower * min(1.0, step / warmup), 60, pair=pair)
    assert warnings == [] and sum(losses[-10:]) < sum(losses[:10]) + 0.5  # what it says to do trains


def test_a_rate_that_is_not_known_is_lowered_by_a_factor(trained: dict[str, Tensor]) -> None:
    (row,) = tuned(trained, lambda step: 0.1, 22, known=False)[0]
    assert re.search(r"at a rate lowered \d+-fold", row["remedy"]) and "too high for trained weights" in row["cause"]


HEALTHY: list[dict[str, Any]] = [
    {"rate": lambda step: 1e-3},
    {"rate": lambda step: 3e-2, "steps": 60},  # a new Adam throws the loss up, and it comes back
    {"rate": lambda step: 3e-3 * (0.5 + 0.5 * math.cos(math.pi * (step % 20) / 20))},  # warm restarts
    {"rate": lambda step: 3e-3 * abs((step / 10) % 2 - 1)},  # cyclic
    {"rate": lambda step: 1e-3, "data": lambda step: text(10_000 + step, rows=1)},
    {"rate": lambda step: 1e-3, "data": lambda step: (text(10_000 + step) * 3) % VOCABULARY},  # another text
    {"rate": lambda step: 1e-3, "data": lambda step: text(step) if step != 12 else text(step).flip(0, 1)},
    {"rate": lambda step: 1e-3, "pair": True},
    {"rate": lambda step: 1e-3, "known": False},
]


@pytest.mark.parametrize("healthy", few(HEALTHY, HEALTHY[1::4]))
def test_a_healthy_fine_tune_is_left_alone(trained: dict[str, Tensor], healthy: dict[str, Any]) -> None:
    assert tuned(trained, **healthy)[0] == []


def test_weights_that_were_not_trained_have_no_reference() -> None:
    """From the first step on a high rate throws the loss up, and it comes down again: no trained weights are undone."""
    assert tuned(llama().state_dict(), lambda step: 3e-2, 40)[0] == []


def test_a_rate_that_rises_is_that_sentence(trained: dict[str, Tensor]) -> None:
    def rate(step: int) -> float:
        return 1e-3 if step < 40 else 0.3

    (row,) = tuned(trained, rate, 75)[0]
    assert row["cause"] == "the learning rate rose from 0.001 to 0.3 at step 40", row["message"]
    assert "lr=0.001" in row["remedy"]
    (row,) = tuned(trained, rate, 75, known=False)[0]
    assert "too high for trained weights" in row["cause"] and "-fold" in row["remedy"]


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize(("how", "times"), [pytest.param("rollback", 2, marks=pytest.mark.slow), ("lower-rate", 1)])
def test_the_trainer_goes_back(trained: dict[str, Tensor], how: Any, times: int, tmp_path: Path) -> None:
    model = llama()
    model.load_state_dict(trained)
    data = [{"input_ids": row, "labels": row} for step in range(40) for row in text(10_000 + step)]
    settings: dict[str, Any] = {"learning_rate": 0.1, "lr_scheduler_type": "constant", "per_device_train_batch_size": 8}
    settings |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    trainer = Trainer(model, TrainingArguments(str(tmp_path), max_steps=35, **settings), train_dataset=data)
    callback = isograd.WatchCallback(trainer, recover=how)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.watch is not None and callback.recovery is not None
    warnings = callback.watch.warnings
    signals = [row["signal"] for row in warnings]
    assert signals[:2] == ["rise", "recovered"] and warnings[1]["step"] <= 20 and warnings[1]["went_back"] == 0
    assert callback.recovery.count == times or how == "rollback"
    assert (of(model, text(10_000)).item() < 1.5) == (how == "lower-rate")

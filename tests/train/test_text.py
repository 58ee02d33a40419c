"""Language models: masked ones beside causal ones, validation during training, the rate at which a loss breaks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

import isograd.models  # noqa: F401  (the Auto classes)
from isograd.errors import DataError, RecipeError
from isograd.files import read_rows
from isograd.lab.train.run import Run
from isograd.lab.train.train import load_task, train
from isograd.models import IsogradForMaskedLM
from isograd.outcome import PATIENCE, LossWatch
from tests.build import in_turn
from tests.train.recipes import documents_file, losses, outcome, small, weights


def masked(**sections: dict[str, Any]) -> Run:
    data = {"length": 16, "source": str(documents_file()), "documents": "blank-line"} | sections.pop("data", {})
    return small(task="masked", data=data, **sections)


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["full-sentences", "segment-pair"])
def test_a_masked_model_learns(packing: str, tmp_path: Path) -> None:
    run = masked(data={"packing": packing}, training={"steps": 150, "batch": 16, "lr": 0.01, "valid_every": 50})
    got = train(run, tmp_path)
    assert got["validation_loss"] < got["unigram_entropy"] - 0.15
    assert got["outcome"] == ("finished" if got["judged"]["held_out_excess"] <= -0.1 else "undecided")
    assert got["gradient_ratio_end"] > 0  # its only tower is an encoder
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [r["step"] for r in rows] == [50, 100, 150] and rows[-1]["loss"] == got["validation_loss"]
    assert rows[0]["loss"] > rows[-1]["loss"] and 0 < rows[0]["seconds"] < rows[-1]["seconds"]


def test_the_model_and_its_tokenizer_fill_a_mask(tmp_path: Path) -> None:
    train(masked(data={"packing": "segment-pair"}), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    assert isinstance(model, IsogradForMaskedLM) and model.config.type_vocab_size == 2
    assert tokenizer.mask_token_id == len(tokenizer) - 1 == model.config.vocab_size - 1
    ids = torch.tensor([[2, tokenizer.mask_token_id, *tokenizer("he quick", add_special_tokens=False)["input_ids"], 3]])
    assert model(ids).logits.argmax(-1).shape == ids.shape


def test_the_held_out_loss_is_that_of_masked_tokens_alone(tmp_path: Path) -> None:
    """By hand: cross-entropy of all logits at the labelled places, the second head left out."""
    task = load_task(masked(data={"packing": "segment-pair"}, training={"valid_sequences": 10, "batch": 4}))
    model = task.build(task.config()).eval()
    total = count = 0
    for i in range(10):
        row = task.held_out[i]  # type: ignore[attr-defined]
        feed = {k: row[k] for k in ("input_ids", "token_type_ids", "attention_mask")}
        logits = model(**feed).logits.flatten(0, 1)
        total += nn.functional.cross_entropy(logits, row["labels"].flatten(), reduction="sum").item()
        count += int((row["labels"] != -100).sum())
    assert task.validate(model)["loss"] == pytest.approx(total / count, abs=1e-5)


def test_accumulation_is_the_same_update(tmp_path: Path) -> None:
    """Two losses, each a part of the update's. (The second one's part goes by the first one's targets.)"""
    found = []
    for accumulation in (1, 2):
        t = {"accumulation": accumulation, "optimizer": "sgd", "lr": 0.1, "steps": 2}
        train(masked(data={"packing": "segment-pair"}, training=t), tmp_path / str(accumulation))
        found.append((losses(tmp_path / str(accumulation)), weights(tmp_path / str(accumulation))))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    for name, value in found[0][1].items():
        torch.testing.assert_close(value, found[1][1][name], rtol=0, atol=1e-5)


def test_validation_changes_no_number_of_the_training(tmp_path: Path) -> None:
    for every in (0, 2):
        train(small(model={"dropout": 0.1}, training={"valid_every": every}), tmp_path / str(every))
    assert losses(tmp_path / "0") == losses(tmp_path / "2")
    assert all(torch.equal(v, weights(tmp_path / "2")[k]) for k, v in weights(tmp_path / "0").items())
    assert outcome(tmp_path / "0")["validation_loss"] == outcome(tmp_path / "2")["validation_loss"]
    assert not (tmp_path / "0/validation.jsonl").exists()


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    t = {"valid_every": 2, "select": "best", "lr": 0.5, "steps": 8}
    got = train(small(training=t), tmp_path)
    rows = read_rows(tmp_path / "validation.jsonl")
    lowest = min(rows, key=lambda row: row["loss"])
    assert got["kept_steps"] == [lowest["step"]] and got["validation_loss"] == lowest["loss"]


@pytest.mark.parametrize("keys", [{"patience": 2}, {"select": "best"}, {"select": "average"}])
def test_what_wants_validations(keys: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"need training\.valid_every"):
        small(training=keys)


RISING = {"steps": 300, "warmup": 300, "lr": 2.0, "batch": 16, "stop_when_broken": True}


def test_a_rising_rate_is_followed_until_the_loss_breaks(tmp_path: Path) -> None:
    got = train(small(training=RISING), tmp_path)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert got["broke_at"] and got["steps"] == len(rows) < 300 and got["steps"] - got["broke_at"] < 10
    assert got["lr_reached"] == rows[got["broke_at"] - 1]["lr"] == pytest.approx(2.0 * got["broke_at"] / 300)
    assert got["outcome"] in ("collapsed", "diverged") and f"stopped at step {got['broke_at']}" in got["reason"]


@pytest.mark.slow
def test_one_that_does_not_break_reaches_the_peak(tmp_path: Path) -> None:
    got = train(small(training=RISING | {"lr": 0.05, "steps": 100, "warmup": 100}), tmp_path)
    assert (got["broke_at"], got["lr_reached"], got["steps"]) == (None, 0.05, 100)
    assert "lr_reached" not in train(small(), tmp_path / "plain")


@pytest.mark.slow
def test_a_run_at_rest_is_stopped_where_asked_for(tmp_path: Path) -> None:
    """At such a rate nothing moves: the rule says so before the last step, and the same of the whole run."""
    rest = {"steps": 300, "lr": 1e-9, "batch": 64, "probe_every": 0}
    stopped = train(small(training=rest | {"stop_when_broken": "or-collapsed"}), tmp_path / "stopped")
    whole = train(small(training=rest | {"stop_when_broken": True}), tmp_path / "whole")
    assert stopped["outcome"] == whole["outcome"] == "collapsed", (stopped["reason"], whole["reason"])
    assert PATIENCE <= stopped["steps"] < whole["steps"] == 300
    mine, theirs = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("stopped", "whole"))
    assert mine == theirs[: len(mine)] and stopped["broke_at"] is None
    learns = {"steps": 300, "lr": 0.01, "batch": 8, "stop_when_broken": "or-collapsed", "probe_every": 0}
    assert train(small(training=learns), tmp_path / "learns")["steps"] == 300


def broke_at(losses: list[float], entropy: float = 9.0) -> int | None:
    return LossWatch(entropy).follow(losses).broke_at


def test_where_a_loss_breaks() -> None:
    """By hand: means of ten, half a nat above the lowest of them so far."""
    falling = [4.0 - 0.1 * i for i in range(20)]
    assert broke_at(falling) is None and broke_at([*falling[:9], math.inf]) == 10
    lowest = sum(falling[-10:]) / 10
    jump = [9.0, 9.0]
    first = (sum(falling[-9:]) + 9.0) / 10
    assert broke_at(falling + jump) == (21 if first >= lowest + 0.5 else 22)
    assert broke_at([*falling, 5.0]) is None
    short = LossWatch(1.05).follow([1.0] * 10 + [math.nan])
    assert (short.broke_at, short.learnt) == (11, False)  # it was never below the entropy


def test_steps_come_in_any_portions() -> None:
    """A resumed training hears the losses before the kill first."""
    losses = [3.0] * 10 + [2.0] * 12 + [2.9] * 9
    whole = LossWatch(4.0).follow(losses)
    parts = LossWatch(4.0).follow(losses[:17]).follow(losses[17:])
    assert whole.broke_at == parts.broke_at == 28  # six of 2.9 among ten


@pytest.mark.parametrize("task", ["language", "masked"])
def test_who_asks_for_validations_is_told_beforehand_that_there_are_none(task: str, tmp_path: Path) -> None:
    short, foreign = tmp_path / "short.txt", tmp_path / "foreign.txt"
    short.write_text("fox")
    foreign.write_text("привет" * 50, encoding="utf-8")
    often = {"valid_every": 2, "select": "best"}
    for file, said in ((short, "has 3 tokens"), (foreign, "no character of the training part")):
        with pytest.raises(DataError, match=rf"^the validation part.*{said}.*data\.valid"):
            train(small(task=task, data={"valid": str(file)}, training=often), tmp_path / "run")
    with pytest.raises(RecipeError, match=r"valid_every=2 and training\.valid_sequences=0"):
        small(task=task, training={"valid_every": 2, "valid_sequences": 0})
    assert not (tmp_path / "run").exists()


def test_pairs_need_two_documents_to_validate_on(tmp_path: Path) -> None:
    """A named part, or one that is read during the training, is refused; one that was cut off is left out."""
    (tmp_path / "one.txt").write_text("the quick brown fox\n" * 30)
    pairs = {"packing": "segment-pair", "valid": str(tmp_path / "one.txt")}
    with pytest.raises(DataError, match=r"^the validation part: .*two documents"):
        load_task(masked(data=pairs))
    few = tmp_path / "few.txt"
    few.write_text("\n".join(f"document {i} has the quick brown fox\n" for i in range(3)))
    pairs = {"packing": "segment-pair", "source": str(few)}
    assert train(masked(data=pairs), tmp_path / "run")["validation_loss"] is None
    with pytest.raises(DataError, match=r"^the validation part: .*two documents"):
        load_task(masked(data=pairs, training={"valid_every": 2}))


def test_characters_that_a_masked_model_does_not_know_are_no_targets(tmp_path: Path) -> None:
    """The first batches have none; those behind them count alone."""
    mixed = tmp_path / "mixed.txt"
    mixed.write_text("приветмир" * 20 + "the quick brown fox " * 20, encoding="utf-8")
    task = load_task(masked(data={"valid": str(mixed)}, training={"valid_sequences": 4, "batch": 2}))
    model = task.build(task.config())
    assert task.validate(model) == {"loss": None}
    task = load_task(masked(data={"valid": str(mixed)}, training={"valid_sequences": 100, "batch": 2}))
    loss = task.validate(model)["loss"]
    assert loss is not None and math.isfinite(loss)


@in_turn("task, keys", ["language", "masked"], [{}, {"valid_every": 1, "select": "best"}])
def test_the_last_update_alone_broke_it(task: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """The losses in training were those before each update, and finite."""
    broken = {"steps": 1, "lr": 1e30, "optimizer": "sgd", "clip": 0.0} | keys
    got = train(small(task=task, training=broken), tmp_path)
    assert math.isfinite(losses(tmp_path)[0])
    assert (got["outcome"], got["validation_loss"]) == ("diverged", None)


def test_segments_of_no_token(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.length=4 has no room .* at least 5"):
        masked(data={"packing": "segment-pair", "length": 4})
    assert train(masked(data={"packing": "segment-pair", "length": 5}), tmp_path)["outcome"] == "undecided"

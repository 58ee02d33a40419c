"""The probe inside a training: it changes no number, reads before clipping and after accumulation, leaves nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.files import read_rows
from isograd.lab.data import PackedSequences
from isograd.lab.train.callbacks import Observe
from isograd.lab.train.tasks.language import LanguageModelling, load_corpus_of
from isograd.lab.train.train import gradient_ratio, train
from isograd.lab.train.trainer import IsogradTrainer
from isograd.models import IsogradForCausalLM
from tests.build import few
from tests.train.recipes import losses, outcome, small, weights


def rows_of(folder: Path, **sections: Any) -> list[dict[str, Any]]:
    train(small(**sections), folder)
    return read_rows(folder / "quantities.jsonl")


@pytest.mark.parametrize("placement", few(["pre-ln", "admin", "normformer-resscale"], ["normformer-resscale"]))
def test_a_probed_training_is_bit_equal(placement: str, tmp_path: Path) -> None:
    for every in (0, 1, 4):
        model = {"placement": placement, "dropout": 0.1}
        train(small(model=model, training={"probe_every": every, "clip": 1.0}), tmp_path / str(every))
    for every in ("1", "4"):
        assert losses(tmp_path / every) == losses(tmp_path / "0")
        for name, value in weights(tmp_path / "0").items():
            assert torch.equal(value, weights(tmp_path / every)[name])
    steps = [sorted({r["step"] for r in read_rows(tmp_path / e / "quantities.jsonl")}) for e in ("0", "1", "4")]
    assert steps == [[], [1, 2, 3, 4, 5, 6], [1, 4, 6]]  # the first, every fourth, the last
    assert outcome(tmp_path / "0")["gradient_ratio_start"] is None


def test_gradients_of_an_observed_step_by_hand(tmp_path: Path) -> None:
    """Clipped or not, in one piece or four: the gradients of the whole batch as backward left them."""
    run = small(training={"batch": 8})
    corpus = load_corpus_of(run)
    torch.manual_seed(run.seed)
    model = IsogradForCausalLM(LanguageModelling(run, corpus).config()).train()
    rows = PackedSequences(corpus.train, run.data.length, 64, seed=run.data_seed).__getitems__(range(8))
    model(**rows).loss.backward()
    for training in ({}, {"clip": 1e-3}, {"accumulation": 4}, {"accumulation": 8, "clip": 1e-3}):
        got = rows_of(tmp_path / str(training), training={"batch": 8, "steps": 1, **training})
        assert len(got) == 4
        for row in got:
            sublayer = model.get_submodule(row["address"])
            norm = torch.cat([p.grad.flatten() for p in sublayer.parameters()]).norm().item()
            assert row["gradient_norm"] == pytest.approx(norm, rel=1e-5)
            mean = sublayer.branch.out.weight.grad.abs().mean().item()
            assert row["gradient_mean_abs"] == pytest.approx(mean, rel=1e-5)
        total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        logged = read_rows(tmp_path / str(training) / "metrics.jsonl")[0]["grad_norm"]
        assert logged == pytest.approx(total, rel=1e-5)


def test_the_update_is_the_optimizers(tmp_path: Path) -> None:
    """SGD without clipping: |W' - W| = lr |gradient of W|; with clipping the update shrinks, the gradient does not."""
    sgd = {"optimizer": "sgd", "lr": 0.1, "steps": 1}
    plain = rows_of(tmp_path / "plain", training=sgd)
    norm = read_rows(tmp_path / "plain/metrics.jsonl")[0]["grad_norm"]
    clipped = rows_of(tmp_path / "clipped", training={**sgd, "clip": norm / 10})
    for a, b in zip(plain, clipped, strict=True):
        assert a["gradient_norm"] == b["gradient_norm"]
        assert a["update_ratio"] == pytest.approx(10 * b["update_ratio"], rel=1e-4)


def test_headline_ratio_is_of_the_first_and_last_w_2(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, model={"layers": 3})
    first, last = (next(r for r in rows if (r["step"], r["kind"], r["layer"]) == (1, "ffn", layer)) for layer in (1, 3))
    expected = first["gradient_mean_abs"] / last["gradient_mean_abs"]
    assert outcome(tmp_path)["gradient_ratio_start"] == pytest.approx(expected)
    assert gradient_ratio([first, last]) == pytest.approx(expected)


def hooks(network: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


@pytest.mark.parametrize("raises", [False, True])
def test_no_hooks_after_a_training(raises: bool, tmp_path: Path) -> None:
    run = small(training={"probe_every": 1})
    corpus = load_corpus_of(run)
    samples = PackedSequences(corpus.train, 8, 24, seed=0)
    model = IsogradForCausalLM(LanguageModelling(run, corpus).config())
    before = hooks(model)
    trainer = IsogradTrainer(run, model, samples, tmp_path)
    trainer.add_callback(Observe(trainer, tmp_path, every=1))
    if raises:
        samples.ids = samples.ids[:50]  # later samples lie behind its end
        with pytest.raises(IndexError):
            trainer.train()
    else:
        trainer.train()
    del trainer
    assert hooks(model) == before

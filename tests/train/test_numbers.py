"""What a training computes: losses, smoothing, accumulation, clipping, precision, against loops written here."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from isograd.errors import RecipeError
from isograd.files import read_rows
from isograd.lab.data import PackedSequences
from isograd.lab.train.run import Run
from isograd.lab.train.tasks.language import LanguageModelling, load_corpus_of
from isograd.lab.train.train import train
from isograd.models import IsogradForCausalLM
from tests.build import in_turn
from tests.train.recipes import losses, outcome, small, weights


def logged(folder: Path, **sections: Any) -> list[dict[str, Any]]:
    train(small(**sections), folder)
    assert outcome(folder)["outcome"] in ("finished", "undecided")
    return read_rows(folder / "metrics.jsonl")


def by_hand(run: Run, smoothing: float = 0.0) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """The training as a plain loop: losses, norms before clipping, final weights. No Trainer, no chunked loss."""
    corpus, t = load_corpus_of(run), run.training
    torch.manual_seed(run.seed)
    model = IsogradForCausalLM(LanguageModelling(run, corpus).config()).train()
    samples = PackedSequences(corpus.train, run.data.length, t.steps * t.batch, seed=run.data_seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=t.lr, momentum=t.betas[0])
    seen, norms = [], []
    for step in range(t.steps):
        rows = samples.__getitems__(range(step * t.batch, (step + 1) * t.batch))
        log_p = model(rows["input_ids"]).logits.log_softmax(-1)
        picked = log_p.gather(-1, rows["shift_labels"][..., None])[..., 0]
        loss = -((1 - smoothing) * picked + smoothing * log_p.mean(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        bound = t.clip or math.inf
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), bound).item())
        optimizer.step()
        seen.append(loss.item())
    return seen, norms, model.state_dict()


def agree(run: Run, folder: Path, smoothing: float = 0.0) -> list[float]:
    """Run and loop: losses, norms and final weights. Returns the norms."""
    train(run, folder)
    rows = read_rows(folder / "metrics.jsonl")
    expected, norms, state = by_hand(run, smoothing)
    assert [r["step"] for r in rows] == list(range(1, run.training.steps + 1))
    assert [r["loss"] for r in rows] == pytest.approx(expected, rel=1e-5)
    assert [r["grad_norm"] for r in rows] == pytest.approx(norms, rel=1e-4)
    for name, value in weights(folder).items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=2e-6)
    return norms


SGD = {"optimizer": "sgd", "lr": 0.05}


def test_a_training_is_the_plain_loop(tmp_path: Path) -> None:
    agree(small(training=SGD), tmp_path)


@in_turn("accumulation, clip", [4, 1], [0.5, 1e3])
def test_clipping_is_torchs_and_the_logged_norm_stands_before_it(
    clip: float, accumulation: int, tmp_path: Path
) -> None:
    norms = agree(small(training={**SGD, "clip": clip, "accumulation": accumulation}), tmp_path)
    assert min(norms) > 0.5  # or the test would clip nothing


def test_label_smoothing_by_hand(tmp_path: Path) -> None:
    agree(small(training={**SGD, "label_smoothing": 0.1}), tmp_path / "smooth", smoothing=0.1)
    with pytest.raises(AssertionError):  # negative control
        agree(small(training={**SGD, "label_smoothing": 0.1}), tmp_path / "control", smoothing=0.0)


def test_validation_is_not_smoothed(tmp_path: Path) -> None:
    """The mean cross-entropy of the first held-out sequences under the saved model."""
    run = small(training={"label_smoothing": 0.3, "valid_sequences": 5})
    got = train(run, tmp_path)["validation_loss"]
    corpus = load_corpus_of(run)
    rows = PackedSequences(corpus.valid, run.data.length).__getitems__(range(5))
    logits = IsogradForCausalLM.from_pretrained(tmp_path / "model")(rows["input_ids"]).logits
    assert got == pytest.approx(F.cross_entropy(logits.flatten(0, 1), rows["shift_labels"].flatten()).item(), rel=1e-5)


def test_no_validation_when_none_is_asked_for(tmp_path: Path) -> None:
    assert train(small(training={"valid_sequences": 0}), tmp_path)["validation_loss"] is None


def test_four_times_four_is_sixteen(tmp_path: Path) -> None:
    rows = {n: logged(tmp_path / str(n), training={"batch": 16, "accumulation": n}) for n in (1, 4, 16)}
    for n in (4, 16):
        for name in ("loss", "grad_norm"):
            assert [r[name] for r in rows[n]] == pytest.approx([r[name] for r in rows[1]], rel=1e-5), (n, name)


def test_checkpointing_of_activations_changes_no_number(tmp_path: Path) -> None:
    for dropout in (0.0, 0.2):
        folders = [tmp_path / f"{dropout}-{on}" for on in (False, True)]
        for on, folder in zip((False, True), folders, strict=True):
            logged(folder, model={"dropout": dropout}, training={"gradient_checkpointing": on})
        one, other = (read_rows(f / "quantities.jsonl") for f in folders)
        assert losses(folders[0]) == losses(folders[1])
        assert one == other


def test_bf16_is_near_fp32_and_not_equal(tmp_path: Path) -> None:
    fp32, bf16 = ([r["loss"] for r in logged(tmp_path / p, training={"precision": p})] for p in ("fp32", "bf16"))
    assert fp32 != bf16
    assert fp32 == pytest.approx(bf16, rel=2e-2)
    assert all(w.dtype == torch.float32 for w in weights(tmp_path / "bf16").values())


@pytest.mark.slow
def test_dropout_drops(tmp_path: Path) -> None:
    plain = logged(tmp_path / "plain")
    for place in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout"):
        assert logged(tmp_path / place, model={place: 0.3})[0]["loss"] != plain[0]["loss"], place


@pytest.mark.slow
def test_seeds(tmp_path: Path) -> None:
    """The same seed, the same numbers; the data's seed moves the order and not the start."""
    runs = {"a": (0, None), "b": (0, None), "c": (1, None), "d": (0, 5), "e": (5, 0)}
    for name, (seed, order) in runs.items():
        train(small(seed=seed, data={"seed": order}), tmp_path / name)
    seen = {name: losses(tmp_path / name) for name in runs}
    assert seen["a"] == seen["b"]
    assert len({seen[n][0] for n in "acde"}) == 4


def test_fp16_and_trackers_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for training in ({"precision": "fp16"}, {"track": ["trackio"]}):
        if torch.cuda.is_available() and "precision" in training:
            continue
        with pytest.raises(RecipeError):
            train(small(training=training), tmp_path / "run")
    with pytest.raises(RecipeError, match="'nothing'"):
        train(small(model={"placement": "nothing"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_compiled_training(tmp_path: Path) -> None:
    """The same losses, and the probe's rows all the same."""
    plain = logged(tmp_path / "plain")
    compiled = logged(tmp_path / "compiled", training={"compile": True})
    assert [r["loss"] for r in compiled] == pytest.approx([r["loss"] for r in plain], rel=1e-5)
    one, other = (read_rows(tmp_path / n / "quantities.jsonl") for n in ("plain", "compiled"))
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert b["gradient_norm"] == pytest.approx(a["gradient_norm"], rel=1e-3)
        assert b["residual_rms"] == pytest.approx(a["residual_rms"], rel=1e-4)

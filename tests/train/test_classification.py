"""Fine-tuning: the numbers of a loop by hand, killed or not; pre-trained or from scratch; scores and majority line."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from isograd.errors import DataError, InteropError, RecipeError
from isograd.files import read_rows
from isograd.lab.train.run import Run
from isograd.lab.train.train import load_task, train
from isograd.lab.train.validation import best
from isograd.models import IsogradConfig, IsogradForSeq2SeqLM, IsogradForSequenceClassification
from tests.build import few
from tests.study.processes import killed_after
from tests.train.recipes import losses, outcome, read_json, same_run, weights
from tests.train.test_distributed import launch
from tests.train.tuned import glue_folder, pretrained, tuned

PLAIN = {"dropout": 0.0}


@pytest.fixture(scope="module", name="masked")
def _masked(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pretrained(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module", name="causal")
def _causal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pretrained(tmp_path_factory.mktemp("causal"), causal=True)


@pytest.fixture(scope="module", name="typed")
def _typed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return pretrained(tmp_path_factory.mktemp("typed"), type_vocab_size=2, next_sentence=True)


def table(task: str = "MRPC", part: str = "train") -> list[dict[str, str]]:
    """The rows of a file, read by hand."""
    header, *lines = (glue_folder() / task / f"{part}.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def alone(model: Any, folder: str, first: str, second: str, length: int = 24) -> torch.Tensor:
    """Logits of one row without any padding: the longer sentence cut a token at a time, <s> A </s> B </s>."""
    tokenizer = Tokenizer.from_file(f"{folder}/model/tokenizer.json")
    a, b = (tokenizer.encode(text).ids for text in (first, second))
    while len(a) + len(b) > length - 3:
        (a if len(a) > len(b) else b).pop()
    ids = [2, *a, 3, *b, 3]
    types = {"token_type_ids": torch.tensor([[0] * (len(a) + 2) + [1] * (len(b) + 1)])}
    return model(torch.tensor([ids]), **(types if model.config.type_vocab_size else {})).logits


def fresh(run: Run) -> Any:
    task = load_task(run)
    torch.manual_seed(run.seed)
    return task.build(task.config())


@pytest.mark.parametrize("kind", few(["masked", "causal", "typed"], ["typed"]))
def test_the_loss_curve_is_that_of_a_loop_by_hand(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """AdamW on each row alone, in the order of two permutations; warm-up over 20 % of ten updates, then to 0."""
    folder = request.getfixturevalue(kind)
    run = tuned(folder, glue=PLAIN | {"warmup": 0.2}, training={"lr": 3e-3})
    train(run, tmp_path)
    model = fresh(run).train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0, betas=(0.9, 0.98)
    )
    rows, expected = table(), []
    for step in range(1, 11):
        turn, place = divmod(step - 1, 5)
        order = np.random.default_rng((0, turn)).permutation(42)[8 * place : 8 * place + 8]
        logits = torch.cat([alone(model, folder, rows[i]["#1 String"], rows[i]["#2 String"]) for i in order])
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([int(rows[i]["Quality"]) for i in order]))
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (step / 2 if step <= 2 else (10 - (step - 1)) / 8)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(tmp_path) == pytest.approx(expected, rel=2e-4)


def test_the_scores_are_those_of_rows_one_by_one(masked: str, tmp_path: Path) -> None:
    """On dev and on test, of the model that was kept; the majority line is that of the training part's class."""
    metrics = pytest.importorskip("sklearn.metrics")
    got = train(tuned(masked), tmp_path)
    model = IsogradForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    for part in ("dev", "test"):
        rows = table(part=part)
        true = [int(row["Quality"]) for row in rows]
        logits = torch.cat([alone(model, masked, row["#1 String"], row["#2 String"]) for row in rows]).detach()
        predicted = logits.argmax(dim=1).tolist()
        assert got["scores"][part]["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted))
        assert got["scores"][part]["f1"] == pytest.approx(metrics.f1_score(true, predicted))
        assert got["majority_scores"][part]["accuracy"] == pytest.approx(sum(true) / len(true))
        if part == "dev":
            expected = torch.nn.functional.cross_entropy(logits, torch.tensor(true)).item()
            assert got["validation_loss"] == pytest.approx(expected, rel=1e-5)
    assert (got["metric"], got["score"]) == ("accuracy", got["scores"]["dev"]["accuracy"])
    assert got["majority"] == got["majority_scores"]["dev"]["accuracy"]
    assert got["failed"] is (got["score"] <= got["majority"])
    assert got["outcome"] == "finished" and got["epochs"] == 2


def test_the_rows_of_the_validation(masked: str, tmp_path: Path) -> None:
    got = train(tuned(masked), tmp_path)
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [(row["step"], row["epoch"]) for row in rows] == [(5, 1.0), (10, 2.0)]
    assert set(rows[0]) == {"step", "epoch", "seconds", "loss", "accuracy", "f1"}
    assert (got["steps"], got["score"]) == (10, rows[-1]["accuracy"])
    facts = read_json(tmp_path / "resolved.json")["data"]
    assert facts["rows"] == {"train": 42, "dev": 10, "test": 12} and facts["updates_per_epoch"] == 5
    assert facts["constant"] == 1 and facts["constant_loss"] == pytest.approx(
        -(1 / 3 * math.log(1 / 3) + 2 / 3 * math.log(2 / 3))
    )


def test_every_pass_has_an_order_of_its_own_and_leaves_out_other_rows(masked: str) -> None:
    task = load_task(tuned(masked, training={"epochs": 3}))
    seen = [[task.samples._at(i) for i in range(40 * turn, 40 * turn + 40)] for turn in range(3)]
    assert len(task.samples) == 120 and all(len(set(one)) == 40 for one in seen)
    left = [set(range(42)) - set(one) for one in seen]
    assert seen[0] != seen[1] != seen[2] and len({frozenset(one) for one in left}) > 1
    other = load_task(tuned(masked, seed=1))
    assert [other.samples._at(i) for i in range(40)] != seen[0]
    fixed = load_task(tuned(masked, seed=1, data={"seed": 0}))
    assert [fixed.samples._at(i) for i in range(40)] == seen[0]


def test_batches_are_as_wide_as_their_longest_row(masked: str) -> None:
    task = load_task(tuned(masked))
    batch = task.samples.__getitems__(range(8))
    longest = int(batch["attention_mask"].sum(dim=1).max())
    assert batch["input_ids"].shape == (8, longest) and "token_type_ids" not in batch
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()
    assert max(len(task.samples.__getitems__(range(i, i + 2))["input_ids"][0]) for i in range(40)) <= 24


def test_accumulated_batches_are_the_same_update(masked: str, tmp_path: Path) -> None:
    for name, accumulation in (("one", 1), ("four", 4)):
        train(tuned(masked, glue=PLAIN, training={"accumulation": accumulation}), tmp_path / name)
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


def test_pretrained_and_scratch_differ_in_the_tower_alone(masked: str) -> None:
    """The head's start is the same; the tower is the checkpoint's, or a fresh one of the seed."""
    checkpoint = load_file(f"{masked}/model/model.safetensors")
    mine = fresh(tuned(masked)).state_dict()
    scratch = fresh(tuned(masked, glue={"scratch": True})).state_dict()
    for name, value in mine.items():
        if name.startswith("model."):
            assert torch.equal(value, checkpoint[name]), name
        else:
            assert torch.equal(value, scratch[name]), name
    assert not torch.equal(scratch["model.embedding.tokens.weight"], mine["model.embedding.tokens.weight"])
    other = fresh(tuned(masked, seed=1)).state_dict()
    assert not torch.equal(other["dense.weight"], mine["dense.weight"])


def test_a_fine_tuned_model_gives_its_tower_and_no_head(masked: str, tmp_path: Path) -> None:
    train(tuned(masked), tmp_path / "first")
    first = weights(tmp_path / "first")
    again = fresh(tuned(str(tmp_path / "first"))).state_dict()
    assert torch.equal(again["model.embedding.tokens.weight"], first["model.embedding.tokens.weight"])
    assert not torch.equal(again["dense.weight"], first["dense.weight"])


def test_scores_of_a_regression(masked: str, tmp_path: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    run = tuned(masked, glue={"task": "sts-b"})
    true = np.array([float(row["score"]) for row in table("STS-B")])
    assert fresh(run).classifier.bias.item() == pytest.approx(true.mean(), rel=1e-6)
    got = train(run, tmp_path)
    model = IsogradForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    rows = table("STS-B", "dev")
    found = [alone(model, masked, row["sentence1"], row["sentence2"]).item() for row in rows]
    dev = np.array([float(row["score"]) for row in rows])
    assert got["validation_loss"] == pytest.approx(((np.array(found) - dev) ** 2).mean(), rel=1e-4)
    assert got["scores"]["dev"]["pearson"] == pytest.approx(stats.pearsonr(found, dev).statistic, abs=1e-4)
    assert got["scores"]["dev"]["spearman"] == pytest.approx(stats.spearmanr(found, dev).statistic, abs=1e-6)
    assert (got["metric"], got["majority"], model.config.num_labels) == ("pearson", 0, 1)
    assert read_json(tmp_path / "resolved.json")["data"]["constant_loss"] == pytest.approx(true.var(), rel=1e-5)


def test_the_kept_model_is_ready_to_use(masked: str, tmp_path: Path) -> None:
    """By transformers' own classes, with the names of the classes; its tokenizer makes the pairs itself."""
    train(tuned(masked), tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert model.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = model(**tokenizer("a dog", "the cat", return_tensors="pt")).logits
        torch.testing.assert_close(logits, alone(model, masked, "a dog", "the cat"))


def test_a_grid_does_not_fill_the_disk(masked: str, tmp_path: Path) -> None:
    got = train(tuned(masked, glue={"keep": False}), tmp_path)
    assert got["outcome"] == "finished"
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.json", "resolved.json", "metrics.jsonl", "validation.jsonl", "outcome.json"
    }  # fmt: skip


@pytest.mark.parametrize("select", few(["best", "average"], ["average"]))
def test_which_weights_are_scored(select: str, masked: str, tmp_path: Path) -> None:
    got = train(tuned(masked, training={"select": select, "average": 2, "epochs": 4, "lr": 0.05}), tmp_path)
    rows = read_rows(tmp_path / "validation.jsonl")
    assert got["kept_steps"] == ([best(rows)["step"]] if select == "best" else [15, 20])
    model = IsogradForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    true = torch.tensor([int(row["Quality"]) for row in table(part="test")])
    logits = torch.cat([alone(model, masked, r["#1 String"], r["#2 String"]) for r in table(part="test")])
    assert got["scores"]["test"]["accuracy"] == pytest.approx((logits.argmax(1) == true).float().mean().item())


@pytest.mark.parametrize("placement", [pytest.param("pre-ln", marks=pytest.mark.slow), "admin"])
def test_killed_in_mid_epoch_it_goes_on_to_the_same_bits(placement: str, tmp_path: Path) -> None:
    """kill -9 after the seventh update of ten, with dropout; then the same call again."""
    model = pretrained(tmp_path / "pretrained", placement=placement, **_calibration(placement))
    scratch = placement == "admin"  # which is profiled once, and never after a checkpoint
    training = {"probe_every": 3, "accumulation": 2}
    run = tuned(model, placement=placement, glue={"scratch": scratch, "dropout": 0.2}, training=training)
    train(run, tmp_path / "whole")
    killed = tmp_path / "killed"
    assert killed_after(7, lambda: train(run, killed)) == -signal.SIGKILL
    assert not (killed / "outcome.json").exists()
    assert (killed / "checkpoints/checkpoint-6/sealed.json").exists()
    train(run, killed)
    same_run(tmp_path / "whole", killed)


def _calibration(placement: str) -> dict[str, Any]:
    return {"calibration": {"method": "admin", "encoder": [1.0, 2.0, 3.0, 4.0]}} if placement == "admin" else {}


def test_a_calibration_is_the_checkpoints_own_or_a_new_one(tmp_path: Path) -> None:
    """The pre-trained skips stay; from scratch they are profiled on the task."""
    folder = pretrained(tmp_path / "pretrained", placement="admin", **_calibration("admin"))
    for scratch in (False, True):
        train(tuned(folder, placement="admin", glue={"scratch": scratch}), tmp_path / str(scratch))
    found = [read_json(tmp_path / name / "resolved.json")["calibration"] for name in ("False", "True")]
    assert found[0]["encoder"] == [1.0, 2.0, 3.0, 4.0] != found[1]["encoder"]


def test_dropout_in_place_of_the_models(tmp_path: Path) -> None:
    folder = pretrained(tmp_path, hidden_dropout=0.3, embedding_dropout=0.2, attention_dropout=0.4)
    config = load_task(tuned(folder, glue={"dropout": 0.05, "attention_dropout": 0.07})).config()
    found = (config.hidden_dropout, config.embedding_dropout, config.attention_dropout, config.classifier_dropout)
    assert found == (0.05, 0.05, 0.07, None)
    config = load_task(tuned(folder, glue={"dropout": None})).config()
    assert (config.hidden_dropout, config.embedding_dropout, config.attention_dropout) == (0.3, 0.2, 0.4)


def test_a_training_that_diverges_has_failed(masked: str, tmp_path: Path) -> None:
    got = train(tuned(masked, training={"lr": 1e30, "optimizer": "sgd"}), tmp_path)
    assert (got["outcome"], got["failed"]) == ("diverged", True) and got["validation_loss"] is None
    assert outcome(tmp_path)["failed"] is True


def test_failed_is_not_above_the_majority_line(masked: str) -> None:
    task = load_task(tuned(masked))
    task.build(task.config())
    line = sum(int(row["Quality"]) for row in table(part="dev")) / 10
    for score, failed in ((line - 0.1, True), (line, True), (line + 0.1, False), (None, True)):
        assert task.measured({"loss": 0.6, "accuracy": score, "f1": 0.8})["failed"] == failed
    rows = [{"step": step, "loss": 0.7, "lr": 1e-3} for step in range(1, 301)]  # at the constant answer's loss, too
    assert (task.judge(rows, 0.6).outcome, task.judge(rows, math.nan).outcome) == ("finished", "diverged")


def test_another_model_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Unless its shape alone is taken, and that is the same."""
    folder = pretrained(tmp_path / "pretrained")
    for name, scratch in (("tuned", False), ("scratch", True)):
        train(tuned(folder, glue={"scratch": scratch}), tmp_path / name)
        (tmp_path / name / "outcome.json").unlink()
    file = Path(folder, "model/model.safetensors")
    save_file({k: v + 1e-3 for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(FileExistsError, match="another text"):
        train(tuned(folder), tmp_path / "tuned")
    assert train(tuned(folder, glue={"scratch": True}), tmp_path / "scratch")["outcome"] == "finished"


def refused(run: Run, error: type[Exception], pattern: str, folder: Path) -> None:
    with pytest.raises(error, match=pattern) as caught:
        train(run, folder / "run")
    assert "\n" not in str(caught.value) and not (folder / "run").exists()


def test_what_does_not_fit_the_model_is_refused(masked: str, tmp_path: Path) -> None:
    refused(tuned(masked, placement="post-ln"), RecipeError, "set model.placement=pre-ln$", tmp_path)
    refused(tuned(masked, glue={"length": 25}), RecipeError, "has 24 positions; set glue.length=24, or", tmp_path)
    refused(tuned(masked, training={"batch": 43}), DataError, "42 rows, fewer than one batch of 43$", tmp_path)
    refused(tuned(masked, glue={"source": "./none"}), DataError, r"^\./none: no such folder$", tmp_path)


def test_what_is_no_pretrained_model_is_refused(tmp_path: Path) -> None:
    def says(pattern: str, folder: Path, error: type[Exception] = DataError) -> None:
        refused(tuned(str(folder)), error, pattern, tmp_path)

    says("no config.json here or in model/", tmp_path)
    says("no such folder", tmp_path / "nothing")
    few = Path(pretrained(tmp_path / "few", rows=12))
    says(r"its tokenizer has \d+ tokens, and the model's table 12 rows", few)
    lost = Path(pretrained(tmp_path / "lost"))
    file = lost / "model/model.safetensors"
    whole = load_file(file)
    first = min(name for name in whole if name.startswith("model."))
    save_file({k: v for k, v in whole.items() if k != first}, file, metadata={"format": "pt"})
    says("weights are missing, such as", lost)
    save_file(whole | {first: torch.full_like(whole[first], torch.nan)}, file, metadata={"format": "pt"})
    says("weights are not finite, such as .*; has its run diverged", lost)
    save_file(whole | {"model.other": torch.zeros(2)}, file, metadata={"format": "pt"})
    says("holds weights that this shape has not, such as model.other", lost)
    save_file(whole | {first: torch.zeros(3, 3)}, file, metadata={"format": "pt"})
    says("the weights cannot be loaded", lost)
    file.write_bytes(b"no weights")
    says("damaged or cut off", lost)
    (lost / "model/tokenizer.json").unlink()
    says("no tokenizer.json in the model's folder", lost)
    other = Path(pretrained(tmp_path / "other"))
    content = json.loads((other / "model/config.json").read_text())
    (other / "model/config.json").write_text(json.dumps(content | {"model_type": "bert"}))
    says("expected a model of transformers' own", other, InteropError)
    (other / "model/config.json").write_text(json.dumps(content | {"bos_token_id": None}))
    says("no bos_token_id in its config.json", other)
    (other / "model/config.json").write_text("{")
    says("its config.json cannot be read", other)
    both = tmp_path / "both"
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9}
    IsogradForSeq2SeqLM(IsogradConfig(encoder_layers=1, **sizes)).save_pretrained(both)
    says("is an encoder-decoder", both)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"layers": 3}}, "model.layers is read by task=language or masked or translation only"),
        ({"training": {"label_smoothing": 0.1}}, "training.label_smoothing is read by"),
        ({"training": {"warmup": 5}}, r"training.warmup=5 \(updates\) and glue.warmup=0.06 \(a share of them\)"),
        ({"glue": {"model": None}}, "glue.model is missing"),
        ({"glue": {"warmup": 1.0}}, "glue.warmup=1.0"),
        ({"glue": {"length": 7}}, "glue.length=7 must be at least 8"),
        ({"glue": {"dropout": 1.0}}, "glue.dropout=1.0"),
        ({"training": {"batch": 8, "accumulation": 3}}, "does not divide"),
    ],
)
def test_contradictions_are_refused(sections: dict[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        tuned("somewhere", **sections)


def test_warmup_in_updates(masked: str) -> None:
    assert load_task(tuned(masked, glue={"warmup": 0.0}, training={"warmup": 4})).run.training.warmup == 4
    assert load_task(tuned(masked, glue={"warmup": 0.35})).run.training.warmup == 3  # of ten


@pytest.mark.slow
def test_two_processes_compute_what_one_does(masked: str, tmp_path: Path) -> None:
    """DDP and FSDP2: losses, and the scores of dev and test."""
    shape = {"accumulation": 2, "epochs": 1}
    ways = {way: tuned(masked, glue=PLAIN, training=shape | {"fsdp": way == "fsdp"}) for way in ("ddp", "fsdp")}
    launch(tmp_path, ways)
    one = train(ways["ddp"], tmp_path / "one")
    for way in ways:
        assert losses(tmp_path / way) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
        got = outcome(tmp_path / way)
        assert got["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-5)
        assert got["scores"] == one["scores"]

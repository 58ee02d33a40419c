"""A translation's training: the numbers of a loop by hand, killed or not; validation, choice of weights, stopping."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from isograd.errors import DataError, FolderBusyError, RecipeError
from isograd.files import locked, read_rows
from isograd.lab.evaluate.scores import score
from isograd.lab.evaluate.translation import Translator
from isograd.lab.train.train import load_task, train
from isograd.lab.train.validation import average, best, since_best
from isograd.models import IsogradForSeq2SeqLM
from isograd.models.search import search
from isograd.transformer.loss import IGNORE
from tests.study.processes import killed_after
from tests.train.recipes import losses, pairs_files, same_run, small_translation, weights


def test_the_loss_curve_is_that_of_a_loop_by_hand(tmp_path: Path) -> None:
    """Adam on the batches in their order, smoothed cross-entropy over all targets, warm-up of four updates."""
    run = small_translation(model={"dropout": 0.0}, training={"warmup": 4})
    train(run, tmp_path)
    task = load_task(run)
    torch.manual_seed(run.seed)
    model = task.build(task.config()).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=run.training.betas, eps=run.training.eps)
    expected = []
    for step in range(1, 10):
        batch = task.samples[step - 1]
        logits = model(**batch, output_logits=True).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE, label_smoothing=0.1
        )
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, step / 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-4)
    assert losses(tmp_path) != pytest.approx(losses_of(small_translation(), tmp_path / "dropout"), rel=1e-4)


def losses_of(run: Any, folder: Path) -> list[float]:
    train(run, folder)
    return losses(folder)


def test_accumulated_batches_weigh_every_target_alike(tmp_path: Path) -> None:
    """Two micro-batches of different numbers of targets are one update of both: sums over sums, no mean of means."""
    run = small_translation(model={"dropout": 0.0}, training={"accumulation": 2, "label_smoothing": 0.0, "steps": 2})
    train(run, tmp_path)
    task = load_task(run)
    torch.manual_seed(run.seed)
    model = task.build(task.config()).eval()
    parts = [task.samples[i] for i in (0, 1)]
    counts = [int((b["labels"] != IGNORE).sum()) for b in parts]
    means = [model(**b).loss.item() for b in parts]
    whole = sum(n * mean for n, mean in zip(counts, means, strict=True)) / sum(counts)
    assert counts[0] != counts[1]
    assert losses(tmp_path)[0] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("validated", [0, 3])
def test_validation_is_the_unsmoothed_loss_and_the_bleu_of_the_search(validated: int, tmp_path: Path) -> None:
    run = small_translation(training={"valid_pairs": validated})
    got = train(run, tmp_path)
    task = load_task(run)
    corpus = task.corpus
    model = IsogradForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    total = count = 0.0
    assert len(corpus.valid_source) > 3 and task.facts()["valid_pairs"] == (validated or len(corpus.valid_source))
    for i in range(validated or len(corpus.valid_source)):
        source = torch.tensor(corpus.valid_source[i].tolist())[None]
        labels = torch.tensor(corpus.valid_target[i].tolist())[None]
        total += model(input_ids=source, labels=labels).loss.item() * labels.numel()
        count += labels.numel()
    assert got["validation_loss"] == pytest.approx(total / count, rel=1e-5)
    assert got["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    found = []
    for i in range(4):
        source = torch.tensor(corpus.valid_source[i].tolist())[None]
        (hypotheses,) = search(model, source, torch.ones_like(source), beam=2, extra=5)
        found.append(hypotheses[0].tokens)
    lines = corpus.tokenizer.target.decode(found)
    assert got["bleu"] == pytest.approx(score(lines, corpus.valid_lines[1][:4], tokenized=False, language="de").bleu)


def test_the_model_keeps_its_search(tmp_path: Path) -> None:
    """generation_config.json has the recipe's beam and length penalty; the translator takes them unless told other."""
    run = small_translation(search={"length_penalty": 0.6}, training={"steps": 1})
    train(run, tmp_path)
    translator = Translator.load(tmp_path)
    assert (translator.options().beam, translator.options().length_penalty) == (2, 0.6)
    assert not translator.options().early_stopping
    assert (translator.options(beam=1).beam, translator.options(length_penalty=1.0).length_penalty) == (1, 1.0)
    train(small_translation(search={"beam": 1}, training={"steps": 1}), tmp_path / "greedy")
    assert Translator.load(tmp_path / "greedy").options().beam == 1


def test_the_rows_of_the_validation(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    train(small_translation(), tmp_path, report=seen.append)
    rows = read_rows(tmp_path / "validation.jsonl")
    assert rows == seen and [r["step"] for r in rows] == [3, 6, 9]
    per_epoch = load_task(small_translation()).updates_per_epoch
    assert [r["epoch"] for r in rows] == [round(s / per_epoch, 3) for s in (3, 6, 9)]
    assert not (tmp_path / "validated").exists()


def test_epochs_end_a_training_and_validate_once_each(tmp_path: Path) -> None:
    run = small_translation(training={"epochs": 2, "steps": 1000, "valid_every": 0, "tokens": 200})
    task = load_task(run)
    got = train(run, tmp_path)
    assert got["steps"] == task.samples.until(2) == task.run.training.steps < 1000
    assert len(read_rows(tmp_path / "validation.jsonl")) == 2 == got["steps"] / task.updates_per_epoch


@pytest.mark.slow
@pytest.mark.parametrize("select", ["last", "best", "average"])
def test_which_weights_are_kept(select: str, tmp_path: Path) -> None:
    """Against trainings that end where the chosen weights were."""
    t = {"select": select, "average": 2, "lr": 0.3}
    got = train(small_translation(training=t), tmp_path / "whole")
    rows = read_rows(tmp_path / "whole/validation.jsonl")
    steps = {"last": [9], "average": [6, 9], "best": [best(rows)["step"]]}[select]
    assert got["kept_steps"] == steps
    shorter = []
    for step in steps:
        train(small_translation(training=t | {"steps": step, "select": "last"}), tmp_path / str(step))
        shorter.append(weights(tmp_path / str(step)))
    for name, value in weights(tmp_path / "whole").items():
        mean = sum(w[name].double() for w in shorter) / len(shorter)
        assert torch.equal(value, mean.to(value.dtype)), name


CHOSEN = {  # the best on validation by far, and a training that makes it so
    "last": {"steps": 9, "valid_every": 3},  # it still improves
    "average": {"lr": 0.5, "steps": 24, "valid_every": 2},  # it goes to and fro
    "best": {"lr": 1.0, "clip": 1.0, "steps": 16, "valid_every": 2},  # it gets worse
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOSEN)
def test_auto_keeps_what_is_best_on_validation(kind: str, tmp_path: Path) -> None:
    """The weights that select=KIND keeps, bit for bit, and the numbers of the other candidates."""
    t = {"average": 3, "probe_every": 0, "checkpoint_every": 0, "label_smoothing": 0.0, **CHOSEN[kind]}
    got = train(small_translation(training=t | {"select": "auto"}), tmp_path / "auto")
    named = train(small_translation(training=t | {"select": kind}), tmp_path / kind)
    candidates = got["candidates"]
    assert (got["kept_weights"], named["kept_weights"]) == (kind, kind)
    assert got["kept_steps"] == named["kept_steps"] == candidates[kind]["steps"]
    for name, value in weights(tmp_path / "auto").items():
        assert torch.equal(value, weights(tmp_path / kind)[name]), name
    for key in ("validation_loss", "perplexity", "bleu"):
        assert got[key] == named[key] == candidates[kind][key.removeprefix("validation_")]
    others = [candidates[other]["loss"] for other in candidates if other != kind]
    assert others and got["validation_loss"] < min(others) - 0.01
    rows = {row["step"]: row for row in read_rows(tmp_path / "auto/validation.jsonl")}
    for other in candidates.keys() - {"average"}:
        (step,) = candidates[other]["steps"]
        assert candidates[other]["loss"] == rows[step]["loss"]
    if kind != "average":
        asked = train(small_translation(training=t | {"select": "average"}), tmp_path / "average")
        assert asked["kept_weights"] == "average" and asked["validation_loss"] == candidates["average"]["loss"]
        assert asked["candidates"] == candidates  # so that a report can say that it is the worse one


@pytest.mark.parametrize("every", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_while_it_chooses(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the average in the model, and a checkpoint of the last step (every third) or of one before it."""
    run = small_translation(training={"select": "auto", "average": 2, "checkpoint_every": every})
    train(run, tmp_path / "whole")

    def killed(**_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr("isograd.lab.train.validation.Choice", killed)
        train(run, tmp_path / "again")
    train(run, tmp_path / "again")
    same_run(tmp_path / "whole", tmp_path / "again")


def test_the_only_validation_is_the_last(tmp_path: Path) -> None:
    for select in ("auto", "best", "average"):
        got = train(small_translation(training={"steps": 3, "valid_every": 3, "select": select}), tmp_path / select)
        assert (got["kept_weights"], got["kept_steps"], [*got["candidates"]]) == ("last", [3], ["last"])


def test_average_by_hand(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    values = [torch.randn(3, 4) for _ in range(3)]
    for i, value in enumerate(values):
        save_file({"a": value, "half": value.to(torch.bfloat16)}, tmp_path / f"{i}.safetensors")
    mean = average(tmp_path / f"{i}.safetensors" for i in range(3))
    torch.testing.assert_close(mean["a"], torch.stack(values).double().mean(0).float(), rtol=0, atol=0)
    assert mean["half"].dtype == torch.bfloat16


def test_best_and_patience_by_rows() -> None:
    rows = [{"step": s, "loss": loss} for s, loss in ((1, 3.0), (2, 2.0), (3, 2.0), (4, None), (5, 2.5))]
    assert best(rows)["step"] == 2
    assert [since_best(rows[:n]) for n in range(1, 6)] == [0, 0, 1, 2, 3]


def test_patience_stops(tmp_path: Path) -> None:
    """At a rate that ruins the model, the loss does not fall again; a patient training goes on to its end."""
    hasty = {"lr": 5.0, "steps": 60, "valid_every": 1, "clip": 1.0}
    got = train(small_translation(training=hasty | {"patience": 2}), tmp_path / "hasty")
    rows = read_rows(tmp_path / "hasty/validation.jsonl")
    assert got["steps"] == len(rows) < 60 and since_best(rows) == 2
    assert all(since_best(rows[:n]) < 2 for n in range(1, len(rows)))


@pytest.mark.parametrize(
    ("every", "cause"),
    [
        (1, "patience"),
        pytest.param(0, "patience", marks=pytest.mark.slow),
        pytest.param(1, "divergence", marks=pytest.mark.slow),
    ],
)
def test_no_checkpoint_is_of_a_stop(every: int, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the stop and before the outcome, a training stops there again; its last steps are in the log."""
    hasty = {"lr": 5.0, "steps": 60, "valid_every": 1, "clip": 1.0, "patience": 2}
    broken = {"lr": 1e30, "steps": 60, "valid_every": 7, "optimizer": "sgd"}
    run = small_translation(training=(hasty if cause == "patience" else broken) | {"checkpoint_every": every})
    whole = train(run, tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == whole["steps"] < 60

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr("isograd.lab.train.train._judged", killed)
        train(run, tmp_path / "again")
    assert train(run, tmp_path / "again")["steps"] == whole["steps"]
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")
    assert losses_at(tmp_path / "again") == losses_at(tmp_path / "whole")


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_rows(folder / "validation.jsonl")]


def losses_at(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_rows(folder / "validation.jsonl")]


@pytest.mark.parametrize("select", [*(pytest.param(s, marks=pytest.mark.slow) for s in ("last", "average")), "auto"])
def test_killed_in_mid_epoch_it_goes_on_to_the_same_bits(select: str, tmp_path: Path) -> None:
    """kill -9 after the fifth update, between two checkpoints of an epoch; then the same call again."""
    run = small_translation(training={"steps": 12, "select": select, "average": 3, "tokens": 150})
    assert load_task(run).updates_per_epoch > 5
    train(run, tmp_path / "whole")
    killed = tmp_path / "killed"
    assert killed_after(5, lambda: train(run, killed)) == -signal.SIGKILL
    assert not (killed / "outcome.json").exists()
    assert (killed / "checkpoints/checkpoint-4/sealed.json").exists()
    train(run, killed)
    same_run(tmp_path / "whole", killed)
    assert without_times(killed) == without_times(tmp_path / "whole")


def test_another_text_under_the_same_name_is_refused(tmp_path: Path) -> None:
    prefix = Path(pairs_files())
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text(prefix.with_suffix(f".{language}").read_text(encoding="utf-8"))
    run = small_translation(pairs={"train": [str(tmp_path / "text")]}, training={"steps": 3})
    train(run, tmp_path / "run")
    (tmp_path / "run/outcome.json").unlink()
    with (tmp_path / "text.de").open("a") as german, (tmp_path / "text.en").open("a") as english:
        german.write("zehn\n")
        english.write("ten\n")
    with pytest.raises(FileExistsError, match="another text"):
        train(run, tmp_path / "run")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"length": 64}}, "data.length is read by task=language or masked or own-language only"),
        (
            {"training": {"batch": 64}},
            "training.batch is read by task=language or masked or classification or own-language or own only",
        ),
        ({"pairs": {"joint": False}}, "model.share_embeddings=true needs pairs.joint=true"),
        ({"pairs": {"codes": "codes.txt"}}, "belong together"),
        ({"pairs": {"ratio": 0.5}}, "pairs.ratio=0.5"),
        ({"pairs": {"target": "en"}}, "both 'en'"),
        ({"search": {"beam": 0}}, "search.beam=0"),
        ({"training": {"fsdp": True}}, "search.pairs=0"),
        ({"training": {"decay": "step"}}, "decay_at"),
        ({"search": {"length_penalty": math.nan}}, "search.length_penalty=nan"),
        ({"search": {"length_penalty": 51.0}}, "from -50 to 50"),
    ],
)
def test_contradictions_are_refused(sections: dict[str, dict[str, Any]], said: str) -> None:
    from isograd.lab.train.recipe import run_from_dict

    content = small_translation().as_dict()
    for section, keys in sections.items():
        content[section] |= keys
    with pytest.raises(RecipeError, match=said):
        run_from_dict(content)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"training": {"select": "average", "valid_every": 10}},
            "within training.steps=9, and the first one comes at 10",
        ),
        ({"training": {"epochs": 2, "decay": "step", "decay_at": 2, "warmup": 90}}, "falls inside training.warmup=90"),
        (
            {"model": {"positions": "learned"}, "pairs": {"longest": 12}, "search": {"extra": 0}},
            "a validation pair has",
        ),
    ],
)
def test_what_the_data_decide_is_refused_before_anything_is_written(
    sections: dict[str, dict[str, Any]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=said):
        train(small_translation(**sections), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_learned_table_that_ends_behind_the_longest_validation_pair(tmp_path: Path) -> None:
    assert train(small_translation(model={"positions": "learned"}), tmp_path)["outcome"] != "failed"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Two would write their rows into the same files; what is refused leaves the run as it is."""
    with locked(tmp_path / "run"), pytest.raises(FolderBusyError, match="another process"):
        train(small_translation(), tmp_path / "run")
    assert [*(tmp_path / "run").iterdir()] == []
    assert train(small_translation(), tmp_path / "run")["steps"] == 9


def test_bad_text_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "text.en").write_text("one\ntwo\n")
    (tmp_path / "text.de").write_text("eins\n")
    with pytest.raises(DataError, match="2 lines") as error:
        train(small_translation(pairs={"train": [str(tmp_path / "text")]}), tmp_path / "run")
    assert "has 1;" in str(error.value) and not (tmp_path / "run").exists()

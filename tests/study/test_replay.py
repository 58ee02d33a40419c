"""A run that broke, taken back to before the break: the same bit for bit, or cured by a change."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from isograd.errors import RecipeError, UserError
from isograd.files import read_rows, write_json
from isograd.lab.study.engine.jobs import in_this_process
from isograd.lab.study.replay import load_replay, replay, settings_of, suspects
from isograd.lab.train.checkpoints import CHECKPOINTS, INITIAL, fork
from isograd.lab.train.run import Run
from isograd.lab.train.train import broke_from, initial_model, train
from isograd.outcome import Onset
from tests.train.recipes import losses, outcome, small

LONG = {"steps": 120, "checkpoint_every": 10, "probe_every": 0, "lr": 1e-2, "valid_sequences": 0}


def burst(**training: Any) -> Run:
    """A run whose rate rises all the way: the warm-up is its length."""
    return small(model={"dropout": 0.1}, training=LONG | {"lr": 3.0, "warmup": 120} | training)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that collapses or diverges under a rate that rises to 3."""
    folder = tmp_path_factory.mktemp("broken") / "run"
    train(burst(stop_when_broken=True), folder)
    return folder


def test_a_broken_run_keeps_step_0_and_the_last_checkpoint_before_the_break(broken: Path) -> None:
    assert outcome(broken)["outcome"] in ("diverged", "collapsed")
    since = broke_from(broken)
    kept = {path.name for path in (broken / CHECKPOINTS).iterdir()}
    assert since is not None and 10 < since < outcome(broken)["steps"]
    assert kept == {INITIAL, f"checkpoint-{(since - 1) // 10 * 10}"}
    _, model = initial_model(burst(stop_when_broken=True))
    for name, value in load_file(broken / CHECKPOINTS / INITIAL / "model.safetensors").items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_a_healthy_run_keeps_none(tmp_path: Path) -> None:
    train(small(training={"checkpoint_every": 2}), tmp_path)
    assert not (tmp_path / CHECKPOINTS).exists()


def test_a_fork_that_changes_nothing_is_the_run_bit_for_bit(broken: Path, tmp_path: Path) -> None:
    checkpoint = next((broken / CHECKPOINTS).glob("checkpoint-*"))
    run = burst(stop_when_broken=True)
    fork(checkpoint, run, tmp_path / "same", drawn_anew=False)
    first: list[int] = []
    train(run, tmp_path / "same", progress=lambda step, _: first.append(step))
    assert first[0] > int(checkpoint.name.split("-")[1])  # it went on, and did not begin anew
    assert (tmp_path / "same/metrics.jsonl").read_text() == (broken / "metrics.jsonl").read_text()
    fork(checkpoint, run, tmp_path / "other", drawn_anew=True)  # the negative control: other dropout
    train(run, tmp_path / "other")
    assert (tmp_path / "other/metrics.jsonl").read_text() != (broken / "metrics.jsonl").read_text()


def test_a_fork_takes_the_rate_of_its_recipe(broken: Path, tmp_path: Path) -> None:
    checkpoint = next((broken / CHECKPOINTS).glob("checkpoint-*"))
    step = int(checkpoint.name.split("-")[1])
    fork(checkpoint, burst(lr=0.3), tmp_path / "lower", drawn_anew=False)
    train(burst(lr=0.3), tmp_path / "lower")
    mine, theirs = (read_rows(folder / "metrics.jsonl") for folder in (tmp_path / "lower", broken))
    assert mine[:step] == theirs[:step]
    assert [row["lr"] for row in mine[step:]] == pytest.approx([0.3 * row["step"] / 120 for row in mine[step:]])
    assert mine[step]["loss"] == theirs[step]["loss"]  # before the first update that differs


@pytest.mark.slow
def test_replay_names_the_cure_and_goes_on_where_it_was_killed(broken: Path, tmp_path: Path) -> None:
    plan = load_replay(broken, [["lr=0.05"], ["lr=1e30"], ["seed=7"]], seeds=2)
    assert plan.checkpoint is not None and {change.step for change in plan.changes} == {plan.changes[0].step} != {0}

    class KilledError(BaseException):
        pass

    def killed(i: int, row: dict[str, Any]) -> None:
        if i == 3:
            raise KilledError

    with pytest.raises(KilledError):
        replay(plan, tmp_path, in_this_process, on_row=killed)
    content = replay(plan, tmp_path, in_this_process)
    was, lower, higher, seed = content["changes"]
    assert (was["change"], was["verdict"], was["seeds"], content["unchanged"]) == ("as it was", "fails", 1, "fails")
    assert (lower["change"], lower["verdict"]) == ("lr 0.05", "cures") and higher["verdict"] == "does not cure"
    assert was["control"] and seed["control"] and content["cures"] == ["lr 0.05"]
    again = replay(plan, tmp_path / "again", in_this_process)
    assert again == content
    assert json.loads((tmp_path / "replay.json").read_text()) == content


@pytest.mark.slow
def test_where_the_run_as_it_was_finishes_there_is_no_verdict(tmp_path: Path) -> None:
    """A run that is replayed though it did not break; and a rate that trains nothing is no cure of one that did."""
    run = small(training=LONG | {"lr": 1e-2, "checkpoint_every": 20, "stop_at": 100})
    train(run, tmp_path / "fine")
    content = replay(load_replay(tmp_path / "fine", [["lr=5e-3"]], step=60), tmp_path / "replay", in_this_process)
    assert content["unchanged"] == "finishes" and content["cures"] == []
    assert [one["verdict"] for one in content["changes"]] == ["finishes", "no verdict"]


def test_a_rate_that_trains_nothing_cures_nothing(broken: Path, tmp_path: Path) -> None:
    content = replay(load_replay(broken, [["lr=1e-9"]], steps=60), tmp_path, in_this_process)
    assert content["cures"] == [] and content["unchanged"] == "fails"
    assert content["changes"][1]["verdict"] in ("undecided", "does not cure")


def test_a_change_of_the_placement_begins_at_step_0(broken: Path) -> None:
    plan = load_replay(broken, [["placement=deepnorm"], ["warmup=20", "lr=1"], ["clip=1"]])
    assert [bool(change.step) for change in plan.changes] == [True, False, False, True]
    early = load_replay(broken, [["clip=1"]], step=5)
    assert early.checkpoint is None and early.changes[0].step == 0  # no checkpoint is as old


def test_what_is_refused(broken: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        load_replay(tmp_path)
    with pytest.raises(RecipeError, match=r"did you mean 'training\.lr'"):
        load_replay(broken, [["learning_rate=1"]])
    with pytest.raises(RecipeError, match="changes nothing"):
        load_replay(broken, [["lr=3.0"]])
    with pytest.raises(KeyError, match=r"choose|did you mean"):
        load_replay(broken, [["placement=pre-lm"]])
    train(small(), tmp_path / "fine")
    with pytest.raises(UserError, match="nothing broke"):
        load_replay(tmp_path / "fine")
    assert load_replay(tmp_path / "fine", step=4).changes


def test_the_usual_suspects() -> None:
    run = small(model={"placement": "post-ln"}, training={"steps": 100, "lr": 1e-3})
    assert [one for (one,) in suspects(run)] == [
        "training.lr=0.0003",
        "training.warmup=50",
        "training.clip=1",
        "model.placement=pre-ln",
        "seed=1",
    ]
    assert settings_of(run, ["lr=1", "placement=admin"]) == ["training.lr=1", "model.placement=admin"]


def test_the_onset_is_forgotten_when_the_loss_recovers() -> None:
    onset = Onset()
    for step, loss in enumerate([3.0] * 30 + [6.0] * 15, start=1):
        onset.follow(step, loss, 4.0)
    assert onset.since == 31
    for step in range(46, 66):
        onset.follow(step, 3.0, 4.0)
    assert onset.since is None
    assert onset.follow(66, float("nan"), 4.0).since == 66


def test_a_page_of_files_alone(broken: Path, tmp_path: Path) -> None:
    from isograd.lab.report.pages.replay import write_replay

    content = replay(load_replay(broken, [["lr=0.05"]]), tmp_path / "here", in_this_process)
    page, read = write_replay(tmp_path / "here")
    assert read == content and "lr 0.05 cures the run." in page.read_text()
    assert "as it was" in page.read_text()
    content["changes"][1] |= {"verdict": "undecided"}  # the negative control: the page says what the file says
    write_json(tmp_path / "here/replay.json", content)
    assert "No change cures the run" in write_replay(tmp_path / "here")[0].read_text()


def test_losses_of_a_run_are_there(broken: Path) -> None:
    assert len(losses(broken)) == outcome(broken)["steps"]


def test_a_run_whose_loss_is_nan_is_replayed(tmp_path: Path) -> None:
    """Files have null there."""
    train(small(training=LONG | {"steps": 30, "lr": 1e30}), tmp_path / "run")
    assert outcome(tmp_path / "run")["outcome"] == "diverged"
    assert any(row["loss"] is None for row in read_rows(tmp_path / "run/metrics.jsonl"))
    content = replay(load_replay(tmp_path / "run", [["lr=1e-3"]]), tmp_path / "replay", in_this_process)
    assert content["unchanged"] == "fails" and [one["change"] for one in content["changes"]][-1] == "lr 0.001"

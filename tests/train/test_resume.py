"""A run killed in the middle and started again ends with the numbers of one that was never killed, to the bit."""

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isograd.files import read_rows
from isograd.lab.train.checkpoints import last_checkpoint
from isograd.lab.train.run import Run
from isograd.lab.train.train import train
from isograd.models import IsogradConfig
from tests.build import few
from tests.train.recipes import documents_file, losses, same_run, small

LENGTH = {"steps": 12, "checkpoint_every": 4, "probe_every": 3}
DIES_AT = 10  # rows of steps 9 and 10 are written, the last checkpoint is of step 8
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "accumulation": {"training": {"accumulation": 2}},
    "dropout": {"model": {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}},
    "bf16": {"training": {"precision": "bf16"}},
    "admin": {"model": {"placement": "admin"}},
    "admin-dropout": {"model": {"placement": "admin", "dropout": 0.2}, "training": {"accumulation": 2, "clip": 0.5}},
    "checkpointing": {"model": {"dropout": 0.2}, "training": {"gradient_checkpointing": True}},
    "schedule": {"training": {"optimizer": "adamw", "warmup": 3, "decay": "cosine", "weight_decay": 0.1}},
    "sgd": {"training": {"optimizer": "sgd", "label_smoothing": 0.1}},
    "radam": {"training": {"optimizer": "radam"}},
    "masked": {"model": {"dropout": 0.2}, "data": {"length": 16}},
    "pairs": {"data": {"length": 16, "packing": "segment-pair", "documents": "blank-line"}},
    "rmsnorm": {"model": {"placement": "normformer-resscale", "norm": "rmsnorm", "tie_embeddings": False}},
}


def variant(name: str) -> Run:
    sections = {**VARIANTS[name], "training": LENGTH | VARIANTS[name].get("training", {})}
    if name == "pairs":
        sections["data"] = sections["data"] | {"source": str(documents_file())}
    return small(task="masked" if name in ("masked", "pairs") else "language", **sections)


def die(run: Run, folder: Path) -> None:
    train(run, folder, lambda step, _: os.kill(os.getpid(), signal.SIGKILL) if step == DIES_AT else None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a variant, left behind by kill -9 in step 10 of 12: of a fork of this process."""

    @cache
    def left(name: str) -> Path:
        folder = tmp_path_factory.mktemp("killed") / name
        process = multiprocessing.get_context("fork").Process(target=die, args=(variant(name), folder))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        return folder

    return left


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert train(variant("plain"), folder)["outcome"] in ("finished", "undecided")
    return folder


def resumed(run: Run, folder: Path) -> int:
    """Train on; the first step of which a row was written anew."""
    seen: list[int] = []
    assert train(run, folder, progress=lambda step, loss: seen.append(step))["outcome"] in ("finished", "undecided")
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == list(range(1, 13))
    return seen[0]


@pytest.mark.parametrize("name", few(VARIANTS, ["admin-dropout", "schedule", "pairs"]))
def test_killed_and_started_again(name: str, killed: Callable[[str], Path], tmp_path: Path) -> None:
    left = shutil.copytree(killed(name), tmp_path / "again")
    assert not (left / "outcome.json").exists() and len(losses(left)) == DIES_AT
    assert {p.name for p in (left / "checkpoints").iterdir()} == {"initial", "checkpoint-4", "checkpoint-8"}
    assert resumed(variant(name), left) == 10
    train(variant(name), tmp_path / "whole")
    same_run(left, tmp_path / "whole")


def test_a_calibration_survives_and_is_not_repeated(killed: Callable[[str], Path], tmp_path: Path) -> None:
    left = shutil.copytree(killed("admin-dropout"), tmp_path / "again")
    before = IsogradConfig.from_pretrained(left / "checkpoints/checkpoint-4").calibration
    assert before["method"] == "admin" and len(before["decoder"]) == 4
    resumed(variant("admin-dropout"), left)
    assert IsogradConfig.from_pretrained(left / "model").calibration == before
    assert json.loads((left / "resolved.json").read_text())["calibration"] == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS = [
    ("cut", "trainer_state.json"),
    ("remove", "trainer_state.json"),
    ("remove", "optimizer.pt"),
    ("cut", "optimizer.pt"),
    ("remove", "rng_state.pth"),
    ("remove", "scheduler.pt"),
    ("cut", "model.safetensors"),
    ("remove", "model.safetensors"),
    ("cut", "config.json"),
    ("remove", "sealed.json"),
    ("cut", "sealed.json"),
]


@pytest.mark.parametrize("harm", few(HARMS, HARMS[2::4]), ids="-".join)
def test_a_broken_checkpoint_is_passed_over(
    harm: tuple[str, str], killed: Callable[[str], Path], tmp_path: Path, whole: Path
) -> None:
    left = shutil.copytree(killed("plain"), tmp_path / "again")
    file = left / "checkpoints/checkpoint-8" / harm[1]
    cut(file) if harm[0] == "cut" else file.unlink()
    assert last_checkpoint(left / "checkpoints") == left / "checkpoints/checkpoint-4"
    assert resumed(variant("plain"), left) == 8
    same_run(left, whole)


def test_no_whole_checkpoint_at_all(killed: Callable[[str], Path], tmp_path: Path, whole: Path) -> None:
    left = shutil.copytree(killed("plain"), tmp_path / "again")
    for file in left.glob("checkpoints/*/model.safetensors"):
        cut(file)
    assert last_checkpoint(left / "checkpoints") is None
    assert resumed(variant("plain"), left) == 4
    same_run(left, whole)


def test_a_log_cut_off_by_the_kill(killed: Callable[[str], Path], tmp_path: Path, whole: Path) -> None:
    left = shutil.copytree(killed("plain"), tmp_path / "again")
    for name in ("metrics.jsonl", "quantities.jsonl"):
        with (left / name).open("a") as file:
            file.write('{"step": 11, "lo')
    resumed(variant("plain"), left)
    same_run(left, whole)


def test_without_checkpoints_it_starts_anew(tmp_path: Path) -> None:
    run = small(training={"checkpoint_every": 0})

    def stop(step: int, loss: float) -> None:
        raise RuntimeError("stopped by hand")

    assert train(run, tmp_path / "again", progress=stop)["error"] == "stopped by hand"
    assert not list((tmp_path / "again").glob("checkpoints/*"))
    train(run, tmp_path / "again")
    train(run, tmp_path / "whole")
    same_run(tmp_path / "again", tmp_path / "whole")


def test_checkpoints_change_no_number(tmp_path: Path, whole: Path) -> None:
    content = variant("plain").as_dict()
    for every in (0, 1, 5):
        content["training"]["checkpoint_every"] = every
        train(small(training=content["training"]), tmp_path / str(every))
        same_run(tmp_path / str(every), whole)


def test_stop_at_ends_a_run_early_with_the_schedule_of_all_its_steps(tmp_path: Path) -> None:
    schedule = VARIANTS["schedule"]["training"]
    train(small(training=LENGTH | schedule), tmp_path / "whole")
    done = train(small(training=LENGTH | schedule | {"stop_at": 7}), tmp_path / "part")
    assert done["steps"] == 7
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "part")]
    assert rows[0][:7] == rows[1]

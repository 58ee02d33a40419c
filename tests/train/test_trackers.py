"""Rows, warnings and verdicts in the trackers that people use, each read back from what it has stored."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import isograd
from isograd.files import read_rows
from isograd.lab.train.train import train as run_recipe
from tests.diagnose.test_watch import batches, train
from tests.train.recipes import small
from tests.train.test_watching import Breaking, gpt2, trainer_of

pytestmark = pytest.mark.filterwarnings("default")  # those of the trackers
MISSING = "is not installed: pip install 'isograd[track]'"
NAMES = [
    "isograd/01 loss",
    "isograd/02 gradient norm",
    *(f"isograd/03 first over last/{group}.weight" for group in ("mlp.c_proj",)),
    *(f"isograd/04 largest over smallest/{group}.weight" for group in ("mlp.c_proj",)),
    *(f"isograd/05 gradient norm of layers/{i + 1} transformer.h.{i}" for i in range(3)),
    *(f"isograd/06 mean gradient of layers/{i + 1} transformer.h.{i}" for i in range(3)),
]


def watched(folder: Path, tracker: str, model: Any) -> Any:
    trainer = trainer_of(model, folder / "out", max_steps=4, logging_steps=2, report_to=tracker, run_name="mine")
    trainer.add_callback(isograd.WatchCallback(trainer, folder=folder / "rows"))
    trainer.train()
    return trainer


def ours(names: Any) -> list[str]:
    return sorted({name.removeprefix("train/") for name in names if "isograd/0" in name})


def test_the_names_sort_as_the_page_is_read() -> None:
    seen: list[list[str]] = []
    with isograd.watch(model := gpt2(), log=lambda numbers, _: seen.append(list(numbers))) as watch:
        train(model, watch, batches(1))
    assert sorted(seen[0]) == NAMES


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason=f"tensorboard {MISSING}")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-not-found]

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    watched(tmp_path, "tensorboard", Breaking(gpt2().config))
    events, rows = EventAccumulator(str(tmp_path / "board")).Reload(), read_rows(tmp_path / "rows" / "metrics.jsonl")
    assert ours(events.Tags()["scalars"]) == NAMES
    assert events.Scalars("train/isograd/01 loss")[0].value == pytest.approx(rows[1]["loss"])
    assert [event.step for event in events.Tensors("train/isograd/warnings/text_summary")] == [3]


@pytest.fixture
def wandb_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Weights & Biases, offline, its files in the folder of the test."""
    wandb = pytest.importorskip("wandb", reason=f"wandb {MISSING}")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    yield wandb
    wandb.teardown()  # it keeps the folder of the first run


BLOCK, HEADER, ENDS = 1 << 15, 7, (1, 4)  # of LevelDB's log format, in which W&B keeps what it will upload


def stored(folder: Path, wandb: Any) -> list[Any]:
    """The records of an offline run of W&B, whose process has ended."""
    wandb.finish()
    wandb.teardown()
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found]

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, records, parts = file.read_bytes(), HEADER, [], b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in ENDS:
            records.append(Record.FromString(parts))
            parts = b""
    return records


def test_weights_and_biases(tmp_path: Path, wandb_: Any) -> None:
    watched(tmp_path, "wandb", Breaking(gpt2().config))
    verdict = wandb_.run.summary["isograd/verdict"]
    records = stored(tmp_path, wandb_)
    keys = {"/".join(item.nested_key) or item.key for r in records for item in r.history.item}
    assert ours(keys) == NAMES
    (alert,) = [r.alert for r in records if r.HasField("alert")]
    assert alert.title == "isograd: nonfinite" and alert.text == verdict and verdict.startswith("step 3: the loss")


def test_a_healthy_run_has_its_verdict_and_no_alert(tmp_path: Path, wandb_: Any) -> None:
    watched(tmp_path, "wandb", gpt2())
    assert wandb_.run.summary["isograd/verdict"] == "nothing reported"
    assert not [r for r in stored(tmp_path, wandb_) if r.HasField("alert")]


def test_a_recipe_has_its_outcome_as_the_verdict(tmp_path: Path, wandb_: Any) -> None:
    told = run_recipe(small(training={"track": ["wandb"], "steps": 12}), tmp_path / "run")
    assert told["outcome"] == "undecided"
    assert wandb_.run.summary["isograd/verdict"] == f"undecided: {told['reason']}"
    keys = {"/".join(item.nested_key) or item.key for r in stored(tmp_path, wandb_) for item in r.history.item}
    assert "train/loss" in keys


def test_a_bare_loop_that_logs_to_weights_and_biases(tmp_path: Path, wandb_: Any) -> None:
    run = wandb_.init(project="mine")
    model = Breaking(gpt2().config)
    with isograd.watch(model, log=run.log) as watch:
        assert run.summary["isograd/verdict"] == "nothing reported"
        train(model.train(), watch, batches(3))
    assert run.summary["isograd/verdict"].startswith("step 3: the loss is not finite")
    assert len([r for r in stored(tmp_path, wandb_) if r.HasField("alert")]) == 1


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio is not installed: pip install 'isograd[trackio]'")
    watched(tmp_path, "trackio", Breaking(gpt2().config))
    from trackio.sqlite_storage import SQLiteStorage  # type: ignore[import-not-found]

    logs = SQLiteStorage.get_logs("huggingface", "mine")
    assert ours(name for row in logs for name in row) == NAMES
    assert [alert["title"] for alert in SQLiteStorage.get_alerts("huggingface")] == ["isograd: nonfinite"]

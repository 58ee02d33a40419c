"""Recipes that train in a fraction of a second, and what a run left behind."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from isograd.files import read_rows
from isograd.lab.train.recipe import run_from_dict
from isograd.lab.train.run import Run

TEXT = "".join(f"line {i}: the quick brown fox, {i * i % 97} times\n" for i in range(300))
SMALL: dict[str, dict[str, Any]] = {
    "model": {"layers": 2, "width": 16, "heads": 2},
    "data": {"length": 8},
    "training": {"steps": 6, "batch": 4, "probe_every": 2, "checkpoint_every": 2, "valid_sequences": 4},
}


def text_file() -> Path:
    """The text of these recipes, beside the cache of this test session."""
    path = Path(os.environ["XDG_CACHE_HOME"]) / "text.txt"
    if not path.exists():
        path.write_text(TEXT)
    return path


def documents_file() -> Path:
    """A text of forty documents, a blank line behind each."""
    path = Path(os.environ["XDG_CACHE_HOME"]) / "documents.txt"
    if not path.exists():
        lines = TEXT.splitlines(keepends=True)
        path.write_text("".join("".join(lines[i : i + 7]) + "\n" for i in range(0, 280, 7)))
    return path


def small(name: str | None = None, seed: int = 0, task: str = "language", **sections: dict[str, Any]) -> Run:
    """The small recipe of a language model, with keys of `model`, `data` and `training` replaced."""
    content: dict[str, Any] = {part: SMALL[part] | sections.get(part, {}) for part in SMALL}
    content["data"] = {"source": str(text_file())} | content["data"]
    return run_from_dict({"name": name, "seed": seed, "task": task, **content})


WORDS = ("one two three four five six seven eight nine ten", "eins zwei drei vier fünf sechs sieben acht neun zehn")
TRANSLATION: dict[str, dict[str, Any]] = {
    "model": {"layers": 2, "encoder_layers": 1, "width": 16, "heads": 2, "dropout": 0.1, "share_embeddings": True},
    "pairs": {"vocabulary": "char", "longest": 40, "source": "en"},
    "search": {"beam": 2, "pairs": 4, "extra": 5},
    "training": {"steps": 9, "tokens": 300, "probe_every": 3, "checkpoint_every": 2, "valid_every": 3}
    | {"label_smoothing": 0.1, "lr": 0.01},
}


def pairs_files() -> str:
    """The prefix of two files of parallel text, every pair different, beside the cache of this test session."""
    prefix = Path(os.environ["XDG_CACHE_HOME"]) / "pairs"
    english, german = (side.split() for side in WORDS)
    for language, words in (("en", english), ("de", german)):
        lines = (" ".join(words[int(d)] for d in str(i * 7)) for i in range(160))
        prefix.with_suffix(f".{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(prefix)


def small_translation(name: str | None = None, seed: int = 0, **sections: dict[str, Any]) -> Run:
    """A translation of 160 pairs, with keys of its sections replaced."""
    content: dict[str, Any] = {part: TRANSLATION[part] | sections.get(part, {}) for part in TRANSLATION}
    content["pairs"] = {"train": [pairs_files()], "target": "de"} | content["pairs"]
    return run_from_dict({"name": name, "task": "translation", "seed": seed, **content})


def outcome(folder: Path) -> dict[str, Any]:
    return read_json(folder / "outcome.json")


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model/model.safetensors")


def same_run(one: Path, other: Path) -> None:
    """Bit-equal: every row of both logs, every weight, the outcome but for its times."""
    for name in ("metrics.jsonl", "quantities.jsonl"):
        assert (one / name).read_text() == (other / name).read_text(), name
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
    times = ("seconds", "cpu_seconds", "cpu_seconds_per_step", "tokens_per_second")
    assert {k: v for k, v in outcome(one).items() if k not in times} == {
        k: v for k, v in outcome(other).items() if k not in times
    }
    assert read_json(one / "resolved.json") == read_json(other / "resolved.json")


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())

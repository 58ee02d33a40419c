"""Run folders written by hand, with the files and the keys that a training leaves."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENTROPY = 3.0


def written(
    folder: Path,
    placement: str,
    seed: int = 0,
    *,
    task: str = "language",
    outcome: dict[str, Any] | None = None,
    validation: Sequence[dict[str, Any]] = (),
    metrics: Sequence[dict[str, Any]] = (),
    glue: dict[str, Any] | None = None,
    **training: Any,
) -> Path:
    """A run's folder in `folder`."""
    run = folder / f"{placement}-{seed}-{len(list(folder.iterdir())) if folder.exists() else 0}"
    run.mkdir(parents=True)
    recipe: dict[str, Any] = {
        "name": None,
        "task": task,
        "seed": seed,
        "model": {"placement": placement, "layers": 2, "width": 8, "heads": 2},
        "training": {"steps": 40, "batch": 4, "lr": 0.1, "warmup": 0, "optimizer": "adam", **training},
    }
    recipe |= {"glue": glue} if glue else {"data": {"source": "embedded", "length": 8, "level": "char"}}
    put(run / "run.json", recipe)
    put(run / "resolved.json", {"placement": placement, "data": {"source": "a text", "unigram_entropy": ENTROPY}})
    if outcome is not None:
        put(run / "outcome.json", {"outcome": "finished", **outcome})
    for name, rows in (("validation.jsonl", validation), ("metrics.jsonl", metrics)):
        (run / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def put(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def curve(*losses: float | None, every: int = 10, seconds: float = 1.0) -> list[dict[str, Any]]:
    """Rows of validation.jsonl, `seconds` apart."""
    return [
        {"step": every * (i + 1), "epoch": None, "seconds": seconds * (i + 1), "loss": loss}
        for i, loss in enumerate(losses)
    ]


def ramp(losses: Sequence[float | None], peak: float = 0.1) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl whose rate rises to `peak`."""
    last = len(losses)
    return [{"step": i, "loss": loss, "lr": peak * i / last, "grad_norm": 1.0} for i, loss in enumerate(losses, 1)]

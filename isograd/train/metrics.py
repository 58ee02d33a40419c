"""The files of a run: what is written while it trains, and how it ended.

runs/NAME/
  run.json          the recipe, resolved
  resolved.json     what was built: formulas, the numbers of every site, sizes
  metrics.jsonl     one row per step: step, loss, lr, grad_norm
  quantities.jsonl  one row per observed step and sublayer
  outcome.json      how it ended; its presence means the run has ended
  checkpoints/      to go on from
  model/            the trained model and its tokenizer
"""

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

OutcomeName = Literal["finished", "diverged", "collapsed", "failed", "interrupted"]

LAST = 20  # steps whose mean loss is the final loss
NEAR = 0.10  # nats around the unigram entropy that count as collapsed


def judge(losses: list[float], unigram_entropy: float) -> tuple[OutcomeName, float]:
    """Outcome of a training that ran to its end, and its final loss: the mean of the last 20 steps, nats.

    "diverged" when a loss was not finite; "collapsed" when the final loss is within 0.10 nat of the entropy of the
    corpus' token frequencies, which is what a model without any context reaches; else "finished".

    >>> judge([3.0] * 20, 3.05)[0], judge([2.0] * 20, 3.05)[0], judge([float("nan")], 3.05)[0]
    ('collapsed', 'finished', 'diverged')
    """
    if not all(map(math.isfinite, losses)):
        return "diverged", math.nan
    final = sum(losses[-LAST:]) / len(losses[-LAST:])
    return ("collapsed" if abs(final - unigram_entropy) <= NEAR else "finished"), final


def judge_blind(loss: float, blind: float | None, unigram_entropy: float) -> OutcomeName:
    """Outcome of a translation by its held-out loss: "collapsed" where a model that sees no other token does as well.

    Such a model knows how often tokens stand at each place (`blind`), or how often at all; a translation must be 0.10
    nat below both. (On held-out sentences of other lengths the first can be the larger one.)

    >>> [judge_blind(loss, 5.3, 5.7) for loss in (4.1, 5.25, 6.4, float("nan"))]
    ['finished', 'collapsed', 'collapsed', 'diverged']
    """
    if not math.isfinite(loss):
        return "diverged"
    low = unigram_entropy if blind is None else min(blind, unigram_entropy)
    return "collapsed" if loss >= low - NEAR else "finished"


BREAK = 0.5  # nats above the best so far that count as broken
WINDOW = 10  # steps whose mean loss is looked at


def broke_at(losses: Sequence[float]) -> int | None:
    """The step (from 1) at which a training broke, None if it did not.

    A loss that is not finite, or a mean of ten losses 0.5 nat above the lowest such mean before.

    >>> broke_at([3.0] * 10 + [2.0] * 10 + [2.4] * 30), broke_at([3.0] * 10 + [2.0] * 10 + [2.6] * 30)
    (None, 29)
    """
    best = math.inf
    for end, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            return end
        if end >= WINDOW:
            mean = sum(losses[end - WINDOW : end]) / WINDOW
            if mean >= best + BREAK:
                return end
            best = min(best, mean)
    return None


def lr_reached(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """ "broke_at" (step or None) and "lr_reached": the rate of that step, of the last one if it did not break."""
    step = broke_at([row["loss"] for row in rows])
    return {"broke_at": step, "lr_reached": rows[(step or len(rows)) - 1]["lr"]}


def write_json(path: Path, content: Any) -> None:
    """Indented, whole or not at all. NaN and infinities become null."""
    write_text(path, json.dumps(finite(content), indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: written beside and moved into place."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object per line."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(finite(row)) + "\n" for row in rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file, [] when there is none; a last line cut off by a kill is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def keep_until(path: Path, step: int) -> None:
    """Drop the rows after `step`: what a resumed run will write again."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def finite(value: Any) -> Any:
    """The same content with every number that JSON cannot say replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value

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
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

OutcomeName = Literal["finished", "diverged", "collapsed", "failed", "interrupted"]

LAST = 20  # steps whose mean loss is the final loss
NEAR = 0.10  # nats around the unigram entropy that count as collapsed


def judge(losses: list[float], unigram_loss: float) -> tuple[OutcomeName, float]:
    """Outcome of a training that ran to its end, and its final loss: the mean of the last 20 steps, nats.

    "diverged" when a loss was not finite; "collapsed" when the final loss is within 0.10 nat of `unigram_loss`, which a
    model without any context reaches that knows the corpus' token frequencies, on the batches of the same steps: that
    is their entropy, and on a text of prose and code up to 0.1 nat from it; else "finished".

    >>> judge([3.0] * 20, 3.05)[0], judge([2.0] * 20, 3.05)[0], judge([float("nan")], 3.05)[0]
    ('collapsed', 'finished', 'diverged')
    """
    if not all(map(math.isfinite, losses)):
        return "diverged", math.nan
    final = sum(losses[-LAST:]) / len(losses[-LAST:])
    return ("collapsed" if abs(final - unigram_loss) <= NEAR else "finished"), final


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


class LossWatch:
    """Follows the losses of a training, and says where it broke.

    That is at a loss that is not finite; at a mean of ten losses 0.5 nat above the lowest such mean before; or, once a
    mean has been 0.10 nat below the unigram entropy, at one that has come back to it: there a collapsed stack may lie
    for ever, whatever the rate.

    Attributes:
        broke_at: the step (from 1), None as long as it has not broken.
        learnt: whether a mean before that was 0.10 nat below the unigram entropy.

    >>> watch = LossWatch(unigram_entropy=4.0)
    >>> watch.follow([3.0] * 10 + [2.0] * 10 + [2.4] * 30).broke_at, watch.follow([2.8] * 10).broke_at, watch.learnt
    (None, 53, True)
    """

    def __init__(self, unigram_entropy: float) -> None:
        self.unigram_entropy = unigram_entropy
        self.broke_at: int | None = None
        self.learnt = False
        self._steps = 0
        self._lowest = math.inf
        self._last: deque[float] = deque(maxlen=WINDOW)

    def follow(self, losses: Iterable[float]) -> "LossWatch":
        """The losses of the steps that come next."""
        for loss in losses:
            self._steps += 1
            self._last.append(loss)
            if self.broke_at is None:
                self._look(loss)
        return self

    def _look(self, loss: float) -> None:
        if not math.isfinite(loss):
            self.broke_at = self._steps
        elif len(self._last) == WINDOW:
            mean = sum(self._last) / WINDOW
            if mean >= self._lowest + BREAK or (self.learnt and mean >= self.unigram_entropy):
                self.broke_at = self._steps
            self._lowest = min(self._lowest, mean)
            self.learnt |= mean < self.unigram_entropy - NEAR


def lr_reached(rows: Sequence[dict[str, Any]], unigram_entropy: float) -> dict[str, Any]:
    """ "broke_at" (step or None); "lr_reached": the rate of that step, or of the last one; None if it never learnt."""
    watch = LossWatch(unigram_entropy).follow(row["loss"] for row in rows)
    reached = rows[(watch.broke_at or len(rows)) - 1]["lr"]
    return {"broke_at": watch.broke_at, "lr_reached": reached if watch.learnt else None}


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
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict):
            break
        rows.append(row)
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

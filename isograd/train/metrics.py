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
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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

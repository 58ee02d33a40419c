"""What is kept of the first step whose loss or gradients are not finite."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from isograd.diagnose.watch.writers import Row, append

KEPT = 50  # steps before, whose rows are kept
FOLDER = "nonfinite"


class Nonfinite:
    """Waits for the first number that is not finite, and writes down what led to it.

    nonfinite/rows.jsonl   the rows of the last fifty steps, and of their layers
    nonfinite/batch.pt     the batch of that step, of the first process; batch-1.pt of the second one, and so on
    """

    def __init__(self, folder: Path | None, overflows: bool = False) -> None:
        """`overflows`: gradients that are not finite are a gradient scaler's business, as long as the loss is."""
        self.folder = folder
        self._overflows = overflows
        self._rows: deque[tuple[Row, Sequence[Row]]] = deque(maxlen=KEPT)
        self._seen = False

    def look(self, row: Row, layers: Sequence[Row], batch: Any) -> Row | None:
        """A step's rows and its batch; the warning, if this is the first one that is not finite."""
        if self._seen:
            return None
        self._rows.append((row, layers))
        if math.isfinite(row["loss"]) and (self._overflows or math.isfinite(row["grad_norm"])):
            return None
        self._seen = True
        broken = [one["address"] for one in layers if not math.isfinite(one.get("gradient_norm", 0.0))]
        what = "the loss" if not math.isfinite(row["loss"]) else "a gradient"
        where = f", first in {broken[-1]}" if broken and what == "a gradient" else ""  # backward comes from the end
        kept = "" if self.folder is None else f"; what led there is in {self._keep(self.folder / FOLDER, batch)}"
        return {
            "step": row["step"],
            "signal": "nonfinite",
            "layer": broken[-1] if where else None,
            "message": f"step {row['step']}: {what} is not finite{where}{kept}",
        }

    def _keep(self, folder: Path, batch: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if rank() == 0:
            (folder / "rows.jsonl").unlink(missing_ok=True)
            append(folder / "rows.jsonl", [row for step, layers in self._rows for row in (step, *layers)])
        if batch is not None:
            name = "batch.pt" if rank() == 0 else f"batch-{rank()}.pt"
            torch.save(_plain(batch), folder / name)
        return folder


def rank() -> int:
    """The number of this process among those that train together; 0 where it is alone."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if ready else 0


def _plain(batch: Any) -> Any:
    """Tensors on the CPU in plain containers, which torch.load reads with nothing else at hand."""
    if isinstance(batch, Tensor):
        return batch.detach().cpu()
    if isinstance(batch, Mapping):
        return {str(name): _plain(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_plain(value) for value in batch]
    return batch if isinstance(batch, int | float | str | None) else repr(batch)

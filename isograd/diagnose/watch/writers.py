"""Where the rows of a watched run go: files of JSON lines, TensorBoard, any function of numbers and step; and what is
kept of the first step whose loss or gradients are not finite.
"""

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor

from isograd.diagnose.watch.probe import Row
from isograd.files import append_rows

LogNumbers = Callable[[dict[str, float], int], None]
PER_STEP = "metrics.jsonl"
PER_LAYER = "quantities.jsonl"
WARNINGS = "warnings.jsonl"
VERDICT, WARNED = "isograd/verdict", "isograd/warnings"  # in a tracker's summary; among its texts
NUMBERS = {  # of a step, as trackers call them: so that panels stand in the order of the page
    "loss": "01 loss",
    "grad_norm": "02 gradient norm",
    "first_last": "03 first over last",
    "max_min": "04 largest over smallest",
}
LAYERS = {
    "gradient_norm": "05 gradient norm of layers",
    "gradient_mean_abs": "06 mean gradient of layers",
    "update_ratio": "07 update of layers",
}
CLEAN = "nothing reported"
KEPT = 50  # steps before one that is not finite, whose rows are kept
FOLDER = "nonfinite"


class Writer(Protocol):
    """Takes a step's row and the rows of its layers, and warnings; `flush` at the end, and when something happened."""

    def write(self, row: Row, layers: Sequence[Row]) -> None: ...

    def warn(self, row: Row) -> None: ...

    def flush(self) -> None: ...


class JsonLines:
    """metrics.jsonl, a row per step, and quantities.jsonl, a row per step and layer: the files of an isograd run."""

    def __init__(self, folder: Path, together: int = 10) -> None:
        """Rows are appended, `together` steps at a time."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.together = together
        self._process = os.getpid()
        self._rows: list[Row] = []
        self._layers: list[Row] = []

    def write(self, row: Row, layers: Sequence[Row]) -> None:
        self._rows.append(row)
        self._layers.extend(layers)
        if len(self._rows) >= self.together:
            self.flush()

    def warn(self, row: Row) -> None:
        append_rows(self.folder / WARNINGS, [row])

    def flush(self) -> None:
        for name, rows in ((PER_STEP, self._rows), (PER_LAYER, self._layers)):
            if os.getpid() == self._process:  # a process that the program has forked has them, too
                append_rows(self.folder / name, rows)
            rows.clear()


class Logging:
    """Hands the numbers of a step to `log(numbers, step)`; warnings are alerts where that is of W&B or Trackio."""

    def __init__(self, log: LogNumbers) -> None:
        self.log = log
        self._tracker = str(getattr(log, "__module__", None)).partition(".")[0]
        judge(self._tracker)

    def write(self, row: Row, layers: Sequence[Row]) -> None:
        self.log(flat(row, layers), row["step"])

    def warn(self, row: Row) -> None:
        alert(self._tracker, row)

    def flush(self) -> None:
        pass


class TensorBoard:
    """Event files that TensorBoard shows."""

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            raise ImportError("tensorboard is not installed; pip install 'isograd[track]'")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, row: Row, layers: Sequence[Row]) -> None:
        for name, number in flat(row, layers).items():
            self._writer.add_scalar(name, number, row["step"])

    def warn(self, row: Row) -> None:
        self._writer.add_text(WARNED, row["message"], row["step"])

    def flush(self) -> None:
        self._writer.flush()


def flat(row: Row, layers: Sequence[Row]) -> dict[str, float]:
    """The numbers of a step under one name each, which sort in the order of the page and of depth.

    >>> row = {"step": 3, "loss": 2.5, "max_min": {"decoder ffn": 4.0}}
    >>> for name in flat(row, [{"address": "h.0", "gradient_norm": 0.5}]): print(name)
    isograd/01 loss
    isograd/04 largest over smallest/decoder ffn
    isograd/05 gradient norm of layers/1 h.0
    """
    numbers: dict[str, float] = {}
    for name, value in row.items():
        parts = {f"/{group}": v for group, v in value.items()} if isinstance(value, Mapping) else {"": value}
        numbers |= {f"isograd/{NUMBERS.get(name, name)}{part}": v for part, v in parts.items() if isinstance(v, float)}
    digits = len(str(len(layers)))
    for place, layer in enumerate(layers, start=1):
        where = f"{place:0{digits}} {layer['address']}"
        numbers |= {f"isograd/{LAYERS.get(n, n)}/{where}": v for n, v in layer.items() if isinstance(v, float)}
    return numbers


def alert(tracker: str, row: Row) -> None:
    """A warning as the alert of a tracker whose run is open, "wandb" or "trackio"; the first is W&B's verdict."""
    title, text = f"isograd: {row['signal']}", str(row["message"])
    if tracker == "wandb" and (run := sys.modules["wandb"].run) is not None:
        run.alert(title=title, text=text, level="WARN")
        if run.summary.get(VERDICT, CLEAN) == CLEAN:
            run.summary[VERDICT] = text
    elif tracker == "trackio":
        trackio = sys.modules["trackio"]
        trackio.alert(title=title, text=text, level=trackio.AlertLevel.WARN)


def judge(tracker: str, verdict: str = CLEAN) -> None:
    """The verdict on a run, where the tracker has a summary; at first that nothing was reported."""
    if tracker == "wandb" and "wandb" in sys.modules and (run := sys.modules["wandb"].run) is not None:
        run.summary[VERDICT] = verdict


def alarm(step: int, signal: str, layer: str | None, symptom: str, cause: str, remedy: str, **numbers: Any) -> Row:
    """A row of warnings.jsonl.

    >>> alarm(7, "same-batch", None, "12 batches are equal", "one is trained on", "take the next")["message"]
    'step 7: 12 batches are equal: one is trained on; take the next'
    """
    message = f"step {step}: {symptom}: {cause}; {remedy}"
    row = {"step": step, "signal": signal, "layer": layer, "message": message, "cause": cause, "remedy": remedy}
    return {**row, **numbers}


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
        self._reported = False

    def look(self, row: Row, layers: Sequence[Row], batch: Any) -> Row | None:
        """A step's rows and its batch; the warning, if this is the first one that is not finite."""
        if self._reported:
            return None
        self._rows.append((row, layers))
        if math.isfinite(row["loss"]) and (self._overflows or math.isfinite(row["grad_norm"])):
            return None
        self._reported = True
        broken = [one["address"] for one in layers if not math.isfinite(one.get("gradient_norm", 0.0))]
        what = "the loss" if not math.isfinite(row["loss"]) else "a gradient"
        where = f", first in {broken[-1]}" if broken and what == "a gradient" else ""  # backward comes from the end
        kept = "" if self.folder is None else f"; the steps before it are in {self._keep(self.folder / FOLDER, batch)}"
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
            append_rows(folder / "rows.jsonl", [row for step, layers in self._rows for row in (step, *layers)])
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

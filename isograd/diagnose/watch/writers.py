"""Where the rows of a watched training go: files of JSON lines, TensorBoard, any function of numbers and step."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from isograd.diagnose.watch.probe import Row

LogNumbers = Callable[[dict[str, float], int], None]
PER_STEP = "metrics.jsonl"
PER_LAYER = "quantities.jsonl"
WARNINGS = "warnings.jsonl"

_STRICT = json.JSONEncoder(allow_nan=False)


class Sink(Protocol):
    """Takes a step's row and the rows of its layers; `flush` once nothing more comes, or something happened."""

    def write(self, row: Row, layers: Sequence[Row]) -> None: ...

    def flush(self) -> None: ...


class JsonLines:
    """metrics.jsonl, a row per step, and quantities.jsonl, a row per step and layer: the files of an isograd run."""

    def __init__(self, folder: Path, together: int = 10) -> None:
        """Rows are appended, `together` steps at a time."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.together = together
        self._rows: list[Row] = []
        self._layers: list[Row] = []

    def write(self, row: Row, layers: Sequence[Row]) -> None:
        self._rows.append(row)
        self._layers.extend(layers)
        if len(self._rows) >= self.together:
            self.flush()

    def flush(self) -> None:
        for name, rows in ((PER_STEP, self._rows), (PER_LAYER, self._layers)):
            append(self.folder / name, rows)
            rows.clear()


class Logging:
    """Hands the numbers of a step to `log(numbers, step)`, such as `wandb.log`."""

    def __init__(self, log: LogNumbers) -> None:
        self.log = log

    def write(self, row: Row, layers: Sequence[Row]) -> None:
        self.log(flat(row, layers), row["step"])

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

    def flush(self) -> None:
        self._writer.flush()


def flat(row: Row, layers: Sequence[Row]) -> dict[str, float]:
    """The numbers of a step under one name each, such as "watch/gradient_norm/model.layers.0.attn".

    >>> flat({"step": 3, "loss": 2.5, "max_min": {"decoder ffn": 4.0}}, [{"address": "h.0", "gradient_norm": 0.5}])
    {'watch/loss': 2.5, 'watch/max_min/decoder ffn': 4.0, 'watch/gradient_norm/h.0': 0.5}
    """
    numbers: dict[str, float] = {}
    for name, value in row.items():
        parts = {f"/{group}": v for group, v in value.items()} if isinstance(value, Mapping) else {"": value}
        numbers |= {f"watch/{name}{part}": v for part, v in parts.items() if isinstance(v, float)}
    for layer in layers:
        numbers |= {f"watch/{n}/{layer['address']}": v for n, v in layer.items() if isinstance(v, float)}
    return numbers


def append(path: Path, rows: Sequence[Row]) -> None:
    """One JSON object per line; what JSON cannot say, NaN and infinities, is null."""
    if rows:
        with path.open("a", encoding="utf-8") as file:
            file.write(_lines(rows) + "\n")


def _lines(rows: Sequence[Row]) -> str:
    """Encoded in one go, which takes half the time of many small ones."""
    try:
        text = _STRICT.encode(rows)[1:-1].replace("}, {", "}\n{")
    except ValueError:
        return _lines([_finite(row) for row in rows])
    return text if text.count("\n") == len(rows) - 1 else "\n".join(map(_STRICT.encode, rows))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value

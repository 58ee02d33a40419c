"""What a report reads of a study's folder: plan, cells, the ledger where these are missing; names of axes."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, get_args

from isograd.errors import one_line
from isograd.lab.report.runs import Row, RunFiles, read_run
from isograd.lab.study.faults import fault
from isograd.lab.study.labels import WORDS, flat, shown
from isograd.outcome import OutcomeName

ENDED = ("finished", "collapsed", "diverged", "undecided", "failed")
COUNTED = ("finished", "collapsed", "diverged", "undecided")  # a failure of the machine says nothing of a placement


@dataclass(frozen=True, kw_only=True)
class CellFiles:
    """One run of a study: what the axes are here, how it ended, and its files where they are there.

    Attributes:
        outcome: how it ended, by its own files, else by the ledger; {} where it has not.
    """

    name: str
    values: Row
    seed: int
    outcome: Row
    files: RunFiles | None

    @property
    def how(self) -> str:
        """The outcome's name, or "not ended"."""
        return self.outcome.get("outcome", "not ended")

    def number(self, name: str) -> float | None:
        """A number of the outcome; None where there is none, or what is no number."""
        value = self.outcome.get(name)
        return float(value) if _is_number(value) else None


@dataclass(frozen=True, kw_only=True)
class StudyFiles:
    """The files of a study.

    Attributes:
        axes: dotted key -> its values, in the order of the recipe.
        grids: where the recipe has `also`, the axes of each grid; else [].
        left_out: what could not be read, a line each.
    """

    folder: Path
    name: str
    axes: dict[str, list[Any]]
    seeds: list[int]
    budget: Row | None
    base: Row
    cells: list[CellFiles]
    left_out: list[str]
    grids: Sequence[dict[str, list[Any]]] = ()

    @property
    def ended(self) -> list[CellFiles]:
        return [cell for cell in self.cells if cell.how in ENDED]

    def setting(self, key: str) -> Any:
        """A value of the recipe that the axes start from."""
        return dict(flat(self.base)).get(key)


def read_study(folder: Path) -> StudyFiles:
    """The files of a study, as far as they can be read.

    Raises:
        ValueError: the plan cannot be read.
    """
    left_out: list[str] = []
    plan = _plan(folder / "study.json")
    rows = _ledger(folder / "ledger.jsonl", left_out)
    missing: list[Path] = []
    cells = [_cell(folder, planned, rows.get(planned["cell"]), left_out, missing) for planned in plan["cells"]]
    if missing:
        others = f" and {len(missing) - 1} other{'s' * (len(missing) > 2)}" if missing[1:] else ""
        left_out.append(f"{missing[0]}{others}: not there; {'their' if others else 'its'} numbers are the ledger’s")
    known = {cell.name for cell in cells}
    inner = folder / "cells"
    there = sorted(one.name for one in inner.iterdir() if one.is_dir()) if inner.is_dir() else []
    for place, names in ((folder / "ledger.jsonl", rows), (inner, there)):
        strangers = [name for name in names if name not in known and not name.startswith(".")]
        if strangers:
            many = f" and {len(strangers) - 1} others are" if strangers[1:] else " is"
            left_out.append(f"{place}: {strangers[0]}{many} not in the plan, but of another recipe")
    named = {key: named_apart(filter(_is_text, values), key in _NO_PATHS) for key, values in plan["axes"].items()}
    for cell in cells:
        cell.values.update({k: named[k][v] for k, v in cell.values.items() if k in named and _is_text(v)})
    return StudyFiles(
        folder=folder,
        name=plan.get("name") or folder.resolve().name,
        axes={key: [named[key][v] if _is_text(v) else v for v in values] for key, values in plan["axes"].items()},
        seeds=plan.get("seeds") or sorted({cell.seed for cell in cells}),
        budget=plan.get("budget"),
        base=plan.get("base") or {},
        cells=cells,
        left_out=left_out,
        grids=plan.get("grids") or [],
    )


def _plan(path: Path) -> Row:
    """study.json, whose values can be compared and drawn."""
    try:
        plan: Row = json.loads(path.read_bytes())
        numbers = [
            *(plan.get("seeds") or ()),
            *(plan.get("budget") or {}).values(),
            *plan["axes"].get("training.lr", ()),
        ]
        points = [cell["values"].get(key) in values for cell in plan["cells"] for key, values in plan["axes"].items()]
        if all(points) and all(map(_is_number, numbers)) and all(map(_is_planned, plan["cells"])) and plan["cells"]:
            return plan
        wrong = "values that cells do not have, or numbers that are none"
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        wrong = f"{type(error).__name__}: {one_line(error)}"
    raise ValueError(f"{path}: not what isograd study writes ({wrong}); run the study again, which writes it anew")


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_planned(cell: Row) -> bool:
    return isinstance(cell["cell"], str) and isinstance(cell["seed"], int)


def _is_number(value: Any) -> TypeGuard[float]:
    """Neither infinite nor beyond what a float can say."""
    return isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max


def _ledger(path: Path, left_out: list[str]) -> dict[str, Row]:
    """Rows by the name of their cell, the last one where there are several; what is no row is named in `left_out`."""
    rows: dict[str, Row] = {}
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            left_out.append(f"{path}, line {number}: not JSON")
            continue
        wrong = _wrong_row(row)
        if wrong:
            left_out.append(f"{path}, line {number}: {wrong}")
        else:
            rows[row["cell"]] = row
    return rows


_NO_PATHS = ("arm", "model.placement")


def _wrong_row(row: Any) -> str | None:
    if not isinstance(row, dict) or not isinstance(row.get("cell"), str):
        return "no row of a cell"
    return None if row.get("outcome") in get_args(OutcomeName) else f"outcome is {json.dumps(row.get('outcome'))[:40]}"


def _cell(folder: Path, planned: Row, row: Row | None, left_out: list[str], missing: list[Path]) -> CellFiles:
    """Its own files first; the ledger's row where these are not there (`missing`), cannot be read or have no end."""
    own = folder / "cells" / planned["cell"]
    files = None
    if own.is_dir() and any(own.iterdir()):
        wrong = fault(own)
        if wrong is None:
            files = read_run(own)
        else:
            left_out.append(f"{wrong}{'; its numbers are the ledger’s' if row else ''}")
    elif row and row["outcome"] != "failed":
        missing.append(own)
    ended = files is not None and files.outcome.get("outcome") in ENDED
    outcome = files.outcome if files is not None and ended else {k: v for k, v in (row or {}).items() if k != "values"}
    values = dict(planned["values"])
    return CellFiles(name=planned["cell"], values=values, seed=planned["seed"], outcome=outcome, files=files)


# ------------------------------------------------------------------------------------------------------ names of axes

_LABELS = WORDS | {"training.lr": "LR {}"}  # dotted key -> beside others in a label
_NAMES = {
    "model.layers": "layers",
    "model.placement": "placement",
    "training.warmup": "warm-up (steps)",
    "training.lr": "learning rate",
}


class NamedCell(str):
    """A text of an axis, shown by a name that is shorter: of a file's path the last parts."""

    name: str


def named_apart(values: Iterable[str], whole: bool = False) -> dict[str, NamedCell]:
    """The texts of an axis, each by a name that no other one has.

    Args:
        whole: they are no paths.

    >>> [text.name for text in named_apart(["runs/a/model", "runs/b/model", "c.txt"]).values()]
    ['a', 'b', 'c.txt']
    >>> [text.name for text in named_apart(["en/train.txt", "de/train.txt", ""]).values()]
    ['en/train.txt', 'de/train.txt', '“”']
    """
    found = {text: NamedCell(text) for text in values}
    parts = [[text] if whole else text.rstrip("/").removesuffix("/model").split("/") for text in found]
    for many in range(1, 1 + max(map(len, parts), default=0)):
        for text, own in zip(found.values(), parts, strict=True):
            # in one line, without what no font has
            text.name = " ".join(re.sub(r"[^ -~\u00a1-\uffff]", " ", "/".join(own[-many:])).split()) or "“”"
        if len({text.name for text in found.values()}) == len(found):
            break
    return found


def shown_value(value: Any) -> str:
    """A value for people."""
    return value.name if isinstance(value, NamedCell) else shown(value)


def who_names(key: str, values: Sequence[Any]) -> list[str]:
    """The values of the axis that is compared: texts by their names, others after the name of the axis.

    >>> who_names("model.ffn", [None, 128]), who_names("model.norm", ["layernorm", "rmsnorm"])
    (['ffn none', 'ffn 128'], ['layernorm', 'rmsnorm'])
    """
    texts = all(isinstance(value, str) for value in values)
    names = [shown_value(value) if texts else f"{axis_name(key)} {shown_value(value)}" for value in values]
    return names if len(set(names)) == len(names) else [f"{axis_name(key)} {json.dumps(value)}" for value in values]


def axis_name(key: str) -> str:
    """What stands at an axis or above a column.

    >>> axis_name("training.lr"), axis_name("training.weight_decay")
    ('learning rate', 'weight decay')
    """
    return _NAMES.get(key, key.rpartition(".")[2].replace("_", " "))


def condition_said(condition: Mapping[str, Any]) -> str:
    """For labels and headings.

    >>> condition_said({"model.layers": 12, "training.warmup": 0, "training.clip": 1.0})
    '12 layers, no warm-up, clip 1'
    >>> condition_said({"model.layers": 1})
    '1 layer'
    """
    return ", ".join(_said(key, value) for key, value in condition.items())


def _said(key: str, value: Any) -> str:
    if key == "training.warmup" and not value:
        return "no warm-up"
    words = _LABELS.get(key, f"{axis_name(key)} {{}}")
    return (words.removesuffix("s") if value == 1 else words).format(shown_value(value))

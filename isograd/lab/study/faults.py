"""What is wrong with the files of a run, as a kill, a full disk or another hand may have left them."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from isograd.lab.study.labels import flat
from isograd.lab.train.run import Kept
from isograd.lab.train.tasks import DEFAULT, TASKS
from isograd.outcome import OutcomeName

FILES = ("run.json", "resolved.json", "outcome.json", "metrics.jsonl", "quantities.jsonl", "validation.jsonl")
WORDS = ("address", "stack", "kind")  # of a row of quantities


def fault(folder: Path, rows: bool = True) -> str | None:
    """What is wrong with the files of a run, None if nothing is; its rows are looked at only if `rows`."""
    try:
        if not (folder / "run.json").exists():
            return f"{folder}: run.json is missing beside the other files of a run"
        for name, needed in NEEDED.items():
            content = _check_object(folder / name, needed, KNOWN[name])
            if name == "run.json":
                own = TASKS[content.get("task") or DEFAULT].needed
                _check_object(folder / name, {key: (kind,) for key, kind in own.items()}, {})
            measured = {key: content.get(key) or {} for key in ("scores", "majority_scores")}
            _check_numbers(str(folder / name), dict(flat(measured)))
        for name, kinds in ROWS.items() if rows else ():
            _check_rows(folder / name, kinds)
    except _FaultError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


class _FaultError(Exception):
    """A file that is not what a run writes; the message names it."""


_NUMBER, _WORD, _SECTION = (int, float), (str,), (dict,)
Kinds = Mapping[str, tuple[type, ...]]
NEEDED: dict[str, Kinds] = {  # dotted keys that a report cannot do without, and what stands there
    "run.json": {
        "seed": (int,),
        "model.placement": _WORD,
        "training.lr": _NUMBER,
        "training.warmup": (int,),
        "training.steps": (int,),
    },
    "resolved.json": {},
    "outcome.json": {"outcome": _WORD},
}
KNOWN: dict[str, Kinds] = {  # what else it reads: None, or this
    "run.json": {"task": _WORD, "data": _SECTION, "pairs": _SECTION, "search": _SECTION, "glue": _SECTION},
    "resolved.json": {
        **dict.fromkeys(("placement", "final", "formulas.attn", "formulas.ffn", "formulas.cross"), _WORD),
        **dict.fromkeys(("parameters", "steps", "data.tokens", "data.vocab_size", "data.unigram_entropy"), _NUMBER),
        **dict.fromkeys(("formulas", "data"), _SECTION),
        "legend": (list,),
    },
    "outcome.json": {
        **dict.fromkeys(("final_loss", "validation_loss", "perplexity", "bleu", "score", "majority"), _NUMBER),
        **dict.fromkeys(("gradient_ratio_start", "gradient_ratio_end", "lr_reached", "broke_at"), _NUMBER),
        **dict.fromkeys(("tokens_per_second", "parameters"), _NUMBER),
        **dict.fromkeys(("scores", "scores.dev", "scores.test", "provenance"), _SECTION),
        **dict.fromkeys(("majority_scores", "majority_scores.dev", "majority_scores.test"), _SECTION),
        **dict.fromkeys(("metric", "reason", "kept_weights"), _WORD),
        "kept_steps": (list,),
        "candidates": _SECTION,
        **{f"candidates.{kind}": _SECTION for kind in get_args(Kept)},
        **{f"candidates.{kind}.steps": (list,) for kind in get_args(Kept)},
        **{f"candidates.{kind}.{name}": _NUMBER for kind in get_args(Kept) for name in ("loss", "bleu")},
        "judged": _SECTION,
        **dict.fromkeys(("judged.held_out_excess", "judged.needed"), _NUMBER),
    },
}
ROWS: dict[str, Kinds] = {  # of every row
    "metrics.jsonl": {"step": (int,), "loss": (int, float, NoneType)},
    "quantities.jsonl": {"step": (int,), "layer": (int,), "kind": _WORD},
    "validation.jsonl": {"step": (int,)},
}
CHOICES = {"task": tuple(TASKS), "outcome": get_args(OutcomeName), "kept_weights": get_args(Kept)}


def _check_object(path: Path, needed: Kinds, known: Kinds) -> dict[str, Any]:
    """The content of a JSON file, {} where there is none."""
    if not path.exists():
        return {}
    content = _json(path, path.read_bytes(), "")
    for key, kinds in {**needed, **known}.items():
        value = _at(content, key)
        if value is None and key in needed:
            raise _FaultError(f"{path}: no {key}")
        if value is not None and not (isinstance(value, kinds) and value in CHOICES.get(key, (value,))):
            raise _FaultError(f"{path}: {key} is {json.dumps(value)[:40]}")
    return content


def _at(content: Any, key: str) -> Any:
    """The value under a dotted key, None where there is none."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _check_rows(path: Path, kinds: Kinds) -> None:
    rows = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(rows[:-1], start=1):  # a row is whole when its line has ended
        row = _json(path, line, f", line {number}")
        missing = [name for name in kinds if name not in row]
        if missing:
            raise _FaultError(f"{path}, line {number}: no {missing[0]}")
        _check_numbers(f"{path}, line {number}", {name: value for name, value in row.items() if name not in WORDS})
        wrong = [name for name, of in kinds.items() if not isinstance(row[name], of)]
        if wrong:
            raise _FaultError(f"{path}, line {number}: {wrong[0]} is {json.dumps(row[wrong[0]])[:40]}")


def _check_numbers(where: str, values: dict[str, Any]) -> None:
    wrong = [name for name, value in values.items() if not _is_number(value)]
    if wrong:
        raise _FaultError(f"{where}: {wrong[0]} is no number")


def _is_number(value: Any) -> bool:
    """None and NaN, too: what JSON, and Python's, has for a number that is none. Nothing here is beyond a float."""
    return value is None or (isinstance(value, int | float) and not abs(value) > sys.float_info.max)


def _json(path: Path, text: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise _FaultError(f"{path}{where}: not JSON") from error
    if not isinstance(content, dict):
        raise _FaultError(f"{path}{where}: not a JSON object")
    return content

"""Reading parallel text: number words, two files, JSON lines, and `datasets` names; every failure is one `DataError`.

A source is found first and read later: its key says whether an encoded copy of it is at hand, and costs a hash of the
files' bytes at most.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.data import numbers
from isograd.data.errors import DataError
from isograd.data.text import OPEN, SURROGATE, decode, first_line, read_bytes

NUMBERS = "numbers"
_ROWS = (".jsonl", ".json")
_HUB = re.compile(r"[\w.-]+(/[\w.-]+){0,2}")
_DEFAULT = {"train": "train", "valid": "validation"}  # splits on the hub


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Parallel lines.

    Attributes:
        where: the files of the two sides (or twice the same), for messages.
        unit: what is counted there: "line" or "row".
        numbers: of every pair there, from 1.
    """

    where: tuple[str, str]
    unit: str
    numbers: Iterable[int]
    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A source that is there.

    Attributes:
        key: another one means another text.
        read: gives it.
    """

    name: str
    key: str
    read: Callable[[], Pairs]


def find_pairs(name: str, source: str, target: str, role: str = "train") -> Found:
    """What a name stands for: "numbers", "PREFIX", "a.de,b.en", a .jsonl, or a data set of the hub or a folder.

    Args:
        source, target: languages; the ends of a prefix's files, the keys of JSON lines, the columns of data sets.
        role: "train" or "valid" decides the part of what has parts, unless the name does (":test").

    Raises:
        DataError: nothing there; in one line, with what was looked for.
    """
    base, _, part = name.partition(":")
    if base == NUMBERS:
        return _number_words(part or role, source, target)
    if "," in name:
        return _two_files(name, *_split(name), source, target)
    path = Path(name)
    kind = path.with_suffix("").suffix if path.suffix in OPEN else path.suffix
    if kind in _ROWS:
        return _json_file(path, source, target)
    halves = [_half(name, language) for language in (source, target)]
    if halves[0] and halves[1]:
        return _two_files(name, halves[0], halves[1], source, target)
    if halves[0] or halves[1]:
        there, absent = (halves[0], target) if halves[0] else (halves[1], source)
        raise DataError(f"{there} is there, its other half is not; looked for {_looked_for(name, absent)}")
    if Path(base).is_dir() or (_HUB.fullmatch(base) and not base.startswith(".")):
        return _data_set(name, base, part or _DEFAULT[role], source, target)
    raise DataError(f"{name}: no such text; looked for {_looked_for(name, source)}")


def _number_words(part: str, source: str, target: str) -> Found:
    name = f"{NUMBERS}:{part}"

    def read() -> Pairs:
        lines = numbers.numbers(part, source, target)
        count = range(1, len(lines[0]) + 1)
        return Pairs(where=(name, name), unit="line", numbers=count, source=lines[0], target=lines[1])

    numbers.integers(part)
    return Found(name=name, key=f"{name} {numbers.version()}", read=read)


def _split(name: str) -> tuple[Path, Path]:
    halves = name.split(",")
    if len(halves) != 2 or not all(halves):
        raise DataError(f"{name}: expected two files with a comma between them")
    return Path(halves[0]), Path(halves[1])


def _half(prefix: str, language: str) -> Path | None:
    return next((path for path in _candidates(prefix, language) if path.is_file()), None)


def _candidates(prefix: str, language: str) -> list[Path]:
    return [Path(f"{prefix}.{language}{packed}") for packed in ("", *OPEN)]


def _looked_for(prefix: str, language: str) -> str:
    return ", ".join(map(str, _candidates(prefix, language)))


def _two_files(name: str, first: Path, second: Path, source: str, target: str) -> Found:
    for path in (first, second):
        _is_file(path)

    def read() -> Pairs:
        sides = [text_lines(path) for path in (first, second)]
        if len(sides[0]) != len(sides[1]):
            raise DataError(
                f"{first} has {len(sides[0])} lines and {second} has {len(sides[1])}; parallel files have equally many"
            )
        count = range(1, len(sides[0]) + 1)
        return Pairs(where=(str(first), str(second)), unit="line", numbers=count, source=sides[0], target=sides[1])

    return Found(name=name, key=f"{_sha(first)} {_sha(second)}", read=read)


def _is_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a file")


def text_lines(path: Path) -> list[str]:
    """Lines of a file, divided at LF and CR LF alone, so that no exotic separator in a sentence shifts the pairs."""
    text = decode(read_bytes(path), path).replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{path}: is empty")
    return text.removesuffix("\n").split("\n")


def _sha(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _json_file(path: Path, source: str, target: str) -> Found:
    _is_file(path)

    def read() -> Pairs:
        rows = []
        for number, line in enumerate(text_lines(path), start=1):
            if line.strip():
                rows.append((number, *_json_pair(line, f"{path}, line {number}", source, target)))
        return _of_rows(str(path), "line", rows)

    return Found(name=str(path), key=_sha(path), read=read)


def _json_pair(line: str, where: str, source: str, target: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg})") from error
    pair = _pair(row, where, source, target)
    if any(SURROGATE.search(side) for side in pair):
        raise DataError(f"{where}: holds half a surrogate pair (\\udXXX), which is no text")
    return pair


def _pair(row: Any, where: str, source: str, target: str) -> tuple[str, str]:
    """Both sides of {"de": .., "en": ..} or {"translation": {"de": .., "en": ..}}."""
    inner = row.get("translation", row) if isinstance(row, dict) else row
    if not isinstance(inner, dict) or not all(isinstance(inner.get(k), str) for k in (source, target)):
        found = f"keys {', '.join(inner)}" if isinstance(inner, dict) else type(inner).__name__
        raise DataError(f"{where}: expected an object with the texts {source!r} and {target!r}, found {found}")
    return inner[source], inner[target]


def _of_rows(where: str, unit: str, rows: list[tuple[int, str, str]]) -> Pairs:
    if not rows:
        raise DataError(f"{where}: holds no pairs")
    count, left, right = (list(column) for column in zip(*rows, strict=True))
    return Pairs(where=(where, where), unit=unit, numbers=count, source=left, target=right)


def _data_set(name: str, base: str, split: str, source: str, target: str) -> Found:
    rows = _load(name, base, split, source)

    def read() -> Pairs:
        pairs = [(i, *_pair(row, f"{name}, row {i}", source, target)) for i, row in enumerate(rows, start=1)]
        return _of_rows(name, "row", pairs)

    return Found(name=name, key=f"{base} {split} {rows._fingerprint}", read=read)


def _load(name: str, base: str, split: str, source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"data set {name!r} needs the datasets library; pip install 'isograd[data]'") from error
    try:
        return datasets.load_dataset(base, split=split)
    except Exception as error:  # the hub raises many kinds; a user needs one line
        raise DataError(
            f"{name!r}: no {_looked_for(base, source)} here, and as a data set it cannot be loaded: {first_line(error)}"
        ) from error

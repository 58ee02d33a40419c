"""Reading parallel text: number words, two files, two columns, JSON lines, Parquet, and `datasets` names.

A source is found first and read later: its key tells whether an encoded copy is at hand, and costs no more than a hash
of the files' bytes. Every failure is one `DataError`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isograd.errors import DataError, first_line
from isograd.hub import absent, load_dataset
from isograd.lab.data import numbers
from isograd.text import (
    JSON_LINES,
    OPEN,
    file_kind,
    file_sha256,
    file_text,
    json_rows,
    must_be_a_file,
    must_have_datasets,
    no_surrogates,
    parquet_file,
)

NUMBERS = "numbers"
COLUMNS = ".tsv"
_HUB = re.compile(r"\w[\w.-]*(/[\w.-]+){0,2}")
_PARTS = {"train": "train", "valid": "validation"}  # of a data set, unless its name says which
_ROWS = 10_000  # of a data set, read at a time


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Parallel text.

    Attributes:
        where: the files of the two sides, or twice the same, for messages.
        unit: what is counted there, "line" or "row".
        numbers: of each pair there, from 1.
    """

    where: tuple[str, str]
    unit: str
    numbers: Sequence[int]
    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        return len(self.source)

    @staticmethod
    def of_lines(first: object, second: object, source: list[str], target: list[str]) -> "Pairs":
        """Line by line, of one file or two."""
        where, numbers = (str(first), str(second)), range(1, len(source) + 1)
        return Pairs(where=where, unit="line", numbers=numbers, source=source, target=target)


@dataclass(frozen=True, kw_only=True)
class PairsFound:
    """A source that is there.

    Attributes:
        key: the same key, the same text.
        read: gives the text.
    """

    name: str
    key: str
    read: Callable[[], Pairs]


def find_pairs(name: str, source: str, target: str, role: str = "train") -> PairsFound:
    """What a name stands for.

    Args:
        name: "numbers"; "PREFIX" of PREFIX.de and PREFIX.en, each plain, .gz or .xz; "a.de,b.en", two files; a .tsv
            of two columns, source and target; a .jsonl or .parquet with rows {"de": .., "en": ..} or {"translation":
            {"de": .., "en": ..}}; a folder or name of `datasets`, "OWNER/NAME", "NAME/CONFIG" or
            "OWNER/NAME/CONFIG". The first and the last take ":PART".
        source, target: the languages: ends of a prefix's files, keys of rows.
        role: "train" or "valid" decides the part where the name does not.

    Raises:
        DataError: nothing is there; with what was looked for.
    """
    must_be_there(name, source, target)
    path = Path(name)
    base, _, part = name.partition(":")
    if base == NUMBERS:
        return _number_words(part or role, source, target)
    if "," in name:
        return _two_files(name, *_halves(name))
    if read := _FILES.get(file_kind(path)):
        return PairsFound(name=name, key=file_sha256(path), read=partial(read, path, source, target))
    there = [file for language in (source, target) if (file := _first_file(name, language))]
    return _two_files(name, *there) if there else _data_set(name, base, part or _PARTS[role], source, target)


def must_be_there(name: str, source: str, target: str) -> None:
    """Refuse what `find_pairs` cannot find, before anything is read.

    Raises:
        DataError: with what was looked for.
    """
    path, base = Path(name), name.partition(":")[0]
    if base == NUMBERS:
        return
    if "," in name or file_kind(path) in _FILES:
        for one in _halves(name) if "," in name else [path]:
            must_be_a_file(one)
        return
    missing = [language for language in (source, target) if not _first_file(name, language)]
    if len(missing) == 1 or (missing and not _is_data_set(base)):
        raise DataError(f"{name}: no parallel text; looked for {_looked_for(name, missing[0])}")
    names = [one for one, _ in _ways(base)] if missing else []
    if names:
        must_have_datasets(name)
    why = [] if any(Path(one).is_dir() for one in names) else [absent(one, "dataset") for one in names]
    if why and all(why):
        raise _no_data_set(name, base, source, why[0])


def _number_words(part: str, source: str, target: str) -> PairsFound:
    name = f"{NUMBERS}:{part}"
    numbers.integers(part)  # refuses a part that there is none of
    return PairsFound(
        name=name,
        key=f"{name} {source} {target} {numbers.version()}",
        read=lambda: Pairs.of_lines(name, name, *numbers.numbers(part, source, target)),
    )


def _halves(name: str) -> list[Path]:
    halves = name.split(",")
    if len(halves) != 2 or not all(halves):
        raise DataError(f"{name}: expected two files, 'a.de,b.en'")
    return [Path(half.strip()) for half in halves]


def _first_file(prefix: str, language: str) -> Path | None:
    return next((path for path in _candidates(prefix, language) if path.is_file()), None)


def _candidates(prefix: str, language: str) -> list[Path]:
    return [Path(f"{prefix}.{language}{packed}") for packed in ("", *OPEN)]


def _looked_for(prefix: str, language: str) -> str:
    return ", ".join(map(str, _candidates(prefix, language)))


def _no_data_set(name: str, base: str, language: str, why: str) -> DataError:
    return DataError(f"{name}: no {_looked_for(base, language)} here, and as a data set it cannot be loaded: {why}")


def _two_files(name: str, first: Path, second: Path) -> PairsFound:
    def read() -> Pairs:
        left, right = lines_of(first), lines_of(second)
        if len(left) != len(right):
            counts = f"{first} has {len(left)} lines and {second} has {len(right)}"
            raise DataError(f"{counts}; line n of one must translate line n of the other")
        return Pairs.of_lines(first, second, left, right)

    return PairsFound(name=name, key=f"{file_sha256(first)} {file_sha256(second)}", read=read)


def _columns(path: Path, *_: str) -> Pairs:
    """A pair a line: the source, a tab, the target."""
    rows = [line.split("\t") for line in lines_of(path)]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise DataError(f"{path}, line {number}: expected source, a tab and target, found {len(row)} columns")
    return Pairs.of_lines(path, path, *([row[side] for row in rows] for side in (0, 1)))


def lines_of(path: Path) -> list[str]:
    """Divided at LF and CR LF alone: any other separator is part of a sentence, and dividing there shifts the pairs."""
    return file_text(path).removesuffix("\n").split("\n")


def _json(path: Path, source: str, target: str) -> Pairs:
    return _of_rows(str(path), "line", json_rows(file_text(path), path), source, target)


def _parquet(path: Path, source: str, target: str) -> Pairs:
    with parquet_file(path) as file:
        rows = (row for batch in file.iter_batches(_ROWS) for row in batch.to_pylist())
        return _of_rows(str(path), "row", enumerate(rows, start=1), source, target)


_FILES: dict[str, Callable[[Path, str, str], Pairs]] = {  # of one file, by its suffix
    **dict.fromkeys(JSON_LINES, _json),
    ".parquet": _parquet,
    COLUMNS: _columns,
}


def _of_rows(where: str, unit: str, rows: Iterable[tuple[int, Any]], source: str, target: str) -> Pairs:
    count: list[int] = []
    sides: tuple[list[str], list[str]] = ([], [])
    for number, row in rows:
        count.append(number)
        for side, language in zip(sides, (source, target), strict=True):
            side.append(_text(row, language, f"{where}, {unit} {number}"))
    if not count:
        raise DataError(f"{where}: holds no pairs")
    return Pairs(where=(where, where), unit=unit, numbers=count, source=sides[0], target=sides[1])


def _text(row: Any, language: str, where: str) -> str:
    """One side of {"de": .., "en": ..} or {"translation": {"de": .., "en": ..}}."""
    inner = row.get("translation", row) if isinstance(row, dict) else row
    text = inner.get(language) if isinstance(inner, dict) else None
    if isinstance(text, str):
        return no_surrogates(text, where, language)
    if not isinstance(inner, dict):
        found = f"a {type(inner).__name__}"
    else:
        found = f"a {type(text).__name__} there" if language in inner else f"the keys {', '.join(map(str, inner))}"
    raise DataError(f"{where}: expected an object with a text {language!r}, found {found}")


def _is_data_set(base: str) -> bool:
    """A folder; a name of the hub; or a folder with a card and one of its configurations.

    A name below a folder without a card is a misspelt prefix: asking the hub for it would only take time.
    """
    path = Path(base)
    if path.is_dir() or (path.parent / "README.md").is_file():
        return True
    return bool(_HUB.fullmatch(base)) and (path.parent == Path() or not path.parent.is_dir())


def _data_set(name: str, base: str, part: str, source: str, target: str) -> PairsFound:
    data = _load(name, base, part, source)

    def read() -> Pairs:
        rows = (
            dict(zip(batch, row, strict=True))
            for batch in data.iter(_ROWS)
            for row in zip(*batch.values(), strict=True)
        )
        return _of_rows(name, "row", enumerate(rows, start=1), source, target)

    return PairsFound(name=name, key=f"{base} {part} {data._fingerprint}", read=read)


def _load(name: str, base: str, part: str, source: str) -> Any:
    must_have_datasets(name)
    errors: list[Exception] = []
    for path, configuration in _ways(base):
        try:
            return load_dataset(path, configuration, split=part)
        except Exception as error:  # the hub raises many kinds; a user needs one line
            errors.append(error)
            if not isinstance(error, OSError):  # it is there, but not so
                break
    worst = errors[0] if isinstance(errors[-1], OSError) else errors[-1]
    raise _no_data_set(name, base, source, first_line(worst.__cause__ or worst)) from worst


def _ways(base: str) -> list[tuple[str, str | None]]:
    """Data set and configuration; "a/b" may be both in one or one after the other."""
    head, _, configuration = base.rpartition("/")
    return [(base, None), *([(head, configuration)] if head and not Path(base).is_dir() else [])]

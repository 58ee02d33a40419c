"""Reading text: the embedded default, files (.txt, .jsonl, .parquet, plain or .gz or .xz), and `datasets` names.

Every reader returns documents as (name, text) pairs, rows named by their number alone, so that the same rows in
another format or folder are the same documents; every failure is one `DataError`.
"""

import gzip
import hashlib
import json
import lzma
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from isograd.errors import DataError, first_line
from isograd.hub import absent, load_dataset

Document = tuple[str, str]
Ends = Literal["file", "blank-line"]

EMBEDDED = "embedded"
JSON_LINES = (".jsonl", ".json")
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can write one alone; UTF-8 cannot
OPEN: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def read(
    source: str | Sequence[str], field: str = "text", split: str = "train", documents: Ends = "file"
) -> list[Document]:
    """Documents of a source: "embedded", a file, or the name of a data set on the Hugging Face hub; or of several.

    Args:
        source: what to read. Anything that exists as a file, or looks like one, is a file.
        field: the key of the text in JSON lines, Parquet and data sets.
        split: the split of a data set on the hub.
        documents: what ends a document of a text file: its end, or a blank line (as in BERT's own data).

    Raises:
        DataError: nothing to read, or not readable; in one line.
    """
    if not isinstance(source, str):
        return [document for one in source for document in read(one, field, split, documents)]
    if source == EMBEDDED:
        return embedded()
    if not is_file(source):
        return _hub(source, field, split)
    found = _file(Path(source), field)
    return found if documents == "file" else [part for document in found for part in _parted(*document)]


def must_be_there(source: str | Sequence[str]) -> None:
    """Refuse what `read` cannot find, before anything is read.

    Raises:
        DataError: no such file, or a data set that neither the cache nor a hub within reach has.
    """
    for one in [source] if isinstance(source, str) else source:
        if one != EMBEDDED and is_file(one):
            must_be_a_file(Path(one))
        elif one != EMBEDDED:
            _must_be_within_reach(one)


def is_file(source: str) -> bool:
    """Whether it exists as a file, or looks like one."""
    path = Path(source)
    return path.exists() or bool(path.suffix) or path.is_absolute() or source.startswith(".")


def _parted(name: str, text: str) -> list[Document]:
    parts = (part.strip("\n") for part in re.split(r"\n\s*\n", text))
    return [(f"{name}:{number}", f"{part}\n") for number, part in enumerate(filter(str.strip, parts), start=1)]


def embedded() -> list[Document]:
    """English prose and code that every Python carries: the language reference and the standard library's modules."""
    folder = Path(sysconfig.get_path("stdlib"))
    code = [(f"{p.stem}.py", p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.py"))]
    return _language_reference() + code


def _language_reference() -> list[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # a Python without its documentation: the code alone will do
        return []
    return [(f"topic:{name}", text) for name, text in sorted(topics.items())]


def _file(path: Path, field: str) -> list[Document]:
    must_be_a_file(path)
    if file_kind(path) == ".parquet":
        with parquet_file(path) as file:
            names = file.schema_arrow.names
            return _column(names, lambda: file.read(columns=[field]).column(field).to_pylist(), str(path), field)
    text = file_text(path)
    return _json_lines(text, path, field) if file_kind(path) in JSON_LINES else [(path.name, text)]


def must_be_a_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a file")


def file_kind(path: Path) -> str:
    """The suffix before .gz or .xz."""
    return path.with_suffix("").suffix if path.suffix in OPEN else path.suffix


def file_text(path: Path) -> str:
    """What a file says, plain or packed, with LF at the end of its lines."""
    raw = read_bytes(path)
    if not raw.strip():
        raise DataError(f"{path}: is empty")
    return decode(raw, path).replace("\r\n", "\n")


def file_sha256(path: Path) -> str:
    """Of the bytes as they lie there, packed or not."""
    must_be_a_file(path)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def read_bytes(path: Path) -> bytes:
    try:
        with OPEN.get(path.suffix, open)(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def decode(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        bad = raw[error.start]
        raise DataError(f"{path}, line {line}: not UTF-8 (byte 0x{bad:02x}); convert the file to UTF-8") from error


def json_rows(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """Every row with the number of its line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, line {number}: not JSON ({error.msg})") from error


def no_surrogates(text: str, where: str, field: str) -> str:
    if _SURROGATE.search(text):
        raise DataError(f"{where}: {field!r} holds half a surrogate pair (\\udXXX), which is not text")
    return text


def _json_lines(text: str, path: Path, field: str) -> list[Document]:
    documents: list[Document] = []
    for number, row in json_rows(text, path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            raise DataError(f"{where}: expected an object with a text {field!r}, {_found(row, field)}")
        documents.append((f"row {len(documents) + 1}", no_surrogates(row[field], where, field)))
    return documents


def _found(row: Any, field: str) -> str:
    if not isinstance(row, dict):
        return f"found a {type(row).__name__}"
    return f"found a {type(row[field]).__name__} there" if field in row else f"found the keys {', '.join(row)}"


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`.

    Raises:
        DataError: pyarrow is missing, or what the block reads is not Parquet.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError(f"{path}: Parquet needs pyarrow; pip install 'isograd[data]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({first_line(error)})") from error


def _hub(name: str, field: str, split: str) -> list[Document]:
    _must_be_within_reach(name)
    must_have_datasets(name)
    try:
        rows = load_dataset(name, split=split)
    except Exception as error:  # the hub raises many kinds; a user needs one line
        raise DataError(
            f"{name!r} is not a file here, and as a data set on the hub it cannot be loaded: {first_line(error)}"
        ) from error
    return _column(rows.column_names, lambda: rows[field], name, field)


def _must_be_within_reach(name: str) -> None:
    must_have_datasets(name)
    if why := absent(name, "dataset"):
        raise DataError(f"{name!r} is not a file here, and as a data set on the hub it cannot be loaded: {why}")


def must_have_datasets(name: str) -> None:
    """Refuse the name of a data set where the library that loads it is missing."""
    try:
        there = find_spec("datasets") is not None
    except ValueError:  # what stands in for a module has no spec
        there = False
    if not there:
        raise DataError(f"data set {name!r} needs the datasets library; pip install 'isograd[data]'")


def _column(names: Iterable[str], values: Callable[[], Iterable[Any]], where: str, field: str) -> list[Document]:
    if field not in names:
        raise DataError(f"{where}: no column {field!r}; found {', '.join(names)}")
    documents = [(f"row {i}", text) for i, text in enumerate(values(), start=1) if text]
    for name, text in documents:
        if not isinstance(text, str):
            raise DataError(f"{where}, {name}: column {field!r} holds {type(text).__name__}, expected text")
    return documents

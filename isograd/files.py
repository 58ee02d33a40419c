"""Files that are there whole or not at all, rows of JSON, and folders in which one process at a time works."""

import glob
import json
import math
import os
import platform
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from isograd.errors import FolderBusyError

_STRICT = json.JSONEncoder(allow_nan=False)
PAGES = "docs/check"  # a page for each code of check and preflight


def write_json(path: Path, content: Any) -> None:
    """Indented, whole or not at all. NaN and infinities become null."""
    write_text(path, json.dumps(finite(content), indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """In UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Whole or not at all: written beside and moved into place."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:  # a full disk names no file
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object per line. NaN and infinities become null."""
    if not rows:
        return
    try:  # in one go, which takes half the time of many small ones
        text = _STRICT.encode(rows)[1:-1].replace("}, {", "}\n{")
    except ValueError:
        text = ""
    if text.count("\n") != len(rows) - 1 or not text:
        text = "\n".join(json.dumps(finite(row)) for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def read_json(path: Path) -> Any:
    """The content of a .json file.

    Raises:
        OSError: it cannot be read; ValueError: it is not JSON.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a .json file; {} where there is no file, or something else in it.

    Raises:
        ValueError: it is not JSON.
    """
    content = read_json(path) if path.exists() else {}
    return content if isinstance(content, dict) else {}


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
    write_rows(path, [row for row in read_rows(path) if row["step"] <= step])


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object per line, in place of what was there; whole or not at all."""
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


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A hidden folder to write into, which takes the name `folder` when the block ends, or is removed if it raised.

    Raises:
        FileExistsError: there is something of that name already.
    """
    folder = Path(folder)
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(folder)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_scratch(folder)}{os.getpid()}-", dir=folder.parent))
    try:
        yield scratch
        scratch.chmod(0o755)  # mkdtemp's is for its owner alone
        scratch.replace(folder)
    except Exception as error:
        from safetensors import SafetensorError  # here, since it may not be loaded

        if isinstance(error, SafetensorError):  # what a full disk is to it
            raise OSError(f"{folder}: weights cannot be written ({' '.join(str(error).split())})") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch(folder: Path) -> str:
    return f".{folder.name}.{platform.node()}-"


def _remove_left(folder: Path) -> None:
    """Scratch folders of processes of this machine that were killed while they wrote."""
    for left in folder.parent.glob(f"{glob.escape(_scratch(folder))}*"):
        process = left.name.removeprefix(_scratch(folder)).partition("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


def refuse_existing(folder: Path) -> None:
    """Raise FileExistsError where `folder` is a file, or a folder that is not empty."""
    if (folder.is_dir() and any(folder.iterdir())) or folder.is_file():
        raise FileExistsError(f"{folder}: exists already; name a new folder, or remove it first")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder` and work there alone until the block ends, or the process, in whatever way. Leaves no file behind.

    Raises:
        FolderBusyError: another process is at work there.
        OSError: the folder cannot be made.
    """
    from filelock import lock_descriptor

    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # which opens no folders; two processes at once are the user's to avoid there
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(lock_descriptor, descriptor):
            raise FolderBusyError(f"{folder}: another process is at work there; wait, or choose another")
        yield
    finally:
        os.close(descriptor)


def _lock(lock: Callable[..., bool], descriptor: int) -> bool:
    try:
        return lock(descriptor, blocking=False)
    except OSError:  # a file system without locks, such as some network ones
        return True


def is_locked(folder: Path) -> bool:
    """Whether some process is at work in `folder` now."""
    try:
        if folder.is_dir():
            with locked(folder):
                pass
    except FolderBusyError:
        return True
    return False


def page_of(code: str) -> Path | None:
    """The page of a code: of the clone that this package runs from, else as a wheel has installed it."""
    places = (Path(__file__).parents[1], Path(sysconfig.get_path("data"), "share/isograd"))
    return next((file for place in places if (file := place / PAGES / f"{code}.md").is_file()), None)


def nearest_code(name: str) -> str | None:
    """The code that `name` is likely to mean, misspelt."""
    page = page_of("frozen")
    near = get_close_matches(name.lower(), [p.stem for p in page.parent.glob("*.md")] if page else [], n=1, cutoff=0.8)
    return near[0] if near else None


def explanation(code: str) -> str:
    """What a code means and what to do, from its page, as plain text; "" where the pages are not installed."""
    page = page_of(code)
    text = page.read_text(encoding="utf-8") if page else ""
    said = text.partition("\n## ")[0].partition("\n\n")[2].strip()
    return re.sub(r"\[([^\]]+)\]\([^)]*\)|\*{1,2}(?=\S)([^*\n]+)(?<=\S)\*{1,2}", r"\1\2", said)

"""Entries of a cache: written whole or not at all."""

import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from isograd.errors import DataError
from isograd.files import write_text

MARK = "facts.json"  # the entry that has it is whole
_STALE = 24 * 3600  # seconds after which what a killed build left is swept away


def write_entry(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name and move it into place, so that a kill leaves nothing half-done.

    Two processes may do so at once: the first one's entry stays.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
        try:
            fill(scratch)
            _move(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise DataError(f"the cache {folder.parent} cannot be written ({error}); set XDG_CACHE_HOME") from error


def write_digest(path: Path, digest: str) -> None:
    """Whole or not at all."""
    try:
        write_text(path, digest)
    except OSError as error:
        raise DataError(f"the cache {path.parent} cannot be written ({error}); set XDG_CACHE_HOME") from error


def read_digest(path: Path) -> str | None:
    """None where there is none, or something else in its place."""
    content = path.read_bytes().decode(errors="replace").strip() if path.is_file() else ""
    return content if re.fullmatch("[0-9a-f]{64}", content) else None


def _move(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:  # another process was first, or part of an entry was removed
        if not (folder / MARK).exists():
            shutil.rmtree(folder)
            scratch.rename(folder)


def _sweep(cache: Path) -> None:
    for left in cache.glob(".building-*"):
        try:
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # another process removed it
            continue

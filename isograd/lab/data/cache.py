"""Entries of a cache: written whole or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path

from isograd.errors import DataError
from isograd.files import new_folder

MARK = "facts.json"  # the entry that has it is whole


def write_entry(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name and move it into place, so that a kill leaves nothing half-done.

    Two processes may do so at once: the first one's entry stays.
    """
    try:
        if folder.is_dir() and not (folder / MARK).exists():  # part of an entry was removed
            shutil.rmtree(folder)
        with new_folder(folder) as scratch:
            fill(scratch)
    except OSError as error:
        if not (folder / MARK).exists():
            raise DataError(f"the cache {folder.parent} cannot be written ({error}); set XDG_CACHE_HOME") from error
